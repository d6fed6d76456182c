"""The door to torch's timing events: CUDA's, and ROCm's, which torch gives the same names.

It never imports torch, and never initializes CUDA: what the script has not begun is not there.
"""

import sys
from functools import partial
from typing import Any

from zeus_stream.training.steps.step_boundaries import TimingEvent


class TorchQueue:
    """The stream that is current in the calling thread, on its current device."""

    def __init__(self, cuda: Any) -> None:
        self._new = partial(cuda.Event, enable_timing=True, blocking=True)
        self._capturing = cuda.is_current_stream_capturing

    def event(self) -> TimingEvent:
        event: TimingEvent = self._new()
        return event

    def capturing(self) -> bool:
        return bool(self._capturing())


def queue() -> TorchQueue | None:
    """Return where this thread's work on its GPU waits. None: the script has not initialized CUDA."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        return TorchQueue(cuda) if cuda is not None and cuda.is_initialized() else None
    except AttributeError:  # a torch without one of these names
        return None
