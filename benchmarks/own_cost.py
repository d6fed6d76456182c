"""Measure the processor time of collector and analyzer with simulated GPUs, idle and during a training.

python benchmarks/own_cost.py [--seconds 10] [--runs 1] [--gpus 1,8] [--select NAME] [--peers]

Each row is one pair of services in a setup of its own. Shares are of one core, without the training. Children
of the analyzer count: one owns the archive. The same seconds of an empty loop are measured beside each row:
on a loaded machine it gets less than a core. With --peers the processor time of other tools at their defaults
is measured for the same time on the same machine, from an environment of their own; they need real GPUs for
their own readings, so the figure is that of the tool without one, and it is left out where a tool ends.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import ROOT, cpu_seconds, directory, peer_python, process, table, wait_for

SETTLE_S = 34
"""GPUs that no session has used are read seldom after 30 s."""
WARM_S = 50
"""From the start of a training: the search is over, and nobody waits for its events any more."""
PEER_WARM_S = 5
MODELS = {20: "v100", 100: "a40"}
"""By period of the counter, ms."""
STEPS_MS = (25, 250)
TRAINING = """
import sys, time, zeus_stream
for _ in zeus_stream.steps(iter(int, 1)):
    time.sleep({step_s})
"""
PEERS = {
    "nvitop": (
        "import nvitop, time\nt = time.time()\nwhile time.time() - t < {s}:"
        " nvitop.take_snapshots(); time.sleep(1)"
    ),
    "codecarbon": (
        "import time, codecarbon\nk = codecarbon.OfflineEmissionsTracker(country_iso_code='DEU',"
        " save_to_file=False, log_level='error')\nk.start(); time.sleep({s}); k.stop()"
    ),
}  # fmt: skip


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    pids = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        children = task / "children"
        if children.exists():
            pids += [each for child in children.read_text().split() for each in family(int(child))]
    return pids


def used_s(pid: int) -> float:
    """Return the processor time of a process and its descendants, s."""
    return sum(cpu_seconds(each) for each in family(pid))


def empty_loop(seconds: float) -> float:
    """Return the share of a core that an empty loop gets now."""
    begin, spent = time.monotonic(), time.process_time()
    while time.monotonic() - begin < seconds:
        pass
    return (time.process_time() - spent) / seconds * 100


def measured(
    gpus: int, period_ms: int, step_ms: int | None, seconds: float, select: Sequence[str]
) -> tuple[float, float]:
    """Return the shares of a core, %, of collector and analyzer. ``select``: arguments of the analyzer."""
    device = f"simulated:{MODELS[period_ms]}x{gpus}"
    with (
        directory() as where,
        process(where, "collect", "--device", device, ready="publish") as collector,
        process(where, "analyze", *select, ready="query") as analyzer,
    ):
        environment = os.environ | {"ZEUS_STREAM_DIR": str(where), "PYTHONPATH": str(ROOT)}
        training = None
        if step_ms is not None:
            script = TRAINING.format(step_s=step_ms / 1000)
            training = subprocess.Popen(
                [sys.executable, "-c", script], env=environment | {"ZEUS_STREAM_GPUS": "all"}
            )
        try:
            time.sleep(SETTLE_S if training is None else WARM_S)
            before = used_s(collector), used_s(analyzer)
            time.sleep(seconds)
            after = used_s(collector), used_s(analyzer)
        finally:
            if training is not None:
                training.kill()
                training.wait()
        return tuple((b - a) / seconds * 100 for a, b in zip(before, after, strict=True))  # type: ignore[return-value]


def peer(name: str, seconds: float) -> float | None:
    """Return the share of a core of another tool, or None if it ends before its time."""
    begin = time.monotonic()
    tool = subprocess.Popen(
        [peer_python(), "-c", PEERS[name].format(s=seconds + 20)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: time.monotonic() > begin + PEER_WARM_S or tool.poll() is not None, 2 * PEER_WARM_S)
        if tool.poll() is not None:
            return None
        before = used_s(tool.pid)
        time.sleep(seconds)
        return None if tool.poll() is not None else (used_s(tool.pid) - before) / seconds * 100
    finally:
        tool.kill()
        tool.wait()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=10)
    arguments.add_argument("--runs", type=int, default=1)
    arguments.add_argument("--gpus", default="1,8")
    arguments.add_argument("--select", help="of the analyzer; none: no search. Default: its own")
    arguments.add_argument("--peers", action="store_true")
    given = arguments.parse_args()
    select = ("--select", given.select) if given.select else ()
    rows = []
    for gpus in map(int, given.gpus.split(",")):
        for period_ms in MODELS:
            for step_ms in (None, *STEPS_MS):
                found = [measured(gpus, period_ms, step_ms, given.seconds, select) for _ in range(given.runs)]
                loop = empty_loop(0.5)
                shares = [[run[part] for run in found] for part in (0, 1)]
                rows.append(
                    [
                        gpus,
                        f"{period_ms} ms",
                        "idle" if step_ms is None else f"{step_ms} ms",
                        *(
                            f"{statistics.median(each):.1f} % ({min(each):.1f} to {max(each):.1f})"
                            for each in shares
                        ),
                        f"{loop:.0f} %",
                    ]
                )
                print(*rows[-1], file=sys.stderr)
    head = ["GPUs", "counter", "steps", "collector", "analyzer", "an empty loop gets"]
    runs = f"median of {given.runs} x {given.seconds:g} s"
    what = f"Processor time of zeus-stream itself, share of a core ({runs})"
    table(what, head, rows)
    if given.peers:
        found_of = {name: peer(name, given.seconds) for name in PEERS}
        shown = [
            [name, "ended: no GPU" if share is None else f"{share:.1f} %"] for name, share in found_of.items()
        ]
        table("Others at their defaults, share of a core", ["tool", "share"], shown)


if __name__ == "__main__":
    main()
