"""The power that budgets leave to a replica of a pipeline, and the plan that keeps to it. Pure."""

from collections.abc import Callable, Mapping, Sequence

from analyzers.fleet.fleet import Allocation
from analyzers.pipeline.plan import FrequencyPlan
from analyzers.pipeline.stage_record import StageRecord

HALVINGS = 6
"""Of the distance between two durations, until one is close enough to the power allowed."""
CHANGED = 0.01
"""Of the power allowed, after which another plan is looked for."""


def allowed_w(
    replicas: Mapping[int, Sequence[StageRecord]], shares: Mapping[str, Allocation]
) -> float | None:
    """Return the watts that the GPUs of every replica may draw together; None: no budget has all of them."""
    totals = []
    for stages in replicas.values():
        of = [shares.get(gpu) for stage in stages for gpu in stage.session.gpus]
        known = [share.most_mw for share in of if share is not None]
        if len(known) == len(of):
            totals.append(sum(known) / 1000)
    return min(totals, default=None)


def has_changed(before_w: float | None, now_w: float | None) -> bool:
    """Tell whether a plan that kept to ``before_w`` is to be replaced."""
    if before_w is None or now_w is None:
        return before_w is not now_w
    return abs(now_w / before_w - 1) > CHANGED


def plan_within(
    allowed_w: float | None, fastest_s: float, slowest_s: float, plan_of: Callable[[float], FrequencyPlan]
) -> FrequencyPlan:
    """Return the fastest plan whose mean power is allowed, or the slowest one if none is.

    Args:
        allowed_w: watts of all stages together; None: any.
        fastest_s: duration of an iteration that is to be kept, if that is allowed.
        slowest_s: past this duration nothing is saved.
        plan_of: returns the plan of a duration.
    """
    plan = plan_of(fastest_s)
    if allowed_w is None or _watts(plan) <= allowed_w or slowest_s <= fastest_s:
        return plan
    plan, low_s, high_s = plan_of(slowest_s), fastest_s, slowest_s
    for _ in range(HALVINGS):
        middle_s = (low_s + high_s) / 2
        tried = plan_of(middle_s)
        if _watts(tried) <= allowed_w:
            plan, high_s = tried, middle_s
        else:
            low_s = middle_s
    return plan


def _watts(plan: FrequencyPlan) -> float:
    return plan.energy_j / plan.time_s
