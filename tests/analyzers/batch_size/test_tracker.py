"""Jobs that recur, live: what becomes of the tries that a stream tells of."""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from analyzers.batch_size import registry
from analyzers.batch_size.belief.try_summary import JobHistory
from analyzers.batch_size.known_jobs import LearnedHistory
from analyzers.batch_size.policy import Choice, Policy, Try, TryVerdict
from analyzers.batch_size.registry import Default
from analyzers.interpreter.interpreter import Interpreter, JobForgotten
from analyzers.results.memory import Memory
from analyzers.results.result import NOTHING, GiveAdvice
from analyzers.results.rows import JobRow, TryRow, WindowRow
from tests.analyzers.batch_size.test_history import SETUP, Turns
from tests.simulation.simulated_site import Training
from tests.simulation.world import BEGIN_NS, QUICK, Output, World, asked, outputs_of
from zeus_stream.protocol.events import (
    Advice,
    AskTry,
    EpochEnded,
    Event,
    Metric,
    RunEnded,
    RunStarted,
    TryBegan,
    TryEnded,
    TryWanted,
)
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import Notes, SessionEnded
from zeus_stream.protocol.readings import Readings

PLAN = replace(QUICK, selector=None, timeout_ns=1_000_000_000)
TRAINING = Training("imagenet", 0.02, 60, epoch_steps=20)
WANTED = TryWanted(
    t_ns=0,
    attempt=0,
    job="nightly",
    batch_sizes=(16, 32, 64),
    default=32,
    target=0.9,
    metric="accuracy",
    lower_is_better=False,
    max_epochs=10,
    eta=0.5,
    beta=2.0,
    window=0,
)
HIGHEST_W = 250


class Recurs(World):
    """A training of a job: its ranks want a batch size, train three epochs, and tell how it ended."""

    size = 16
    begins_ns = 50_000_000
    """After the size was asked for."""
    sizes: tuple[int, ...] = ()
    """Of each rank, where they differ."""
    ending: TryEnded | None = TryEnded(0, 0, "converged", "reached accuracy 0.9")
    wanted = WANTED

    def _begin_loop(self) -> None:
        if self.step == 0:
            self._publish(lambda t_ns: replace(self.wanted, t_ns=t_ns))
            if self.begins_ns:
                self.at(self.now_ns + self.begins_ns, self._begin_try)
            else:
                self._begin_try()
        super()._begin_loop()

    def _begin_try(self) -> None:
        for host, size in zip(self.hosts, self.sizes or (self.size,) * len(self.hosts), strict=True):
            host.publish(TryBegan(host.now(), 0, size))

    def _publish(self, event: Callable[[int], Event]) -> None:
        match event(0):
            case EpochEnded(_, index):
                self.hosts[0].publish(Metric(self.hosts[0].now(), "accuracy", 0.5 + index / 5))
            case RunEnded():
                if self.ending is not None:
                    ended = self.ending
                    super()._publish(lambda t_ns: replace(ended, t_ns=t_ns))
            case _:
                pass
        super()._publish(event)


def training(**told: Any) -> list[tuple[Frame, Body]]:
    """Return the frames of one training of the job."""
    more = told.pop("more", ())
    made = Recurs("simulated:v100x1", told.pop("of", TRAINING), PLAN, more=more)
    for name, value in told.items():
        setattr(made, name, value)
    made.run()
    return made.frames


@pytest.fixture(scope="module")
def frames() -> list[tuple[Frame, Body]]:
    return training()


def again(frames: Iterable[tuple[Frame, Body]], number: int) -> list[tuple[Frame, Body]]:
    """Return the same training as run ``number``, on a host and a GPU of its own, so much later."""
    late_ns = number * 1_000_000_000_000
    swapped = []
    for frame, body in frames:
        host, log = f"{frame.host}-{number}", f"{frame.log_id}-{number}"
        swapped.append((replace(frame, host=host, log_id=log), _moved(body, number, late_ns)))
    return swapped


