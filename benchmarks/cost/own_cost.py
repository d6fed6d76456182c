"""Measure processor time and wake-ups of collector and analyzer, idle and after the search of a training.

python -m benchmarks.cost.own_cost [--seconds 8] [--gpus 1 8 64]

Each row is one window of one pair of services with simulated GPUs. Rows of few GPUs are measured together,
those of 64 GPUs alone; one pair of services goes through idle, steps of 25 ms and steps of 250 ms. A job has
eight GPUs and one training process, so 64 GPUs are those of eight jobs. Shares are
of one core, from the scheduler's nanoseconds, without the training; children of the analyzer count: one owns
the archive. Wake-ups are voluntary switches of all threads: noise of other programs does not change them.
An empty loop beside each row says what share of a core there was. Whole it takes about twelve minutes.

Other tools run at their defaults on the same machine, from an environment of their own over a shared library
that stands in for NVML and takes 50 us a call, as drivers do. Zeus measures windows of 25 ms in a training
process, and polls power in a process of its own, as its daemon does for its clients.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from benchmarks.harness import (
    Use,
    empty_loop,
    options,
    peer_python,
    process,
    script,
    sql,
    stand_in_gpus,
    table,
    used,
    wait_for,
)
from tests.directories import short_directory
from zeus_stream.clock import monotonic_ns

SETTLE_S = 70
"""GPUs that no session has used are read seldom after 30 s; an analyzer prunes its archive after 60 s."""
WARM_S = 50
"""From the start of a training: nobody waits for its events any more."""
SEARCH_S, SEARCHED_S = 150, 20
"""A busy machine takes so long for a search, at the most; it is over after so long without a command."""
PEER_START_S, PEER_WARM_S = 60, 2
PEER_LEAST_S = 16
"""CodeCarbon measures each 15 s."""
PEER_GPUS = JOB_GPUS = 8
MODELS = {20: "v100", 100: "a40"}
"""By period of the counter, ms."""
STEPS_MS = (25, 250)
BESIDE = 8
"""Setups of up to so many GPUs are measured side by side."""
TRAINING = """
import time, zeus_stream
for _ in zeus_stream.steps(iter(int, 1)):
    time.sleep({step_s})
"""
PEERS = {
    "Zeus, windows of 25 ms in the training": """
import time, zeus.monitor
monitor = zeus.monitor.ZeusMonitor(cpu_indices=[])
def work():
    monitor.begin_window("step", sync_execution=False)
    time.sleep(.025)
    monitor.end_window("step", sync_execution=False)
""",
    "Zeus, power polled by a process": """
import time, zeus.monitor
monitor = zeus.monitor.PowerMonitor()
work = lambda: time.sleep(1)
""",
    "nvitop, a snapshot a second": """
import nvitop, time
work = lambda: (nvitop.take_snapshots(), time.sleep(1))
""",
    "CodeCarbon": """
import codecarbon, time
tracker = codecarbon.OfflineEmissionsTracker(country_iso_code="DEU", save_to_file=False, log_level="error")
tracker.start()
work = lambda: time.sleep(1)
""",
}
GO_ON = """
import pathlib, sys
pathlib.Path(sys.argv[1]).touch()
while True:
    work()
