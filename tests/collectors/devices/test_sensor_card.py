"""Sensor cards of simulated and of recorded GPUs, and simulated GPUs of cards."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks import cards
from benchmarks.cards import Time
from collectors.controls.restore import Restorer
from collectors.device import PowerSample, Sample
from collectors.devices.cards.known_cards import keep_card, known_card, shipped_cards
from collectors.devices.cards.sensor_card import (
    SCHEMA,
    ControlSets,
    SensorCard,
    make_card,
    read_card,
    read_closely,
)
from collectors.devices.nvml_bus import NvmlBus
from collectors.devices.recorded import RecordedBus
from collectors.devices.simulated import SimulatedBus
from collectors.devices.simulated_spec import Spec, parse
from collectors.devices.virtual_gpu import Kind
from tests.collectors.devices.arithmetic import ArithmeticDevice
from tests.collectors.devices.test_recorded import MS, STEP, simulated
from tests.gpu.square_loads import drawn_mj, show_square
from tests.gpu.stand_in import StandIn
from tests.gpu.test_gpu_page import marks_of, reads_of
from tests.messages import DESCRIPTION
from tests.simulation.scheduled_loads import ScheduledLoads
from zeus_stream.cli.sensor_doctor import SensorTrials, sensor_card
from zeus_stream.errors import RefusedError, SettingsError
from zeus_stream.paths import Places
from zeus_stream.protocol.fields import UNLOCKED
from zeus_stream.simulated_gpu.shared_memory import LimitChange, Load

W, S = 1000, 10**9


def card_of(text: str, seconds: int = 5) -> SensorCard:
    time = Time()
    (device,) = simulated(text, time).discover()
    reads = read_closely(device, time.now_ns + seconds * 1000 * MS, time.sleep, 0.001, time.now)
    return make_card(device.describe(), reads)


def test_the_card_of_a_simulated_gpu_has_its_period_its_quantum_and_no_failure() -> None:
    card = card_of("simulated:v100,phase_ms=7")
    assert card.counter is not None
    assert card.counter.period_ms == pytest.approx(20, rel=0.01)
    assert card.counter.jitter_ms < 1
    assert card.counter.quantum == 680
    assert (card.power, card.failed_reads, card.least_power_mw) == (None, 0, 34 * W)
    assert card.counter_to_power == pytest.approx(1, rel=0.01)
    assert (card.requested_mw, card.enforced_mw, card.limit_sets) == (250 * W, 250 * W, None)
    lines = card.lines()
    assert len(lines) == 12
    assert "every 20.0 ms" in lines[3]


def test_a_card_is_json_of_its_schema_and_makes_a_simulated_gpu_with_that_sensor(tmp_path: Path) -> None:
    card = card_of("simulated:a40,period_ms=50,jitter_ms=2")
    path = tmp_path / "card.json"
    path.write_bytes(msgspec.json.encode(card))
    assert read_card(path) == card
    assert set(json.loads(path.read_text())) == set(SCHEMA["$defs"]["SensorCard"]["properties"])
    (spec,) = parse(f"simulated:{path}")
    assert spec.key == "a40"
    assert spec.period_ms == pytest.approx(50, rel=0.02)
    assert 0 < spec.jitter_ms < 5
    again = card_of(f"simulated:{path}")
    assert again.counter is not None
    assert again.counter.period_ms == pytest.approx(50, rel=0.02)
    path.write_text("{}")
    with pytest.raises(SettingsError, match="is no sensor card"):
        parse(f"simulated:{path}")


def test_the_card_of_the_recorded_rtx_3090_has_no_counter_and_its_power_every_100_ms() -> None:
    time = Time()
    (device,) = RecordedBus(STEP, time.now).discover()
    card = make_card(
        device.describe(), read_closely(device, time.now_ns + 9000 * MS, time.sleep, 0.001, time.now)
    )
    assert card.counter is None
    assert card.power is not None
    assert card.power.period_ms == pytest.approx(100, rel=0.03)
    assert card.counter_to_power is None


def test_limits_that_are_tried_show_how_a_driver_rounds_and_are_given_back(
    stand_in: StandIn, nvml_bus: NvmlBus, tmp_path: Path
) -> None:
    gpu = stand_in.gpus[0]
    gpu.requested_mw, gpu.round_mw = 220 * W, 5 * W
    device = nvml_bus.discover()[0]
    found = SensorTrials(device, tmp_path).try_limits()
    assert found is not None
    assert found.asked == (219 * W, 217_500, 215 * W, 210 * W, 100 * W)
    assert found.follows_ms is None, "it draws 40 W"
    assert found.rounding in (2_500, 1_000)
    assert found.restored == gpu.requested_mw == 220 * W
    assert not list(tmp_path.glob("*.json")), "its restore record is cleared"
    gpu.fail("nvmlDeviceSetPowerManagementLimit", 4)
    refused = SensorTrials(device, tmp_path).try_limits()
    assert refused is not None
    assert (refused.asked, "CAP_SYS_ADMIN" in refused.reason) == ((), True)
    assert gpu.requested_mw == 220 * W


def test_a_limit_that_another_program_sets_between_two_of_a_doctor_stays(tmp_path: Path) -> None:
    class Shared(ArithmeticDevice):
        """A device of which another program sets the limit after the doctor's fourth."""

        def sample(self) -> Sample:
            if self.changes == [299 * W, 297_500, 295 * W, 290 * W]:
                self.requested_mw = 250 * W
            return super().sample()

    device = Shared(0)
    found = SensorTrials(device, tmp_path).try_limits()
    assert found is not None
    assert (found.asked[-1], found.restored, device.requested_mw) == (290 * W, 250 * W, 250 * W)


