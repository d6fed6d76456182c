"""The limits chosen on simulated GPUs for each published workload, against the simulator's own optimum.

The whole pipeline in virtual time (tests/simulation/world.py): arithmetic GPUs, sampled counters, the real
machine. Beside it, what direct reads of the same counter at both ends of 40 steps would choose, which is
how Zeus measures.

python -m benchmarks.noise.limits [--steps-ms 5 20 50] [--seeds 1]
"""

import argparse
from collections.abc import Callable
from random import Random

from msgspec import Struct

from analyzers.power_limit import selectors
from analyzers.power_limit.profiler import limits_mw
from analyzers.power_limit.run_settings import RunSettings
from analyzers.power_limit.selectors import Trial
from analyzers.results.rows import DecisionRow
from benchmarks.harness import table
from tests.simulation.simulated_site import Training
from tests.simulation.world import World
from zeus_stream.simulated_gpu.workloads import Model, load

SELECTORS = ("energy", "time", "cost:0.5", "slowdown:1.1")
NEAR = 1.005
"""A limit whose cost is at most this much above the optimum is as good: differences below it are noise."""


class Case(Struct, frozen=True):
    model: Model
    workload: str
    selector: str
    step_s: float

    def trial(self, limit_mw: int, energy_mj: float, duration_ns: float) -> Trial:
        return Trial(limit_mw, round(energy_mj), round(duration_ns), 40)

    def exact(self, limit_mw: int) -> Trial:
        """Return what 40 steps take at a limit, by the model's own curves."""
        told = self.model.workloads[self.workload]
        duration_s = 40 * self.step_s * told.slowdown(limit_mw)
        return self.trial(limit_mw, told.power_mw(limit_mw) * duration_s, duration_s * 1e9)

    def direct(self, limit_mw: int, rng: Random) -> Trial:
        """Return what reading the counter at both ends of the 40 steps gives: it may be a period old."""
        exact, period_ns = self.exact(limit_mw), self.model.period_ms * 1e6
        begin_ns = rng.random() * period_ns
        refreshes = (begin_ns + exact.duration_ns) // period_ns
        power_mw = self.model.workloads[self.workload].power_mw(limit_mw)
        return self.trial(limit_mw, refreshes * period_ns / 1e9 * power_mw, exact.duration_ns)

    def limits(self) -> tuple[int, ...]:
        return limits_mw(self.model.default_limit_mw, self.model.min_limit_mw, 25_000)

    def choose(self, trial_of: Callable[[int], Trial]) -> int:
        select = selectors.parse(self.selector)
        assert select is not None
        return select.choose([trial_of(limit) for limit in self.limits()], 1)

    def as_good(self, chosen_mw: int) -> bool:
        """Return True if a limit is the optimum, or within `NEAR` of it by what the selector minimizes."""
        best, chosen = self.exact(self.choose(self.exact)), self.exact(chosen_mw)
        if self.selector.startswith("slowdown"):
            bound_ns = float(self.selector.split(":")[1]) * self.exact(max(self.limits())).duration_ns
            low, high = sorted((best.limit_mw, chosen.limit_mw))
            between = [limit for limit in self.limits() if low <= limit < high]
            return chosen == best or all(
                bound_ns / NEAR <= self.exact(limit).duration_ns <= bound_ns * NEAR for limit in between
            )
        eta = {"energy": 1.0, "time": 0.0, "cost:0.5": 0.5}[self.selector]
        most_w = max(self.limits()) / 1000

        def cost(trial: Trial) -> float:
            return eta * trial.energy_mj / 1e3 + (1 - eta) * most_w * trial.duration_ns / 1e9

        return cost(chosen) <= cost(best) * NEAR

    def chosen_by_direct_reads(self, seed: int) -> int:
        rng = Random(seed)
        return self.choose(lambda limit_mw: self.direct(limit_mw, rng))

    def found(self, seed: int) -> tuple[int, float]:
        """Return the limit that the pipeline chooses, and the seconds of training until then."""
        training = Training(self.workload, self.step_s, steps=10**9, noise=0.02)
        device = f"simulated:{NAMES[self.model.name]}x1,noise=0.02,seed={seed}"
        world = World(device, training, RunSettings(selector=selectors.parse(self.selector)), seed=seed)
        begin_ns = world.now_ns
        while not (decisions := world.rows(DecisionRow)):
            world.run(0.5)
        assert decisions[0].power_limit_w is not None
        return round(decisions[0].power_limit_w * 1000), (world.now_ns - begin_ns) / 1e9 - 1


MODELS = load()
NAMES = {model.name: short for short, model in MODELS.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps-ms", type=float, nargs="+", default=[5, 20, 50])
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    rows = []
    for step_ms in given.steps_ms:
        for selector in SELECTORS:
            cases = [
                Case(model, workload, selector, step_ms / 1000)
                for model in MODELS.values()
                for workload in model.workloads
            ] * given.seeds
            found = [case.found(seed) for seed, case in enumerate(cases)]
            direct = [case.chosen_by_direct_reads(seed) for seed, case in enumerate(cases)]
            good = sum(case.as_good(limit) for case, (limit, _) in zip(cases, found, strict=True))
            exact = sum(
                case.choose(case.exact) == limit for case, (limit, _) in zip(cases, found, strict=True)
            )
            read = sum(case.as_good(limit) for case, limit in zip(cases, direct, strict=True))
            seconds = sorted(seconds for _, seconds in found)
            many = len(cases)
            rows.append(
                [f"{step_ms:g} ms", selector, f"{good} of {many}", f"{exact} of {many}", f"{read} of {many}",
                 f"{seconds[many // 2]:.0f} s"]
            )  # fmt: skip
    head = [
        "steps",
        "selector",
        "within 0.5 % of the optimum",
        "exactly it",
        "direct reads of 40 steps: within 0.5 %",
        "time to decide",
    ]
    table("Limits chosen for 6 workloads on V100 and A40", head, rows)


if __name__ == "__main__":
    main()
