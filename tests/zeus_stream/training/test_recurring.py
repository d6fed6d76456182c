"""What a script holds of a job that recurs: the size it is advised, and when its loop ends."""

import itertools
import logging
import math
import os
import queue
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.waiting import until
from tests.zeus_stream.stand_in_collector import Collector
from zeus_stream.errors import SettingsError
from zeus_stream.protocol import codec
from zeus_stream.protocol.events import (
    Advice,
    AskTry,
    EpochBegan,
    EpochEnded,
    Metric,
    RunStarted,
    TryBegan,
    TryEnded,
    TryWanted,
)
from zeus_stream.training.answers import PublisherHooks
from zeus_stream.training.publisher import Publisher
from zeus_stream.training.recurring import MAX_TRIES, Recurring, checked

WISH = TryWanted(
    t_ns=0, attempt=0, job="nightly", batch_sizes=(16, 32, 64), default=32, target=0.9, metric="accuracy",
    lower_is_better=False, max_epochs=5, eta=0.5, beta=2, window=0,
)  # fmt: skip


class Told:
    """A publisher's line that answers at once, from ``advice``: by attempt and epochs; else nobody does."""

    def __init__(self, advice: dict[tuple[int, int], Advice], rank: int = 0, world_size: int = 1) -> None:
        self.advice = advice
        self.put: list[tuple[Any, ...]] = []
        self.metrics: list[float] = []
        self.said: list[str] = []
        self.hooks = PublisherHooks(
            attempts=itertools.count(),
            put=self.put.append,
            epoch=nullcontext,
            metric=lambda _, value: self.metrics.append(value),
            question=self.ask,
            silence=lambda: "no collector",
            warn=lambda _, sentence: self.said.append(sentence),
            rank=rank,
            world_size=world_size,
        )

    def ask(self, attempt: int, epochs: int, _until_ns: int) -> "queue.Queue[Advice]":
        box: queue.Queue[Advice] = queue.Queue()
        if (advice := self.advice.get((attempt, epochs))) is not None:
            box.put(advice)
        return box

    def events(self, kind: type) -> list[Any]:
        return [event for made, *fields in self.put if isinstance(event := made(*fields), kind)]


def size(batch_size: int) -> Advice:
    return Advice("", batch_size, go_on=True, reason="")


STOP = Advice("", 64, go_on=False, reason="it costs too much")


def train(job: Recurring, *metrics: float) -> list[int]:
    """Train, reporting these, and return the epochs trained."""
    trained = []
    for epoch in job.epochs():
        trained.append(epoch)
        job.report(metrics[min(epoch, len(metrics) - 1)])
    return trained


# ---- one training


def test_it_trains_with_the_size_advised_until_the_target_is_reached() -> None:
    told = Told({(0, 0): size(64)})
    job = Recurring(told.hooks, WISH)
    assert job.batch_size == 64
    assert train(job, 0.5, 0.8, 0.9, 0.95) == [0, 1, 2]
    assert (job.converged, job.over) == (True, True)
    assert job.reason == "converged: reached accuracy 0.9 with batch size 64."
    assert told.metrics == [0.5, 0.8, 0.9]
    (began,), (ended,) = told.events(TryBegan), told.events(TryEnded)
    assert (began.attempt, began.batch_size) == (0, 64)
    assert (ended.attempt, ended.how) == (0, "converged")
    assert told.said == []


def test_lower_may_be_better() -> None:
    job = Recurring(Told({}).hooks, replace(WISH, lower_is_better=True, target=40.0), timeout_s=0)
    assert train(job, 50.0, 41.0, 40.0) == [0, 1, 2]
    assert job.converged


def test_a_stop_ends_the_try_and_the_next_one_is_asked_for() -> None:
    told = Told({(0, 0): size(64), (0, 2): STOP, (1, 0): size(16)})
    job = Recurring(told.hooks, WISH)
    told.advice[0, 1] = replace(STOP, go_on=True)
    assert train(job, 0.1) == [0, 1]
    assert (job.converged, job.over, job.reason) == (False, False, "stopped: it costs too much.")
    assert job.batch_size == 16
    assert train(job, 0.95) == [0]
    assert [event.how for event in told.events(TryEnded)] == ["stopped", "converged"]
    assert [event.attempt for event in told.events(TryWanted)] == [0, 1]


