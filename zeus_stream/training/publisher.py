"""What a training script calls. It stamps and hands over: it never waits, and never raises into the loop.

    for epoch in zeus_stream.epochs(10):
        for batch in zeus_stream.steps(loader):
            train(batch)

The training thread puts stamps into an `Outbox`; a `Courier` takes them to the collector of this host.
What goes wrong is said once a cause, in one line to the logger ``zeus_stream`` (stderr, unless it is
configured), and counted in `Statistics`.
"""

import atexit
import itertools
import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, cast

from zeus_stream.clock import anchor, boot_id, monotonic_ns
from zeus_stream.paths import publish_candidates
from zeus_stream.protocol.events import (
    Answer,
    EpochBegan,
    EpochEnded,
    Metric,
    RunEnded,
    RunStarted,
    StepBoundary,
)
from zeus_stream.training import jax_ready, torch_events
from zeus_stream.training.identity import Process, batch_of, identify, named
from zeus_stream.training.main_thread import Nudge
from zeus_stream.training.outbox import Outbox
from zeus_stream.training.recurring import ANSWER_S as RECURRING_S
from zeus_stream.training.recurring import Box, Line, Recurring, Wish, checked
from zeus_stream.training.sender import FLUSH_S, Courier
from zeus_stream.training.step_boundaries import Boundaries
from zeus_stream.training.windows import Later, Missing, Window, WindowEnergy
from zeus_stream.training.windows import Line as WindowLine

MAX_OPEN_WINDOWS = 1_000
MAX_ANSWER_S = 86_400.0
MAX_FLUSH_S = 3600.0
LOOK_AGAIN_S = 0.001
HOLD_NS = 100_000_000
"""The run's beginning is not told before its first loop, which may know the batch size, or before so long."""
_YES = {"1", "true", "yes", "on"}

T = TypeVar("T")


class Loop(Generic[T]):
    """An iterable whose loop says what it does. It has the length that the iterable has."""

    def __init__(self, iterable: Iterable[T], turns: Callable[[Iterable[T]], Iterator[T]]) -> None:
        self._iterable = iterable
        self._turns = turns

    def __len__(self) -> int:
        return len(cast("Sized", self._iterable))

    def __iter__(self) -> Iterator[T]:
        return self._turns(self._iterable)


@dataclass(frozen=True, slots=True)
class Statistics:
    """How publishing goes."""

    acknowledged: int
    """Events that are in the collector's log."""
    waiting: int
    """Events that are not, yet."""
    dropped: int
    """Events that found no room."""
    reconnects: int
    """Sockets given up because nothing was acknowledged in time."""
    errors: int
    """Messages that were not understood, and failures of the publisher itself."""
    unplaced: int
    """Boundaries of steps that the device did not reach in time: they are where Python dispatched them."""


class Follower(Protocol):
    """Tells a publisher of steps that somebody else makes."""

    def close(self) -> None: ...


F = TypeVar("F", bound=Follower)


