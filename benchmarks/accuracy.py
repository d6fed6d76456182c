"""Energy of training steps against the exact truth: ours and five other tools on one virtual GPU in one run.

python benchmarks/accuracy.py [--loads constant clean noisy] [--steps-ms 20 50 100 500] [--repeats 3]
    [--only steps instants meter] [--window-ms 25] [--data DIR]

steps: a shared library that stands in for NVML plays the loads of loads.py, one after the other, as a 100 ms
energy counter shows them; every tool runs unmodified, in a process of its own that waits for the steps and
calls it at their edges (training.py). What a tool is compared with is the integral between the instants at
which it was called, so that a process that woke late is not held against its tool. Ours passes through
collector and analyzer; its energies are read by SQL.

instants: when 8 counters changed, as the collector publishes it, against when they did.

meter: a recorded RTX 3090 without counter against an external meter (meter.py).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import meter
from benchmarks.common import ROOT, cpu_seconds, directory, peer_python, process, sql, table, wait_for
from benchmarks.loads import NAMES, SEED, Ints, Load, load
from benchmarks.training import TOOLS
from tests.gpu import stand_in
from zeus_stream.clock import monotonic_ns
from zeus_stream.records import record

PERIOD_NS = 100_000_000
JITTER_NS = 200_000
"""Each refresh is up to this much early or late."""
FIRST_MJ = 1_000_000
PAUSE_NS = 500_000_000
"""Between two loads."""
IDLE_MW = 60_000
LATENCY_US = 50
"""Of a driver call."""
OURS = "zeus-stream"
PARTS = ("steps", "instants", "meter")
GOALS = {
    "noisy": {20: 6, 50: 3.5, 100: 2, 500: 0.35},
    "clean": {20: 2, 50: 0.7, 100: 0.7, 500: 0.15},
    "constant": {20: 1, 50: 1, 100: 1, 500: 1},
}
"""Mean absolute error of ours, %."""


@record
class Played:
    """A load and when it begins, ns since the GPU began to play."""

    load: Load
    begin_ns: int

    @property
    def name(self) -> str:
        return f"{self.load.name} {self.load.step_ms} ms"

    def energy_j(
        self, since_ns: int, begin_ns: Ints, end_ns: Ints
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the exact energy between instants of CLOCK_MONOTONIC, at which the load is on."""
        start_ns = since_ns + self.begin_ns
        return self.load.energy_pj(begin_ns - start_ns, end_ns - start_ns) / 1e12


def in_turn(loads: Sequence[Load], start_ns: int) -> list[Played]:
    """Put loads one after the other."""
    played = []
    for each in loads:
        played.append(Played(each, start_ns))
        start_ns += each.end_ns + PAUSE_NS
    return played


def energy_pj(played: Sequence[Played], t_ns: Ints) -> Ints:
    """Return what all loads, and the idling between them, have used by each instant since the start, pJ."""
    used = IDLE_MW * t_ns
    for each in played:
        inside = np.clip(t_ns - each.begin_ns, 0, each.load.end_ns)
        used = used + each.load.energy_pj(0, inside) - IDLE_MW * inside
    return used


