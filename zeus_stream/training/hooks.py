"""The publisher's functions that windows and recurring jobs call."""

import queue
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from msgspec import Struct

from zeus_stream.protocol.events import Advice
from zeus_stream.training.answers import Later, Missing, WindowEnergy

Box: TypeAlias = queue.Queue[Advice]
"""Holds the analyzer's answer to a question, once it has arrived."""


class WindowHooks(Struct, frozen=True, kw_only=True):
    """The publisher, as a window sees it."""

    numbers: Iterator[int]
    """Numbers of the session's windows."""
    put: Callable[[tuple[Any, ...]], None]
    """Queues an event."""
    warn: Callable[[str, str], None]
    """Logs a sentence, once for each cause."""
    energy: Callable[[str, int, float], WindowEnergy | Missing]
    """Waits for the energy of a window: name, number, seconds at most."""
    later: Callable[[str, int, float], Later]
    """Asks for it without waiting."""


class PublisherHooks(Struct, frozen=True, kw_only=True):
    """The publisher, as a recurring job sees it."""

    attempts: Iterator[int]
    """Numbers of the session's tries."""
    put: Callable[[tuple[Any, ...]], None]
    epoch: Callable[[], AbstractContextManager[None]]
    metric: Callable[[str, float], None]
    question: Callable[[int, int, int], Box | None]
    """Asks about an attempt after a number of epochs, until an instant. None: nobody can be asked."""
    silence: Callable[[], str]
    """Names the process that did not answer."""
    warn: Callable[[str, str], None]
    rank: int
    world_size: int