@pytest.mark.skipif(not cards.RECORDED.exists(), reason="The recordings of shared/data are not here.")
def test_the_cards_of_the_package_are_those_that_its_recording_and_its_models_give() -> None:
    shipped = shipped_cards()
    assert shipped["rtx3090"] == cards.recorded()
    assert shipped["h100-sxm"] == cards.h100()
    assert shipped["simulated-v100"] == cards.simulated("v100")
    assert {name.removeprefix("simulated-") for name in shipped} >= {"v100", "a40", "a100", "h100", "rtx3090"}


def test_a_card_of_the_package_makes_a_simulated_gpu_by_its_name() -> None:
    (spec,) = parse("simulated:rtx3090")
    assert (spec.model.name, spec.power_only) == ("NVIDIA GeForce RTX 3090", True)
    assert spec.period_ms == pytest.approx(100, rel=0.01)
    with pytest.raises(SettingsError, match="there is no model"):
        parse("simulated:rtx9999")


def test_the_card_of_a_gpu_is_its_own_of_the_same_driver_or_that_of_its_model(tmp_path: Path) -> None:
    card = card_of("simulated:v100,phase_ms=7")
    described = msgspec.structs.replace(DESCRIPTION, gpu="GPU-1", name=card.name, driver=card.driver)
    keep_card(tmp_path, "GPU-1", card)
    assert known_card(tmp_path, described) is None, "a simulated GPU is as it is described"
    real = msgspec.structs.replace(described, driver="550.54.15")
    keep_card(tmp_path, "GPU-1", msgspec.structs.replace(card, driver="550.54.15"))
    found = known_card(tmp_path, real)
    assert found is not None
    assert (found[0].counter, found[1]) == (card.counter, "its own")
    assert known_card(tmp_path, msgspec.structs.replace(real, driver="570.1")) is None
    (tmp_path / "GPU-1.json").write_text("{")
    assert known_card(tmp_path, real) is None, "those of simulated GPUs are of no real one"
    recorded = known_card(tmp_path, msgspec.structs.replace(real, name=cards.RTX_3090))
    assert recorded is not None
    assert recorded[1] == "of a recorded one"


