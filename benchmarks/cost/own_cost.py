"""Measure processor time and wake-ups of collector and analyzer, idle and after the search of a training.

python -m benchmarks.cost.own_cost [--seconds 8] [--gpus 1,8,64] [--job-gpus 8] [--no-peers]

Each row is one window of one pair of services with simulated GPUs. Rows of few GPUs are measured together,
those of 64 GPUs alone; one pair of services goes through idle, steps of 25 ms and steps of 250 ms. A job has
eight GPUs (`--job-gpus`) and one training process, so 64 GPUs are those of eight jobs. Shares are
of one core, from the scheduler's nanoseconds, without the training; children of the analyzer count: one owns
the archive. Wake-ups are voluntary switches of all threads: noise of other programs does not change them.
An empty loop beside each row says what share of a core there was. Whole it takes about twelve minutes.

Other tools run at their defaults on the same machine, from an environment of their own over a shared library
that stands in for NVML and takes 50 us a call, as drivers do. Zeus measures windows of 25 ms in a training
process, and polls power in a process of its own, as its daemon does for its clients.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from benchmarks.harness import (
    directory,
    options,
    peer_python,
    process,
    script,
    sql,
    stand_in_gpus,
    table,
    wait_for,
)
from zeus_stream.clock import monotonic_ns

SETTLE_S = 70
"""GPUs that no session has used are read seldom after 30 s; an analyzer prunes its archive after 60 s."""
WARM_S = 50
"""From the start of a training: nobody waits for its events any more."""
SEARCH_S, SEARCHED_S = 150, 20
"""A busy machine takes so long for a search, at the most; it is over after so long without a command."""
PEER_START_S = 60
PEER_WARM_S = 2
PEER_LEAST_S = 16
"""CodeCarbon measures each 15 s."""
PEER_GPUS = 8
MODELS = {20: "v100", 100: "a40"}
"""By period of the counter, ms."""
STEPS_MS = (25, 250)
BESIDE = 8
"""Setups of up to so many GPUs are measured side by side."""
TRAINING = """
import sys, time, zeus_stream
for _ in zeus_stream.steps(iter(int, 1)):
    time.sleep({step_s})
"""
PEERS = {
    "Zeus, windows of 25 ms in the training": """
import time, zeus.monitor
def windows(monitor):
    monitor.begin_window("step", sync_execution=False)
    time.sleep(.025)
    monitor.end_window("step", sync_execution=False)
work = zeus.monitor.ZeusMonitor(cpu_indices=[]), windows
""",
    "Zeus, power polled by a process": """
import time, zeus.monitor
work = zeus.monitor.PowerMonitor() if __name__ == "__main__" else None, lambda _: time.sleep(1)
""",
    "nvitop, a snapshot a second": """
import nvitop, time
work = None, lambda _: (nvitop.take_snapshots(), time.sleep(1))
""",
    "CodeCarbon": """
import codecarbon, time
tracker = codecarbon.OfflineEmissionsTracker(country_iso_code="DEU", save_to_file=False, log_level="error")
work = tracker.start(), lambda _: time.sleep(1)
""",
}
GO_ON = """
if __name__ == "__main__":
    print("ready", flush=True)
    while True:
        work[1](work[0])
