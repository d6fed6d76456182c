"""The latest readings: what is added up, what is silent, and what a snapshot leaves out."""

import struct
from random import Random

import pytest
from msgspec.structs import replace

from tests.messages import DEVICE_FOUND
from tests.zeus_stream.screens.live_snapshots import PROCESS
from zeus_stream.live.answer import LiveAnswers, encoded
from zeus_stream.live.latest import MINUTE_NS, Latest
from zeus_stream.protocol import codec
from zeus_stream.protocol.notes import DeviceFound, DeviceGone, GpuInUse, GpuShared, Lost
from zeus_stream.protocol.readings import READING_STRUCT, Readings, Seen
from zeus_stream.protocol.snapshots import (
    MAX_GPU_ROWS,
    MAX_RUN_ROWS,
    AskNow,
    GpuNow,
    HostNow,
    RunNow,
    Snapshot,
)
from zeus_stream.views.site_view import site_of_live

S = 1_000_000_000
HERE = HostNow(host="h", state="connected", trouble="")


def row(t_ns: int, energy_mj: int = -1, power_mw: int = -1, gpu: int = 0, seen: Seen = Seen.CHANGED) -> bytes:
    return struct.pack(
        READING_STRUCT, t_ns, t_ns, energy_mj, power_mw, 250_000, 250_000, -1, 55, 98, gpu, seen
    )


def heard(
    latest: Latest, *rows: bytes, gpus: tuple[str, ...] = ("GPU-0",), host: str = "h", at: int = S
) -> None:
    latest.take_readings(host, at, Readings(gpus, b"".join(rows)), at)


def shown(
    latest: Latest, now_ns: int = S, host: str | None = None, runs: tuple[RunNow, ...] = ()
) -> Snapshot:
    return latest.snapshot(
        Snapshot(process="collector", version="1", wall_ns=0, hosts=(HERE,)), runs, now_ns, host=host
    )


def found(gpu: str, index: int) -> DeviceFound:
    return replace(DEVICE_FOUND, t_ns=0, gpu=gpu, index=index, found_limit_mw=240_000)


def a_run(name: str = "r", **more: object) -> RunNow:
    plain: dict[str, object] = dict.fromkeys(
        (
            "began_wall_ns",
            "ended_wall_ns",
            "epoch",
            "step",
            "step_j",
            "step_ms",
            "watts",
            "energy_j",
            "search",
        )
    )
    known = {"run": name, "job": "j", "ranks": 1, "hosts": ("h",), "gpus": ("GPU-0",)}
    return RunNow(**(plain | known | more))  # type: ignore[arg-type]


def the_gpu(snapshot: Snapshot) -> GpuNow:
    (gpu,) = snapshot.gpus
    return gpu


def test_energy_is_added_up_over_resets_of_the_counter() -> None:
    latest = Latest()
    heard(latest, row(1, 1_000), row(2, 1_500), row(3, 20, seen=Seen.RESET), row(4, 120))
    assert the_gpu(shown(latest)).energy_mj == 600


@pytest.mark.parametrize("seed", range(8))
def test_a_frame_of_many_readings_shows_what_they_show_one_by_one(seed: int) -> None:
    rng, counters, rows = Random(seed), [0, 500, 9_000], list[bytes]()
    for place in range(rng.randrange(40)):
        gpu, seen = rng.randrange(3), Seen.CHANGED
        counters[gpu] += rng.randrange(100)
        if seed % 4 == 0 and rng.random() < 0.1:
            counters[gpu], seen = 0, Seen.RESET
        rows.append(row(S + place, counters[gpu], rng.randrange(300_000), gpu, seen))
    whole, single, gpus = Latest(), Latest(), ("GPU-0", "GPU-1", "GPU-2")
    heard(whole, *rows, gpus=gpus)
    for each in rows:
        heard(single, each, gpus=gpus)
    for latest in (whole, single):
        heard(latest, gpus=gpus)
    assert shown(whole) == shown(single)
    assert [each.pause_ns for each in whole.devices.values()] == [
        each.pause_ns for each in single.devices.values()
    ]


def test_what_a_device_does_not_say_is_none_and_never_0() -> None:
    latest = Latest()
    heard(latest, row(1, seen=Seen.POWER))
    gpu = the_gpu(shown(latest))
    assert (gpu.energy_mj, gpu.power_mw, gpu.clock_mhz, gpu.model, gpu.index) == (None,) * 5
    assert shown(latest).totals.power_mw is None
    assert shown(Latest()).totals.hour_mj is None


@pytest.mark.parametrize(
    ("seconds", "state"),
    [
        pytest.param(6, "there", id="beside others, it has gone to rest"),
        pytest.param(8, "silent", id="no reading for 8 s"),
    ],
)
def test_a_gpu_without_readings_is_silent_and_its_power_is_not_added(seconds: int, state: str) -> None:
    latest = Latest()
    heard(latest, row(S, 5, 100_000))
    now = shown(latest, S + seconds * S)
    assert (the_gpu(now).state, the_gpu(now).age_ms) == (state, 1000 * seconds)
    assert now.totals.power_mw == (100_000 if state == "there" else None)