"""
"""After each of them."""


class Setup(Struct, frozen=True):
    """One pair of services."""

    gpus: int
    period_ms: int
    where: Path
    collector: int
    analyzer: int

    @property
    def jobs(self) -> list[range]:
        """The GPUs of each job, by index."""
        every = range(self.gpus)
        return [every[first : first + JOB_GPUS] for first in every[::JOB_GPUS]]


def words(before: Use, after: Use, seconds: float) -> tuple[str, str]:
    """Return share of a core and wake-ups a second."""
    share = max(after.cpu_s - before.cpu_s, 0) / seconds * 100
    return f"{share:.2f} %", f"{max(after.wake_ups - before.wake_ups, 0) / seconds:.0f}/s"


def measured(setups: Sequence[Setup], steps: str, seconds: float) -> Iterator[list[object]]:
    """Yield a row for each setup, all of the same seconds."""
    before = [(used(each.collector), used(each.analyzer)) for each in setups]
    time.sleep(seconds)
    after = [(used(each.collector), used(each.analyzer)) for each in setups]
    loop = f"{empty_loop(0.5):.0f} %"
    for setup, old, new in zip(setups, before, after, strict=True):
        figures = [word for pair in zip(old, new, strict=True) for word in words(*pair, seconds)]
        yield [setup.gpus, len(setup.jobs), f"{setup.period_ms} ms", steps, *figures, loop]


def searches(setup: Setup) -> bool:
    """Tell whether the analyzer of a setup has commanded a GPU within `SEARCHED_S`."""
    since_ns = monotonic_ns() - SEARCHED_S * 1_000_000_000
    time.sleep(1)  # a question takes more than the search that it asks about
    query = f"SELECT 1 FROM commands WHERE asked_ns > {since_ns} LIMIT 1"  # noqa: S608  (a number)
    return bool(sql(setup.where, query))


@contextmanager
def trainings(setups: Sequence[Setup], step_ms: int) -> Iterator[None]:
    """Run a training of each job."""
    with ExitStack() as jobs:
        for setup in setups:
            for number, gpus in enumerate(setup.jobs):
                of_job = {"ZEUS_STREAM_GPUS": ",".join(map(str, gpus)), "ZEUS_STREAM_JOB": f"job-{number}"}
                jobs.enter_context(script(setup.where, TRAINING.format(step_s=step_ms / 1000), **of_job))
        yield


def group_rows(group: Sequence[tuple[int, int]], seconds: float) -> list[list[object]]:
    """Return the rows of setups, each of some GPUs with a period (ms), that run side by side."""
    rows: list[list[object]] = []
    with ExitStack() as stack:
        setups = []
        for gpus, period_ms in group:
            where = stack.enter_context(short_directory())
            device = f"simulated:{MODELS[period_ms]}x{gpus}"
            collector = stack.enter_context(process(where, "collect", "--device", device, ready="publish"))
            analyzer = stack.enter_context(process(where, "analyze", ready="query"))
            setups.append(Setup(gpus, period_ms, where, collector, analyzer))
        time.sleep(SETTLE_S)
        rows += measured(setups, "idle", seconds)
        for step_ms in STEPS_MS:
            with trainings(setups, step_ms):
                time.sleep(WARM_S)
                with suppress(TimeoutError):  # the row says so
                    wait_for(lambda: not any(map(searches, setups)), SEARCH_S)
                going_on = ", in a search" if any(map(searches, setups)) else ""
                rows += measured(setups, f"{step_ms} ms{going_on}", seconds)
    return rows


def peer_rows(seconds: float) -> list[list[object]]:
    """Return a row for each other tool, all of the same seconds."""
    with stand_in_gpus(PEER_GPUS) as host, short_directory() as where, ExitStack() as stack:
        tools = {}
        ready = [where / str(number) for number in range(len(PEERS))]
        for (name, text), begun in zip(PEERS.items(), ready, strict=True):
            tool = script(where, text + GO_ON, str(begun), python=peer_python(), **host)
            tools[name] = stack.enter_context(tool)
        wait_for(lambda: all(path.exists() for path in ready), PEER_START_S)
        time.sleep(PEER_WARM_S)
        before = {name: used(tool.pid) for name, tool in tools.items()}
        time.sleep(seconds)
        return [
            [name, PEER_GPUS, *words(before[name], used(tool.pid), seconds)] for name, tool in tools.items()
        ]


def main() -> None:
    given = options(__doc__, seconds=8.0, gpus=[1, 8, 64])
    few = [(gpus, period_ms) for gpus in given.gpus if gpus <= BESIDE for period_ms in MODELS]
    many = [[(gpus, period_ms)] for gpus in given.gpus if gpus > BESIDE for period_ms in MODELS]
    rows = [row for group in (few, *many) if group for row in group_rows(group, given.seconds)]
    head = "GPUs | jobs | counter | steps | collector | wake-ups | analyzer | wake-ups | an empty loop gets"
    table(f"Use of zeus-stream itself, share of a core (windows of {given.seconds:g} s)", head, rows)
    what = "Others at their defaults, share of a core"
    table(what, "tool | GPUs | share | wake-ups", peer_rows(max(given.seconds, PEER_LEAST_S)))


if __name__ == "__main__":
    main()
