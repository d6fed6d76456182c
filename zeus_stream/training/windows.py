"""Windows: spans of the training with a name, and their energy."""

import inspect
import itertools
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, Self, TypeVar, cast

from zeus_stream.clock import monotonic_ns
from zeus_stream.protocol.events import Answer, WindowBegan, WindowCancelled, WindowEnded
from zeus_stream.training.answers import Missing, WindowEnergy
from zeus_stream.training.outbox import Outbox
from zeus_stream.training.sender import EventSender

ANSWER_S = 10.0
MAX_ANSWER_S = 86_400.0

LOOK_S = 0.005
"""Between two looks of a thread that waits for an answer."""

P = ParamSpec("P")
R = TypeVar("R")


class Later:
    """An answer that is under way. Call it to look: it never waits."""

    def __init__(self, look: Callable[[], WindowEnergy | Missing | None]) -> None:
        self._look = look
        self._known: WindowEnergy | Missing | None = None

    def __call__(self) -> WindowEnergy | Missing | None:
        """Return the answer. None: it has not arrived; one always arrives in the end."""
        if self._known is None:
            self._known = self._look()
        return self._known

    def wait(self) -> WindowEnergy | Missing:
        """Wait for the answer."""
        while (known := self()) is None:
            time.sleep(LOOK_S)
        return known

    def __repr__(self) -> str:
        return f"Later({self._known!r})"


class SessionWindows:
    """The windows of one publisher: their numbers, their events, and the questions about their energy."""

    def __init__(
        self,
        outbox: Outbox,
        sender: EventSender,
        warn: Callable[[str, str], None],
        wait_for_device: Callable[[int], None],
        silent: Callable[[], str],
    ) -> None:
        """``wait_for_device``: until steps before the window have ended there. ``silent``: why, or empty."""
        self.numbers = itertools.count()
        self.put = outbox.put
        self.warn = warn
        """Logs a sentence, once for each cause."""
        self._sender = sender
        self._wait_for_device = wait_for_device
        self._silent = silent

    def energy(self, name: str, number: int, timeout_s: float) -> WindowEnergy | Missing:
        """Wait for the energy of a window, at most ``timeout_s``. Return at once if nobody can answer."""
        if silent := self._silent():
            return Missing(reason=f"window {name!r}: its energy is not known: {silent}.", name=name)
        until_ns = _until_ns(timeout_s)
        self._wait_for_device(until_ns)
        return self._asked(name, number, until_ns, timeout_s).wait()

    def later(self, name: str, number: int, timeout_s: float) -> Later:
        """Ask for the energy of a window, and return where the answer will be within ``timeout_s``."""
        if self._silent():
            return Later(lambda: self.energy(name, number, 0.0))
        return self._asked(name, number, _until_ns(timeout_s), timeout_s)

    def _asked(self, name: str, number: int, until_ns: int, timeout_s: float) -> Later:
        box = self._sender.question(number, until_ns)

        def look() -> WindowEnergy | Missing | None:
            # Read before the box: what came in time is found.
            late = self._sender.absent or monotonic_ns() >= until_ns
            if not box.empty():
                return self._window_energy(name, timeout_s, box.get_nowait())
            return self._window_energy(name, timeout_s, None) if late else None

        return Later(look)

    def _window_energy(self, name: str, timeout_s: float, answer: Answer | None) -> WindowEnergy | Missing:
        what = f"window {name!r}: its energy is not known"
        if answer is None and self._sender.absent:
            return Missing(reason=f"{what}: {self._sender.silence()}.", name=name)
        if answer is None:
            return Missing(reason=f"{what}: {self._sender.silence()} within {timeout_s:g} s.", name=name)
        if answer.missing is not None or answer.duration_s is None or not answer.gpus:
            return Missing(reason=f"{what}: {answer.missing or 'the run has no GPU.'}", name=name)
        return WindowEnergy(
            name=name,
            duration_s=answer.duration_s,
            energy_j=sum(gpu.energy_j for gpu in answer.gpus),
            energy_low_j=sum(gpu.energy_low_j for gpu in answer.gpus),
            energy_high_j=sum(gpu.energy_high_j for gpu in answer.gpus),
            gpus=answer.gpus,
        )