def test_an_answer_that_is_late_is_heeded_between_later_epochs_and_nothing_else_is_asked_meanwhile() -> None:
    told = Told({(0, 0): size(64)})
    boxes: list[queue.Queue[Advice]] = []

    def ask(attempt: int, epochs: int, until_ns: int) -> "queue.Queue[Advice]":
        boxes.append(told.ask(attempt, epochs, until_ns))
        return boxes[-1]

    job = Recurring(replace(told.hooks, question=ask), WISH)
    trained = []
    for epoch in job.epochs():
        trained.append(epoch)
        if epoch == 2:
            boxes[-1].put(STOP)
    assert trained == [0, 1, 2]
    assert len(boxes) == 2


def test_a_loop_that_is_left_is_lost_unless_the_target_was_reached() -> None:
    told = Told({(0, 0): size(64), (1, 0): size(64)})
    job = Recurring(told.hooks, WISH)
    for _ in job.epochs():
        break
    assert (job.reason, job.over) == ("lost: its loop was left.", True)
    for _ in job.epochs():
        if job.report(0.9):
            break
    assert [event.how for event in told.events(TryEnded)] == ["lost", "converged"]


def test_the_default_that_does_not_reach_the_target_ends_it_all_and_another_size_does_not() -> None:
    told = Told({(0, 0): size(64), (1, 0): size(32)})
    job = Recurring(told.hooks, WISH)
    assert (train(job, 0.1), job.over) == (list(range(5)), False)
    assert (train(job, 0.1), job.over) == (list(range(5)), True)
    assert job.reason == "exhausted: 5 epochs did not reach accuracy 0.9."


def test_tries_are_not_endless() -> None:
    job = Recurring(Told({(attempt, 0): size(16) for attempt in range(100)}).hooks, WISH)
    tries = 0
    while not job.over:
        tries += 1
        train(job, 0.1)
    assert tries == MAX_TRIES


@pytest.mark.parametrize(
    "advice",
    [
        pytest.param({}, id="nobody answers"),
        pytest.param(
            {(0, 0): Advice("", None, go_on=True, reason="no analyzer is connected.")}, id="no analyzer"
        ),
        pytest.param({(0, 0): size(48)}, id="a size that was not offered"),
    ],
)
def test_without_advice_it_trains_with_the_default_and_says_so_once(advice: dict[Any, Advice]) -> None:
    told = Told(advice | {(0, 1): STOP})
    job = Recurring(told.hooks, WISH, timeout_s=0.01)
    assert train(job, 0.1, 0.95) == [0, 1]
    assert [event.batch_size for event in told.events(TryBegan)] == [32]
    (sentence,) = told.said
    assert sentence.startswith("job 'nightly': trains with 32, its default batch size: ")


def test_the_learning_rate_follows_the_batch_size() -> None:
    job = Recurring(Told({(0, 0): size(64)}).hooks, WISH)
    assert job.scale_lr(1e-3, rule="linear") == pytest.approx(2e-3)
    assert job.scale_lr(1e-3) == pytest.approx(math.sqrt(2) * 1e-3)
    with pytest.raises(SettingsError, match="'sqrt' or 'linear'"):
        job.scale_lr(1e-3, rule="cubic")  # type: ignore[arg-type]


# ---- several ranks


def test_only_the_first_rank_reports() -> None:
    told = Told({(0, 0): size(64)}, rank=1, world_size=2)
    assert train(Recurring(told.hooks, WISH), 0.9) == [0]
    assert told.metrics == []


def test_ranks_end_together_or_not_at_all() -> None:
    advice = {(0, 0): size(64), **{(0, epochs): STOP for epochs in range(1, 5)}}
    assert train(Recurring(Told(advice, world_size=2).hooks, WISH), 0.1) == list(range(5))

    said: list[Any] = []

    def agree(value: Any) -> Any:
        said.append(value)
        return value

    train(Recurring(Told(advice, world_size=2).hooks, WISH, agree=agree), 0.1)
    assert said == [64, "it costs too much"]
    heard = iter(said)
    other = Told({(0, 0): size(16)}, rank=1, world_size=2)
    assert train(Recurring(other.hooks, WISH, agree=lambda _: next(heard)), 0.1) == [0]
    assert [event.batch_size for event in other.events(TryBegan)] == [64]
    assert [event.how for event in other.events(TryEnded)] == ["stopped"]


# ---- what makes sense


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"batch_sizes": ()}, "whole numbers above 0"),
        ({"batch_sizes": (0, 32)}, "whole numbers above 0"),
        ({"batch_sizes": (16.0, 32)}, "whole numbers above 0"),
        ({"batch_sizes": tuple(range(1, 102))}, "1 to 100"),
        ({"default": 48}, "one of batch_sizes: 16, 32, 64"),
        ({"max_epochs": 0}, "from 1 to a million"),
        ({"eta": 1.5}, "from 0 to 1"),
        ({"eta": math.nan}, "from 0 to 1"),
        ({"beta": 0.5}, "from 1 to"),
        ({"target": math.inf}, "a finite number"),
        ({"target": "40"}, "a finite number"),
        ({"window": -1}, "a whole number"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=r"recurring 'nightly': could not begin: ") as refused:
        checked(replace(WISH, **changed))
    assert says in str(refused.value)


