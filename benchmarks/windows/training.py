"""A training that loads a GPU of its own (following.py) and calls one measuring tool at its steps' edges.

python training.py TOOL PLAN OUT      (in the environment of the tool; accuracy.py does it)

It makes the file OUT.ready and waits for PLAN, which holds, for each load, its name and the lengths of its
steps and of the gaps after them, ns. OUT.marks has when steps began and ended. OUT receives, for each load,
the instants right before and after each call of the tool, and the energy it found, J (null where it found
none). Each tool is used as its documentation says; what has no windows as short as a step is used by the
shortest it has.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from benchmarks.windows.marks import Marks, wait_until

KWH_J = 3.6e6


class Tool(Protocol):
    """Measures steps. `begin` and `end` are called at their edges, the others between loads."""

    def load_begins(self, name: str) -> None: ...
    def begin(self) -> None: ...
    def end(self) -> None: ...
    def load_ends(self) -> list[float | None]:
        """Return the energy of each step since `load_begins`, J."""


class Listed:
    """A tool that gives a step's energy at once."""

    def __init__(self) -> None:
        self.energies_j: list[float | None] = []

    def load_begins(self, name: str) -> None:  # noqa: ARG002  (a Tool's interface)
        self.energies_j = []

    def load_ends(self) -> list[float | None]:
        return self.energies_j


class Ours:
    """The energies are read from the archive afterwards."""

    def load_begins(self, name: str) -> None:
        import zeus_stream

        self.publisher = zeus_stream.Publisher(job=name, run=name, gpus=["0"])

    def begin(self) -> None:
        self.publisher.begin_step()

    def end(self) -> None:
        self.publisher.end_step()

    def load_ends(self) -> list[float | None]:
        self.publisher.close()
        return []


class ZeusMonitor(Listed):
    """Reads the counter at both ends; ``approximate``: power times duration where that gives nothing."""

    def __init__(self, *, approximate: bool) -> None:
        from zeus.monitor import ZeusMonitor as Monitor

        super().__init__()
        self.monitor = Monitor(gpu_indices=[0], cpu_indices=[], approx_instant_energy=approximate)

    def begin(self) -> None:
        self.monitor.begin_window("step", sync_execution=False)

    def end(self) -> None:
        self.energies_j.append(self.monitor.end_window("step", sync_execution=False).gpu_energy[0])


class PowerMonitor:
    """A process samples power; asked for each step once the load is over."""

    def __init__(self) -> None:
        from zeus.monitor import PowerMonitor as Monitor

        self.monitor = Monitor(gpu_indices=[0])
        self.edges_s: list[float] = []

    def load_begins(self, name: str) -> None:  # noqa: ARG002  (a Tool's interface)
        self.edges_s = []

    def begin(self) -> None:
        self.edges_s.append(time.time())

    end = begin

    def load_ends(self) -> list[float | None]:
        found = [
            self.monitor.get_energy(begin, end)
            for begin, end in zip(self.edges_s[::2], self.edges_s[1::2], strict=True)
        ]
        return [None if each is None else each[0] for each in found]


class CodeCarbon(Listed):
    """Each step a task."""

    def __init__(self) -> None:
        from codecarbon import OfflineEmissionsTracker

        super().__init__()
        self.tracker = OfflineEmissionsTracker(
            country_iso_code="USA", save_to_file=False, log_level="critical", allow_multiple_runs=True
        )
        self.tracker.start_task()  # what it sets up at first is no step's
        self.tracker.stop_task()

    def begin(self) -> None:
        self.tracker.start_task()

    def end(self) -> None:
        self.energies_j.append(self.tracker.stop_task().gpu_energy * KWH_J)


class Nvitop(Listed):
    """Each step a tag of its collector: mean power times duration."""

    def __init__(self) -> None:
        from nvitop import Device, ResourceMetricCollector

        super().__init__()
        self.collector = ResourceMetricCollector(devices=Device.all())

    def begin(self) -> None:
        self.collector.activate(tag="step")

    def end(self) -> None:
        found = self.collector.collect()
        self.collector.deactivate()
        power_w = next(value for key, value in found.items() if key.endswith("power_usage (W)/mean"))
        self.energies_j.append(power_w * found["step/duration (s)"])


class CarbonTracker:
    """Each step an epoch, the shortest it knows; a thread samples power every second."""

    def __init__(self) -> None:
        from carbontracker import constants
        from carbontracker.tracker import CarbonTracker as Tracker

        self.tracker = Tracker(epochs=10**6, epochs_before_pred=-1, components="gpu", verbose=0)
        self.overhead = constants.PUE_2023
        """Of a data centre: it multiplies by that."""
        self.seen = 0

    def load_begins(self, name: str) -> None:
        pass

    def begin(self) -> None:
        self.tracker.epoch_start()

    def end(self) -> None:
        self.tracker.epoch_end()

    def load_ends(self) -> list[float | None]:
        found = self.tracker.tracker.total_energy_per_epoch() / self.overhead * KWH_J
        fresh: list[float | None] = [float(energy_j) for energy_j in found[self.seen :]]
        self.seen = len(found)
        return fresh


TOOLS: dict[str, Callable[[], Tool]] = {
    "zeus-stream": Ours,
    "ZeusMonitor": lambda: ZeusMonitor(approximate=False),
    "ZeusMonitor, approximated": lambda: ZeusMonitor(approximate=True),
    "PowerMonitor": PowerMonitor,
    "CodeCarbon": CodeCarbon,
    "nvitop": Nvitop,
    "carbontracker": CarbonTracker,
}


def train(tool: Tool, load: dict[str, Any], marks: Marks) -> dict[str, Any]:
    """Train through one load. Each step begins when its tool is done with the one before."""
    stamps_ns = []
    tool.load_begins(load["name"])
    wait_until(marks.add() + load["rest_ns"])
    for long_ns, gap_ns in load["lengths_ns"]:
        stamps = [time.monotonic_ns()]
        tool.begin()
        stamps.append(time.monotonic_ns())
        wait_until(marks.add() + long_ns)
        ended_ns = marks.add()
        stamps.append(time.monotonic_ns())
        tool.end()
        stamps.append(time.monotonic_ns())
        stamps_ns.append(stamps)
        wait_until(ended_ns + gap_ns)
    time.sleep(load["rest_ns"] / 1e9)
    marks.add()
    energies_j = tool.load_ends()
    time.sleep(load["pause_ns"] / 1e9)
    return {"stamps_ns": stamps_ns, "energy_j": energies_j}


def main() -> None:
    name, plan, out = sys.argv[1:]
    tool, marks = TOOLS[name](), Marks(Path(f"{out}.marks"))
    Path(f"{out}.ready").touch()
    while not Path(plan).exists():
        time.sleep(0.01)
    Path(out).write_text(
        json.dumps([train(tool, load, marks) for load in json.loads(Path(plan).read_text())])
    )


if __name__ == "__main__":
    main()
