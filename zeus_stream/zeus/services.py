"""Starts the services for Zeus's classes, and finds the GPUs that an index means."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from zeus_stream.clock import monotonic_ns
from zeus_stream.own_services import start
from zeus_stream.training.answers import Missing, WindowEnergy
from zeus_stream.training.identity import ALL, visible_gpus
from zeus_stream.training.publisher import Publisher, publishers
from zeus_stream.training.run_started import cuda_uuids

READY_S = 10.0
"""Longest wait for the first energy of every GPU: its counter has to change twice."""
FIRST_WINDOW_S = 0.02
ANSWER_S, NO_ANSWER_S = 10.0, 1.0
"""Longest wait for the energy of a window, and of one after an energy that was not known."""
_connected: "dict[tuple[int, tuple[int, ...] | None], MonitoredGpus]" = {}
"""By process and indices: monitors of the same GPUs in a process are one run."""


@dataclass
class MonitoredGpus:
    """The GPUs of a monitor, and the publisher that measures them."""

    publisher: Publisher
    uuids: dict[int, str] = field(default_factory=dict)
    """By index, as CUDA counts. Empty: no GPU can be measured."""
    asked: tuple[int, ...] = ()
    answer_s: float = ANSWER_S
    """Longest wait for the next energy."""

    @property
    def indices(self) -> tuple[int, ...]:
        return tuple(self.uuids) or self.asked

    def learn(self, answer: WindowEnergy | Missing) -> None:
        """Learn from the first answer which GPUs the indices mean, and from each how long the next may take.

        One line says why an energy is not known.
        """
        self.answer_s = ANSWER_S if answer else NO_ANSWER_S
        if not answer and self.indices:
            self.publisher.session_windows.warn("energy", str(answer))
        if answer and not self.uuids and len(answer.gpus) == len(self.asked):
            self.uuids = {index: gpu.gpu for index, gpu in zip(self.asked, answer.gpus, strict=True)}


def connect(gpu_indices: Iterable[int] | None) -> MonitoredGpus:
    """Start the services if none run, and return the GPUs once their energy is known.

    It never raises because a service or a GPU is missing: then no energy is known. ``gpu_indices``: as CUDA
    counts in this process; None: all that it shows. Raises ValueError: an index is not that of a GPU.
    """
    wanted = None if gpu_indices is None else tuple(gpu_indices)
    key = os.getpid(), wanted
    if key not in _connected:
        _connected[key] = _connect(wanted)
    return _connected[key]


def _connect(asked: tuple[int, ...] | None) -> MonitoredGpus:
    started = start()
    visible = visible_gpus(os.environ, cuda_uuids())
    publisher = Publisher(gpus=_named(visible, asked))
    with publishers.lock:  # steps and windows of `zeus_stream` in the same script are of the same run
        publishers.default = publishers.default or publisher
    found = _first_energy(publisher) if started else None
    if found is None:
        return MonitoredGpus(publisher, asked=asked or ())
    indices = tuple(range(len(found.gpus))) if asked is None else asked
    if len(indices) != len(found.gpus):
        raise ValueError(
            f"gpu_indices {list(indices)}: could not be monitored: the collector has"
            f" {len(found.gpus)} of these GPUs. `zeus-stream doctor` lists what there is."
        )
    pairs = zip(indices, (gpu.gpu for gpu in found.gpus), strict=True)
    return MonitoredGpus(publisher, dict(pairs), indices)


def _named(visible: tuple[str, ...], asked: tuple[int, ...] | None) -> tuple[str, ...]:
    """Return the GPUs of these indices, as a publisher names them."""
    if asked is None:
        return visible
    if visible == (ALL,):
        return tuple(f"index:{index}" for index in asked)
    wrong = [index for index in asked if not 0 <= index < len(visible)]
    if wrong:
        raise ValueError(f"gpu_indices {wrong}: could not be found: {len(visible)} GPUs are visible.")
    return tuple(visible[index] for index in asked)


def _first_energy(publisher: Publisher) -> WindowEnergy | None:
    """Measure short windows until one has an energy. None: there is no GPU, or nobody answers."""
    until_ns = monotonic_ns() + round(READY_S * 1e9)
    while monotonic_ns() < until_ns:
        with publisher.window("first energy of a ZeusMonitor") as window:
            time.sleep(FIRST_WINDOW_S)
        energy = window.energy(max(0.0, (until_ns - monotonic_ns()) / 1e9))
        if isinstance(energy, WindowEnergy):
            return energy
        if "no GPU" in energy.reason:
            return None
    return None
