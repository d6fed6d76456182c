"""The publisher: what a training script calls. It stamps and hands over.

It never waits and never raises into the loop. The training thread puts stamps into an `Outbox`; a `Courier`
takes them to the collector of this host. Each kind of trouble is logged once, in one line of the logger
``zeus_stream`` (stderr, unless it is configured), and counted in `Statistics`.
"""

import itertools
import math
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, cast

from zeus_stream.clock import monotonic_ns
from zeus_stream.own_services import YES
from zeus_stream.paths import publish_candidates
from zeus_stream.protocol.events import (
    Metric,
    RunEnded,
    RunStarted,
    SearchWanted,
)
from zeus_stream.training.answers import Statistics
from zeus_stream.training.energy_questions import EnergyQuestions
from zeus_stream.training.hooks import Box, PublisherHooks, WindowHooks
from zeus_stream.training.identity import INHERITED, counted_from_zero, named
from zeus_stream.training.lifetime import describe_failure, publishers
from zeus_stream.training.outbox import Outbox
from zeus_stream.training.recurring import ANSWER_S as RECURRING_S
from zeus_stream.training.recurring import Recurring, Wish, checked
from zeus_stream.training.run_started import describe_run
from zeus_stream.training.sender import Courier, flush_s
from zeus_stream.training.steps import torch_events
from zeus_stream.training.steps.event_watch import EventWatch
from zeus_stream.training.steps.loop_recorder import LoopRecorder
from zeus_stream.training.steps.main_thread import Nudge
from zeus_stream.training.steps.phase_recorder import PhaseRecorder
from zeus_stream.training.steps.step_boundaries import Boundaries
from zeus_stream.training.steps.step_recorder import StepRecorder
from zeus_stream.training.windows import NamedWindows, Window

HOLD_NS = 100_000_000
"""The run's beginning waits so long for the first loop, which may know the batch size."""


class Follower(Protocol):
    """A framework's callback: it makes the publisher's steps."""

    def close(self) -> None: ...


F = TypeVar("F", bound=Follower)


