"""Energy of training steps against the exact truth: ours and five other tools, each on a GPU of its own.

python -m benchmarks.windows.accuracy [--loads constant clean noisy] [--steps-ms 20 50 100 500] [--repeats 3]
    [--period-ms 100] [--window-ms 25]

A shared library that stands in for NVML shows each tool a GPU of its own. Each tool runs unmodified in
a training (training.py) that is called at the steps' edges. The power of the GPU follows that training
(following.py) with the powers of loads.py, so it rises after a step began, however late the machine runs the
training. What a tool is compared with is the integral between the instants at which it was called. Ours
passes through collector and analyzer; its energies are read by SQL.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from msgspec import Struct

from benchmarks.harness import ROOT, directory, options, peer_python, process, sql, table, wait_for
from benchmarks.windows.__main__ import ACCURACY
from benchmarks.windows.following import Followed, FollowingGpu, Wanted, follow, following
from benchmarks.windows.loads import NAMES, REST_NS, SEED, lengths
from benchmarks.windows.marks import Marks
from benchmarks.windows.training import TOOLS
from tests.gpu import stand_in
from tests.gpu.stand_in import StandIn

PAUSE_NS = 500_000_000
"""Between two loads."""
LATENCY_US = 50
"""Of a driver call."""
OURS = "zeus-stream"


class Found(Struct, frozen=True):
    """The energies that one tool found of one load; shape (n,) each."""

    energy_j: np.ndarray[tuple[int], np.dtype[np.float64]]
    """NaN: it found none."""
    truth_j: np.ndarray[tuple[int], np.dtype[np.float64]]
    covered: float = math.nan
    """Share of the truths within its 95 % interval, if it has one."""
    width: float = math.nan
    """Median width of that interval, as a share of the truth."""

    @property
    def error(self) -> float:
        """Mean absolute error of a step, %. A step that was not found is off by all of it."""
        return float(np.mean(np.abs(np.nan_to_num(self.energy_j) / self.truth_j - 1)) * 100)

    @property
    def bias(self) -> float:
        """Error of the sum, %."""
        return float((np.nansum(self.energy_j) / np.sum(self.truth_j) - 1) * 100)


def measure(given: argparse.Namespace, seed: int) -> dict[str, dict[str, Found]]:
    """Return what each tool found of each load, by load and tool, in one run beside each other."""
    loads = [
        Wanted(name, step_ms, len(lengths(name, step_ms, seed=seed)[0]), seed)
        for name in given.loads
        for step_ms in given.steps_ms
    ]
    period_ns, window_ns = (
        round(given.period_ms * 1e6),
        given.window_ms and round(given.window_ms * 1e6),
    )
    with directory() as where, ExitStack() as stack:
        library = stand_in.build(where)
        outs = {tool: where / f"out{number}" for number, tool in enumerate(given.tools)}
        marks = {tool: Marks(Path(f"{out}.marks")) for tool, out in outs.items()}
        hosts = {tool: StandIn(Path(f"{out}.gpus")) for tool, out in outs.items()}
        gpus = []
        for tool, host in hosts.items():
            (gpu,) = host.gpus
            gpu.name, gpu.architecture, gpu.latency_us = b"NVIDIA A100-SXM4-40GB", 7, LATENCY_US
            gpu.max_limit_mw = gpu.default_limit_mw = gpu.requested_mw = 400_000
            gpus.append(FollowingGpu(gpu, marks[tool], loads, period_ns, window_ns))
        if not stack.enter_context(following(gpus)):
            print("GPUs may not run before other programs (SCHED_FIFO): a busy machine refreshes them late.")
        environ = {tool: host.environment(library) for tool, host in hosts.items()}
        stack.enter_context(process(where, "collect", "--observe", ready="publish", environ=environ[OURS]))
        stack.enter_context(process(where, "analyze", "--select", "none", ready="query"))
        reports = trainings(loads, where, outs, environ, given.start)
        found: dict[str, dict[str, Found]] = {}
        for number, wanted in enumerate(loads):
            found[label(wanted)] = of_load = {}
            for tool, results in reports.items():
                first = sum(each.marks for each in loads[:number])
                now_ns, known = marks[tool].until_now()
                truth = follow(wanted, known[first : first + wanted.marks], now_ns)
                of_load[tool] = (
                    archived(where, wanted, truth) if tool == OURS else theirs(results[number], truth)
                )
    return found


def label(wanted: Wanted) -> str:
    return f"{wanted.name} {wanted.step_ms} ms"


def trainings(
    loads: Sequence[Wanted],
    where: Path,
    outs: dict[str, Path],
    environ: dict[str, dict[str, str]],
    start_s: float,
) -> dict[str, list[dict[str, list[list[int]]]]]:
    """Run the training of each tool. Return what each found, by load; without tools that do not start."""
    running = {tool: train(tool, where, out, environ[tool]) for tool, out in outs.items()}
    deadline = time.monotonic() + start_s
    while any(
        not Path(f"{outs[tool]}.ready").exists() for tool, each in running.items() if each.poll() is None
    ):
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    plan = [
        {
            "name": label(each),
            "rest_ns": REST_NS,
            "pause_ns": PAUSE_NS,
            "lengths_ns": np.stack(lengths(each.name, each.step_ms, seed=each.seed), axis=1).tolist(),
        }
        for each in loads
    ]
    (where / "plan").write_text(json.dumps(plan))
    reports = {}
    for tool, each in running.items():
        if not Path(f"{outs[tool]}.ready").exists():
            each.kill()
        if each.wait():
            print(f"{tool}: failed:\n{(where / f'{outs[tool].name}.log').read_text()}", file=sys.stderr)
            if tool == OURS:
                sys.exit(1)
        else:
            reports[tool] = json.loads(outs[tool].read_text())
    return reports


def train(tool: str, where: Path, out: Path, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start the training of one tool, in the environment that has it."""
    python = sys.executable if tool == OURS else peer_python()
    command = [str(python), "-m", "benchmarks.windows.training", tool, str(where / "plan"), str(out)]
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


