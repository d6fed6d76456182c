"""What callbacks have in common: what they call becomes steps and windows; energies for logs come late."""

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.waiting import until
from tests.zeus_stream.stand_in_collector import Collector
from zeus_stream.integrations.callbacks import INTERVAL, Interval, TrainingCallbacks, averages, training
from zeus_stream.protocol import codec
from zeus_stream.protocol.events import (
    Answer,
    Ask,
    EpochBegan,
    EpochEnded,
    GpuEnergy,
    Metric,
    PhasesRan,
    RunStarted,
    StepBoundary,
    WindowBegan,
    WindowCancelled,
    WindowEnded,
    unpack_marks,
)
from zeus_stream.training.answers import Missing, WindowEnergy
from zeus_stream.training.publisher import Publisher
from zeus_stream.training.windows import Later

ENERGY_J = 6.0
"""Of every window."""
DURATION_S = 0.5


class Writer:
    """A writer of TensorBoard that keeps nothing."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, walltime: float) -> None:
        del tag, scalar_value, global_step, walltime

    def flush(self) -> None:
        pass


def answered(ask: Ask) -> bytes:
    gpus = tuple(GpuEnergy(f"GPU-{n}", ENERGY_J / 2, ENERGY_J / 2, ENERGY_J / 2) for n in range(2))
    return codec.encode(Answer(ask.question, DURATION_S, gpus, None))


def steps(made: TrainingCallbacks, count: int) -> None:
    for _ in range(count):
        made.begin_step()
        made.end_step()


def logged(made: TrainingCallbacks) -> dict[str, float]:
    """Log until something is known."""
    found: dict[str, float] = {}

    def known() -> bool:
        found.update(made.log())
        return bool(found)

    until(known)
    return found


def test_phases_of_steps_end_where_a_pause_or_the_training_begins_and_ends(
    collector: Collector,
) -> None:
    with Publisher() as publisher:
        made = training(publisher)
        made.begin(0)
        for _ in range(2):
            made.begin_step()
            made.mark("forward and backward")
            made.mark("optimizer")
            made.end_step()
            made.mark("data")
        made.begin_pause("evaluation")
        made.end_pause()
        made.end()
    until(lambda: bool(collector.seen(PhasesRan)))
    ran = collector.seen(PhasesRan)
    assert ran[0].names == ("forward and backward", "optimizer", "data")
    assert [number for each in ran for _, number in unpack_marks(each)] == [1, 2, 3, 1, 2, 3, 0]


@pytest.mark.parametrize(("said", "size"), [(None, 96), (32, 32)])
def test_the_samples_of_a_step_are_told_with_the_run_unless_the_script_says_it(
    collector: Collector, said: int | None, size: int
) -> None:
    with Publisher(batch_size=said) as publisher:
        made = training(publisher)
        made.begin(0, 96)
        steps(made, 2)
    assert [started.batch_size for started in collector.seen(RunStarted)] == [size]


def test_numbers_of_a_log_are_metrics_of_the_last_step_and_tokens_are_one_of_them(
    collector: Collector,
) -> None:
    with Publisher() as publisher:
        made = training(publisher)
        made.begin(0)
        made.begin_epoch(0)
        steps(made, 2)
        made.record({"loss": 0.5, "note": "warming up", "best": None}, tokens=4096)
    told = [(metric.name, metric.value, metric.step, metric.epoch) for metric in collector.seen(Metric)]
    assert told == [("loss", 0.5, 1, 0), ("tokens", 4096, 1, 0)]


def test_a_training_after_one_that_was_interrupted_begins_with_nothing_of_it(collector: Collector) -> None:
    collector.answer = answered
    with Publisher() as publisher:
        made = training(publisher)
        made.begin(0)
        made.begin_epoch(0)
        steps(made, 2)
        made.end_interval()
        until(lambda: all(interval.answered for interval in made._intervals))
        made.begin(0)
        made.begin_epoch(0)
        steps(made, 1)
        assert made.log() == {}, "what earlier steps cost is not of this training"
        assert publisher.next_numbers == (3, 2)
    first, second = collector.seen(EpochEnded)
    assert (first.index, second.index) == (0, 1)
    assert first.t_ns <= collector.seen(EpochBegan)[1].t_ns


@pytest.mark.usefixtures("collector")
def test_a_log_to_trackers_ends_where_that_of_the_next_training_begins() -> None:
    with Publisher() as publisher:
        made = training(publisher)
        made.begin(0)
        made.report_to([Writer()])
        first = made._energy_log
        made.begin(0)
        made.report_to([Writer()])
        assert "closed" in repr(first)
        made.end()


# ---- averages ------------------------------------------------------------------------------------------


def interval(count: int, tokens: int | None, *energies_j: float | None) -> Interval:
    def cost(energy_j: float | None) -> Later:
        if energy_j is None:
            return Later(lambda: Missing(reason="nobody knows"))
        return Later(
            lambda: WindowEnergy(
                name=INTERVAL,
                duration_s=2.0,
                energy_j=energy_j,
                energy_low_j=energy_j,
                energy_high_j=energy_j,
                gpus=(),
            )
        )

    return Interval(count, tokens, tuple(cost(energy_j) for energy_j in energies_j))


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        pytest.param((), {}, id="of nothing"),
        pytest.param(
            (interval(5, None, 10.0),), {"energy_per_step_j": 2.0, "average_power_w": 5.0}, id="one"
        ),
        pytest.param(
            (interval(5, 20, 10.0, 30.0), interval(3, 20, 40.0)),
            {"energy_per_step_j": 10.0, "energy_per_token_j": 2.0, "average_power_w": 80 / 6},
            id="several, in parts",
        ),
        pytest.param(
            (interval(5, 20, 10.0), interval(5, None, 10.0)),
            {"energy_per_step_j": 2.0, "average_power_w": 5.0},
            id="tokens that nobody counted",
        ),
        pytest.param((interval(5, 20, 10.0, None),), {}, id="a part that is missing"),
        pytest.param(
            (interval(5, 20, None), interval(2, 10, 10.0)),
            {"energy_per_step_j": 5.0, "energy_per_token_j": 1.0, "average_power_w": 5.0},
            id="an interval that is missing",
        ),
    ],
)
def test_averages(intervals: tuple[Interval, ...], expected: dict[str, float]) -> None:
    assert averages(intervals) == pytest.approx(expected)


# ---- steps and pauses ----------------------------------------------------------------------------------


def test_steps_in_a_row_are_told_as_such_and_a_pause_ends_the_row(collector: Collector) -> None:
    with Publisher() as pub:
        made = training(pub)
        assert training(pub) is made
        steps(made, 2)
        with made.pause("evaluation"):
            pass
        steps(made, 1)
    assert collector.boundaries() == [
        (0, False, True), (1, True, True), (2, True, False),
        (2, False, True), (3, True, False),
    ]  # fmt: skip
    assert [window.name for window in collector.seen(WindowBegan)] == [INTERVAL, "evaluation", INTERVAL]
    assert len(collector.seen(WindowEnded)) == 3


def test_a_step_ends_when_it_ended_not_when_that_is_told(collector: Collector) -> None:
    with Publisher() as pub:
        made = training(pub)
        steps(made, 1)
        ended_ns = time.monotonic_ns()
        time.sleep(0.02)
        steps(made, 1)
    told = collector.seen(StepBoundary)[1]
    assert told.ended_ns is not None
    assert told.began_ns is not None
    assert told.ended_ns <= ended_ns
    assert told.began_ns >= ended_ns + 20_000_000


def test_a_pause_that_does_not_end_was_none(collector: Collector) -> None:
    with Publisher() as pub:
        made = training(pub)
        steps(made, 1)
        made.begin_pause("checkpoint")
        steps(made, 1)
        made.end_pause()
    (cancelled,) = collector.seen(WindowCancelled)
    names = {window.window: window.name for window in collector.seen(WindowBegan)}
    assert names[cancelled.window] == "checkpoint"


def test_a_pause_within_a_step_is_in_no_interval(collector: Collector) -> None:
    collector.answer = answered
    with Publisher() as pub:
        made = training(pub)
        made.begin_step()
        with made.pause("validation"):
            pass
        made.end_step()
        found = logged(made)
    assert found["energy_per_step_j"] == pytest.approx(2 * ENERGY_J), "both parts of the step"
    assert collector.boundaries() == [(0, False, True), (1, True, False)]


def test_what_was_interrupted_is_forgotten_and_numbers_go_on(collector: Collector) -> None:
    with Publisher() as pub:
        made = training(pub)
        made.begin(10)
        made.begin_epoch(3)
        steps(made, 1)
        made.begin_step()
        made.begin(0)
        made.begin_epoch(0)
        steps(made, 1)
        made.end()
    assert collector.boundaries() == [
        (10, False, True), (11, True, True), (12, False, False),
        (11, False, True), (12, True, False),
    ]  # fmt: skip
    assert [event.index for event in collector.seen(EpochBegan)] == [3, 4]
    assert [event.index for event in collector.seen(EpochEnded)] == [3, 4]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_framework_calls_windows_end_once_and_steps_are_those_it_ended(
    collector: Collector, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng = Random(seed)
    ended = 0
    with Publisher() as pub:
        made = training(pub)
        calls: list[Callable[[], object]] = [
            lambda: made.begin(0),
            lambda: made.begin_epoch(0),
            made.end_epoch,
            made.forget,
            made.cancel_step,
            lambda: made.begin_pause("evaluation"),
            made.end_pause,
            made.cancel_pause,
            made.log,
        ]
        for _ in range(300):
            if rng.random() < 0.4:
                rng.choice(calls)()
            elif made.stepping:
                made.end_step()
                ended += 1
            else:
                made.begin_step()
    began = {window.window for window in collector.seen(WindowBegan)}
    over = [window.window for window in collector.seen(WindowEnded)]
    over += [window.window for window in collector.seen(WindowCancelled)]
    assert sorted(over) == sorted(began)
    assert sum(boundary.ended_ns is not None for boundary in collector.seen(StepBoundary)) == ended
    whole = [b.index - 1 for b in collector.seen(StepBoundary) if b.ended_ns is not None]
    assert whole == list(range(ended))
    assert caplog.records == []


# ---- logs ----------------------------------------------------------------------------------------------


def test_what_an_interval_cost_is_in_a_later_log_once(collector: Collector) -> None:
    collector.answer = answered
    with Publisher() as pub:
        made = training(pub)
        steps(made, 4)
        assert made.log(tokens=12) == {}
        found = logged(made)
        assert made.log() == {}
    assert found == pytest.approx(
        {
            "energy_per_step_j": ENERGY_J / 4,
            "energy_per_token_j": ENERGY_J / 12,
            "average_power_w": ENERGY_J / DURATION_S,
        }
    )


def test_what_is_missing_is_in_no_log(collector: Collector) -> None:
    collector.answer = lambda ask: codec.encode(Answer(ask.question, None, (), "no reading in time"))
    with Publisher() as pub:
        made = training(pub)
        steps(made, 4)
        assert made.log() == {}
        until(lambda: all(interval.answered for interval in made._intervals))
        assert made.log() == {}
        assert not made._intervals


def test_switched_off_it_is_as_if_it_were_not_there(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ZEUS_STREAM_OFF", "1")
    with Publisher() as pub:
        made = training(pub)
        steps(made, 3)
        assert made.log() == {}
        assert not made._intervals
    assert collector.events == []
    assert caplog.records == []


def test_nothing_waits_and_nothing_piles_up_without_a_collector(zeus_dir: Path) -> None:
    del zeus_dir
    with Publisher() as pub:
        made = training(pub)
        began_s = time.monotonic()
        for _ in range(500):
            steps(made, 1)
            assert made.log() == {}
        assert time.monotonic() - began_s < 30, "500 waits of 60 s would be a day"
        assert len(made._intervals) <= 100