"""
"""After each of them."""


class Use(Struct, frozen=True):
    """The use of a process and its descendants so far."""

    cpu_s: float
    wake_ups: int


class Setup(Struct, frozen=True):
    """One pair of services."""

    gpus: int
    period_ms: int
    where: Path
    collector: int
    analyzer: int
    job_gpus: int

    @property
    def jobs(self) -> list[range]:
        """The GPUs of each job, by index."""
        every = range(self.gpus)
        return [every[first : first + self.job_gpus] for first in every[:: self.job_gpus]]


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    pids = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        children = task / "children"
        if children.exists():
            pids += [each for child in children.read_text().split() for each in family(int(child))]
    return pids


def used(pid: int) -> Use:
    """Return the use of a process and its descendants. Wake-ups are of threads that have not ended."""
    cpu_ns = wake_ups = 0
    for each in family(pid):
        with suppress(OSError):  # a process that has just ended
            cpu_ns += time.clock_gettime_ns(~each << 3 | 2)  # clock_getcpuclockid(3) of Linux
        for task in Path(f"/proc/{each}/task").glob("*"):
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
                status = (task / "status").read_text()
                wake_ups += int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return Use(cpu_ns / 1e9, wake_ups)


def words(before: Use, after: Use, seconds: float) -> tuple[str, str]:
    """Return share of a core and wake-ups a second."""
    share = max(after.cpu_s - before.cpu_s, 0) / seconds * 100
    return f"{share:.2f} %", f"{max(after.wake_ups - before.wake_ups, 0) / seconds:.0f}/s"


def empty_loop(seconds: float) -> float:
    """Return the share of a core that an empty loop gets now."""
    begin, spent = time.monotonic(), time.process_time()
    while time.monotonic() - begin < seconds:
        pass
    return (time.process_time() - spent) / seconds * 100


def measured(setups: Sequence[Setup], steps: str, seconds: float) -> Iterator[list[object]]:
    """Yield a row for each setup, all of the same seconds."""
    before = [(used(each.collector), used(each.analyzer)) for each in setups]
    time.sleep(seconds)
    after = [(used(each.collector), used(each.analyzer)) for each in setups]
    loop = f"{empty_loop(0.5):.0f} %"
    for setup, old, new in zip(setups, before, after, strict=True):
        parts = [words(*pair, seconds) for pair in zip(old, new, strict=True)]
        row: list[object] = [setup.gpus, len(setup.jobs), f"{setup.period_ms} ms", steps]
        row += [*(word for part in parts for word in part), loop]
        print(*row, file=sys.stderr)
        yield row


def searches(setup: Setup) -> bool:
    """Tell whether the analyzer of a setup has commanded a GPU within `SEARCHED_S`."""
    since_ns = monotonic_ns() - SEARCHED_S * 1_000_000_000
    time.sleep(1)  # a question takes more than the search that it asks about
    query = f"SELECT 1 FROM commands WHERE asked_ns > {since_ns} LIMIT 1"  # noqa: S608  (a number)
    return bool(sql(setup.where, query))


@contextmanager
def training(setup: Setup, step_ms: int) -> Iterator[None]:
    """Run a training of each job of a setup."""
    with ExitStack() as jobs:
        for number, gpus in enumerate(setup.jobs):
            of_job = {"ZEUS_STREAM_GPUS": ",".join(map(str, gpus)), "ZEUS_STREAM_JOB": f"job-{number}"}
            jobs.enter_context(script(setup.where, TRAINING.format(step_s=step_ms / 1000), **of_job))
        yield


def group_rows(
    gpus: Sequence[int], job_gpus: int, periods_ms: Sequence[int], seconds: float
) -> list[list[object]]:
    """Return the rows of setups that run side by side. ``job_gpus``: GPUs of each job, at most."""
    rows: list[list[object]] = []
    with ExitStack() as stack:
        setups = []
        for count in gpus:
            for period_ms in periods_ms:
                where = stack.enter_context(directory())
                device = f"simulated:{MODELS[period_ms]}x{count}"
                collector = stack.enter_context(
                    process(where, "collect", "--device", device, ready="publish")
                )
                analyzer = stack.enter_context(process(where, "analyze", ready="query"))
                setups.append(Setup(count, period_ms, where, collector, analyzer, job_gpus))
        time.sleep(SETTLE_S)
        rows += measured(setups, "idle", seconds)
        for step_ms in STEPS_MS:
            with ExitStack() as trainings:
                for setup in setups:
                    trainings.enter_context(training(setup, step_ms))
                time.sleep(WARM_S)
                with suppress(TimeoutError):  # the row says so
                    wait_for(lambda: not any(map(searches, setups)), SEARCH_S)
                going_on = ", in a search" if any(map(searches, setups)) else ""
                rows += measured(setups, f"{step_ms} ms{going_on}", seconds)
    return rows


@contextmanager
def peer(script: Path, environment: Mapping[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    """Run another tool from the environment of the peers."""
    tool = subprocess.Popen(
        [peer_python(), script],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield tool
    finally:
        os.killpg(tool.pid, signal.SIGKILL)  # some leave processes that go on without them
        tool.wait()


def peer_rows(seconds: float) -> list[list[object]]:
    """Return a row for each other tool: all over the same GPUs, in the same seconds."""
    with ExitStack() as stack:
        made = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        host = stack.enter_context(stand_in_gpus(PEER_GPUS))
        tools = {}
        for number, (name, script) in enumerate(PEERS.items()):
            file = made / f"tool{number}.py"
            file.write_text(script + GO_ON)
            tools[name] = stack.enter_context(peer(file, os.environ | host))
        begun = {}
        for name, tool in tools.items():
            assert tool.stdout is not None
            ready = select.select([tool.stdout], [], [], PEER_START_S)[0]
            begun[name] = bool(ready and tool.stdout.read(len("ready")))
        time.sleep(PEER_WARM_S)
        before = {name: used(tool.pid) for name, tool in tools.items() if begun[name]}
        time.sleep(seconds)
        return [
            [name, PEER_GPUS, *words(before[name], used(tool.pid), seconds)]
            if name in before and tool.poll() is None
            else [name, PEER_GPUS, "it ended", ""]
            for name, tool in tools.items()
        ]


def main() -> None:
    given = options(
        __doc__, seconds=8.0, gpus="1,8,64", job_gpus=8, periods=",".join(map(str, MODELS)), no_peers=False,
    )  # fmt: skip
    gpus = [int(each) for each in given.gpus.split(",")]
    periods_ms = [int(each) for each in given.periods.split(",")]
    rows: list[list[object]] = []
    if few := [each for each in gpus if each <= BESIDE]:
        rows += group_rows(few, given.job_gpus, periods_ms, given.seconds)
    for many in (each for each in gpus if each > BESIDE):
        for period_ms in periods_ms:
            rows += group_rows([many], given.job_gpus, [period_ms], given.seconds)
    head = "GPUs | jobs | counter | steps | collector | wake-ups | analyzer | wake-ups | an empty loop gets"
    table(f"Use of zeus-stream itself, share of a core (windows of {given.seconds:g} s)", head, rows)
    if not given.no_peers:
        what = "Others at their defaults, share of a core"
        table(what, "tool | GPUs | share | wake-ups", peer_rows(max(given.seconds, PEER_LEAST_S)))


if __name__ == "__main__":
    main()
