"""The publisher: what a training script calls. It stamps and hands over.

It never waits and never raises into the loop. The training thread puts stamps into an `Outbox`; a `Courier`
takes them to the collector of this host. Each kind of trouble is logged once, in one line of the logger
``zeus_stream`` (stderr, unless it is configured), and counted in `Statistics`.
"""

import itertools
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, cast

from zeus_stream.clock import monotonic_ns
from zeus_stream.paths import publish_candidates
from zeus_stream.protocol.events import EpochBegan, EpochEnded, Metric, RunEnded, RunStarted, SearchWanted
from zeus_stream.training.energy_questions import EnergyQuestions
from zeus_stream.training.hooks import Box, PublisherHooks, WindowHooks
from zeus_stream.training.identity import INHERITED, batch_of, counted_from_zero, named
from zeus_stream.training.lifetime import describe_failure, publishers
from zeus_stream.training.outbox import Outbox
from zeus_stream.training.recurring import ANSWER_S as RECURRING_S
from zeus_stream.training.recurring import Recurring, Wish, checked
from zeus_stream.training.run_started import describe_run
from zeus_stream.training.sender import Courier, flush_s
from zeus_stream.training.steps import torch_events
from zeus_stream.training.steps.loop import Loop
from zeus_stream.training.steps.main_thread import Nudge
from zeus_stream.training.steps.phase_recorder import PhaseRecorder
from zeus_stream.training.steps.step_boundaries import Boundaries
from zeus_stream.training.steps.step_recorder import StepRecorder
from zeus_stream.training.windows import Window

MAX_OPEN_WINDOWS = 1_000
HOLD_NS = 100_000_000
"""The run's beginning waits so long for the first loop, which may know the batch size."""
YES = {"1", "true", "yes", "on"}

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Counters of a publisher."""

    acknowledged: int
    """Events that are in the collector's log."""
    waiting: int
    """Events that are not in it yet."""
    dropped: int
    """Events that found no room."""
    reconnects: int
    """Sockets given up because nothing was acknowledged in time."""
    errors: int
    """Messages that were not understood, and failures of the publisher itself."""
    unplaced: int
    """Step boundaries that the device did not reach in time: they are placed where Python dispatched them."""


class Follower(Protocol):
    """A framework's callback: it makes the publisher's steps."""

    def close(self) -> None: ...


F = TypeVar("F", bound=Follower)


