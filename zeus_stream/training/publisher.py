"""The publisher: what a training script calls. It stamps and hands over.

It never waits and never raises into the loop. The training thread puts stamps into an `Outbox`; `EventSender`
takes them to the collector of this host. Each kind of trouble is logged once, in one line of the logger
``zeus_stream`` (stderr, unless it is configured), and counted in `Statistics`.
"""

import atexit
import itertools
import math
import os
import signal
import sys
import threading
from _thread import interrupt_main
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar, cast, overload

from zeus_stream.clock import monotonic_ns
from zeus_stream.own_services import YES
from zeus_stream.paths import publish_candidates
from zeus_stream.protocol.events import (
    EpochBegan,
    EpochEnded,
    Metric,
    RunEnded,
    RunPlanned,
    RunStarted,
    SearchWanted,
    TryWanted,
)
from zeus_stream.training.answers import (
    Box,
    PublisherHooks,
    Statistics,
)
from zeus_stream.training.identity import INHERITED, batch_of, counted_from_zero, length_of, named
from zeus_stream.training.outbox import Outbox
from zeus_stream.training.recurring import ANSWER_S as RECURRING_S
from zeus_stream.training.recurring import Recurring, checked
from zeus_stream.training.run_started import describe_run
from zeus_stream.training.sender import EventSender, flush_s
from zeus_stream.training.steps import torch_events
from zeus_stream.training.steps.event_watch import EventWatch
from zeus_stream.training.steps.phase_recorder import PhaseRecorder
from zeus_stream.training.steps.step_boundaries import Boundaries
from zeus_stream.training.steps.step_recorder import Loop, StepRecorder
from zeus_stream.training.windows import SessionWindows, Window

SIGNAL = signal.SIGRTMAX - 7


class MainThreadNudge:
    """Has the main thread call something between two of its bytecodes, soon, when any thread asks for it.

    Python does the same when a signal arrives. Here no signal is sent, so no system call is interrupted. A
    main thread that is busy in C makes the call when it comes back. For that, the handler of one real-time
    signal is ours in this process; where somebody else has it, there are no nudges.
    """

    def __init__(self) -> None:
        self._call: Callable[[], object] | None = None

    def arm(self, call: Callable[[], object]) -> None:
        """Make it possible, if this is the main thread and the signal is free."""
        if self._call is None and _in_main_thread() and signal.getsignal(SIGNAL) is signal.SIG_DFL:
            signal.signal(SIGNAL, lambda _signal, _frame: call())
            self._call = call

    def ask(self) -> None:
        """Ask for the call, from any thread."""
        if self._call is not None:
            interrupt_main(SIGNAL)  # type: ignore[arg-type]  # a real-time signal's number has no name

    def disarm(self) -> None:
        """Give the signal back. From then on a request does nothing."""
        if self._call is not None and _in_main_thread():
            self._call = None
            signal.signal(SIGNAL, signal.SIG_DFL)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


MAX_OPEN_WINDOWS = 1_000
MAX_FAILURE = 500
"""Characters of the text of an exception."""
HOLD_NS = 100_000_000
"""The run's beginning waits so long for the first loop, which may know the batch size."""


class Follower(Protocol):
    """A framework's callback: it makes the publisher's steps."""

    def close(self) -> None: ...