class Publisher(LoopRecorder):
    """One rank of one run of a job. Methods may be called from any thread.

    Few scripts need one: `zeus_stream.steps` and the like make one at their first call.

    Args:
        job: what recurs, so that its runs can be compared. Default: the script's name.
        run: names this run; all ranks of a run give the same. Default: found from the launcher.
        gpus: UUIDs, or indices in PCI order. Default: those that CUDA shows this process.
        batch_size: samples of one rank's batch: runs of a job are compared where it is the same. Default: the
            ``batch_size`` of what `steps` first loops over, such as torch's ``DataLoader``.

    Example:
        >>> with Publisher(job="resnet50", gpus=[0]) as publisher:
        ...     for batch in publisher.steps(loader):
        ...         train(batch)
    """

    def __init__(
        self,
        *,
        job: str | None = None,
        run: str | None = None,
        gpus: Sequence[str | int] | None = None,
        batch_size: int | None = None,
    ) -> None:
        super().__init__(by_dispatch=os.environ.get("ZEUS_STREAM_BOUNDARY", "").lower() == "dispatch")
        self._warned: set[str] = set()
        self._windows = NamedWindows(self.window, self._warn)
        self._followers: dict[type[Follower], Follower] = {}
        self._error: BaseException | None = None
        self._attempts = itertools.count()
        off = os.environ.get("ZEUS_STREAM_OFF", "").lower() in YES
        self._silent = "ZEUS_STREAM_OFF is set" if off else ""
        self._boundaries = Boundaries(monotonic_ns, self._warn, Nudge())
        self._started = describe_run(job, run, gpus, batch_size, self._queue())
        self._outbox = Outbox(self._started, lambda: os.urandom(12).hex(), hold_ns=HOLD_NS)
        self._steps = StepRecorder(self._outbox, self._boundaries, self._queue, self._warn)
        self._courier = Courier(
            self._outbox,
            publish_candidates(os.environ),
            self._warn,
            self._fail,
            flush_s(os.environ.get("ZEUS_STREAM_FLUSH_S", "")),
        )
        questions = EnergyQuestions(self._courier, self._steps.wait_for_device, lambda: self._silent)
        self.window_hooks = WindowHooks(
            numbers=itertools.count(),
            put=self._outbox.put,
            warn=self._warn,
            energy=questions.energy,
            later=questions.later,
        )
        self.watch = EventWatch(self._queue, self._warn)
        self.phases = PhaseRecorder(self.window_hooks, self.watch)
        if self._silent:
            self._outbox.empty()
            return
        try:
            self._courier.start()
        except RuntimeError as wrong:  # no more threads, or the interpreter is ending
            self._fail(wrong)
            return
        publishers.enroll(self)
        os.environ[INHERITED] = f"{os.getpid()}:{self._started.run}"

    def __repr__(self) -> str:
        run, state = self._started, self._silent or "publishing"
        return f"<Publisher job={run.job!r} run={run.run!r} rank={run.rank}/{run.world_size}: {state}>"

    @property
    def started(self) -> RunStarted:
        """The event that introduces this process: its run, its rank and its GPUs."""
        return self._started

    def follow(self, kind: type[F], new: Callable[[], F]) -> F:
        """Return the follower of this kind, a ``new()`` one if there is none. Closed with the publisher.

        Args:
            kind: class of a framework's callback.
            new: makes one.
        """
        if kind not in self._followers:
            self._followers[kind] = new()
        return cast("F", self._followers[kind])

    # ---- jobs that recur

    def recurring(
        self,
        name: str,
        *,
        batch_sizes: Sequence[int],
        default: int,
        target: float,
        metric: str,
        lower_is_better: bool = False,
        max_epochs: int = 100,
        eta: float = 0.5,
        beta: float = 2.0,
        window: int = 0,
        timeout_s: float = RECURRING_S,
        agree: Callable[[Any], Any] | None = None,
    ) -> Recurring:
        """Return one training of the job that recurs under this name: see `zeus_stream.recurring`.

        Args:
            name: the job; its trainings learn from each other.
            batch_sizes: those that may be tried.
            default: the one of them that is used where nothing is known.
            target: of the metric; a training that reaches it has converged.
            metric: its name.
            lower_is_better: True for a loss.
            max_epochs: epochs of one try at most.
            eta: weight of energy in the cost, 0 to 1.
            beta: a try may cost at most this many times the least that a converged one has cost.
            window: number of the latest tries of a size that count; 0: all.
            timeout_s: seconds to wait at most for the analyzer's batch size.
            agree: a function that returns, in every rank, what the first one gave it.
        """
        wish = Wish(
            job=name, batch_sizes=tuple(batch_sizes), default=default, target=target, metric=metric,
            lower_is_better=lower_is_better, max_epochs=max_epochs, eta=eta, beta=beta, window=window,
        )  # fmt: skip
        hooks = PublisherHooks(
            attempts=self._attempts,
            put=self._outbox.put,
            epoch=self.epoch,
            metric=self.metric,
            question=self._question_of_try,
            silence=self._courier.silence,
            warn=self._warn,
            rank=self._started.rank,
            world_size=self._started.world_size,
        )
        return Recurring(hooks, checked(wish), timeout_s, agree)

    def _question_of_try(self, attempt: int, epochs: int, until_ns: int) -> Box | None:
        return None if self._silent else self._courier.question_of_try(attempt, epochs, until_ns)

    def want_search(self, search: Callable[[], SearchWanted]) -> None:
        """Ask for a search of this run's power limit.

        Args:
            search: makes the event when it is sent.
        """
        self._outbox.put((search,))

    # ---- windows and metrics

    def window(self, name: str) -> Window:
        """Return a window: a context that knows its energy afterwards, or a decorator.

        Args:
            name: up to 200 characters.
        """
        return Window(named(name), lambda: self.window_hooks)

    def begin_window(self, name: str) -> Window:
        """Begin a window that ends elsewhere. One that is still open under this name is cancelled.

        Args:
            name: up to 200 characters, unique among the open windows.
        """
        return self._windows.begin(name)

    def end_window(self, name: str) -> Window | None:
        """End the window begun under this name, and return it. None: none is open, and one line says so.

        Args:
            name: of the window.
        """
        return self._windows.end(named(name))

    def cancel_window(self, name: str) -> None:
        """Forget the window begun under this name.

        Args:
            name: of the window.
        """
        self._windows.cancel(named(name))

    def metric(self, name: str, value: float, *, step: int | None = None, epoch: int | None = None) -> None:
        """Record a number, such as a loss, with its step and epoch: see `zeus_stream.metric`.

        Args:
            name: e.g. ``loss``.
            value: what ``float()`` understands.
            step: number of a step, from 0. Default: the step that began last.
            epoch: number of an epoch, from 0. Default: the epoch that began last.
        """
        now_ns = monotonic_ns()
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError) as wrong:
            self._warn("metric", f"metric {named(name)!r}: could not be a number: {wrong}.")
            return
        if not math.isfinite(number):
            self._warn("finite", f"metric {named(name)!r}: {number} is not stored: it is not finite.")
            return
        at_step = self._steps.last if step is None else counted_from_zero(step)
        last_epoch = self._epoch - 1 if self._epoch else None
        at_epoch = last_epoch if epoch is None else counted_from_zero(epoch)
        if (step is not None and at_step is None) or (epoch is not None and at_epoch is None):
            self._warn("place", f"metric {named(name)!r}: step and epoch: expected whole numbers from 0 on.")
        self._outbox.put((Metric, now_ns, named(name), number, at_step, at_epoch))

    # ---- the publisher itself

    def statistics(self) -> Statistics:
        """Return the publisher's counters."""
        outbox, courier = self._outbox, self._courier
        return Statistics(
            acknowledged=outbox.acknowledged, waiting=outbox.waiting, dropped=outbox.dropped,
            reconnects=courier.reconnects, errors=courier.errors, unplaced=self._boundaries.unplaced,
        )  # fmt: skip

    def close(self) -> None:
        """End the run, and wait until the collector has everything. Idempotent.

        It waits at most 0.5 s, or ZEUS_STREAM_FLUSH_S, and not at all where there is no collector.
        """
        publishers.open.discard(self)
        if self._silent:
            return
        self._windows.close()
        for follower in self._followers.values():
            follower.close()
        self.watch.close()
        self.phases.hand_over()
        self._steps.pause()
        self._boundaries.close()
        self._outbox.close((RunEnded, monotonic_ns(), describe_failure(self._error)))
        self._courier.stop()
        if (lost := self._outbox.waiting) and "collector" not in self._warned:
            self._warn("undelivered", f"{lost} events of this run did not reach a collector in time.")
        self._silent = "the publisher is closed"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._error = error
        self.close()

    def silence(self, reason: str) -> None:
        """Publish nothing from now on; calls still work.

        Args:
            reason: for the energies that are asked for from now on.
        """
        self._silent = reason
        self._outbox.empty()

    def _fail(self, wrong: Exception) -> None:
        self._warn("failure", f"could not publish: {wrong!r}. Training goes on unmeasured.")
        self.silence(f"publishing failed: {wrong!r}")

    def _warn(self, cause: str, sentence: str) -> None:
        if cause not in self._warned and not self._silent:
            self._warned.add(cause)
            import logging  # noqa: PLC0415  (few scripts are warned, and it takes a twentieth of the first use)

            logging.getLogger("zeus_stream").warning("zeus-stream: %s", sentence)

    def _queue(self) -> torch_events.CudaQueue | None:
        """Return the device's queue, which is looked for at the beginning of a loop. None: by dispatch."""
        return None if self._by_dispatch or self._silent else torch_events.queue()
