"""Power limits of the stages of a pipeline: which clocks they leave, and how a sum is divided. Pure.

The busiest stage sets the pace of a pipeline. So a sum of limits is divided for the least time of that stage:
a stage with less to do gets the least limit at which it is no slower, and the busiest what that leaves.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from msgspec.structs import replace

from analyzers.fleet.fleet import Allocation
from analyzers.pipeline.frontier import TINY, ClockOption, PipelineProfile
from analyzers.pipeline.graph import PipelineGraph
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
    """Return the profile without the clocks that a power limit allows no instruction of the stage.

    A limit binds at every instant: an instruction that would draw more at its clock runs at a lower one.
    """
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


PARTS = 5
"""Of a step between two limits: stages have multiples. With 1, 5 and 20, iterations under 325 W a GPU are at
most 1.9, 3.0 and 2.9 % shorter than under equal limits (decision 17).
"""


def divide(
    graph: PipelineGraph, profile: PipelineProfile, limits_mw: Sequence[int], gpus: Sequence[int]
) -> list[tuple[tuple[int, ...], float]]:
    """Return for each mean limit a limit of each stage, mW, and the duration of an iteration, s.

    A higher mean never makes iterations longer. Where equal limits are as fast, the stages have those.

    Args:
        limits_mw: that a GPU may have, ascending.
        gpus: in each stage.
    """
    steps_mw = [
        low + (high - low) * part // PARTS for low, high in pairwise(limits_mw) for part in range(PARTS)
    ]
    steps_mw.append(limits_mw[-1])
    times_s = [_times_s(graph, profile, step_mw / 1000) for step_mw in steps_mw]
    busy_s = [[sum(at_step[i] for i in chain) for at_step in times_s] for chain in graph.orders]
    last, fastest_s = len(steps_mw) - 1, max(of_stage[-1] for of_stage in busy_s)
    known = [
        next((at for at in range(last) if not are_below(profile, {stage: steps_mw[at] / 1000})), last)
        for stage in range(graph.stages)
    ]
    paces_s = sorted({busy for of_stage in busy_s for busy in of_stage if busy >= fastest_s}, reverse=True)

    def sum_mw(places: Sequence[int]) -> int:
        return sum(count * steps_mw[at] for count, at in zip(gpus, places, strict=True))

    def places_at(pace_s: float) -> list[int]:
        """Return by stage the least step, whose time is known, at which it takes no longer."""
        return [
            next(at for at in range(known[stage], len(steps_mw)) if at == last or of_stage[at] <= pace_s)
            for stage, of_stage in enumerate(busy_s)
        ]

    def span_s(places: Sequence[int]) -> float:
        return graph.makespan_s([times_s[places[each.stage]][i] for i, each in enumerate(graph.instructions)])

    shares: list[tuple[tuple[int, ...], float]] = []
    for limit_mw in limits_mw:
        most_mw = limit_mw * sum(gpus)
        tried = [[steps_mw.index(limit_mw)] * graph.stages]
        affordable = bisect_right(paces_s, most_mw, key=lambda pace_s: sum_mw(places_at(pace_s)))
        if affordable:
            tried.append(_raised(places_at(paces_s[affordable - 1]), len(steps_mw), most_mw, sum_mw))
        time_s, places = min(((span_s(each), each) for each in tried), key=lambda each: each[0])
        if shares and shares[-1][1] <= time_s * (1 + TINY):
            shares.append(shares[-1])
        else:
            shares.append((tuple(steps_mw[at] for at in places), time_s))
    return shares


def _raised(places: list[int], steps: int, most_mw: int, sum_mw: Callable[[Sequence[int]], int]) -> list[int]:
    """Return places that are raised, the lowest first, as far as a sum allows."""
    while True:
        lowest = min(range(len(places)), key=lambda stage: places[stage])
        higher = [at + (stage == lowest) for stage, at in enumerate(places)]
        if higher[lowest] == steps or sum_mw(higher) > most_mw:
            return places
        places = higher


def _times_s(graph: PipelineGraph, profile: PipelineProfile, limit_w: float) -> list[float]:
    """Return how long each instruction takes under a limit, s.

    Below what it draws at the lowest clock that was measured, it is taken to need as much energy as there.
    """
    times = {}
    for name, known in profile.options.items():
        option = known[_allowed(known, limit_w)]
        times[name] = max(option.time_s, option.energy_j / limit_w)
    return [times[each.stage, each.kind, each.chunk] for each in graph.instructions]