def test_a_lost_gpu_says_why_and_is_there_again_with_its_next_reading() -> None:
    latest = Latest()
    latest.take_note("h", found("GPU-0", 3))
    latest.take_note("h", DeviceGone(1, "GPU-0", "fell off the bus"))
    gpu = the_gpu(shown(latest))
    assert (gpu.state, gpu.why, gpu.index, gpu.model, gpu.found_mw) == (
        "gone",
        "fell off the bus",
        3,
        "V100",
        240_000,
    )
    heard(latest, row(1, 5))
    assert the_gpu(shown(latest)).state == "there"


def test_a_gpu_at_rest_is_there_as_long_as_its_collector_says_so() -> None:
    latest = Latest()
    heard(latest, row(S, energy_mj=1))
    for second in range(2, 7):
        heard(latest, at=second * S)
    assert latest.devices["GPU-0"].state(7 * S) == "there"
    assert latest.devices["GPU-0"].age_ns(7 * S) == 6 * S, "of its reading"
    assert latest.devices["GPU-0"].state(14 * S) == "silent", "as soon as one read each refresh"


def test_readings_from_the_archive_have_no_age_and_are_silent() -> None:
    latest = Latest()
    latest.take_readings("h", 5, Readings(("GPU-0",), row(5, 10, 100_000)), None)
    gpu = the_gpu(shown(latest))
    assert (gpu.age_ms, gpu.state, gpu.power_mw) == (None, "silent", 100_000)
    assert shown(latest).totals.hour_mj is None


def test_gpus_without_a_counter_have_no_energy_of_the_last_hour() -> None:
    latest = Latest()
    heard(latest, row(2 * S, power_mw=300_000), at=2 * S)
    totals = shown(latest, 3 * S).totals
    assert (totals.gpus, totals.power_mw, totals.hour_mj) == (1, 300_000, None)


def test_what_a_counter_grew_by_while_no_service_ran_is_not_of_the_last_hour() -> None:
    latest = Latest()
    latest.take_readings("h", 5, Readings(("GPU-0",), row(5, 10)), None)
    latest.restart()
    heard(latest, row(2 * S, 37_000), at=2 * S)
    heard(latest, row(3 * S, 37_200), at=3 * S)
    assert shown(latest, 3 * S).totals.hour_mj == 200
    assert the_gpu(shown(latest)).energy_mj == 37_190, "since it was first seen"


def test_another_host_cannot_speak_for_a_gpu_until_its_own_is_long_silent() -> None:
    latest = Latest()
    heard(latest, row(S, 5, 100_000))
    heard(latest, row(S, 9_999, 1), host="other")
    assert (the_gpu(shown(latest)).host, the_gpu(shown(latest)).power_mw) == ("h", 100_000)
    heard(latest, row(100 * S, 9_999, 1), host="other", at=100 * S)
    assert the_gpu(shown(latest)).host == "other"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(Readings(("GPU-0",), b"odd"), id="half a row"),
        pytest.param(Readings(("GPU-0",), row(1, 5, gpu=7)), id="a GPU that is not in the list"),
        pytest.param(Readings(("GPU-0",), row(1, 2**62, 2**31 - 1)), id="figures that cannot be"),
    ],
)
def test_rows_that_cannot_be_give_a_snapshot_that_can_be_read(body: Readings) -> None:
    latest = Latest()
    latest.take_readings("h", S, body, S)
    now = shown(latest)
    assert codec.decode(encoded(now), Snapshot) == now
    assert all(gpu.energy_mj is None and gpu.power_mw is None for gpu in now.gpus)


def test_what_a_log_hands_on_late_is_of_when_it_was_measured() -> None:
    latest, minutes = Latest(), 90
    for minute in range(minutes + 1):  # all within a second, as an analyzer that starts catches up
        latest.take_readings(
            "h", minute * MINUTE_NS, Readings(("GPU-0",), row(minute * MINUTE_NS, 100 * minute)), S
        )
    now = shown(latest, S).totals
    assert (now.hour_mj, now.hour_s) == (100 * 60, 59 * 60)


def test_a_gpu_that_others_compute_on_says_so_until_they_are_gone() -> None:
    """Their energy is in that of its runs."""
    latest = Latest()
    latest.take_note("h", found("GPU-0", 3))
    heard(latest, row(1, 0))
    troubles = []
    for processes in (2, 1, 0):
        latest.take_note("h", GpuShared(S, "GPU-0", 0, processes))
        troubles.append(site_of_live(shown(latest)).troubles)
    assert [len(each) for each in troubles] == [1, 1, 0]
    assert "h:3: 2 processes of no run compute on it" in troubles[0][0]


