"""Jobs of several ranks: the limit chosen for all of them, and limits of single GPUs where those differ.

The whole pipeline in virtual time (tests/simulation/world.py): arithmetic GPUs, sampled counters, the real
machines, every rank on a host with a clock of its own.

First table: every curve of Zeus's published V100 and A40 power traces is a job on 8 ranks. The limit that is
chosen is compared with the one that the sum over all ranks says, by the cost selector with MAXPOWER x 8.
Beside it Zeus's rule: energy summed over ranks, MAXPOWER of one GPU.

Second table: jobs on GPUs of which some are slower; a step ends when the slowest is done. What a step takes
with one limit for all, and with those that were found for single GPUs, by the GPUs' own curves. ``trying``:
the time that trials cost, as a share of a run of 2000 steps.

python -m benchmarks.noise.ranks --traces DIR [--etas 0.25 0.5 0.75] [--ranks 8] [--noise 0 0.01]
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
from msgspec import Struct

from analyzers.power_limit import selectors
from analyzers.power_limit.run_settings import RunSettings
from analyzers.power_limit.selectors import Selector, Trial
from analyzers.power_limit.visits import limits_mw
from analyzers.results.rows import DecisionRow, GpuLimitRow
from benchmarks.harness import table
from benchmarks.noise.published import Curve, curves, named
from collectors.devices.simulated_spec import Spec, parse
from tests.simulation.simulated_site import Training
from tests.simulation.world import World
from zeus_stream.protocol.events import StepBoundary
from zeus_stream.protocol.fields import UNLOCKED
from zeus_stream.protocol.frames import Events
from zeus_stream.simulated_gpu.workloads import Model, Workload

STRIDE_MW = 25_000
STEP_S = 0.05
RUN_STEPS = 2000
JOBS = (
    ("one of 4 is 10 % slower", "simulated:v100x3,{}+v100,slower=1.1,{}"),
    ("one of 8 is 5 % slower", "simulated:v100x7,{}+v100,slower=1.05,{}"),
    (
        "4 that all differ (0, 3, 6, 10 %)",
        "simulated:v100,{}+v100,slower=1.03,{}+v100,slower=1.06,{}+v100,slower=1.1,{}",
    ),
    ("4 that are equal", "simulated:v100x4,{}"),
)


# ---- one limit for 8 ranks ---------------------------------------------------------------------------------


class Published(Struct, frozen=True):
    """A published curve as what a simulated GPU computes, linear in the logarithms between its limits."""

    curve: Curve

    def power_mw(self, limit_mw: int, _locked_mhz: int = UNLOCKED) -> int:
        step_mw = [mj / ns for mj, ns in zip(self.curve.step_mj, self.curve.step_ns, strict=True)]
        return round(self._at(limit_mw, step_mw) * 1e9)

    def slowdown(self, limit_mw: int, _locked_mhz: int = UNLOCKED) -> float:
        return self._at(limit_mw, self.curve.step_ns) / self.curve.step_ns[0]

    def clock_mhz(self, _limit_mw: int, _locked_mhz: int = UNLOCKED) -> int:
        return 1500

    def _at(self, limit_mw: int, values: Sequence[float]) -> float:
        return float(np.exp(np.interp(limit_mw, self.curve.limits_mw[::-1], np.log(values[::-1]))))

    def ranks(self, count: int) -> list[tuple[Spec, ...]]:
        """Return a GPU for each rank."""
        top_mw, least_mw = self.curve.limits_mw[0], self.curve.limits_mw[-1]
        told = cast("Workload", self)  # it answers the same questions
        model = Model(
            name="published", min_limit_mw=least_mw, max_limit_mw=top_mw, default_limit_mw=top_mw,
            idle_mw=30_000, period_ms=100, window_ms=100, idle_clock_mhz=300, max_clock_mhz=1500,
            workloads={"it": told}, source="traces", clock_share=1.0, clock_source="nothing locks it",
        )  # fmt: skip
        return [
            (Spec(key="published", model=model, period_ms=100, window_ms=100, seed=rank),)
            for rank in range(count)
        ]

    def trials(self, ranks: int) -> list[Trial]:
        """Return what 1000 steps of all ranks take at each limit, exactly."""
        limits = limits_mw(self.curve.limits_mw[0], self.curve.limits_mw[-1], STRIDE_MW)
        times = [1000 * STEP_S * self.slowdown(limit) for limit in limits]
        return [
            Trial(limit, round(self.power_mw(limit) * s * ranks), round(s * 1e9), 1000)
            for limit, s in zip(limits, times, strict=True)
        ]


def chosen_mw(published: Published, selector: Selector, ranks: int) -> int:
    """Return the limit that the pipeline chooses for a job on so many ranks."""
    plan = RunSettings(
        selector=selector,
        stride_mw=STRIDE_MW,
        wait_steps=1,
        warmup_steps=2,
        profile_steps=10,
        settle_ns=0,
        refreshes=5,
        exhaustive=True,
    )
    first, *others = published.ranks(ranks)
    more = tuple((spec, rank * 1_000_000_000_000) for rank, spec in enumerate(others, 1))
    world = World(first, Training("it", STEP_S, 10**9), plan, more=more)
    while not (decisions := world.rows(DecisionRow)):
        world.run(0.5)
    assert decisions[0].power_limit_w is not None
    return round(decisions[0].power_limit_w * 1000)


def of_all_ranks(traces: Path, ranks: int, etas: Sequence[float]) -> None:
    jobs = [Published(curve) for curve in curves(traces)]
    rows = []
    for eta in etas:
        selector = named(f"cost:{eta:g}")
        ours, zeus, excess = 0, 0, list[float]()
        for job in jobs:
            trials = job.trials(ranks)
            best_mw, other_mw = selector.choose(trials, ranks), selector.choose(trials, 1)
            ours += chosen_mw(job, selector, ranks) != best_mw
            zeus += other_mw != best_mw
            cost = {
                trial.limit_mw: selectors.cost_mj(trial, eta, trials[0].limit_mw, ranks) for trial in trials
            }
            excess.append(100 * (cost[other_mw] / cost[best_mw] - 1))
        total = len(jobs)
        rows.append(
            [selector.text, f"{ours} of {total}", f"{zeus} of {total}",
             f"{np.mean(excess):.1f}, at most {max(excess):.1f}"]
        )  # fmt: skip
    head = "selector | another limit: ours | another limit: Zeus's rule | its excess cost, %"
    table(f"The limit of {len(jobs)} published configurations on {ranks} ranks each", head, rows)


# ---- limits of single GPUs ---------------------------------------------------------------------------------


def step_of(
    specs: Sequence[Spec], limits: Sequence[int], workload: str, step_s: float
) -> tuple[float, float]:
    """Return the time and energy of a step, s and J, with these limits."""
    told = [spec.model.workloads[workload] for spec in specs]
    busy = [step_s * work.slowdown(limit) for work, limit in zip(told, limits, strict=True)]
    whole_s = max(busy)
    energy_mj = sum(
        work.power_mw(limit) * s + spec.model.idle_mw * (whole_s - s)
        for work, limit, s, spec in zip(told, limits, busy, specs, strict=True)
    )
    return whole_s, energy_mj / 1000


def single(
    device: str, select: str, noise: float, workload: str = "imagenet", step_s: float = 0.25
) -> list[object]:
    """Return the figures of a row."""
    specs = parse(device.replace("{}", f"period_ms=100,noise={noise}"))
    plan = RunSettings(selector=named(select), stride_mw=STRIDE_MW, per_gpu=True)
    world = World(specs, Training(workload, step_s, 10**9, noise=noise), plan)
    while not (rows := world.rows(GpuLimitRow)):
        world.run(5.0)
    of_gpu = {row.gpu: round(row.power_limit_w * 1000) for row in rows}
    found = [of_gpu[gpu] for gpu in world.hosts[0].gpus]
    job = [round(row.job_limit_w * 1000) for row in rows]
    one, own = (step_of(specs, limits, workload, step_s) for limits in (job, found))
    begins = [
        event.began_ns
        for _, body in world.frames
        if isinstance(body, Events)
        for event in body.events
        if isinstance(event, StepBoundary) and event.began_ns is not None and event.began_ns <= rows[0].t_ns
    ]
    trying = (begins[-1] - begins[-1 - rows[0].steps]) / 1e9 / one[0] - rows[0].steps
    return [
        f"{job[0] / 1000:g}",
        f"{one[1]:.1f}",
        f"{own[1]:.1f}",
        f"{100 * (own[1] / one[1] - 1):+.1f}",
        f"{100 * (own[0] / one[0] - 1):+.2f}",
        " ".join(f"{limit / 1000:g}" for limit in found),
        rows[0].steps,
        f"{100 * trying / RUN_STEPS:+.2f}",
    ]


def of_single_gpus(noises: Sequence[float], texts: Sequence[str]) -> None:
    rows = [
        [job, f"{100 * noise:g}", text, *single(device, text, noise)]
        for job, device in JOBS
        for text in texts
        for noise in noises
    ]
    head = (
        "V100s, imagenet, steps of 250 ms | noise, % | selector | limit of the job, W | "
        "one limit for all (Zeus), J a step | one a GPU, J a step | energy, % | time, % | limits, W | "
        "steps to find them | trying, %"
    )
    table("Limits of single GPUs where one of them is slower", head, rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--traces", type=Path, help="directory of summary_power_*.csv; without, no first table"
    )
    parser.add_argument("--etas", type=float, nargs="+", default=[0.25, 0.5, 0.75])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--noise", type=float, nargs="*", default=[0.0, 0.01], help="none: no second table")
    parser.add_argument("--selectors", nargs="+", default=["energy", "cost:0.5", "time"])
    given = parser.parse_args()
    if given.traces is not None:
        of_all_ranks(given.traces, given.ranks, given.etas)
    if given.noise:
        of_single_gpus(given.noise, given.selectors)


if __name__ == "__main__":
    main()
