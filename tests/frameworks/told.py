"""Trainings with real frameworks, each script a process, and what they told a collector that answers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.environment import run
from tests.zeus_stream.stand_in_collector import Collector
from zeus_stream.protocol import codec
from zeus_stream.protocol.events import (
    Answer,
    Ask,
    EpochEnded,
    Event,
    GpuEnergy,
    PhasesRan,
    RunStarted,
    StepBoundary,
    WindowBegan,
    WindowEnded,
)
from zeus_stream.protocol.fields import Unknown

POWER_W = 100.0
"""What every window is answered to have drawn."""
LONGEST_S = 300
ON_CPU = {
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Variables of a training on the processor, with one thread, that downloads nothing."""


def absent(*frameworks: str) -> str:
    """Say which are not installed here; empty: all are."""
    missing = " and ".join(name for name in frameworks if find_spec(name) is None)
    return f"{missing} not installed here: `make test-frameworks` has an environment" if missing else ""


def need(*frameworks: str) -> None:
    """Skip a module unless they are installed."""
    if reason := absent(*frameworks):
        pytest.skip(reason, allow_module_level=True)


@dataclass(frozen=True)
class Session:
    """One publisher's events."""

    events: Sequence[Event | Unknown]

    @property
    def batch_size(self) -> int | None:
        """Samples of a step, as its beginning says."""
        return next(event.batch_size for event in self.events if isinstance(event, RunStarted))

    @property
    def steps(self) -> list[int]:
        """Numbers of the steps that are whole, as the analyzer finds them."""
        whole, opened = [], None
        for event in self.events:
            if isinstance(event, StepBoundary):
                if event.ended_ns is not None and opened == event.index - 1:
                    whole.append(opened)
                opened = None if event.began_ns is None else event.index
        return whole

    @property
    def epochs(self) -> list[int]:
        return [event.index for event in self.events if isinstance(event, EpochEnded)]

    @property
    def phases(self) -> set[str]:
        """Names of the phases that were marked."""
        return {name for event in self.events if isinstance(event, PhasesRan) for name in event.names}

    @property
    def windows(self) -> list[str]:
        """Names of those that ended."""
        names = {event.window: event.name for event in self.events if isinstance(event, WindowBegan)}
        return [names[event.window] for event in self.events if isinstance(event, WindowEnded)]

    def seconds(self, window: int) -> float:
        (began,) = [e for e in self.events if isinstance(e, WindowBegan) and e.window == window]
        (ended,) = [e for e in self.events if isinstance(e, WindowEnded) and e.window == window]
        return (ended.t_ns - began.t_ns) / 1e9


@dataclass(frozen=True)
class Told:
    """What a script printed, and told."""

    printed: dict[str, Any]
    sessions: dict[str, Session]
    """By job."""
    stderr: str

    @property
    def complaints(self) -> list[str]:
        """What was said, but that there is no collector, where there is none."""
        ours = [line for line in self.stderr.splitlines() if line.startswith("zeus-stream:")]
        return [line for line in ours if "/nobody/publish: training goes on unmeasured" not in line]


def train(script: str, directory: Path, launcher: Sequence[str] = (), **more: str) -> Told:
    """Run a script of `trainings` beside a collector whose analyzer answers at once.

    ``launcher``: Python's arguments before ``-m``; ``more``: environment variables.
    """
    with Collector(directory / "publish") as collector:

        def answer(ask: Ask) -> bytes:
            seconds = Session(collector.sessions[ask.session]).seconds(ask.window)
            energy_j = POWER_W * seconds
            gpu = GpuEnergy("GPU-0", energy_j, energy_j, energy_j)
            return codec.encode(Answer(ask.question, seconds, (gpu,), None))

        collector.answer = answer
        result = directory / "result.json"
        module = f"tests.frameworks.trainings.{script}"
        done = run(directory, *launcher, "-m", module, result, cwd=directory, env=ON_CPU | more)
        assert done.returncode == 0, done.stderr[-6000:]
        sessions = {}
        for events in collector.sessions.values():
            started = events[0]
            assert isinstance(started, RunStarted)
            sessions[started.job] = Session(events)
        return Told(json.loads(result.read_text()), sessions, done.stderr)