class Publisher:
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
        self._warned: set[str] = set()
        self._open: dict[str, Window] = {}
        self._followers: dict[type[Follower], Follower] = {}
        self._epoch = 0
        self._error: BaseException | None = None
        self._attempts = itertools.count()
        off = os.environ.get("ZEUS_STREAM_OFF", "").lower() in YES
        self._silent = "ZEUS_STREAM_OFF is set" if off else ""
        self._by_dispatch = os.environ.get("ZEUS_STREAM_BOUNDARY", "").lower() == "dispatch"
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
        self.phases = PhaseRecorder(self.window_hooks)
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

    # ---- steps and epochs

    def steps(self, iterable: Iterable[T]) -> Loop[T]:
        """Return ``iterable``, each turn of whose loop is a step."""
        self.know(batch_of(iterable))
        return Loop(iterable, self._steps.loop)

    def know(self, batch_size: int | None) -> None:
        """Set the samples of a step, unless they are known, before the first one. None: nobody says."""
        if batch_size is not None:
            self._outbox.know(batch_size)

    def epochs(self, count: int | Iterable[T]) -> Loop[T]:
        """Return ``range(count)``, or an iterable, each turn of whose loop is an epoch."""
        iterable = cast("Iterable[T]", range(count)) if isinstance(count, int) else count
        return Loop(iterable, self._epochs)

    def begin_step(self) -> None:
        """Begin a step, and end the step before if it is open: for loops that `steps` cannot wrap."""
        self._steps.begin()

    def end_step(self, *, pauses: bool = True) -> None:
        """End the step that `begin_step` began.

        Args:
            pauses: False where another is expected at once: both are published with its beginning, as steps
                in a row, whose energies need no reading in between. If none follows, call ``end_step()``.
        """
        self._steps.end(pauses=pauses)

    def cancel_step(self) -> None:
        """Forget the step that `begin_step` began, if it is open: the next has its number."""
        self._steps.cancel()

    def continue_from(self, *, step: int = 0, epoch: int = 0) -> None:
        """Number the next step and epoch so, as a resumed training does; never back, and between steps."""
        self._steps.continue_from(step)
        self._epoch = max(self._epoch, epoch)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Return a context that is a step."""
        self.begin_step()
        try:
            yield
        finally:
            if self._steps.stepping:
                self.end_step()

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """Return a context that is an epoch."""
        index = self.begin_epoch()
        try:
            yield
        finally:
            self.end_epoch(index)

    def begin_epoch(self) -> int:
        """Begin an epoch, and return its number: for loops that `epochs` cannot wrap."""
        index, self._epoch = self._epoch, self._epoch + 1
        self._outbox.put((EpochBegan, monotonic_ns(), index))
        return index

    def end_epoch(self, index: int) -> None:
        """End the epoch of this number."""
        self._outbox.put((EpochEnded, monotonic_ns(), index))
        self._boundaries.look()

    def ends_with(self, output: Any) -> None:
        """Let the step under way end when this is ready: an array of JAX, or a tree with one in it.

        It is asked at the boundaries of later steps, and let go when it is ready. Give what is not donated,
        such as the loss.
        """
        if not self._by_dispatch and not self._silent:
            self._steps.ends_with(output)

    def follow(self, kind: type[F], new: Callable[[], F]) -> F:
        """Return the follower of this kind, a ``new()`` one if there is none. Closed with the publisher."""
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
        """Return one training of the job that recurs under this name: see `zeus_stream.recurring`."""
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
        """Ask for a search of this run's power limit."""
        self._outbox.put((search,))

    # ---- windows and metrics

    def window(self, name: str) -> Window:
        """Return a window: a context that knows its energy afterwards, or a decorator."""
        return Window(named(name), lambda: self.window_hooks)

    def begin_window(self, name: str) -> Window:
        """Begin a window that ends elsewhere. One that is still open under this name is cancelled."""
        window = self.window(name)
        if window.name in self._open:
            self._warn("window open", f"window {window.name!r}: began twice. The first is cancelled.")
            self.cancel_window(name)
        if len(self._open) >= MAX_OPEN_WINDOWS:
            sentence = f"could not begin: {MAX_OPEN_WINDOWS} windows are open. End those that are over."
            self._warn("windows", f"window {window.name!r}: {sentence}")
            return window
        self._open[window.name] = window
        return window.__enter__()

    def end_window(self, name: str) -> Window | None:
        """End the window begun under this name, and return it."""
        window = self._open.pop(named(name), None)
        if window is None:
            self._warn("window", f"window {named(name)!r}: could not end: none of this name is open.")
        else:
            window.end()
        return window

    def cancel_window(self, name: str) -> None:
        """Forget the window begun under this name."""
        window = self._open.pop(named(name), None)
        if window is None:
            self._warn("window", f"window {named(name)!r}: could not cancel: none of this name is open.")
        else:
            window.cancel()

    def metric(self, name: str, value: float, *, step: int | None = None, epoch: int | None = None) -> None:
        """Record a number, such as a loss, with the step and the epoch that it belongs to.

        Args:
            name: e.g. ``loss``; its first 200 characters are kept.
            value: what ``float()`` understands. A tensor on a GPU is waited for: give it once it is computed.
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
        at_epoch = self._last_epoch() if epoch is None else counted_from_zero(epoch)
        if (step is not None and at_step is None) or (epoch is not None and at_epoch is None):
            self._warn("place", f"metric {named(name)!r}: step and epoch: expected whole numbers from 0 on.")
        self._outbox.put((Metric, now_ns, named(name), number, at_step, at_epoch))

    def _last_epoch(self) -> int | None:
        return self._epoch - 1 if self._epoch else None

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
        for name in self._open:
            self._warn("never", f"window {name!r}: was never ended, so it has no energy. Call end_window().")
        for follower in self._followers.values():
            follower.close()
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
        """Publish nothing from now on; calls still work."""
        self._silent = reason
        self._outbox.empty()

    def _fail(self, wrong: Exception) -> None:
        self._warn("failure", f"could not publish: {wrong!r}. Training goes on unmeasured.")
        self.silence(f"publishing failed: {wrong!r}")

    def _warn(self, cause: str, sentence: str) -> None:
        if cause not in self._warned and not self._silent:
            self._warned.add(cause)
            logging.getLogger("zeus_stream").warning("zeus-stream: %s", sentence)

    def _queue(self) -> torch_events.CudaQueue | None:
        """Return the device's queue, which is looked for at the beginning of a loop. None: by dispatch."""
        return None if self._by_dispatch or self._silent else torch_events.queue()

    def _epochs(self, iterable: Iterable[T]) -> Iterator[T]:
        for item in iterable:
            with self.epoch():
                yield item
