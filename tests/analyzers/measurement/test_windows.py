import pytest

from analyzers.measurement.energy import Meter
from analyzers.measurement.timeline import Timeline
from analyzers.measurement.windows import MAX_OPEN, MAX_WAITING, Owner, Windows
from analyzers.results.rows import WindowRow, each_row
from tests.analyzers.readings import MS, S, readings, row, steady
from zeus_stream.protocol.events import StepBoundary
from zeus_stream.protocol.readings import Seen

OWNER = Owner("session", "run", "job", 0, "host")


def windows() -> Windows:
    return Windows(OWNER, 5 * S)


def line(changes: int = 10) -> Meter:
    made = Timeline()
    made.add(steady(200, changes))
    return Meter(made)


def measured(
    open_windows: Windows, meters: dict[str, Meter] | None, now_ns: int = 1 * S, *, shared: bool = False
) -> list[WindowRow]:
    rows = each_row(open_windows.measured(meters, now_ns, lambda *_: shared))
    return [row for row in rows if isinstance(row, WindowRow)]


def step(some: Windows, index: int, begin_ns: int, end_ns: int, received_ns: int) -> None:
    """Begin and end a step."""
    boundaries = StepBoundary(index, None, begin_ns), StepBoundary(index + 1, end_ns, None)
    some.pass_steps(boundaries, (received_ns, received_ns))


def test_a_window_waits_for_a_change_after_its_end_on_every_gpu() -> None:
    some, lines = windows(), {"GPU-a": line(10), "GPU-b": line(4)}
    some.begin("window", 3, "validation", 100 * MS)
    assert measured(some, lines) == []
    some.end("window", 3, 350 * MS, 1 * S)
    assert measured(some, lines) == []
    lines["GPU-b"].timeline.add(readings(row(Seen.CHANGED, 350 * MS, 400 * MS, energy_mj=80_000)))
    one, other = measured(some, lines)
    assert (one.gpu, one.energy_j, one.quality, one.name, one.index) == ("GPU-a", 50.0, "ok", "validation", 3)
    assert (other.gpu, one.duration_s, one.estimator) == ("GPU-b", 0.25, "counter")
    assert other.energy_low_j is not None
    assert other.energy_high_j is not None
    assert other.energy_low_j <= 50.0 <= other.energy_high_j
    assert measured(some, lines) == []
    assert some.empty


def test_after_the_timeout_it_is_missing_and_says_why() -> None:
    some, lines = windows(), {"GPU-a": line(), "GPU-b": line(4)}
    some.begin("window", 0, "w", 100 * MS)
    some.end("window", 0, 350 * MS, 1 * S)
    assert measured(some, lines, 6 * S - 1) == []
    one, other = measured(some, lines, 6 * S)
    assert one.energy_j == 50.0
    assert (other.energy_j, other.energy_low_j, other.estimator) == (None, None, None)
    assert other.quality == "no reading from after its end"


@pytest.mark.parametrize(
    ("meters", "quality"),
    [(None, "the collector has not named its GPUs"), ({}, "the session has no GPU")],
)
def test_a_session_without_gpus_has_one_row_without_energy(
    meters: dict[str, Meter] | None, quality: str
) -> None:
    some = windows()
    step(some, 0, 100 * MS, 200 * MS, 1 * S)
    (only,) = measured(some, meters, 6 * S)
    assert (only.gpu, only.energy_j, only.quality, only.duration_s) == (None, None, quality, 0.1)


def test_the_end_of_the_session_cuts_short_all_but_the_run() -> None:
    some = windows()
    some.begin("run", 0, "run", 100 * MS)
    some.begin("window", 0, "w", 200 * MS)
    some.end_all(500 * MS, 1 * S)
    run, window = measured(some, {"GPU-a": line()})
    assert (run.energy_j, run.quality) == (80.0, "ok")
    assert (window.energy_j, window.quality) == (60.0, "cut short by the end of the run")


