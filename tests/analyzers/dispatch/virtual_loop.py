"""An event loop in virtual time: hours of waiting take as long as the work in between."""

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any

LATE_S = 0.001
"""Timers come so late, as real ones do."""


class _Leaping(selectors.SelectSelector):
    """A selector that never waits: time goes on to where it would have waited to."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        assert ready or timeout is not None, "all tasks wait, and none for a time"
        if not ready and timeout:
            self.now_s += timeout + LATE_S
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. Nothing in it may wait for another thread or process."""

    def __init__(self) -> None:
        self._leaping = _Leaping()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.now_s


IN_VIRTUAL_TIME: tuple[str, Mapping[str, Any]] = "asyncio", {"loop_factory": VirtualLoop}
"""A backend of anyio."""