@given(st.lists(st.integers(1, 2**40), min_size=1, max_size=100), st.randoms())
def test_sizes_are_sent_ascending_each_once_as_the_wire_takes_them(sizes: list[int], rng: Any) -> None:
    wish = checked(replace(WISH, batch_sizes=tuple(sizes), default=rng.choice(sizes)))
    assert wish.batch_sizes == tuple(sorted(set(sizes)))
    assert codec.decode(codec.encode(wish), TryWanted) == wish


def test_numbers_of_numpy_and_names_of_any_characters_can_be_sent() -> None:
    sizes, half = tuple(np.array([64, 16, 32])), cast("float", np.float32(0.5))
    wish = checked(replace(WISH, batch_sizes=sizes, default=sizes[1], target=half, metric="\udc80"))
    event = codec.decode(codec.encode(wish), TryWanted)
    assert (event.batch_sizes, event.default, event.target, event.metric) == ((16, 32, 64), 16, 0.5, "?")


# ---- through a publisher


def test_a_publisher_asks_once_all_before_it_is_logged_and_tells_the_try(collector: Collector) -> None:
    asked: list[AskTry] = []

    def advise(ask: AskTry) -> bytes:
        asked.append(ask)
        if ask.epochs == 0:
            assert collector.seen(TryWanted)
        return codec.encode(Advice(ask.question, 16, go_on=True, reason=""))

    collector.advise = advise
    with Publisher(job="nightly") as pub:
        job = pub.recurring(
            "nightly", batch_sizes=[64, 16], default=64, target=0.9, metric="f1", timeout_s=60
        )
        assert job.batch_size == 16
        assert train(job, 0.5, 0.9) == [0, 1]
    assert asked[0].epochs == 0
    kinds = [type(event) for event in collector.events]
    in_order = [
        RunStarted,
        TryWanted,
        TryBegan,
        EpochBegan,
        Metric,
        EpochEnded,
        EpochBegan,
        Metric,
        EpochEnded,
    ]
    assert kinds[: len(in_order)] == in_order
    assert kinds[len(in_order)] is TryEnded
    (wanted,) = collector.seen(TryWanted)
    assert (wanted.batch_sizes, wanted.default, wanted.job) == ((16, 64), 64, "nightly")


def test_a_fork_neither_waits_nor_tells(collector: Collector) -> None:
    def advise(ask: AskTry) -> bytes:
        return codec.encode(Advice(ask.question, 16, go_on=True, reason=""))

    collector.advise = advise
    with Publisher(job="nightly") as pub:
        job = pub.recurring(
            "nightly", batch_sizes=[16, 64], default=64, target=0.9, metric="f1", timeout_s=60
        )
        other = pub.recurring(
            "other", batch_sizes=[16, 64], default=64, target=0.9, metric="f1", timeout_s=60
        )
        assert job.batch_size == 16
        if (child := os.fork()) == 0:
            try:
                right = job.batch_size == 16 and other.batch_size == 64 and train(job, 0.9) == [0]
                os._exit(0 if right else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
    until(lambda: collector.seen(TryWanted))
    assert len(collector.seen(TryWanted)) == 1
    assert collector.seen(TryEnded) == []


def test_without_a_collector_the_default_is_used_after_the_time_given(
    zeus_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert zeus_dir.exists()
    with caplog.at_level(logging.WARNING, "zeus_stream"), Publisher(job="nightly") as pub:
        job = pub.recurring(
            "nightly", batch_sizes=[16, 64], default=64, target=0.9, metric="f1", timeout_s=0.1
        )
        assert train(job, 0.9) == [0]
    sentences = [r.getMessage() for r in caplog.records if "default batch size" in r.getMessage()]
    (sentence,) = sentences
    assert "trains with 64" in sentence
    assert "no collector at" in sentence


def test_switched_off_it_trains_with_the_default_at_once_and_in_silence(
    zeus_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert zeus_dir.exists()
    monkeypatch.setenv("ZEUS_STREAM_OFF", "1")
    with Publisher() as pub:
        job = pub.recurring(
            "nightly", batch_sizes=[16, 64], default=64, target=0.9, metric="f1", timeout_s=600
        )
        assert job.batch_size == 64
        assert train(job, 0.5, 0.9) == [0, 1]
    assert job.converged
    assert caplog.records == []