def _moved(body: Body, number: int, late_ns: int) -> Body:
    if isinstance(body, Events):
        events = tuple(
            replace(event, run=f"run-{number}", wall_ns=event.wall_ns + late_ns)
            if isinstance(event, RunStarted)
            else event
            for event in body.events
        )
        return replace(body, session=f"{body.session}-{number}", events=events)
    if isinstance(body, Readings):
        return replace(body, gpus=tuple(f"{gpu}-{number}" for gpu in body.gpus))
    notes: list[Any] = []
    for note in body.notes:
        changed: dict[str, Any] = {}
        if hasattr(note, "gpu"):
            changed["gpu"] = f"{note.gpu}-{number}"
        if hasattr(note, "gpus"):
            changed["gpus"] = tuple(f"{gpu}-{number}" for gpu in note.gpus)
        if hasattr(note, "session"):
            changed["session"] = f"{note.session}-{number}"
        notes.append(replace(note, **changed))
    return replace(body, notes=tuple(notes))


class Heard:
    """What an analyzer makes of frames."""

    def __init__(
        self, policy: Policy[Any] | None = None, known: Memory | None = None, shared: Iterable[str] = ()
    ) -> None:
        named = "turns", policy or Turns()
        self.interpreter = Interpreter(PLAN, known, named, shared_jobs=frozenset(shared))
        self.outputs: list[Output] = []

    def hear(
        self, frames: Iterable[tuple[Frame, Body]], asks: Iterable[AskTry] = (), *, hurried: bool = False
    ) -> "Heard":
        waiting = list(asks)
        for frame, body in frames:
            self.outputs += outputs_of(self.interpreter, frame, body, hurried=hurried)
            for ask in [ask for ask in waiting if isinstance(body, Events) and body.session == ask.session]:
                waiting.remove(ask)
                asked(self.interpreter, frame.host, ask)
        return self

    @property
    def tries(self) -> list[TryRow]:
        """The last row of each try."""
        return list({row.number: row for row in self.outputs if isinstance(row, TryRow)}.values())

    @property
    def known(self) -> Memory:
        jobs = [row for row in self.outputs if isinstance(row, JobRow)]
        return Memory(jobs=tuple(jobs[-1:]), tries=tuple(self.tries))

    @property
    def advice(self) -> dict[str, Advice]:
        given = [row.advice for row in self.outputs if isinstance(row, GiveAdvice)]
        return {advice.question: advice for advice in given}


# ---- one training


def test_a_try_costs_what_its_epochs_cost(frames: list[tuple[Frame, Body]]) -> None:
    heard = Heard().hear(frames)
    (row,) = heard.tries
    epochs = [row for row in heard.outputs if isinstance(row, WindowRow) and row.kind == "epoch"]
    energy_j = sum(epoch.energy_j or 0 for epoch in epochs)
    assert len(epochs) == row.epochs == 3
    assert row.energy_j == pytest.approx(energy_j)
    assert row.duration_s == pytest.approx(sum(epoch.duration_s for epoch in epochs))
    assert row.cost_j is not None
    assert row.cost_j == pytest.approx(0.5 * energy_j + 0.5 * HIGHEST_W * row.duration_s)
    assert row.epoch_cost_j == pytest.approx(row.cost_j / 3, rel=0.02)
    assert row.metrics == (0.5, 0.7, 0.9)
    assert (row.job, row.number, row.recurrence, row.batch_size, row.setup) == ("nightly", 1, 1, 16, SETUP)
    assert (row.ended, row.ended_why, row.policy) == ("converged", "reached accuracy 0.9", "turns")
    assert row.ended_wall_ns is not None
    assert row.ended_wall_ns - row.began_wall_ns == pytest.approx(1.2e9, rel=0.01)


def test_a_training_is_forgotten_with_a_rank_that_had_ended_before_the_others() -> None:
    both = training(more=(("simulated:v100x1,seed=1", 0),))
    half = len(both) // 2
    first, other = [next(frame for frame, _ in both if frame.host == host) for host in ("h0", "h1")]
    t_ns = both[half][0].t_ns
    gone = Notes((SessionEnded(t_ns, "session-h1", "killed"),))
    left = [
        (frame, body) for frame, body in both[half:] if not (frame.host == "h1" and isinstance(body, Events))
    ]
    heard = Heard().hear([*both[:half], (replace(other, t_ns=t_ns), gone), *left])
    heard.hear([(replace(first, t_ns=left[-1][0].t_ns + 3 * PLAN.timeout_ns), Notes(()))])
    assert not heard.interpreter.site.jobs.used_jobs()