def shows(played: Sequence[Played], phase_ns: int, window_ns: int, seed: int) -> list[tuple[int, int, int]]:
    """Return what the GPU shows at each refresh: instant, counter in mJ, power in mW.

    ``window_ns``: the sensor sees this much before each refresh, and takes it for the whole period. Power is
    the mean over what it sees.
    """
    end_ns = played[-1].begin_ns + played[-1].load.end_ns + 20_000_000_000
    jitter = np.random.default_rng([seed, phase_ns]).uniform(-JITTER_NS, JITTER_NS, end_ns // PERIOD_NS)
    at = np.arange(1, len(jitter) + 1) * PERIOD_NS + phase_ns + np.rint(jitter).astype(np.int64)
    if window_ns < PERIOD_NS:
        power_mw = (energy_pj(played, at) - energy_pj(played, at - window_ns)) / window_ns
        counter_mj = np.cumsum(power_mw * np.diff(at, prepend=phase_ns)) / 1e9
    else:
        counted = energy_pj(played, at)
        counter_mj = counted / 1e9
        power_mw = np.diff(counted, prepend=0) / np.diff(at, prepend=0)
    # A sensor is never quite still: tools find its period by that.
    power_mw = power_mw + np.arange(len(at)) % 2
    lines = zip(at, counter_mj.astype(np.int64) + FIRST_MJ, np.rint(power_mw), strict=True)
    return [(0, FIRST_MJ, IDLE_MW), *((int(t), int(mj), int(mw)) for t, mj, mw in lines)]


# ---- steps ------------------------------------------------------------------------------------------------


@record
class Found:
    """The energies that one tool found of one load; shape (n,) each."""

    steps: int
    """Of the load."""
    energy_j: np.ndarray[tuple[int], np.dtype[np.float64]]
    """NaN: it found none."""
    truth_j: np.ndarray[tuple[int], np.dtype[np.float64]]
    covered: float | None = None
    """Share of the truths within its 95 % interval, if it has one."""
    width: float | None = None
    """Median width of that interval, as a share of the truth."""

    @property
    def error(self) -> float:
        """Mean absolute error of a step, %. A step that was not found is off by all of it."""
        return float(np.mean(np.abs(np.nan_to_num(self.energy_j) / self.truth_j - 1)) * 100)

    @property
    def bias(self) -> float:
        """Error of the sum, %."""
        return float((np.nansum(self.energy_j) / np.sum(self.truth_j) - 1) * 100)


def measure(loads: Sequence[Load], options: argparse.Namespace, seed: int) -> dict[str, dict[str, Found]]:
    """Return what each tool found of each load, by load and tool, in one run beside each other."""
    played = in_turn(loads, round(options.start * 1e9))
    with directory() as where:
        library = stand_in.build(where)
        host = stand_in.StandIn(where / "gpus")
        gpu = host.gpus[0]
        gpu.name, gpu.architecture, gpu.latency_us = b"NVIDIA A100-SXM4-40GB", 7, LATENCY_US
        gpu.max_limit_mw = gpu.default_limit_mw = gpu.requested_mw = 400_000
        host.record(0, shows(played, 37_000_000, round(options.window_ms * 1e6), seed))
        gpu.played_ns = since_ns = monotonic_ns()
        plan = [
            {"name": each.name, "steps_ns": (each.load.steps_ns + each.begin_ns + since_ns).tolist()}
            for each in played
        ]
        (where / "plan").write_text(json.dumps(plan))
        environ = host.environment(library)
        with (
            process(where, "collect", "--observe", ready="publish", environ=environ),
            process(where, "analyze", "--select", "none", ready="query"),
        ):
            outs = {tool: where / f"out{number}" for number, tool in enumerate(options.tools)}
            running = [train(tool, where, out, environ) for tool, out in outs.items()]
            for tool, each in zip(outs, running, strict=True):
                if each.wait():
                    print(
                        f"{tool}: failed:\n{(where / f'{outs[tool].name}.log').read_text()}", file=sys.stderr
                    )
                    if tool == OURS:
                        sys.exit(1)
                    options.tools.remove(tool)  # some peers do not start on a busy machine
            heard = {tool: json.loads(outs[tool].read_text()) for tool in options.tools}
            found: dict[str, dict[str, Found]] = {}
            for number, each in enumerate(played):
                found[each.name] = {
                    tool: archived(where, each, since_ns, len(heard[tool][number]["steps"]))
                    if tool == OURS
                    else theirs(heard[tool][number], each, since_ns)
                    for tool in options.tools
                }
    return found


def train(tool: str, where: Path, out: Path, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start the training of one tool, in the environment that has it."""
    python = sys.executable if tool == OURS else peer_python()
    command = [str(python), str(ROOT / "benchmarks" / "training.py"), tool, str(where / "plan"), str(out)]
    search = f"{driver_tools(where)}:{os.environ['PATH']}"
    given = os.environ | environ | {"ZEUS_STREAM_DIR": str(where), "PYTHONPATH": str(ROOT), "PATH": search}
    with (where / f"{out.name}.log").open("w") as log:
        return subprocess.Popen(command, env=given, cwd=where, stdout=log, stderr=log)


def driver_tools(where: Path) -> Path:
    """Lay down a program of the driver's name: there are tools that take its absence for that of GPUs."""
    program = where / "bin" / "nvidia-smi"
    if not program.exists():
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    return program.parent


def theirs(heard: dict[str, list[list[int]]], played: Played, since_ns: int) -> Found:
    """Compare a tool's figures with the truth between its calls, each at the middle of its two stamps."""
    stamps = np.array(heard["stamps_ns"], np.int64).reshape(-1, 4)
    begin_ns, end_ns = stamps[:, :2].mean(axis=1), stamps[:, 2:].mean(axis=1)
    truth_j = played.energy_j(since_ns, begin_ns.astype(np.int64), end_ns.astype(np.int64))
    energy_j = np.array([np.nan if one is None else one for one in heard["energy_j"]])
    return Found(len(played.load.steps_ns), energy_j, truth_j)


def archived(where: Path, played: Played, since_ns: int, published: int) -> Found:
    """Compare what the archive holds with the truth between the begins and ends it holds.

    ``published``: the number of steps that were published.
    """
    wanted = f"FROM windows WHERE kind = 'step' AND job = '{played.name}'"
    steps = len(played.load.steps_ns)
    wait_for(lambda: sql(where, f"SELECT count(*) {wanted}") == [(published,)], 30)
    names = {str(row[0]) for row in sql(where, "DESCRIBE windows")}
    has = {"energy_p2_5_j", "energy_p97_5_j"} <= names
    interval = "energy_p2_5_j, energy_p97_5_j" if has else "NULL AS low, NULL AS high"
    rows = sql(where, f"SELECT begin_ns, end_ns, energy_j, {interval} {wanted} ORDER BY index")
    begin_ns, end_ns, energy_j, low_j, high_j = np.array(rows, np.float64).T
    begin_ns, end_ns = (np.array([row[column] for row in rows], np.int64) for column in (0, 1))
    truth_j = played.energy_j(since_ns, begin_ns, end_ns)
    if not has:
        return Found(steps, energy_j, truth_j)
    covered = float(np.mean((low_j <= truth_j) & (truth_j <= high_j)))
    return Found(steps, energy_j, truth_j, covered, float(np.nanmedian((high_j - low_j) / truth_j)))


def print_steps(options: argparse.Namespace) -> None:
    runs = []
    for repeat in range(options.repeats):
        seed = SEED + repeat
        loads = [load(name, step_ms, seed=seed) for name in options.loads for step_ms in options.steps_ms]
        runs.append(measure(loads, options, seed))
    errors, sums = [], []
    for name in runs[0]:
        of_tools = {tool: [run[name][tool] for run in runs] for tool in options.tools}
        error = {tool: statistics.median(one.error for one in found) for tool, found in of_tools.items()}
        bias = {tool: statistics.median(one.bias for one in found) for tool, found in of_tools.items()}
        load_name, step_ms, _ = name.split()
        peers = [value for tool, value in error.items() if tool != OURS]
        ratio = f"{min(peers) / error[OURS]:.1f}" if peers and OURS in error else ""
        goal = f"{GOALS[load_name].get(int(step_ms), 1)} %"
        errors.append([name, *(f"{error[tool]:.3g} %" for tool in options.tools), ratio, goal])
        covers = [one for one in of_tools.get(OURS, []) if one.covered is not None]
        interval = ["", ""]
        if covers:
            interval = [
                f"{statistics.median(one.covered for one in covers if one.covered is not None) * 100:.1f} %",
                f"{statistics.median(one.width for one in covers if one.width is not None) * 100:.2g} %",
            ]
        missed = max(one.steps - len(one.truth_j) for found in of_tools.values() for one in found)
        sums.append([name, *(f"{bias[tool]:+.2g} %" for tool in options.tools), *interval, missed])
    kind = "integrates" if options.window_ms >= 100 else f"sees {options.window_ms:g} ms of it"
    seeds = f"seeds {SEED} to {SEED + options.repeats - 1}, medians of {options.repeats} run(s)"
    about = f"100 ms counter that {kind}; {seeds}"
    table(
        f"Energy of a step, mean absolute error ({about})",
        ["steps", *options.tools, "best of the others / ours", "goal"],
        errors,
    )
    table(
        "Error of the sum over all steps; our 95 % interval",
        ["steps", *options.tools, "truth inside", "its median width", "most steps a tool missed"],
        sums,
    )


# ---- instants ---------------------------------------------------------------------------------------------


def print_instants(options: argparse.Namespace) -> None:
    """When 8 counters changed, and what it costs to know."""
    rows = [instants(options.seconds, seed) for seed in range(SEED, SEED + options.repeats)]
    p50, p95, share = (statistics.median(column) for column in zip(*rows, strict=True))
    table(
        f"Instants of counter change, 8 GPUs, 100 ms counters, {LATENCY_US} us a driver call"
        f" ({options.repeats} runs of {options.seconds} s, medians)",
        ["error p50", "error p95", "collector, share of a core", "goal"],
        [[f"{p50:.2f} ms", f"{p95:.2f} ms", f"{share:.1f} %", "p95 0.5 ms, 5 %"]],
    )


def instants(seconds: int, seed: int) -> tuple[float, float, float]:
    """Return p50 and p95 of the error of published instants, ms, and the collector's share of a core, %."""
    quiet = in_turn([load("constant", 500, seed=seed)], 0)
    with directory() as where:
        library = stand_in.build(where)
        host = stand_in.StandIn(where / "gpus", 8)
        truths: list[Ints] = []
        for slot, gpu in enumerate(host.gpus):
            shown = shows(quiet, 11_000_000 * slot, PERIOD_NS, seed)
            gpu.latency_us = LATENCY_US
            host.record(slot, shown)
            truths.append(np.array([line[0] for line in shown], np.int64))
        since_ns = monotonic_ns()
        for gpu in host.gpus:
            gpu.played_ns = since_ns
        with (
            process(where, "collect", "--observe", ready="publish", environ=host.environment(library)) as pid,
            process(where, "analyze", "--select", "none", ready="query"),
        ):
            time.sleep(5)  # the search for the counter's period is over
            from_ns, before_s = monotonic_ns(), cpu_seconds(pid)
            time.sleep(seconds)
            until_ns, share = monotonic_ns(), (cpu_seconds(pid) - before_s) / seconds * 100
            time.sleep(2)
            rows = sql(
                where,
                "SELECT gpus.index, (t_lo_ns + t_hi_ns) // 2 FROM readings JOIN gpus USING (gpu)"  # noqa: S608  (numbers)
                f" WHERE seen = 'changed' AND t_hi_ns BETWEEN {from_ns} AND {until_ns}",
            )
    off_ms = [abs(nearest(truths[int(str(slot))], int(str(t)) - since_ns)) / 1e6 for slot, t in rows]
    cut = statistics.quantiles(off_ms, n=100)
    return cut[49], cut[94], share


def nearest(instants_ns: Ints, t_ns: int) -> int:
    """Return how far an instant is from the nearest of several, ns."""
    after = int(np.clip(np.searchsorted(instants_ns, t_ns), 1, len(instants_ns) - 1))
    return min(t_ns - int(instants_ns[after - 1]), int(instants_ns[after]) - t_ns, key=abs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--loads", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--steps-ms", type=int, nargs="+", default=[20, 50, 100, 500])
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--window-ms", type=float, default=100, help="what the sensor sees of each 100 ms")
    parser.add_argument("--start", type=float, default=40, help="seconds that all tools have to get ready")
    parser.add_argument("--seconds", type=int, default=20, help="length of a run of instants")
    parser.add_argument("--data", type=Path, default=meter.RECORDED, help="recordings of GPU and meter")
    options = parser.parse_args()
    if "steps" in options.only:
        print_steps(options)
    if "instants" in options.only:
        print_instants(options)
    if "meter" in options.only:
        meter.print_meter(options.data)


if __name__ == "__main__":
    main()