class Publisher:
    """One run of one job, as this process tells it. Methods may be called from any thread.

    Args:
        job: what recurs, so that its runs can be compared; the script's name if not given.
        run: names this run; all ranks of a run give the same. Found from the launcher if not given.
        gpus: UUIDs, or indices in PCI order; those that CUDA shows this process if not given.
        batch_size: samples of one rank's batch: runs of a job are compared where it is the same. The
            ``batch_size`` of what `steps` first loops over, such as torch's ``DataLoader``, if not given.
    """

    def __init__(
        self,
        *,
        job: str | None = None,
        run: str | None = None,
        gpus: Sequence[str | int] | None = None,
        batch_size: int | None = None,
    ) -> None:
        self._said: set[str] = set()
        self._open: dict[str, Window] = {}
        self._followers: dict[type[Follower], Follower] = {}
        self._epoch = self._step = 0
        self._attempts = itertools.count()
        self._looping = self._stepping = False
        self._ended_ns: int | None = None
        """When the last step ended, while that is not told: it is with the next one's beginning."""
        self._silent = (
            "ZEUS_STREAM_OFF is set" if os.environ.get("ZEUS_STREAM_OFF", "").lower() in _YES else ""
        )
        self._boundaries = Boundaries(monotonic_ns, self._say, Nudge())
        self._by_dispatch = os.environ.get("ZEUS_STREAM_BOUNDARY", "").lower() == "dispatch"
        self._started = _run_started(job, run, gpus, batch_size, self._queue())
        self._outbox = Outbox(self._started, lambda: os.urandom(12).hex(), hold_ns=HOLD_NS)
        self._courier = Courier(
            self._outbox,
            publish_candidates(os.environ),
            self._say,
            self._fail,
            _flush_s(os.environ.get("ZEUS_STREAM_FLUSH_S", "")),
        )
        self._line = WindowLine(
            itertools.count(), self._outbox.put, self._energy, self._say, self._energy_later
        )
        if self._silent:
            self._outbox.empty()
            return
        try:
            self._courier.start()
        except RuntimeError as wrong:  # no more threads, or the interpreter is ending
            self._fail(wrong)
            return
        _process.enroll(self)

    # ---- steps and epochs

    def steps(self, iterable: Iterable[T]) -> Loop[T]:
        """Return ``iterable``, each turn of whose loop is a step."""
        self.know(batch_of(iterable))
        return Loop(iterable, self._steps)

    def know(self, batch_size: int | None) -> None:
        """Say how many samples a step of this rank takes, if nobody has said it, before the first step.

        None: it is not known here either.
        """
        if batch_size is not None:
            self._outbox.know(batch_size)

    def epochs(self, count: int | Iterable[T]) -> Loop[T]:
        """Return ``range(count)``, or an iterable, each turn of whose loop is an epoch."""
        iterable = cast("Iterable[T]", range(count)) if isinstance(count, int) else count
        return Loop(iterable, self._epochs)

    def begin_step(self) -> None:
        """Begin a step, and end the one before if it is open: for loops that `steps` cannot wrap."""
        now_ns = monotonic_ns()
        if self._looping:
            self._say_nested()
            return
        if self._stepping:
            self._mark_end(now_ns)
        elif self._ended_ns is None:
            self._boundaries.begin(self._queue())
            if self._boundaries.placing:
                self._boundaries.mark(now_ns)
        self._tell_end(now_ns)
        self._step += 1
        self._stepping = True

    def end_step(self, *, pauses: bool = True) -> None:
        """End the step that `begin_step` began.

        Args:
            pauses: False where another is expected at once: both are told with its beginning, as steps in a
                row, whose energies need no reading in between. If it does not come, ``end_step()`` tells it.
        """
        now_ns = monotonic_ns()
        if self._stepping:
            self._mark_end(now_ns)
            self._stepping = False
        elif self._ended_ns is None:
            self._say("step", "could not end a step: none is open. Call begin_step() before end_step().")
            return
        if pauses:
            self._tell_pause()

    def cancel_step(self) -> None:
        """Forget the step that `begin_step` began, if it is open: the next has its number."""
        if self._stepping:
            self._outbox.put((StepBoundary, self._step, None, None))
            self._step -= 1
            self._stepping = False

    def continue_from(self, *, step: int = 0, epoch: int = 0) -> None:
        """Number the next step and epoch so, as a resumed training does; never back, and between steps."""
        if step > self._step:
            self._tell_pause()
            self._step = step
        self._epoch = max(self._epoch, epoch)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Return a context that is a step."""
        self.begin_step()
        try:
            yield
        finally:
            if self._stepping:
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
        """Say that the step under way ends when this is ready: an array of JAX, or a tree with one in it.

        It is asked at the boundaries of later steps, and let go when it is ready. Give what is not donated,
        such as the loss.
        """
        if self._by_dispatch or self._silent:
            return
        if (array := jax_ready.output(output)) is None:
            what = f"ends_with(): {type(output).__name__} cannot say when it is ready"
            self._say("output", f"{what}: it has no is_ready(). Give it an array of JAX, such as the loss.")
        else:
            self._boundaries.ends_with(array)

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
        """Return one training of the job that recurs under this name.

        Args:
            batch_sizes: those that may be tried; they may differ from training to training.
            default: the one of them that is used where nothing is known.
            target: of the metric; what reaches it has converged.
            max_epochs: of one try.
            eta: what the cost is made of: 1, energy only; 0, time only.
            beta: a try may cost so many times the least a converged one has cost.
            window: only so many of the latest tries of a size count; 0: all.
            timeout_s: a batch size is waited for so long.
            agree: returns, in every rank, what the first one gave it. Without it a training of several ranks
                is never stopped early: its ranks would not stop together.

        Raises:
            SettingsError: this makes no sense; the sentence says what would.
        """
        wish = Wish(
            name, tuple(batch_sizes), default, target, metric, lower_is_better, max_epochs, eta, beta, window
        )
        line = Line(
            self._attempts,
            self._outbox.put,
            self.epoch,
            self.metric,
            self._question_of_try,
            self._courier.silence,
            self._say,
            self._started.rank,
            self._started.world_size,
        )
        return Recurring(line, checked(wish), timeout_s, agree)

    def _question_of_try(self, attempt: int, epochs: int, until_ns: int) -> Box | None:
        return None if self._silent else self._courier.question_of_try(attempt, epochs, until_ns)

    # ---- windows and metrics

    def window(self, name: str) -> Window:
        """Return a window: a context that knows its energy afterwards, or a decorator."""
        return Window(named(name), lambda: self._line)

    def begin_window(self, name: str) -> Window:
        """Begin a window that ends elsewhere. One that is still open under this name is cancelled."""
        window = self.window(name)
        if window.name in self._open:
            self._say("window open", f"window {window.name!r}: began twice. The first is cancelled.")
            self.cancel_window(name)
        if len(self._open) >= MAX_OPEN_WINDOWS:
            sentence = f"could not begin: {MAX_OPEN_WINDOWS} windows are open. End those that are over."
            self._say("windows", f"window {window.name!r}: {sentence}")
            return window
        self._open[window.name] = window
        return window.__enter__()

    def end_window(self, name: str) -> Window | None:
        """End the window begun under this name, and return it."""
        window = self._open.pop(named(name), None)
        if window is None:
            self._say("window", f"window {named(name)!r}: could not end: none of this name is open.")
        else:
            window.end()
        return window

    def cancel_window(self, name: str) -> None:
        """Forget the window begun under this name."""
        window = self._open.pop(named(name), None)
        if window is None:
            self._say("window", f"window {named(name)!r}: could not be cancelled: none of this name is open.")
        else:
            window.cancel()

    def metric(self, name: str, value: float) -> None:
        """Record a number, such as a loss, as of now. A tensor is waited for: give it when it is computed."""
        now_ns = monotonic_ns()
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError) as wrong:
            self._say("metric", f"metric {named(name)!r}: could not be a number: {wrong}.")
            return
        if math.isfinite(number):
            self._outbox.put((Metric, now_ns, named(name), number))
        else:
            self._say("finite", f"metric {named(name)!r}: {number} is not stored: it is not finite.")

    # ---- the publisher itself

    def statistics(self) -> Statistics:
        """Return how publishing goes."""
        outbox, courier = self._outbox, self._courier
        return Statistics(
            outbox.acknowledged,
            outbox.waiting,
            outbox.dropped,
            courier.reconnects,
            courier.errors,
            self._boundaries.unplaced,
        )

    def close(self) -> None:
        """Say that the run has ended, and wait until the collector has it. Idempotent.

        It waits at most 0.5 s, or ZEUS_STREAM_FLUSH_S, and not at all where there is no collector.
        """
        _process.open.discard(self)
        if self._silent:
            return
        for name in self._open:
            self._say("never", f"window {name!r}: was never ended, so it has no energy. Call end_window().")
        for follower in self._followers.values():
            follower.close()
        self._tell_pause()
        self._boundaries.close()
        self._outbox.close((RunEnded, monotonic_ns()))
        self._courier.stop()
        if (lost := self._outbox.waiting) and "collector" not in self._said:
            self._say("undelivered", f"{lost} events of this run did not reach a collector in time.")
        self._silent = "the publisher is closed"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _silence(self, reason: str) -> None:
        """Publish nothing from now on; what is called goes on to work."""
        self._silent = reason
        self._outbox.empty()

    def _fail(self, wrong: Exception) -> None:
        self._say("failure", f"could not publish: {wrong!r}. Training goes on unmeasured.")
        self._silence(f"publishing failed: {wrong!r}")

    def _say(self, cause: str, sentence: str) -> None:
        if cause not in self._said and not self._silent:
            self._said.add(cause)
            logging.getLogger("zeus_stream").warning("zeus-stream: %s", sentence)

    def _say_nested(self) -> None:
        self._say("nested", "steps within steps, or in two threads, are not counted: the outer ones are.")

    def _steps(self, iterable: Iterable[T]) -> Iterator[T]:
        if self._looping or self._stepping:
            self._say_nested()
            yield from iterable
            return
        self._tell_pause()
        self._looping = True
        put, boundaries = self._outbox.put, self._boundaries
        boundaries.begin(self._queue())
        first = index = self._step
        ended_ns: int | None = None
        try:
            for box in map(_boxed, iterable):
                began_ns = monotonic_ns()
                if boundaries.placing:
                    if ended_ns is None:
                        boundaries.mark(began_ns)
                    put(boundaries.boundary(index, ended_ns, began_ns))
                else:
                    put((StepBoundary, index, ended_ns, began_ns))
                index += 1
                ended_ns = None
                yield box.pop()  # a batch is its loop's alone: held here, its memory could not be used again
                ended_ns = monotonic_ns()
                if boundaries.placing:
                    boundaries.mark(ended_ns)
        finally:
            self._step = index
            if index > first:
                if ended_ns is None:
                    self._mark_end(monotonic_ns())
                else:
                    self._ended_ns = ended_ns
                self._tell_end(None)
            self._looping = False

    def _mark_end(self, now_ns: int) -> None:
        if self._boundaries.placing:
            self._boundaries.mark(now_ns)
        self._ended_ns = now_ns

    def _tell_pause(self) -> None:
        if self._ended_ns is not None:
            self._tell_end(None)

    def _tell_end(self, began_ns: int | None) -> None:
        """Tell that a step ended, if one did, and that the next began, if it has."""
        self._outbox.put(self._boundaries.boundary(self._step, self._ended_ns, began_ns))
        self._ended_ns = None

    def _queue(self) -> torch_events.CudaQueue | None:
        """Return the device's queue, which is looked for at the beginning of a loop. None: by dispatch."""
        return None if self._by_dispatch or self._silent else torch_events.queue()

    def _epochs(self, iterable: Iterable[T]) -> Iterator[T]:
        for item in iterable:
            with self.epoch():
                yield item

    def _wait_for_device(self, until_ns: int) -> None:
        """Where the script waits anyway: see the device end the steps whose boundaries come first."""
        nap = threading.Event()
        while self._boundaries.look() and monotonic_ns() < until_ns:
            nap.wait(LOOK_AGAIN_S)

    def _energy(self, window: Window, timeout_s: float) -> WindowEnergy | Missing:
        if self._silent:
            return Missing(f"window {window.name!r}: its energy is not known: {self._silent}.")
        until_ns = _until_ns(timeout_s)
        self._wait_for_device(until_ns)
        answer = self._courier.ask(window.number, max(0, until_ns - monotonic_ns()) / 1e9)
        return self._told(window.name, timeout_s, answer)

    def _energy_later(self, window: Window, timeout_s: float) -> Later:
        if self._silent:
            return Later(lambda: self._energy(window, 0.0))
        name, until_ns = window.name, _until_ns(timeout_s)
        box = self._courier.question(window.number, until_ns)

        def look() -> WindowEnergy | Missing | None:
            late = monotonic_ns() >= until_ns  # read before the box: what came in time is found
            if not box.empty():
                return self._told(name, timeout_s, box.get_nowait())
            return self._told(name, timeout_s, None) if late else None

        return Later(look)

    def _told(self, name: str, timeout_s: float, answer: Answer | None) -> WindowEnergy | Missing:
        what = f"window {name!r}: its energy is not known"
        if answer is None:
            return Missing(f"{what}: {self._courier.silence()} within {timeout_s:g} s.")
        if answer.missing is not None or answer.duration_s is None or not answer.gpus:
            return Missing(f"{what}: {answer.missing or 'the run has no GPU.'}")
        return WindowEnergy(
            name,
            answer.duration_s,
            sum(gpu.energy_j for gpu in answer.gpus),
            sum(gpu.energy_low_j for gpu in answer.gpus),
            sum(gpu.energy_high_j for gpu in answer.gpus),
            answer.gpus,
        )