def _until_ns(timeout_s: float) -> int:
    return monotonic_ns() + round(min(max(0.0, timeout_s), MAX_ANSWER_S) * 1e9)


class Window:
    """A span of the training with a name: ``with``, ``async with``, or a decorator of functions.

    An object is one span at a time; entered again when it is over, it is another window of the same name.
    A decorated function opens a window of its own at each call: recursion, threads and tasks may overlap.

    Example:
        >>> window = zeus_stream.window("warm-up").restart()
        >>> warm_up()
        >>> window.end()
        >>> print(window.energy())
        warm-up: 96.2 J (95.8 to 96.6) in 0.501 s on 1 GPU
    """

    def __init__(self, name: str, find: Callable[[], SessionWindows]) -> None:
        """``find`` is called as the window begins: a decorator alone starts nothing."""
        self._find = find
        self._session: SessionWindows | None = None
        self.open = False
        """It has begun, and has not ended."""
        self.name = name
        self.number = -1
        """Unique in the session; -1: it never began, or was cancelled."""

    def __reduce__(self) -> tuple[type["Window"], tuple[str, Callable[[], SessionWindows]]]:
        """A copy is another window of the same name, not begun."""
        return Window, (self.name, self._find)

    def __repr__(self) -> str:
        state = "open" if self.open else "not begun" if self.number < 0 else f"ended, number {self.number}"
        return f"<Window {self.name!r}: {state}>"

    def __enter__(self) -> Self:
        session = self._session = self._find()
        if self.open:
            session.warn("window open", f"window {self.name!r}: began twice. The first is cancelled.")
            self.cancel()
        self.open = True
        self.number = next(session.numbers)
        session.put((WindowBegan, monotonic_ns(), self.number, self.name))
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.end()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return a function, or ``async`` one, with a window around each call. TypeError: a generator."""
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
        """End the window. It does nothing if the window is not open."""
        if self.open and self._session is not None:
            self._session.put((WindowEnded, monotonic_ns(), self.number))
            self.open = False

    def cancel(self) -> None:
        """Forget the window: it will have no energy."""
        if self.open and self._session is not None:
            self._session.put((WindowCancelled, monotonic_ns(), self.number))
            self.open, self.number = False, -1

    def restart(self) -> Self:
        """Begin again. If the window is open, what it measured until now is forgotten."""
        self.cancel()
        return self.__enter__()

    def energy(self, timeout_s: float = ANSWER_S) -> WindowEnergy | Missing:
        """Wait for the analyzer's answer and return it: joules, with bounds, for each GPU of this process.

        It blocks the thread: in a coroutine, use ``await asyncio.to_thread(w.energy)``. To read it later,
        ask the archive: ``zeus_stream.connect().windows(name=...)``.

        Args:
            timeout_s: seconds to wait at most. Without a collector on this host it returns at once.

        Returns:
            `Missing`, with the reason, if the energy is not known. It has the same fields, all None.
        """
        if self.open or self._session is None or self.number < 0:
            return self._without_energy()
        return self._session.energy(self.name, self.number, timeout_s)

    def energy_later(self, timeout_s: float = ANSWER_S) -> Later:
        """Ask for the energy without waiting. Call what this returns to look for the answer.

        Args:
            timeout_s: seconds after which the answer is `Missing`.

        Returns:
            A function of no arguments: the energy, `Missing`, or None while the answer is under way.
        """
        if self.open or self._session is None or self.number < 0:
            return Later(self._without_energy)
        return self._session.later(self.name, self.number, timeout_s)

    def _without_energy(self) -> Missing:
        why = "it has not ended" if self.open else "it never began, or was cancelled"
        return Missing(reason=f"window {self.name!r}: its energy is not known: {why}.", name=self.name)
