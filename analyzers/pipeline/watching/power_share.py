"""The power limits that budgets set on the GPUs of a pipeline, and the clocks that these leave. Pure.

A limit binds at every instant: an instruction that would draw more at its clock runs at a lower one. A plan
that does not know this promises durations that the GPUs cannot hold, though its mean power is allowed.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from analyzers.fleet.fleet import Allocation
from analyzers.pipeline.frontier import ClockOption, PipelineProfile
from analyzers.pipeline.stage_record import StageRecord

CHANGED = 0.01
"""Of a limit, after which another plan is looked for."""
FILLED = 0.97
"""Of a limit that an instruction may draw: its energy is known within a few percent."""


def limits_w(
    replicas: Mapping[int, Sequence[StageRecord]], shares: Mapping[str, Allocation]
) -> dict[int, float]:
    """Return the limit of each stage, W, the least of its replicas; a stage without a budget has none."""
    found: dict[int, float] = {}
    for stages in replicas.values():
        for stage in stages:
            for share in filter(None, map(shares.get, stage.session.gpus)):
                at, limit_w = stage.began.stage, share.most_mw / 1000
                found[at] = min(limit_w, found.get(at, limit_w))
    return found


def has_changed(before_w: Mapping[int, float], now_w: Mapping[int, float]) -> bool:
    """Tell whether a plan that was made for limits is to be replaced."""
    if before_w.keys() != now_w.keys():
        return True
    return any(abs(now_w[stage] / limit_w - 1) > CHANGED for stage, limit_w in before_w.items())


def within_limits(profile: PipelineProfile, limits_w: Mapping[int, float]) -> PipelineProfile:
    """Return the profile without the clocks that a power limit allows no instruction of the stage."""
    allowed = {name: _allowed(known, limits_w.get(name[0])) for name, known in profile.options.items()}
    first: dict[int, int] = {}
    for (stage, *_), at in allowed.items():
        first[stage] = min(at, first.get(stage, at))
    options = {
        name: tuple(
            replace(known[max(at, allowed[name])], clock_mhz=known[at].clock_mhz)
            for at in range(first[name[0]], len(known))
        )
        for name, known in profile.options.items()
    }
    return replace(profile, options=options)


def are_below(profile: PipelineProfile, limits_w: Mapping[int, float]) -> bool:
    """Tell whether a limit is below what an instruction draws at the lowest clock: its time is not known."""
    return any(
        stage in limits_w and known[-1].energy_j > limits_w[stage] * known[-1].time_s
        for (stage, *_), known in profile.options.items()
    )


def _allowed(known: Sequence[ClockOption], limit_w: float | None) -> int:
    """Return the first option, from the highest clock on, that a limit allows, or the last one."""
    if limit_w is None:
        return 0
    fit = (at for at, each in enumerate(known) if each.energy_j <= FILLED * limit_w * each.time_s)
    return next(fit, len(known) - 1)