def test_a_choice_is_a_row_before_it_is_an_answer(frames: list[tuple[Frame, Body]]) -> None:
    heard = Heard().hear(frames, [AskTry("q", "session-h0", 0, 0)])
    kinds = [type(output) for output in heard.outputs if isinstance(output, JobRow | TryRow | GiveAdvice)]
    assert kinds[:2] == [JobRow, TryRow]
    assert GiveAdvice in kinds
    advice, first = heard.advice["q"], next(row for row in heard.outputs if isinstance(row, TryRow))
    assert (advice.batch_size, advice.reason) == (16, f"turn 0 on {SETUP}")
    assert (first.batch_size, first.ended, first.cost_j) == (16, "running", None)
    (row,) = heard.tries
    assert (row.batch_size, row.reason, row.ended) == (16, advice.reason, "converged")


def test_what_a_training_does_counts_whatever_it_was_advised() -> None:
    (row,) = Heard().hear(training(size=32)).tries
    assert (row.batch_size, row.ended) == (32, "converged")
    assert row.reason == "it trains with another size than the 16 it was advised"
    (row,) = Heard().hear(training(size=32, begins_ns=0)).tries
    assert (row.batch_size, row.ended) == (32, "converged")
    assert row.reason == "it trains with its default: it got no answer in time"


