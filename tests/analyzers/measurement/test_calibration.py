"""A gain that was put in is found and taken out; what is no meter's record is refused."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.query import read_file
from analyzers.measurement.calibration import Record, compared, fit, read_meter
from analyzers.measurement.energy import KnownEnergy, NoEnergy, calibrated, measure
from analyzers.measurement.sensors import EXACT, PRIOR, Gain, prior, sensor
from analyzers.measurement.timeline import Timeline
from analyzers.state_files.calibrations import calibrate, load, store
from tests.analyzers.archives import BOOTED_NS, POWER_W, SECOND, A, B, fill
from tests.analyzers.readings import S, energy, readings, row
from tests.empty_archive import archive_at
from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.protocol.readings import Seen
from zeus_stream.settings import Settings

AT = "2026-01-01T00:00:00+00:00"
SETTINGS = Settings(memory_mb=256)


@given(
    gain=st.floats(0.8, 1.25),
    offset_w=st.sampled_from([-8.0, 0.0, 8.0]),
    noise_w=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_gain_is_found_within_its_error_and_an_offset_only_where_there_is_one(
    gain: float, offset_w: float, noise_w: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    true_w = rng.uniform(60, 350, 200)
    found = fit(gain * true_w + offset_w + rng.normal(0, noise_w, 200), true_w, "meter.csv", AT)
    assert abs(found.gain - gain) <= 3 * found.gain_error, "six standard errors"
    if offset_w:
        assert abs(found.offset_w - offset_w) < noise_w
    assert found.gain_error < noise_w / 100


def test_of_many_meters_of_a_card_without_offset_hardly_any_finds_one() -> None:
    rng = np.random.default_rng(4)
    true_w = rng.uniform(60, 350, 100)
    fits = [fit(0.95 * true_w + rng.normal(0, 1, 100), true_w, "m", AT) for _ in range(300)]
    assert sum(found.offset_w != 0 for found in fits) <= 10, "1 % of them"
    inside = sum(abs(found.gain - 0.95) <= found.gain_error for found in fits)
    assert 270 <= inside <= 297, "95 % of them"


def test_power_that_never_moved_gives_a_gain_and_no_offset() -> None:
    found = fit(np.full(20, 190.0), np.full(20, 200.0), "meter.csv", AT)
    assert found.gain == pytest.approx(0.95)
    assert found.offset_w == 0


@pytest.mark.parametrize("count", [2, 3, 5, 9])
def test_a_short_record_gives_a_gain_whose_interval_is_as_wide_as_it_must_be(count: int) -> None:
    """With offsets and gains as they are taken to be, and windows that scatter by 1 W."""
    rng = np.random.default_rng(count)
    widths, held = [], []
    for _ in range(400):
        gain, offset_w = rng.normal(0.985, 0.065 / 1.96), rng.normal(0, 3.0)
        true_w = rng.uniform(60, 350, count)
        found = fit(gain * true_w + offset_w + rng.normal(0, 1, count), true_w, "m", AT)
        assert found.offset_w == 0
        widths.append(found.gain_error)
        held.append(abs(found.gain - gain) <= found.gain_error)
    assert np.mean(held) >= 0.93
    assert 0.005 < np.median(widths) < 0.065, "narrower than what is published, wider than a long record's"


@pytest.mark.parametrize(
    ("gpu", "driver", "known"),
    [
        pytest.param("GPU-0", "570.86.15", PRIOR, id="NVIDIA"),
        pytest.param("GPU-0", "simulated", EXACT, id="simulated"),
        pytest.param("GPU-0", "simulated, boxcar", EXACT, id="simulated boxcar"),
        pytest.param("CPU-h-package-0", "powercap", None, id="RAPL"),
        pytest.param("GPU-0", "amdgpu", None, id="AMD"),
    ],
)
def test_what_is_published_of_a_gain_is_of_nvidia_s_sensors(
    gpu: str, driver: str, known: Gain | None
) -> None:
    assert prior(gpu, driver) == known


@pytest.mark.parametrize(
    ("shown_w", "true_w", "says"),
    [
        pytest.param(np.full(1, 95.0), np.full(1, 100.0), "1 whole windows in common", id="too short"),
        pytest.param(np.full(3, 95.0), np.full(3, 900.0), "could not be the meter", id="another one, short"),
        pytest.param(np.full(20, 95.0), np.full(20, 900.0), "could not be the meter", id="another machine"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    shown_w: np.ndarray[tuple[int], np.dtype[np.float64]],
    true_w: np.ndarray[tuple[int], np.dtype[np.float64]],
    says: str,
) -> None:
    with pytest.raises(RefusedError, match=says):
        fit(shown_w, true_w, "meter.csv", AT)


@pytest.mark.parametrize(
    "text",
    [
        "t_us,power_mw\n1700000000000000,100000\n1700000000500000,200000\n",
        "t_s,power_w\n1700000000,100\n1700000000.5,200\n",
        "sample, power_mW, T_ms\n1, 100000, 1700000000000\n2, 200000, 1700000000500\n",
    ],
)
def test_a_record_is_read_in_the_units_its_columns_name(text: str) -> None:
    meter = read_meter(text, "meter.csv")
    assert np.abs(meter.t_ns - [1_700_000_000 * S, 1_700_000_000 * S + S // 2]).max() < 1000
    assert meter.power_w.tolist() == [100, 200]
    assert meter.energy_j(meter.t_ns[:1], meter.t_ns[1:]) == pytest.approx(75)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "its columns are none"),
        ("time,watts\n1,2\n", "its columns are time, watts"),
        ("t_s,power_w\n1700000000,100\nx,y\n", "line 3 is 'x,y'"),
        ("t_s,power_w\n1700000000,100\n1700000000,100\n", "in line 3 time does not rise"),
        ("t_s,power_w\n5,100\n6,100\n", "no power at a time since 1970"),
        ("t_s,power_w\n1700000000,nan\n1700000001,1\n", "no power at a time since 1970"),
        ("t_s,power_w\n1700000000,100\n", "fewer than two samples"),
    ],
)
def test_what_is_no_record_is_refused_with_its_line(text: str, says: str) -> None:
    with pytest.raises(RefusedError, match=says):
        read_meter(text, "meter.csv")


def steady(power_mw: int, shown_mw: int, seconds: int = 40) -> Timeline:
    """A counter that counts one power while the readings of power beside it show another."""
    made = Timeline()
    made.add(
        readings(
            *(
                row(
                    Seen.CHANGED if t else Seen.FIRST, t * S, t * S, energy_mj=power_mw * t, power_mw=shown_mw
                )
                for t in range(seconds)
            )
        )
    )
    return made


@given(gain=st.floats(0.7, 1.4), offset_w=st.floats(-20, 20))
def test_what_the_sensor_added_is_taken_out_of_the_energy_and_its_bounds(
    gain: float, offset_w: float
) -> None:
    true_w = 200
    shown_mw = round((gain * true_w + offset_w) * 1000)
    line = steady(shown_mw, shown_mw)
    line.gain = Gain(gain, 0.001, offset_w, "meter.csv", AT)
    [found] = calibrated(line, measure(line, [3 * S], [33 * S]), [3 * S], [33 * S])
    assert isinstance(found, KnownEnergy)
    assert found.energy_uj / 1e6 == pytest.approx(true_w * 30, rel=1e-5)
    assert found.low_uj is not None
    assert found.high_uj is not None
    assert found.low_uj <= found.p2_5_uj <= found.energy_uj <= found.p97_5_uj <= found.high_uj
    assert found.quality == line.gain.words


def test_without_a_gain_or_a_doubt_nothing_is_touched() -> None:
    line = steady(200_000, 200_000)
    found = [energy(line, 3 * S, 33 * S), NoEnergy("no reading")]
    assert calibrated(line, found, [3 * S, 0], [33 * S, 1]) == found


@pytest.mark.parametrize(("shown_mw", "word"), [(160_000, "1.25"), (250_000, "0.80"), (205_000, None)])
def test_a_counter_that_disagrees_with_the_power_beside_it_is_doubted(
    shown_mw: int, word: str | None
) -> None:
    line = steady(200_000, shown_mw)
    [found] = calibrated(line, measure(line, [3 * S], [33 * S]), [3 * S], [33 * S])
    assert isinstance(found, KnownEnergy)
    expected = "ok" if word is None else f"the counter shows {word} of the power beside it"
    assert found.quality == expected
    assert found.energy_uj == 200 * 30 * 1_000_000, "it is named, not corrected"


def test_less_than_the_time_of_a_check_gives_no_ratio_and_neither_does_a_reset() -> None:
    line = steady(200_000, 100_000, seconds=20)
    assert line.counter_to_power is None
    line = steady(200_000, 100_000)
    assert line.counter_to_power == pytest.approx(2)
    line.add(readings(row(Seen.RESET, 41 * S, 41 * S, energy_mj=0, power_mw=100_000)))
    assert line.counter_to_power is None


def test_power_beside_time_that_nobody_saw_says_nothing_of_the_counter() -> None:
    line = steady(400_000, 400_000)
    # No collector ran for 9 s in which the GPU worked; its next reading is of a pause between two steps.
    line.add(readings(row(Seen.CHANGED, 49 * S, 49 * S, energy_mj=49 * 400_000, power_mw=100_000)))
    assert line.counter_to_power == pytest.approx(1, rel=1e-3)


def a_meter(gpu: str, gain: float, pause: range = range(0)) -> Record:
    """What a meter of 10 Hz says of a GPU of the archive whose sensor has this gain."""
    ticks = [tick for tick in range(100, 1150) if tick // 10 not in pause]
    power_w = np.array([POWER_W[gpu] if tick <= 600 else 50 for tick in ticks])
    return Record(np.array(ticks, np.int64) * SECOND // 10 + BOOTED_NS, power_w / gain, "t_us, power_mw")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "energy.duckdb"
    filled = DuckdbFile.open(archive_at(path), SETTINGS)
    fill(filled)
    filled.close()
    return path


@pytest.mark.parametrize("pause", [range(0), range(30, 40)], ids=["whole", "with a pause"])
def test_a_gain_is_fitted_against_the_readings_of_the_archive(archive: Path, pause: range) -> None:
    gpu, found, windows = calibrate(
        lambda query: read_file(archive, query, SETTINGS), a_meter(A, 0.95, pause), "meter.csv", A
    )
    assert gpu == A
    assert found.gain == pytest.approx(0.95, abs=0.002)
    assert windows >= 90


def test_of_several_gpus_one_has_to_be_named(archive: Path) -> None:
    with pytest.raises(RefusedError, match=f"are of {A}, {B}"):
        calibrate(lambda query: read_file(archive, query, SETTINGS), a_meter(A, 1), "meter.csv", None)


def test_of_a_time_without_readings_nothing_is_said(archive: Path) -> None:
    then = a_meter(A, 1)
    then = replace(then, t_ns=then.t_ns + 1000 * SECOND)
    with pytest.raises(RefusedError, match="are of none"):
        calibrate(lambda query: read_file(archive, query, SETTINGS), then, "meter.csv", None)


def test_calibrations_are_kept_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state" / "gains.json"
    assert load(path) == {}
    gains = {A: Gain(0.95, 0.001, 0.0, "meter.csv", AT), B: Gain(1.02, 0.002, -3.0, "meter.csv", AT)}
    store(path, gains)
    assert load(path) == gains
    path.write_text('{"GPU": {"gain": 1}}')
    with pytest.raises(StorageError, match=r"gains\.json: the calibrations could not be read"):
        load(path)


RECORDED = Path(__file__).parents[2] / "data/rtx3090_step"


def test_the_gain_of_a_recorded_card_is_found_from_its_readings_of_power() -> None:
    shown = np.loadtxt(RECORDED / "sensor.csv", np.int64, delimiter=",", skiprows=1)
    line = Timeline()
    line.sensor = sensor("NVIDIA GeForce RTX 3090")
    line.add(
        readings(
            *(row(Seen.POWER, t_us * 1000, t_us * 1000, power_mw=mw) for t_us, mw in shown[:, :2].tolist())
        )
    )
    meter = read_meter((RECORDED / "meter.csv").read_text(), "meter.csv")
    found = fit(*compared(line, meter), "meter.csv", AT)
    assert found.gain == pytest.approx(0.949, abs=0.004)
