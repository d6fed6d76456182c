"""A span of the training with a name, and what it cost. The publisher carries what is said here."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, cast

from zeus_stream.clock import monotonic_ns
from zeus_stream.protocol.events import GpuEnergy, WindowBegan, WindowCancelled, WindowEnded

ANSWER_S = 10.0

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no value, for this reason. It is false, so that ``if energy := w.energy():`` reads well."""

    reason: str

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class WindowEnergy:
    """What a window cost this process's GPUs. The truth, as their counters have it, is within the bounds."""

    name: str
    duration_s: float
    energy_j: float
    energy_low_j: float
    energy_high_j: float
    gpus: tuple[GpuEnergy, ...]

    def __str__(self) -> str:
        count = f"{len(self.gpus)} GPU{'s' if len(self.gpus) > 1 else ''}"
        bounds = f"{self.energy_low_j:.1f} to {self.energy_high_j:.1f}"
        return f"{self.name}: {self.energy_j:.1f} J ({bounds}) in {self.duration_s:.3f} s on {count}"


class Later:
    """An answer under way, for who does not wait."""

    def __init__(self, look: Callable[[], WindowEnergy | Missing | None]) -> None:
        self._look = look
        self._known: WindowEnergy | Missing | None = None

    def __call__(self) -> WindowEnergy | Missing | None:
        """Return it, None while it is not there yet: there is one in the end."""
        if self._known is None:
            self._known = self._look()
        return self._known


@dataclass(frozen=True, slots=True)
class Line:
    """What a window needs of its publisher."""

    numbers: Iterator[int]
    put: Callable[[tuple[Any, ...]], None]
    energy: Callable[["Window", float], WindowEnergy | Missing]
    say: Callable[[str, str], None]
    later: Callable[["Window", float], Later]


class Window:
    """A span of the training with a name: ``with``, ``async with``, or a decorator of functions.

    An object is one span at a time; entered again when it is over, it is another window of the same name.
    A decorated function opens a window of its own at each call: recursion, threads and tasks may overlap.
    """

    def __init__(self, name: str, find: Callable[[], Line]) -> None:
        """``find`` is called as the window begins: a decorator alone starts nothing."""
        self._find = find
        self._line: Line | None = None
        self._open = False
        self.name = name
        self.number = -1
        """Unique in the session; -1: it never began, or was cancelled."""

    def __enter__(self) -> Self:
        line = self._line = self._find()
        if self._open:
            line.say("window open", f"window {self.name!r}: began twice. The first is cancelled.")
            self.cancel()
        self._open = True
        self.number = next(line.numbers)
        line.put((WindowBegan, monotonic_ns(), self.number, self.name))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return ``function``, or ``async`` function, with a window around each of its calls.

        Raises:
            TypeError: it is a generator: what loops over it works in between.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"window {self.name!r}: could not be put around {function.__qualname__}: it is a generator,"
                " and the loop over it works too. Put `with zeus_stream.window(...)` where the work is."
            )
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def measured_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                with Window(self.name, self._find):
                    return await function(*args, **kwargs)

            return cast("Callable[P, R]", measured_async)

        @wraps(function)
        def measured(*args: P.args, **kwargs: P.kwargs) -> R:
            with Window(self.name, self._find):
                return function(*args, **kwargs)

        return measured

    def end(self) -> None:
        """End it. Once: what is not open stays as it is."""
        if self._open and self._line is not None:
            self._line.put((WindowEnded, monotonic_ns(), self.number))
            self._open = False

    def cancel(self) -> None:
        """Forget it: it will have no energy."""
        if self._open and self._line is not None:
            self._line.put((WindowCancelled, monotonic_ns(), self.number))
            self._open, self.number = False, -1

    def restart(self) -> Self:
        """Begin it anew: if it is open, what it measured until now is forgotten."""
        self.cancel()
        return self.__enter__()

    def energy(self, timeout_s: float = ANSWER_S) -> WindowEnergy | Missing:
        """Wait for the analyzer's answer, at most ``timeout_s``, and return it.

        It blocks the thread: in a coroutine, ``await asyncio.to_thread(w.energy)``. Who does not want to wait
        finds the window in the archive afterwards: ``zeus_stream.connect().windows(name=...)``.
        """
        if self._open or self._line is None or self.number < 0:
            return self._without_energy()
        return self._line.energy(self, timeout_s)

    def energy_later(self, timeout_s: float = ANSWER_S) -> Later:
        """Ask for the analyzer's answer, and return where it will be within ``timeout_s``. Never waits."""
        if self._open or self._line is None or self.number < 0:
            return Later(self._without_energy)
        return self._line.later(self, timeout_s)

    def _without_energy(self) -> Missing:
        why = "it has not ended" if self._open else "it never began, or was cancelled"
        return Missing(f"window {self.name!r}: its energy is not known: {why}.")