def theirs(report: dict[str, list[list[int]]], truth: Followed) -> Found:
    """Compare a tool's figures with the truth between its calls, each at the middle of its two stamps."""
    stamps = np.array(report["stamps_ns"], np.int64).reshape(-1, 4)
    begin_ns, end_ns = stamps[:, :2].mean(axis=1), stamps[:, 2:].mean(axis=1)
    truth_j = truth.energy_pj(begin_ns.astype(np.int64), end_ns.astype(np.int64)) / 1e12
    return Found(np.array([np.nan if one is None else one for one in report["energy_j"]]), truth_j)


def archived(where: Path, wanted: Wanted, truth: Followed) -> Found:
    """Compare what the archive holds with the truth between the begins and ends it holds."""
    steps = f"FROM windows WHERE kind = 'step' AND job = '{label(wanted)}'"
    wait_for(lambda: sql(where, f"SELECT count(*) {steps}") == [(wanted.steps,)], 30)
    rows = sql(
        where, f"SELECT begin_ns, end_ns, energy_j, energy_p2_5_j, energy_p97_5_j {steps} ORDER BY index"
    )
    energy_j, low_j, high_j = np.array([row[2:] for row in rows], np.float64).T
    begin_ns, end_ns = (np.array([row[column] for row in rows], np.int64) for column in (0, 1))
    truth_j = truth.energy_pj(begin_ns, end_ns) / 1e12
    covered = float(np.mean((low_j <= truth_j) & (truth_j <= high_j)))
    return Found(energy_j, truth_j, covered, float(np.nanmedian((high_j - low_j) / truth_j)))


def print_steps(given: argparse.Namespace) -> None:
    runs = [measure(given, SEED + repeat) for repeat in range(given.repeats)]
    errors, sums = [], []
    for name in runs[0]:
        of_tools = {tool: [run[name][tool] for run in runs if tool in run[name]] for tool in given.tools}
        error = {tool: _median(one.error for one in found) for tool, found in of_tools.items()}
        load_name, step_ms, _ = name.split()
        peers = [value for tool, value in error.items() if tool != OURS and not math.isnan(value)]
        ratio = f"{min(peers) / error[OURS]:.1f}" if peers else ""
        goal = ACCURACY[round(given.period_ms)][load_name].get(int(step_ms), math.nan)
        errors.append([name, *(f"{value:.3g} %" for value in error.values()), ratio, f"{goal:g} %"])
        bias = [f"{_median(one.bias for one in found):+.2g} %" for found in of_tools.values()]
        inside = _median(one.covered for one in of_tools[OURS]) * 100
        width = _median(one.width for one in of_tools[OURS]) * 100
        sums.append([name, *bias, f"{inside:.1f} %", f"{width:.2g} %"])
    kind = f"sees {given.window_ms:g} ms of it" if given.window_ms else "integrates"
    seeds = f"seeds {SEED} to {SEED + given.repeats - 1}, medians of {given.repeats} run(s)"
    table(
        f"Energy of a step, mean absolute error ({given.period_ms:g} ms counter that {kind}; {seeds};"
        f" load {os.getloadavg()[0]:.1f})",
        ["steps", *given.tools, "best of the others / ours", "goal"],
        errors,
    )
    table(
        "Error of the sum over all steps; our 95 % interval",
        ["steps", *given.tools, "truth inside", "its median width"],
        sums,
    )


def _median(values: Iterable[float]) -> float:
    """Return the median; NaN of none, for a tool that did not start."""
    known = list(values)
    return statistics.median(known) if known else math.nan


def main() -> None:
    given = options(
        __doc__, choices={"loads": NAMES, "tools": TOOLS}, loads=NAMES, steps_ms=[20, 50, 100, 500],
        tools=list(TOOLS), repeats=3, period_ms=100.0, window_ms=float, start=120.0,
    )  # fmt: skip
    given.tools = [OURS, *(tool for tool in given.tools if tool != OURS)]
    print_steps(given)


if __name__ == "__main__":
    main()