F = TypeVar("F", bound=Follower)
T = TypeVar("T")


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
        self._by_dispatch = os.environ.get("ZEUS_STREAM_BOUNDARY", "").lower() == "dispatch"
        self._epoch = 0
        self._planned: tuple[int | None, int | None, int | None] = (None, None, None)
        """Epochs and steps of the whole run, steps of an epoch."""
        self._warned: set[str] = set()
        self._windows: dict[str, Window] = {}
        """Begun by name, and not ended so."""
        self._followers: dict[type[Follower], Follower] = {}
        self._error: BaseException | None = None
        self._attempts = itertools.count()
        off = os.environ.get("ZEUS_STREAM_OFF", "").lower() in YES
        self._silent = "ZEUS_STREAM_OFF is set" if off else ""
        """Why nothing is published. Empty: it is."""
        self._boundaries = Boundaries(monotonic_ns, self._warn, MainThreadNudge())
        if not off:
            self._warn_of_misspelled()
        self._started = describe_run(job, run, gpus, batch_size, self._queue())
        self._outbox = Outbox(self._started, lambda: os.urandom(12).hex(), hold_ns=HOLD_NS)
        self._steps = StepRecorder(self._outbox, self._boundaries, self._queue, self._warn)
        self._sender = EventSender(
            self._outbox,
            publish_candidates(os.environ),
            self._warn,
            self._fail,
            flush_s(os.environ.get("ZEUS_STREAM_FLUSH_S", "")),
        )
        self.session_windows = SessionWindows(
            self._outbox, self._sender, self._warn, self._steps.wait_for_device, lambda: self._silent
        )
        self.watch = EventWatch(self._queue, self._warn)
        self.phases = PhaseRecorder(self._outbox.put, self._warn, self.watch)
        if self._silent:
            self._outbox.empty()
            return
        try:
            self._sender.start()
        except RuntimeError as wrong:  # no more threads, or the interpreter is ending
            self._fail(wrong)
            return
        publishers.enroll(self)
        os.environ[INHERITED] = f"{os.getpid()}:{self._started.run}"

    def __deepcopy__(self, _copied: object) -> Self:
        """Return itself: what a framework copies goes on in this run."""
        return self

    def __reduce__(self) -> tuple[Callable[[], "Publisher"], tuple[()]]:
        """In another process it is that process's own publisher."""
        return own_publisher, ()

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

    # ---- the loop of a training

    def steps(self, iterable: Iterable[T]) -> Loop[T]:
        """Return ``iterable``, each turn of whose loop is a step: see `zeus_stream.steps`."""
        self.know(batch_of(iterable))
        return Loop(iterable, self._loop)

    def _loop(self, iterable: Iterable[T]) -> Iterator[T]:
        epochs, *_ = self._planned
        if self._epoch <= 1:
            count = None if self._steps.last is not None else length_of(iterable)
            if self._epoch == 0 or epochs == 1:  # as far as is known, it is the whole run
                self.plan(epochs=epochs, steps=count)
            else:
                self.plan(epochs=epochs, epoch_steps=count)
        return self._steps.loop(iterable)

    def plan(
        self, *, epochs: int | None = None, steps: int | None = None, epoch_steps: int | None = None
    ) -> None:
        """Record how long the whole run is to be: forecasts and searches need it.

        Args:
            epochs: of the whole run. None: not known.
            steps: of the whole run. None: not known.
            epoch_steps: of an epoch, where ``steps`` is not known.
        """
        if (planned := (epochs, steps, epoch_steps)) != self._planned:
            self._planned = planned
            self._outbox.put((RunPlanned, monotonic_ns(), *planned))

    def know(self, batch_size: int | None) -> None:
        """Set the samples of a step, unless they are known, before the first one.

        Args:
            batch_size: samples of one rank's batch. None: nobody says.
        """
        if batch_size is not None:
            self._outbox.know(batch_size)

    @overload
    def epochs(self, count: int) -> Loop[int]: ...
    @overload
    def epochs(self, count: Iterable[T]) -> Loop[T]: ...
    def epochs(self, count: int | Iterable[T]) -> Loop[T]:
        """Return ``range(count)``, or an iterable, each turn an epoch: see `zeus_stream.epochs`."""
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
        """Number the next step and epoch so, as a resumed training does; never back, and between steps.

        Args:
            step: number of the next step.
            epoch: number of the next epoch.
        """
        self._steps.continue_from(step)
        self._epoch = max(self._epoch, epoch)

    @property
    def next_numbers(self) -> tuple[int, int]:
        """Return the numbers of the next step and the next epoch."""
        last = self._steps.last
        return (0 if last is None else last + 1), self._epoch

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
        """End an epoch.

        Args:
            index: its number, as `begin_epoch` returned it.
        """
        self._outbox.put((EpochEnded, monotonic_ns(), index))
        self._boundaries.look()

    def ends_with(self, output: Any) -> None:
        """Let the step under way end when this is ready: see `zeus_stream.ends_with`."""
        if not self._by_dispatch and not self._silent:
            self._steps.ends_with(output)

    def _epochs(self, iterable: Iterable[T]) -> Iterator[T]:
        if (count := length_of(iterable)) is not None:
            self.plan(epochs=self._epoch + count)
        for item in iterable:
            with self.epoch():
                yield item

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
        wish = TryWanted(
            t_ns=0, attempt=0, job=name, batch_sizes=tuple(batch_sizes), default=default, target=target,
            metric=metric, lower_is_better=lower_is_better, max_epochs=max_epochs, eta=eta, beta=beta,
            window=window,
        )  # fmt: skip
        hooks = PublisherHooks(
            attempts=self._attempts,
            put=self._outbox.put,
            epoch=self.epoch,
            metric=self.metric,
            question=self._question_of_try,
            silence=self._sender.silence,
            warn=self._warn,
            rank=self._started.rank,
            world_size=self._started.world_size,
        )
        return Recurring(hooks, checked(wish), timeout_s, agree)

    def _question_of_try(self, attempt: int, epochs: int, until_ns: int) -> Box | None:
        return None if self._silent else self._sender.question_of_try(attempt, epochs, until_ns)

    def want_search(self, search: Callable[[], SearchWanted]) -> None:
        """Ask for a search of this run's power limit.

        Args:
            search: makes the event when it is sent.
        """
        self._outbox.put((search,))

    # ---- windows and metrics

    def window(self, name: str) -> Window:
        """Return a window, which knows its energy afterwards: see `zeus_stream.window`."""
        return Window(named(name), self._session_windows)

    def _session_windows(self) -> SessionWindows:
        return self.session_windows

    def begin_window(self, name: str) -> Window:
        """Begin a window that ends elsewhere. One that is still open under this name is cancelled.

        Args:
            name: up to 200 characters, unique among the open windows.
        """
        window = self.window(name)
        if (before := self._windows.pop(window.name, None)) is not None and before.open:
            self._warn("window open", f"window {window.name!r}: began twice. The first is cancelled.")
            before.cancel()
        if len(self._windows) >= MAX_OPEN_WINDOWS:
            sentence = f"could not begin: {MAX_OPEN_WINDOWS} windows are open. End those that are over."
            self._warn("windows", f"window {window.name!r}: {sentence}")
            return window
        self._windows[window.name] = window
        return window.restart()

    def end_window(self, name: str) -> Window | None:
        """End the window begun under this name, and return it. None: none is open, and one line says so.

        Args:
            name: of the window.
        """
        window = self._windows.pop(named(name), None)
        if window is None:
            self._warn("window", f"window {named(name)!r}: could not end: none of this name is open.")
        else:
            window.end()
        return window

    def metric(self, name: str, value: float, *, step: int | None = None, epoch: int | None = None) -> None:
        """Record a number, such as a loss, with its step and epoch: see `zeus_stream.metric`."""
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
        outbox, sender = self._outbox, self._sender
        return Statistics(
            acknowledged=outbox.acknowledged, waiting=outbox.waiting, dropped=outbox.dropped,
            reconnects=sender.reconnects, errors=sender.errors, unplaced=self._boundaries.unplaced,
        )  # fmt: skip

    def close(self) -> None:
        """End the run, and wait until the collector has everything. Idempotent.

        It waits at most 0.5 s, or ZEUS_STREAM_FLUSH_S, and not at all where there is no collector.
        """
        publishers.open.discard(self)
        if self._silent:
            return
        for name, window in self._windows.items():
            if window.open:
                self._warn(
                    "never", f"window {name!r}: was never ended, so it has no energy. Call end_window()."
                )
        for follower in self._followers.values():
            follower.close()
        self.watch.close()
        self.phases.hand_over()
        self._steps.pause()
        self._boundaries.close()
        self._outbox.close((RunEnded, monotonic_ns(), describe_failure(self._error)))
        self._sender.stop()
        if (lost := self._outbox.waiting) and "collector" not in self._warned:
            self._warn("undelivered", f"{lost} events of this run did not reach a collector in time.")
        self._silent = "the publisher is closed"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
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

    def _warn_of_misspelled(self) -> None:
        if any(name.startswith("ZEUS_STREAM_") for name in os.environ):
            from zeus_stream.settings import misspelled  # noqa: PLC0415  (17 ms, where there is a variable)

            if wrong := misspelled(os.environ):
                self._warn("variable", wrong)

    def _queue(self) -> torch_events.TorchQueue | None:
        """Return the device's queue, which is looked for at the beginning of a loop. None: by dispatch."""
        return None if self._by_dispatch or self._silent else torch_events.queue()