def test_samples_of_power_fill_a_counter_only_where_both_see_all_of_the_time() -> None:
    card = shipped_cards()["h100-sxm"]
    times = card.sample_times
    assert times is not None
    assert times.period_ns == pytest.approx(20.6 * MS, rel=0.01)
    counter, samples = card.counter, card.power_samples
    assert counter is not None
    assert samples is not None
    change = msgspec.structs.replace
    for without in (
        change(card, power_samples=None),
        change(card, counter=None),
        change(card, counter=change(counter, window_ms=25.0)),
        change(card, counter=change(counter, window_ms=None, lag_ms=None)),
        change(card, power_samples=change(samples, window_ms=0.5 * samples.period_ms)),
        change(card, power_samples=change(samples, period_ms=50.0, window_ms=50.0)),
    ):
        assert without.sample_times is None


def test_a_card_has_the_samples_of_power_that_the_driver_keeps() -> None:
    marks_ns = marks_of(370)
    at_ns = marks_ns[0][0] + np.arange(400) * 20 * MS
    mean_mw = np.diff(drawn_mj(marks_ns, at_ns)) * 50
    kept = [PowerSample(*each) for each in zip(at_ns[1:].tolist(), mean_mw.astype(int).tolist(), strict=True)]
    card = make_card(DESCRIPTION, reads_of(100, 99, marks_ns), marks_ns=marks_ns, power_samples=kept)
    assert "sees all of the time: 20 ms ending 0 ms before" in card.lines()[10]
    assert card.sample_times is not None


def test_a_card_of_a_sensor_that_sees_a_part_makes_a_simulated_gpu_that_does(tmp_path: Path) -> None:
    marks_ns = marks_of(370)
    card = make_card(DESCRIPTION, reads_of(100, 25, marks_ns), marks_ns=marks_ns)
    assert "sees 25% of the time" in card.lines()[3]
    path = keep_card(tmp_path, "GPU-1", card)
    (spec,) = parse(f"simulated:{path}")
    assert spec.kind is Kind.BOXCAR
    assert spec.window_ms == pytest.approx(25, rel=0.06)


def test_clocks_that_are_locked_show_how_a_gpu_rounds_and_follows_and_are_unlocked(
    stand_in: StandIn, nvml_bus: NvmlBus, tmp_path: Path
) -> None:
    gpu = stand_in.gpus[0]
    gpu.set_clocks(*range(1380, 1380 - 32 * 7, -7))
    gpu.round_mhz, gpu.follows_ns = 15, 60 * MS
    trials = SensorTrials(nvml_bus.discover()[0], tmp_path)
    found = trials.try_clocks()
    assert found is not None
    assert found.asked == (1373, 1366, 1352, 1324, 1268)
    assert found.taken == (1365, 1365, 1350, 1320, 1260)
    assert (found.rounding, found.restored, gpu.locked_mhz) == (8, 1380, UNLOCKED)
    assert found.follows_ms == pytest.approx(60, abs=40)
    assert not list(tmp_path.glob("*.json")), "its restore record is cleared"
    assert "rounded by 8 MHz at most" in make_card_of(found).lines()[9]
    gpu.heeds_locks = 0
    deaf = trials.try_clocks()
    assert deaf is not None
    assert (deaf.asked, gpu.locked_mhz) == ((), UNLOCKED)
    assert deaf.reason == "the driver locked 1373 MHz, and the GPU still ran at more 3 s later"
    gpu.fail("nvmlDeviceSetGpuLockedClocks", 4)
    refused = trials.try_clocks()
    assert refused is not None
    assert "CAP_SYS_ADMIN" in refused.reason


def make_card_of(sets: ControlSets) -> SensorCard:
    return make_card(DESCRIPTION, reads_of(20, 20, marks_of(370)), clock_sets=sets)


