"""Visits without the noise of a busy host: as if every step had been delayed by the same time. Pure.

Other processes take the processor from a training that should launch its next kernels. The GPU idles then.
Such delays differ by more between two visits than limits do, and have nothing to do with the limit. They are
seen: among the steps of a block, some were quick. So time and energy of a step are fitted, within limits:

    time = time at the limit + a d        d: delay of a step, off the quickest of its block
    energy = energy at the limit + b d    b: draw of GPUs that idle

and blocks are brought to the mean delay of all. Costs at that delay have the same order as those measured for
long. This is done only where delays explain nearly all differences between blocks of a limit, GPUs drew
little during them, and limits do not explain the delays. Batches of unlike lengths fail the first, long steps
of the GPU the second, and steps of two kinds, of which a limit slows one, the third.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec.structs import replace

from analyzers.power_limit.search.visit_blocks import Visit
from analyzers.power_limit.selectors import Trial

LEAST_BLOCKS = 6
"""Fewer may agree with the fit by chance."""
EXPLAINED = 0.8
"""Share of the variance of time that delays explain, at least, and that limits explain of delays, at most."""
IDLE = 0.55
"""Share of the mean power that GPUs draw in a delay, at most."""


def delay_ns(steps_ns: Iterable[int]) -> int:
    """Return how much longer some steps took than if all had been as quick as the quickest."""
    known = list(steps_ns)
    return sum(known) - len(known) * min(known, default=0)


def evenly_delayed(visits: Sequence[Visit]) -> list[Visit]:
    """Return visits as if each of their steps had been delayed by the mean time, where that is clear."""
    blocks = [block for visit in visits for block in visit.blocks]
    if len(blocks) < LEAST_BLOCKS or not any(block.delay_ns for block in blocks):
        return list(visits)
    steps = np.array([block.steps for block in blocks], dtype=float)
    sums = np.array([(block.delay_ns, block.duration_ns, block.energy_mj) for block in blocks]).T
    off = sums / steps
    for limit_mw in {block.limit_mw for block in blocks}:
        same = [block.limit_mw == limit_mw for block in blocks]
        off[:, same] -= sums[:, same].sum(axis=1, keepdims=True) / steps[same].sum()
    products = (off * steps) @ off.T
    of_delay, of_time = products[0, 0], products[1, 1]
    if of_delay <= 0 or products[0, 1] ** 2 < EXPLAINED * of_delay * of_time:
        return list(visits)
    if _explained_by_limits(visits) > EXPLAINED:
        return list(visits)
    longer, idle = products[0, 1] / of_delay, products[0, 2] / of_delay
    delay, duration, energy = sums.sum(axis=1)
    if not 0 <= idle * duration < IDLE * energy:
        return list(visits)
    mean = delay / steps.sum()

    def even(block: Trial) -> Trial:
        more = block.delay_ns - mean * block.steps
        return replace(
            block,
            energy_mj=max(1, round(block.energy_mj - idle * more)),
            duration_ns=max(1, round(block.duration_ns - longer * more)),
        )

    return [replace(visit, blocks=tuple(map(even, visit.blocks))) for visit in visits]


def _explained_by_limits(visits: Sequence[Visit]) -> float:
    """Return the share of the variance of delays between visits that limits explain (adjusted R^2).

    0 where no limit was visited twice.
    """
    wholes = [visit.whole for visit in visits]
    limits_mw = {whole.limit_mw for whole in wholes}
    if len(limits_mw) in {1, len(wholes)}:
        return 0.0
    delays = [[w.delay_ns / w.steps for w in wholes if w.limit_mw == limit_mw] for limit_mw in limits_mw]
    within = sum(len(of) * float(np.var(of)) for of in delays) / (len(wholes) - len(limits_mw))
    return 1 - within / float(np.var([w.delay_ns / w.steps for w in wholes], ddof=1) or 1.0)