def _flush_s(asked: str) -> float:
    """Return how long the end may wait: as asked, if that is a number of seconds up to an hour."""
    try:
        seconds = float(asked)
    except ValueError:
        return FLUSH_S
    return seconds if 0 <= seconds <= MAX_FLUSH_S else FLUSH_S


def _until_ns(timeout_s: float) -> int:
    return monotonic_ns() + round(min(max(0.0, timeout_s), MAX_ANSWER_S) * 1e9)


def _boxed(item: T) -> list[T]:
    return [item]


def _run_started(
    job: str | None,
    run: str | None,
    gpus: Sequence[str | int] | None,
    batch_size: int | None,
    queue: torch_events.CudaQueue | None,
) -> RunStarted:
    try:
        boot = boot_id()
    except OSError:
        boot = "unknown"  # there is no /proc: then no collector runs here either
    process = Process(
        script=sys.argv[0] if getattr(sys, "argv", None) else "",
        launcher=f"{boot[:8]}-{_parent()}",
        token=os.urandom(6).hex(),
        cuda=_cuda_uuids(),
    )
    who = identify(os.environ, process, job=job, run=run, gpus=gpus, batch_size=batch_size)
    now = anchor()
    return RunStarted(
        now.monotonic_ns,
        who.job,
        who.run,
        who.rank,
        who.world_size,
        who.gpus,
        os.getpid(),
        boot,
        now.wall_ns,
        now.error_ns,
        "dispatch" if queue is None else "device",
        who.batch_size,
    )


