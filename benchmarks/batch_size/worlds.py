"""Worlds that no policy was designed on: other targets, default sizes and etas of the published traces.

Frozen before the adaptive policy was written: a look at them to improve a policy spends them. Played twice.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from random import Random

from msgspec.structs import replace

from analyzers.simulation.recorded_jobs import RecordedWorkload, Traces, World, levels, world

GPUS = ("v100", "a40")
SEED = 2026
EACH = 7
"""Worlds of a workload on a GPU model, at most."""
FAR = 12
ETAS = (0.0, 0.25, 0.5, 0.75, 1.0)
FROZEN = "d1af983f7d95a8c6"
"""Of their names."""


def holdout_worlds(traces: Traces) -> list[World]:
    """Return the worlds; raises ValueError when they are not those that were frozen.

    Of every workload and GPU model `EACH` pairs of target and default size are drawn, not those of the
    golden figures: from the default every run reaches the target, in two epochs or more on average, for at
    most `FAR` times the optimum (the first recurrence would be all of the regret), and at least three sizes
    compete.
    """
    dice = Random(SEED)
    chosen = list(_drawn(traces, dice, EACH, ETAS))
    digest = sha256("\n".join(made.name for made in chosen).encode()).hexdigest()[:16]
    if digest != FROZEN:
        raise ValueError(f"these are other worlds than those that were frozen: {digest}, not {FROZEN}.")
    return chosen


def _drawn(traces: Traces, dice: Random, each: int, etas: Sequence[float]) -> Iterator[World]:
    for gpu in GPUS:
        for workload in traces.workloads.values():
            its = tuple(row for row in traces.trained if row.dataset == workload.dataset)
            fit = [one for one in _others(replace(traces, trained=its), gpu, workload) if _fits(one)]
            lots = sorted(fit, key=lambda _: dice.random())
            for one in lots[:each]:
                eta = etas[int(dice.random() * len(etas))]
                other = replace(workload, target=one.job.target, default=one.job.default)
                made = world(traces, gpu, other, eta=eta)
                name = f"{made.name} to {other.target:g} from {other.default}, eta {eta:g}"
                yield replace(made, name=name)


def _others(traces: Traces, gpu: str, workload: RecordedWorkload) -> Iterator[World]:
    """Yield the worlds of other targets and default sizes."""
    for level in levels(traces, workload.dataset):
        made = world(traces, gpu, replace(workload, target=level))
        for size in made.sizes:
            if (level, size) != (workload.target, workload.default):
                yield replace(made, job=replace(made.job, default=size))


def _fits(made: World) -> bool:
    if made.job.default not in made.competing or len(made.competing) < 3:
        return False
    default = made.sizes[made.job.default]
    return default.mean_epochs >= 2 and made.by_default.cost_j <= FAR * made.optimum_j