def test_who_hears_the_stream_again_gives_the_recorded_answer(frames: list[tuple[Frame, Body]]) -> None:
    before = Heard(Turns()).hear(frames[: len(frames) // 2])
    (open_yet,) = before.tries
    assert open_yet.ended == "running"
    other = Heard(registry.parse("default"), before.known)
    other.hear(frames, [AskTry("q", "session-h0", 0, 0)])
    (row,) = other.tries
    assert (row.number, row.recurrence, row.ended, row.epochs) == (1, 1, "converged", 3)
    assert other.advice["q"].batch_size == open_yet.batch_size
    assert [row for row in other.outputs if isinstance(row, JobRow)] == []
    finished = Heard(Turns(), other.known).hear(frames)
    assert finished.tries == []


def test_a_try_that_was_measured_in_a_hurry_is_measured_again_with_its_epochs(
    frames: list[tuple[Frame, Body]],
) -> None:
    (hurried,) = (before := Heard().hear(frames, hurried=True)).tries
    after = Heard(Turns(), before.known).hear(frames)
    (row,) = after.tries
    epochs = [each for each in after.outputs if isinstance(each, WindowRow) and each.kind == "epoch"]
    assert row.energy_j == pytest.approx(sum(epoch.energy_j or 0 for epoch in epochs))
    assert row == replace(hurried, energy_j=row.energy_j, cost_j=row.cost_j, epoch_cost_j=row.epoch_cost_j)
    assert row.energy_j != hurried.energy_j
    assert Heard(Turns(), after.known).hear(frames[: len(frames) // 2]).tries == []


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_a_restart_at_any_moment_changes_no_try(frames: list[tuple[Frame, Body]], share: float) -> None:
    policy, first, second = registry.parse("reference"), again(frames, 1), again(frames, 2)
    whole = Heard(policy).hear(first).hear(second)
    before = Heard(policy).hear(first).hear(second[: round(share * len(second))])
    after = Heard(policy, before.known).hear(second)
    assert {row.number: row for row in (*before.tries, *after.tries)} == {
        row.number: row for row in whole.tries
    }


def test_a_try_that_is_killed_is_lost_and_its_recurrence_goes_on() -> None:
    made = Recurs("simulated:v100x1", TRAINING, PLAN)
    made.at(BEGIN_NS + 700_000_000, made.kill)
    made.run()
    heard = Heard().hear(made.frames)
    (lost,) = heard.tries
    assert (lost.ended, lost.ended_why, lost.epochs) == ("lost", "killed by signal 9", 1)
    heard.hear(again(training(), 1))
    assert [(row.number, row.recurrence, row.ended) for row in heard.tries] == [
        (1, 1, "lost"),
        (2, 1, "converged"),
    ]


def test_a_report_that_comes_after_the_end_of_its_process_is_accepted() -> None:
    made = Recurs("simulated:v100x1", TRAINING, PLAN)
    made.at(BEGIN_NS + 700_000_000, made.kill)
    made.run(seconds=1.75)
    host = made.hosts[0]
    assert any(
        isinstance(body, SessionEnded) for _, notes in made.frames for body in getattr(notes, "notes", ())
    )
    host.publish(TryEnded(host.now(), 0, "converged", "reached it all the same"))
    host.flush_events()
    made.run()
    (row,) = Heard().hear(made.frames).tries
    assert (row.ended, row.ended_why) == ("converged", "reached it all the same")


def test_a_run_that_ends_without_a_word_on_its_try_has_lost_it() -> None:
    wanted = replace(WANTED, target=0.95)
    (row,) = Heard().hear(training(ending=None, wanted=wanted)).tries
    assert (row.ended, row.ended_why) == ("lost", "its run ended before it")


def test_a_try_whose_metric_had_reached_the_target_has_converged_whoever_did_not_say_so() -> None:
    (row,) = Heard().hear(training(ending=None)).tries
    assert (row.ended, row.epochs) == ("converged", 3)
    assert row.ended_why == "its metric had reached the target; its run ended before it"
    made = Recurs("simulated:v100x1", TRAINING, PLAN)
    made.at(
        BEGIN_NS + 1_150_000_000, lambda: made.hosts[0].publish(Metric(made.hosts[0].now(), "accuracy", 0.9))
    )
    made.at(BEGIN_NS + 1_170_000_000, made.kill)  # within the last epoch, which has no cost
    made.run()
    (row,) = Heard().hear(made.frames).tries
    assert (row.ended, row.epochs) == ("lost", 2)


def test_tries_that_nobody_was_heard_of_again_are_lost_when_the_next_is_chosen(
    frames: list[tuple[Frame, Body]],
) -> None:
    before = Heard().hear(frames[: len(frames) // 2])
    after = Heard(Turns(), before.known).hear(again(frames, 1))
    assert [(row.number, row.recurrence, row.ended) for row in after.tries] == [
        (1, 1, "lost"),
        (2, 1, "converged"),
    ]


def test_it_is_stopped_before_an_epoch_that_costs_too_much(frames: list[tuple[Frame, Body]]) -> None:
    (row,) = Heard(Default()).hear(frames).tries
    assert row.cost_j is not None
    asks = [AskTry("q", "session-h0", 0, 2)]
    for epochs, goes_on in ((2.5, False), (9.0, True)):
        heard = Heard(Turns(stop_cost_j=epochs * row.cost_j / 3)).hear(frames, asks)
        assert heard.advice["q"].go_on == goes_on
        assert ("another epoch would take its cost from" in heard.advice["q"].reason) != goes_on


def test_a_policy_that_fails_has_the_default_chosen_and_ends_nothing(
    frames: list[tuple[Frame, Body]],
) -> None:
    class Broken(Default, frozen=True):
        def choose(self, history: JobHistory, setup: str, rng: Random) -> Choice:  # noqa: ARG002
            raise ValueError("no size is left")

        def verdict(self, history: JobHistory, a_try: Try) -> TryVerdict:  # noqa: ARG002
            raise ZeroDivisionError

    heard = Heard(Broken()).hear(frames, [AskTry("q", "session-h0", 0, 0), AskTry("on", "session-h0", 0, 1)])
    assert heard.advice["q"].batch_size == 32
    assert "the policy failed: ValueError('no size is left')" in heard.advice["q"].reason
    assert heard.advice["on"].go_on
    assert heard.tries[0].ended == "converged"


def test_a_question_about_no_try_is_answered_in_vain() -> None:
    heard = Heard().hear(training(of=replace(TRAINING, steps=120)), [AskTry("q", "session-h0", 7, 0)])
    assert heard.advice["q"].batch_size is None
    assert heard.advice["q"].go_on


def test_a_question_that_comes_before_its_host_is_heard_is_answered_all_the_same(
    frames: list[tuple[Frame, Body]],
) -> None:
    heard = Heard()
    asked(heard.interpreter, "h0", AskTry("q", "session-h0", 0, 0))
    heard.hear(frames)
    assert heard.advice["q"].batch_size == 16


def test_what_makes_no_sense_is_not_followed() -> None:
    for wrong in (replace(WANTED, default=48), replace(WANTED, batch_sizes=(64, 32))):
        assert Heard().hear(training(wanted=wrong)).tries == []


# ---- several ranks, several trainings


def test_every_rank_is_given_the_same_size_and_all_their_gpus_count() -> None:
    asks = [AskTry(f"q{rank}", f"session-h{rank}", 0, 0) for rank in range(2)]
    heard = Heard().hear(training(more=(("simulated:v100x1,seed=1", 5_000_000_000),)), asks)
    (row,) = heard.tries
    assert {heard.advice[ask.question].batch_size for ask in asks} == {16}
    epochs = [row for row in heard.outputs if isinstance(row, WindowRow) and row.kind == "epoch"]
    assert len({epoch.gpu for epoch in epochs}) == 2
    assert (row.epochs, row.setup) == (3, "Tesla V100-PCIE-16GB x2")
    energy_j = sum(epoch.energy_j or 0 for epoch in epochs)
    assert row.energy_j == pytest.approx(energy_j)
    assert row.cost_j == pytest.approx(0.5 * energy_j + 0.5 * 2 * HIGHEST_W * row.duration_s)
    assert row.metrics == (0.5, 0.7, 0.9)


def test_a_rank_that_is_slower_to_say_so_is_waited_for() -> None:
    made = Recurs("simulated:v100x1", TRAINING, PLAN, more=(("simulated:v100x1,seed=1", 0),))
    first, second = made.hosts
    made.at(BEGIN_NS + 1_000_000_000, lambda: second.publish(TryEnded(second.now(), 0, "converged", "early")))
    made.run()
    (row,) = Heard().hear(made.frames).tries
    assert (row.epochs, row.metrics, row.ended_why) == (3, (0.5, 0.7, 0.9), "early")
    assert row.ended_wall_ns == first.now() - made.now_ns + BEGIN_NS + 1_000_000_000


@pytest.mark.parametrize(("how", "recurrences"), [("stopped", [1, 1]), ("converged", [1, 2])])
def test_a_second_try_of_a_process_is_of_the_same_recurrence_if_the_first_missed(
    how: Any, recurrences: list[int]
) -> None:
    made = Recurs("simulated:v100x1", TRAINING, PLAN)
    made.ending = TryEnded(0, 1, "converged", "reached accuracy 0.9")
    (host,) = made.hosts

    def again_with_another() -> None:
        host.publish(TryEnded(host.now(), 0, how, "as told"))
        host.publish(replace(WANTED, t_ns=host.now(), attempt=1))

    made.at(BEGIN_NS + 500_000_000, again_with_another)
    made.at(BEGIN_NS + 790_000_000, lambda: host.publish(TryBegan(host.now(), 1, 32)))
    made.run()
    heard = Heard().hear(made.frames)
    assert [row.recurrence for row in heard.tries] == recurrences
    assert [row.ended for row in heard.tries] == [how, "converged"]
    assert [row.epochs for row in heard.tries] == [2, 1]


def test_a_recurrence_is_not_given_to_another_run_while_its_own_goes_on(
    frames: list[tuple[Frame, Body]],
) -> None:
    made = Recurs("simulated:v100x1", TRAINING, PLAN)
    (host,) = made.hosts
    made.at(BEGIN_NS + 500_000_000, lambda: host.publish(TryEnded(host.now(), 0, "stopped", "too dear")))
    made.run(seconds=2.0)  # it goes on with another size
    heard = Heard().hear([*made.frames, *again(frames, 1)])
    assert [(row.recurrence, row.ended) for row in heard.tries] == [(1, "stopped"), (2, "converged")]


def test_ranks_with_different_sizes_say_nothing_about_either() -> None:
    (row,) = Heard().hear(training(more=(("simulated:v100x1,seed=1", 0),), sizes=(16, 64))).tries
    assert row.ended == "lost"
    assert "different batch sizes: 16, 64" in row.ended_why


def test_a_try_whose_gpu_another_run_used_is_lost_to_the_policy(frames: list[tuple[Frame, Body]]) -> None:
    heard = Heard(Turns())
    intruder = [
        (frame, replace(body, session="other", events=tuple(_renamed(event) for event in body.events)))
        if isinstance(body, Events)
        else (frame, _other_session(body))
        for frame, body in frames
    ]
    both: list[tuple[Frame, Body]] = []
    for (frame, body), (_, other) in zip(frames, intruder, strict=True):
        both.append((frame, body))
        if other != body:
            both.append((frame, other))
    heard.hear(both)
    row = heard.tries[0]
    assert (row.ended, row.cost_j, row.energy_j) == ("converged", None, None)
    assert "another run used it at the same time" in row.ended_why
    learned = LearnedHistory(row=heard.known.jobs[0])
    for known in heard.tries:
        learned.put(known)
    assert {one.number: one.ended for one in learned.known().tries}[row.number] == "lost"


def _renamed(event: Any) -> Any:
    return replace(event, run="other", pid=2) if isinstance(event, RunStarted) else event


def _other_session(body: Body) -> Body:
    notes: tuple[Any, ...] = body.notes if isinstance(body, Notes) else ()
    if not any(hasattr(note, "session") for note in notes):
        return body
    return Notes(tuple(replace(note, session="other") for note in notes))


def test_recurrences_are_numbered_and_tries_never_share_a_number(frames: list[tuple[Frame, Body]]) -> None:
    heard = Heard()
    for number in range(3):
        heard.hear(again(frames, number))
    assert [(row.number, row.recurrence) for row in heard.tries] == [(1, 1), (2, 2), (3, 3)]


def test_another_target_begins_the_job_anew_and_other_sizes_do_not(frames: list[tuple[Frame, Body]]) -> None:
    heard = Heard().hear(frames)
    heard.hear(again(training(wanted=replace(WANTED, batch_sizes=(32, 64, 128))), 1))
    assert [row.version for row in heard.tries] == [1, 1]
    heard.hear(again(training(wanted=replace(WANTED, target=0.95)), 2))
    assert [(row.version, row.number, row.recurrence) for row in heard.tries[2:]] == [(2, 3, 3)]
    assert [row.version for row in heard.outputs if isinstance(row, JobRow)] == [1, 1, 2]


def test_a_training_is_given_a_size_that_it_offers_whatever_others_offer(
    frames: list[tuple[Frame, Body]],
) -> None:
    other = replace(WANTED, batch_sizes=(128, 256), default=128)
    both = again(frames, 1), again(training(wanted=other), 2)
    asks = [AskTry(f"q{number}", f"session-h0-{number}", 0, 0) for number in (1, 2)]
    heard = Heard().hear([pair for pairs in zip(*both, strict=False) for pair in pairs], asks)
    assert heard.advice["q1"].batch_size in WANTED.batch_sizes
    assert heard.advice["q2"].batch_size in other.batch_sizes


def test_a_job_that_is_forgotten_begins_anew_and_its_tries_are_not_told(
    frames: list[tuple[Frame, Body]],
) -> None:
    heard = Heard(Turns()).hear(frames)
    assert heard.interpreter.site.jobs.known.tries("nightly") == 1
    rows = heard.interpreter.handle(JobForgotten("nightly"), 0).rows
    assert [row.version for row in rows if isinstance(row, JobRow)] == [2]
    heard.hear(again(frames, 1))
    assert [(row.version, row.number) for row in heard.tries] == [(1, 1), (2, 2)]
    assert list(heard.interpreter.site.jobs.known["nightly"].tries) == [2]
    assert heard.interpreter.site.jobs.known.tries("unheard of") is None
    assert heard.interpreter.handle(JobForgotten("unheard of"), 0) == NOTHING
    # Another analyzer does not count it either, nor use its number again, nor take it for new in a replay.
    jobs = tuple(row for row in rows if isinstance(row, JobRow))
    known = Memory(jobs=jobs, tries=tuple(heard.tries[:1]))
    other = Heard(Turns(), known).hear(frames)
    assert other.tries == []
    other.hear(again(frames, 1))
    assert [(row.version, row.number, row.recurrence) for row in other.tries] == [(2, 2, 2)]
