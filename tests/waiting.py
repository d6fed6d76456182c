"""Waiting for other processes, which need the processor themselves."""

import time
from collections.abc import Callable
from typing import TypeVar

import anyio

T = TypeVar("T")
SHORTEST_S, LONGEST_S = 0.005, 1.0


def until(condition: Callable[[], T | None], timeout_s: float = 180.0) -> T:
    """Return the first true answer of a condition. Raises TimeoutError.

    The pause between two questions is twelve times what a question takes: those that ask SQL or start a
    process would take half of the machine otherwise.
    """
    begin_s = asked_s = time.monotonic()
    while not (held := condition()):
        now_s = time.monotonic()
        if now_s - begin_s > timeout_s:
            raise TimeoutError(f"not within {timeout_s} s: {condition}")
        time.sleep(min(max(SHORTEST_S, 12 * (now_s - asked_s)), LONGEST_S))
        asked_s = time.monotonic()
    return held


async def eventually(condition: Callable[[], object], timeout_s: float = 180.0) -> None:
    """Wait for what other tasks do until a condition holds. Raises TimeoutError."""
    with anyio.fail_after(timeout_s):
        while not condition():
            await anyio.sleep(0.005)