def _parent() -> str:
    """Return the parent's pid and start: unique within this boot, where a pid alone may come again."""
    pid = os.getppid()
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        return f"{pid}-{fields.split()[19]}"
    except (OSError, IndexError):
        return str(pid)


def _cuda_uuids() -> tuple[str, ...] | None:
    """Return what torch knows of its devices, if the script has initialized CUDA; never initialize it."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is None or not cuda.is_initialized():
            return None
        if getattr(
            getattr(sys.modules["torch"], "version", None), "hip", None
        ):  # HIP's UUIDs are not the driver's
            return None
        devices = [cuda.get_device_properties(index) for index in range(cuda.device_count())]
        return tuple(f"GPU-{device.uuid}" for device in devices)
    except (AttributeError, RuntimeError):  # a torch before 2.4 has no UUIDs; the environment has to do
        return None


@dataclass(slots=True)
class _Process:
    """The publishers of this process, to be ended with it and silent in its forks."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    default: Publisher | None = None
    open: set[Publisher] = field(default_factory=set)
    hooked: bool = False

    def enroll(self, publisher: Publisher) -> None:
        with self.lock:
            self.open.add(publisher)
            if not self.hooked:
                self.hooked = True
                atexit.register(self.close)
                os.register_at_fork(after_in_child=self.forked)
        # A forked child of multiprocessing leaves without atexit.
        if (util := sys.modules.get("multiprocessing.util")) is not None:
            util.Finalize(None, self.close, exitpriority=0)

    def close(self) -> None:
        for publisher in tuple(self.open):
            publisher.close()

    def forked(self) -> None:
        """Leave the parent's publishers to the parent. A child that calls the face gets its own."""
        for publisher in self.open:
            publisher._silence("this process is a fork of the one that measures")  # noqa: SLF001
        self.lock, self.default, self.open = threading.RLock(), None, set()


