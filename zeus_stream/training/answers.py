"""Answers to a training script: the energy of a window, or the reason why it is not known. Pure."""

import queue
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal, TypeAlias, final

from msgspec import Struct

from zeus_stream.protocol.events import Advice, GpuEnergy


@final
class WindowEnergy(Struct, frozen=True, kw_only=True):
    """The energy of a window, over the GPUs of this process.

    The true energy lies between ``energy_low_j`` and ``energy_high_j``: these bounds follow from the GPUs'
    energy counters alone.

    Attributes:
        name: of the window.
        duration_s: s, from its begin to its end.
        energy_j: the best estimate, J.
        energy_low_j: lower bound, J.
        energy_high_j: upper bound, J.
        gpus: the same figures for each GPU, with its UUID.

    Example:
        >>> with zeus_stream.window("validation") as w:
        ...     evaluate()
        >>> print(w.energy())
        validation: 812.4 J (809.1 to 815.6) in 4.012 s on 1 GPU
    """

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


class Missing(Struct, frozen=True, kw_only=True):
    """An energy that is not known, with the reason.

    It has the fields of `WindowEnergy`, all of them None (``gpus``: empty), so that ``w.energy().energy_j``
    works without a collector. It is false, so that ``if energy := w.energy():`` works as well.

    Attributes:
        reason: why the energy is not known, as a sentence.
        name: of the window.

    Example:
        >>> energy = w.energy()
        >>> print(energy.energy_j if energy else energy.reason)
    """

    reason: str
    name: str | None = None
    duration_s: ClassVar[None] = None
    energy_j: ClassVar[None] = None
    energy_low_j: ClassVar[None] = None
    energy_high_j: ClassVar[None] = None
    gpus: ClassVar[tuple[GpuEnergy, ...]] = ()

    def __bool__(self) -> Literal[False]:
        return False

    def __str__(self) -> str:
        return self.reason


class Statistics(Struct, frozen=True, kw_only=True):
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


Box: TypeAlias = queue.Queue[Advice]
"""Holds the analyzer's answer to a question, once it has arrived."""


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