def test_the_use_of_a_gpu_is_shown_until_its_collector_starts_again() -> None:
    latest = Latest()
    use = GpuInUse(
        t_ns=1, gpu="GPU-0", memory_bytes=5, memory_total_bytes=9, processes=(PROCESS,), left_out=2
    )
    for note in (found("GPU-0", 0), use):
        latest.take_note("h", note)
    heard(latest, row(1, 0))
    [gpu] = shown(latest).gpus
    assert (gpu.memory_bytes, gpu.memory_total_bytes, gpu.processes_left_out) == (5, 9, 2)
    assert gpu.use_age_ms == 999, "since it was noted, by the clock of its host"
    assert gpu.processes == (PROCESS,)
    latest.take_note("h", found("GPU-0", 0))
    [gpu] = shown(latest).gpus
    assert (gpu.memory_bytes, gpu.memory_total_bytes, gpu.processes) == (None, None, None)


def test_a_part_of_the_host_is_no_gpu() -> None:
    latest = Latest()
    heard(latest, row(1, 0, 50_000), row(2, 100, 50_000), gpus=("CPU-0",))
    now = shown(latest)
    assert (now.gpus, now.totals.gpus, now.totals.power_mw, now.totals.hour_mj) == ((), 0, None, 0)
    assert [(part.part, part.energy_mj, part.power_mw) for part in now.parts] == [("CPU-0", 100, 50_000)]


def test_gpus_are_in_order_of_host_and_index_and_a_host_can_be_asked_for() -> None:
    latest = Latest()
    for host, gpu, index in (("b", "GPU-x", 1), ("b", "GPU-y", 0), ("a", "GPU-z", 0)):
        latest.take_note(host, found(gpu, index))
    assert [gpu.gpu for gpu in shown(latest).gpus] == ["GPU-z", "GPU-y", "GPU-x"]
    of_b = shown(latest, host="b", runs=(a_run(), a_run("s", hosts=("b",))))
    assert [gpu.gpu for gpu in of_b.gpus] == ["GPU-y", "GPU-x"]
    assert [run.run for run in of_b.runs] == ["s"]
    assert (of_b.totals.gpus, of_b.totals.runs) == (3, 2)


def test_the_run_that_began_last_is_named_on_its_gpu_and_has_its_watts() -> None:
    latest = Latest()
    heard(latest, row(S, 5, 100_000))
    now = shown(latest, runs=(a_run("old"), a_run("new"), a_run("ended", ended_wall_ns=1)))
    assert the_gpu(now).run == "new"
    assert [run.watts for run in now.runs] == [100.0, 100.0, None]
    assert [run.watts for run in shown(latest, 10 * S, runs=(a_run(),)).runs] == [None]


def test_gaps_are_counted_by_host_and_kind_with_the_latest_reason() -> None:
    latest = Latest()
    latest.take_note("h", Lost(1, "readings", 2, "old"))
    latest.take_note("h", Lost(1, "readings", 3, "new"))
    (gap,) = shown(latest).gaps
    assert (gap.what, gap.count, gap.reason, shown(latest).totals.gaps) == ("readings", 5, "new", 5)


def test_a_large_site_is_cut_to_its_bounds_while_totals_are_of_all() -> None:
    latest = Latest()
    for number in range(MAX_GPU_ROWS + 5):
        latest.take_note("h", found(f"GPU-{number:05}", number))
    runs = tuple(a_run(str(number)) for number in range(MAX_RUN_ROWS + 3))
    now = shown(latest, runs=runs)
    assert (len(now.gpus), now.gpus_left_out, now.totals.gpus) == (MAX_GPU_ROWS, 5, MAX_GPU_ROWS + 5)
    assert (len(now.runs), now.runs_left_out, now.totals.runs) == (MAX_RUN_ROWS, 3, MAX_RUN_ROWS + 3)


def test_a_snapshot_of_the_longest_names_fits_into_a_message() -> None:
    latest = Latest()
    for number in range(MAX_GPU_ROWS):
        latest.take_note("h" * 200, found("\N{GRINNING FACE}" * 70 + f"{number:05}", number))
    runs = tuple(a_run("\N{GRINNING FACE}" * 200, gpus=("G" * 80,) * 256) for _ in range(MAX_RUN_ROWS))
    data = encoded(shown(latest, runs=runs))
    now = codec.decode(data, Snapshot)
    assert now.totals.gpus == MAX_GPU_ROWS
    assert len(now.gpus) + now.gpus_left_out == MAX_GPU_ROWS
    assert len(now.runs) + now.runs_left_out == MAX_RUN_ROWS
    assert now.gpus


def test_many_who_ask_at_once_get_one_answer_that_was_made_once() -> None:
    made: list[str | None] = []

    def snapshot(host: str | None) -> Snapshot:
        made.append(host)
        return shown(Latest(), host=host)

    answers = LiveAnswers(snapshot)
    for _ in range(20):
        answers.answer(AskNow(), S)
    answers.answer(AskNow("h"), S)
    answers.answer(AskNow(), 2 * S)
    assert made == [None, "h", None]