def test_a_busy_gpu_follows_a_limit_by_a_lower_clock_and_what_it_keeps_to_is_on_the_card(
    tmp_path: Path,
) -> None:
    time = Time()

    def surroundings(_gpu: str, spec: Spec) -> ScheduledLoads:
        loads = ScheduledLoads(first=LimitChange(time.now_ns - S, spec.model.default_limit_mw))
        loads.pending.append(Load(time.now_ns, time.now_ns + 200 * S, next(iter(spec.model.workloads))))
        return loads

    (device,) = SimulatedBus(
        parse("simulated:v100,noise=0.02"), surroundings, time.now, time.sleep, "host"
    ).discover()
    time.sleep(1)
    free_mhz = device.sample().clock_mhz
    trials = SensorTrials(device, tmp_path, time.now, time.sleep)
    limits = trials.try_limits()
    assert limits is not None
    assert limits.follows_ms is not None
    assert limits.held is not None
    assert limits.throttled_mhz is not None
    assert free_mhz is not None
    assert 0 < limits.follows_ms <= 40
    assert 0.85 < limits.held < 1.05
    assert limits.throttled_mhz < free_mhz
    clocks = trials.try_clocks()
    assert clocks is not None
    assert (clocks.taken, clocks.restored) == (clocks.asked, free_mhz)
    assert len(clocks.asked) >= 4
    card = make_card(device.describe(), reads_of(20, 20, marks_of(370)), limit_sets=limits, clock_sets=clocks)
    assert f"throttled to {limits.throttled_mhz} MHz" in card.lines()[8]


@pytest.mark.parametrize(
    ("tried", "in_force"), [("try_limits", (249 * W, UNLOCKED)), ("try_clocks", (250 * W, 1372))]
)
def test_what_a_killed_doctor_has_set_is_restored_by_its_record(
    stand_in: StandIn, nvml_bus: NvmlBus, tmp_path: Path, tried: str, in_force: tuple[int, int]
) -> None:
    gpu, records = stand_in.gpus[0], tmp_path / "records"
    code = (
        "import os, pathlib, signal\n"
        "from collectors.devices.nvml_bus import NvmlBus\n"
        "from zeus_stream.cli.sensor_doctor import SensorTrials\n"
        "device = NvmlBus().discover()[0]\n"
        "device.describe()\n"
        f"trials = SensorTrials(device, pathlib.Path({str(records)!r}))\n"
        "trials._follow_power = trials._follow_clock = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"trials.{tried}()\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (gpu.requested_mw, gpu.locked_mhz) == in_force
    with pytest.raises(RefusedError, match="a killed collector or doctor left one"):
        getattr(SensorTrials(nvml_bus.discover()[0], records), tried)()
    (outcome,) = Restorer(nvml_bus, records, by="test").restore()
    assert not outcome.left
    assert (gpu.requested_mw, gpu.locked_mhz) == (250 * W, UNLOCKED)


def test_doctor_measures_under_a_square_load_and_keeps_the_card(
    stand_in: StandIn, nvml_bus: NvmlBus, tmp_path: Path
) -> None:
    gpu = stand_in.gpus[0].uuid.decode()
    marks_ns = show_square(stand_in.path, 370, 12)
    printed = "".join(f"{begin_ns}\n{end_ns}\n" for begin_ns, end_ns in marks_ns)
    where = Places(tmp_path, tmp_path)
    load = [sys.executable, "-c", f"print({printed!r}, end='')"]
    card, path = sensor_card(nvml_bus, "0", 6, where, sets=True, load=lambda *_: load)
    assert read_card(path) == card
    assert path == where.cards / f"{gpu}.json"
    assert card.counter is not None
    assert card.counter.window_ms == pytest.approx(100, abs=10)
    assert "sees all of the time" in card.lines()[3]
    assert card.limit_sets is not None
    assert card.clock_sets is not None
    assert card.clock_sets.asked == (1372, 135)
