"""An interpreter that is restarted from its own state all the time."""

from collections.abc import Callable
from random import Random
from typing import Any

from analyzers.checkpoints.machine_state import restore, state_of
from analyzers.interpreter.interpreter import Input, Interpreter
from analyzers.power_limit.selectors import parse
from analyzers.results.result import Result


class Restarted:
    """Stands for an interpreter, and puts another in its place after some of the frames."""

    def __init__(self, make: Callable[[], Interpreter], seed: int, share: float = 0.1) -> None:
        self.restarts = 0
        self._make = make
        self._rng = Random(seed)
        self._share = share
        self._interpreter = make()

    def handle(self, event: Input, now_ns: int) -> Result:
        """Take in an event; see `Interpreter.handle`."""
        result = self._interpreter.handle(event, now_ns)
        if self._rng.random() < self._share:
            state = state_of(self._interpreter.site)
            self._interpreter = self._make()
            restore(self._interpreter.site, state, parse)
            self.restarts += 1
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._interpreter, name)