def test_a_cancelled_window_and_an_end_without_begin_give_no_row() -> None:
    some = windows()
    some.begin("window", 0, "w", 100 * MS)
    some.cancel("window", 0)
    some.end("window", 0, 200 * MS, 1 * S)
    some.end("window", 1, 200 * MS, 1 * S)
    assert some.empty


def test_more_open_windows_than_the_bound_are_not_taken() -> None:
    some = windows()
    assert all(some.begin("window", index, "w", 100 * MS) for index in range(MAX_OPEN))
    assert not some.begin("window", MAX_OPEN, "w", 100 * MS)
    some.end("window", 0, 200 * MS, 1 * S)
    assert some.begin("window", MAX_OPEN, "w", 100 * MS)


@pytest.mark.sweep
def test_more_waiting_windows_than_the_bound_are_measured_with_what_there_is() -> None:
    some, lines = windows(), {"GPU-a": line(2)}
    for index in range(MAX_WAITING + 3):
        step(some, index, 500 * MS, 600 * MS, 1 * S)
    rows = measured(some, lines)
    assert [(row.index, row.energy_j) for row in rows] == [(0, None), (1, None), (2, None)]


def test_a_row_says_the_limit_and_who_else_was_there() -> None:
    some, lines = windows(), {"GPU-a": line()}
    lines["GPU-a"].timeline.add(
        readings(row(Seen.CHANGED, 950 * MS, 960 * MS, energy_mj=191_000, limit_mw=225_000))
    )
    lines["GPU-a"].timeline.add(
        readings(row(Seen.CHANGED, 1050 * MS, 1060 * MS, energy_mj=211_000, limit_mw=225_000))
    )
    for index, begin_ms in enumerate((100, 970)):
        step(some, index, begin_ms * MS, 1000 * MS, 1 * S)
    early, late = measured(some, lines, 2 * S, shared=True)
    assert (early.power_limit_w, late.power_limit_w, late.shared) == (None, 225.0, True)


def test_steps_are_measured_in_batches_and_at_once_with_a_window_that_ended() -> None:
    some, lines = windows(), {"GPU-a": line(30)}

    def short(index: int, end_ms: int) -> None:
        step(some, index, (end_ms - 50) * MS, end_ms * MS, (end_ms + 20) * MS)

    short(0, 200)
    assert len(measured(some, lines, 1 * S)) == 1
    short(1, 250)
    assert measured(some, lines, 2 * S - 1) == []
    short(2, 300)
    assert [row.index for row in measured(some, lines, 2 * S)] == [1, 2], "a batch"
    short(3, 350)
    some.begin("window", 0, "validation", 200 * MS)
    some.end("window", 0, 400 * MS, 420 * MS)
    assert [row.kind for row in measured(some, lines, 2 * S + 1)] == ["step", "window"], "nothing waits"
    short(4, 450)
    assert measured(some, lines, 2 * S + 2) == []
    assert len(measured(some, lines, 1 * S)) == 1, "a clock that began again holds nothing up"


def test_steps_wait_until_it_is_known_what_a_counter_counts_and_nothing_else_does() -> None:
    """Power that never moves tells nothing: after 10 s steps are measured as they can be."""
    some, lines = windows(), {"GPU-a": line(200)}
    lines["GPU-a"].shape.suspect(25 * MS)
    lines["GPU-a"].shape.mark("session", 100 * MS, "job//step")
    for index in range(2):
        step(some, index, (100 + 300 * index) * MS, (300 + 300 * index) * MS, 1 * S)
    assert measured(some, lines, 2 * S) == []
    assert measured(some, lines, 11 * S - 1) == []
    assert [row.index for row in measured(some, lines, 12 * S)] == [0, 1]
    step(some, 2, 700 * MS, 900 * MS, 13 * S)
    some.begin("window", 0, "w", 700 * MS)
    some.end("window", 0, 900 * MS, 13 * S)
    assert [row.kind for row in measured(some, lines, 13 * S)] == ["step", "window"]