_process = _Process()
"""The one global of the project: a script in one line has nowhere to keep a publisher."""


def default_publisher(job: str | None = None) -> Publisher:
    """Return the publisher of a script that makes none of its own. ``job``: of one that is made now."""
    if (publisher := _process.default) is None:
        with _process.lock:
            publisher = _process.default = _process.default or Publisher(job=job)
    return publisher


def recurring(
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
    """Return one training of the job that recurs under this name: see `Publisher.recurring`."""
    return default_publisher(name).recurring(
        name,
        batch_sizes=batch_sizes,
        default=default,
        target=target,
        metric=metric,
        lower_is_better=lower_is_better,
        max_epochs=max_epochs,
        eta=eta,
        beta=beta,
        window=window,
        timeout_s=timeout_s,
        agree=agree,
    )


def steps(iterable: Iterable[T]) -> Loop[T]:
    """Return ``iterable``, each turn of whose loop is a step."""
    return default_publisher().steps(iterable)


def epochs(count: int | Iterable[T]) -> Loop[T]:
    """Return ``range(count)``, or an iterable, each turn of whose loop is an epoch."""
    return default_publisher().epochs(count)


def window(name: str) -> Window:
    """Return a window: a context that knows its energy afterwards, or a decorator."""
    return Window(named(name), lambda: default_publisher()._line)  # noqa: SLF001


def ends_with(output: Any) -> None:
    """Say that the step under way ends when this is ready: an array of JAX, or a tree with one in it."""
    default_publisher().ends_with(output)


def metric(name: str, value: float) -> None:
    """Record a number, such as a loss, as of now."""
    default_publisher().metric(name, value)