@dataclass(slots=True)
class PublisherLifetimes:
    """The publishers of this process that are not closed: closed at its end, silent in its forks.

    The one global of the project: a script of one line has nowhere to keep a publisher.
    """

    lock: threading.RLock = field(default_factory=threading.RLock)
    default: Publisher | None = None
    """The publisher of a script that makes none of its own."""
    open: set[Publisher] = field(default_factory=set)
    hooked: bool = False

    def enroll(self, publisher: Publisher) -> None:
        """Close a publisher when this process ends, unless it was closed before."""
        with self.lock:
            self.open.add(publisher)
            if not self.hooked:
                self.hooked = True
                atexit.register(self.close)
                os.register_at_fork(after_in_child=self.forked)
        # A forked child of multiprocessing leaves without atexit.
        if (util := sys.modules.get("multiprocessing.util")) is not None:
            util.Finalize(None, self.close, exitpriority=0)

    def first_run(self) -> str | None:
        """Return the name of the run whose first rank this script is. None: it is none."""
        started = self.default.started if self.default is not None else None
        return started.run if started is not None and started.rank == 0 else None

    def close(self) -> None:
        """Close all of them."""
        for publisher in tuple(self.open):
            publisher.close()

    def forked(self) -> None:
        """Leave the parent's publishers to the parent. A child that calls the module gets its own."""
        for publisher in self.open:
            publisher.silence("this process is a fork of the one that measures")
        self.lock, self.default, self.open = threading.RLock(), None, set()


def own_publisher(job: str | None = None) -> Publisher:
    """Return the publisher of a script that makes none of its own. ``job`` names one that is made now."""
    with publishers.lock:
        publishers.default = publishers.default or Publisher(job=job)
    return publishers.default


def describe_failure(error: BaseException | None = None) -> str | None:
    """Return as text ``error``, or the exception that ends this process (Python sets it before `atexit`)."""
    if error is None and not hasattr(sys, "ps1"):  # an interactive shell goes on after an exception
        error = getattr(sys, "last_value", None)
    if error is None or isinstance(error, SystemExit):
        return None
    name, text = type(error).__name__, str(error)
    return (f"{name}: {text}" if text else name)[:MAX_FAILURE].encode("utf-8", "replace").decode()


publishers = PublisherLifetimes()
