"""Energy that clocks of their own save during exposed communication, on drawn schedules.

    python -m benchmarks.pipeline.communication [--seeds 1000 1002] [--lengths-ms 5 20 50] [--follows 0.1]

Pipelines as in `groupings` (``--long``: of long instructions), of at most MOST instructions. ``reduce``:
each stage ends its iteration with an all-reduce. ``send``: each forward and backward is followed by a send
that the next stage waits for. A stage that waits for another one is blocked in a receive.

Communication draws ``--drawn-w`` above idle at the highest clock, and at lower ones as a computation does.
The share ``--follows`` of its time follows the clock. Plans with it have it as an instruction. Plans without
it know its time as one of the computation before it (``send``), or do not know it (``reduce``): it then runs
at the clock of the instruction that follows. Where only communication has its own clocks, all others stay as
without. What is shorter than a change is left out: the arithmetic knows no change that outlasts its
instruction. The end of a receive depends on another stage: its lower clock ends with the first half, as plans
have it, or with all of it, as if its end were known.
"""

from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

from msgspec.structs import replace

from analyzers.pipeline.frontier import ClockOption, PipelineProfile
from analyzers.pipeline.graph import PipelineGraph, PipelineInstruction
from analyzers.pipeline.plan import make_plans, most_changes, play, unplanned_s
from benchmarks.harness import options, spread, table
from benchmarks.pipeline.groupings import CHANGES_PER_S, CLOCKS_MHZ, GPU, MOST, draw
from benchmarks.pipeline.schedules import SCHEDULES

SWITCHINGS_MS = (10, 50)
SHAPE = GPU.workloads["squad"]
KIND: Any = "communication"
Shares = tuple[float, float]


def known_options(length_s: float, drawn_w: float, follows: float) -> tuple[ClockOption, ...]:
    """Return what a communication takes at each clock."""
    idle_w = GPU.idle_mw / 1000
    dynamic = [SHAPE.power_mw(GPU.max_limit_mw, mhz) / 1000 - idle_w for mhz in CLOCKS_MHZ]
    found = []
    for mhz, watts in zip(CLOCKS_MHZ, dynamic, strict=True):
        time_s = length_s * (1 + follows * (CLOCKS_MHZ[0] / mhz - 1))
        found.append(ClockOption(mhz, time_s, time_s * (idle_w + drawn_w * watts / dynamic[0])))
    return tuple(found)


def with_communication(graph: PipelineGraph, form: str) -> tuple[PipelineGraph, list[int]]:
    """Return a graph with communication, and by instruction whose clock it has in a plan without.

    That is a position in ``graph``.
    """
    last, first = {chain[-1]: chain[0] for chain in graph.orders}, {}
    instructions, owner, after = list[PipelineInstruction](), list[int](), dict[int, int]()
    for index, each in enumerate(graph.instructions):
        first[index] = len(owner)
        instructions.append(each)
        owner.append(index)
        if (form == "send" and each.kind != "weight") or (form == "reduce" and index in last):
            after[index] = len(owner)
            instructions.append(replace(each, kind=KIND))
            owner.append(index if form == "send" else last[index])
    edges = {(first[index], at) for index, at in after.items()}
    for one, two in graph.edges:
        apart = graph.instructions[one].stage != graph.instructions[two].stage
        edges.add((after.get(one, first[one]) if apart else first[one], first[two]))
    orders = [
        tuple(at for index in chain for at in (first[index], after.get(index)) if at is not None)
        for chain in graph.orders
    ]
    edges |= {pair for order in orders for pair in pairwise(order)}
    successors = tuple(tuple(b for a, b in sorted(edges) if a == at) for at in range(len(owner)))
    made = PipelineGraph(graph.stages, tuple(instructions), tuple(sorted(edges)), tuple(orders), successors)
    return made, owner


def compare(
    seed: int, schedule: str, form: str, length_s: float, switching_s: float, given: Any
) -> Shares | None:
    """Return the shares of energy that a plan with communication saves, and its own clocks in one without.

    None: too many instructions.
    """
    graph, profile = draw(seed, schedule, long=given.long)
    if len(graph.instructions) > MOST:
        return None
    settings: Any = {"switching_s": switching_s, "changes_per_s": CHANGES_PER_S, "quick": True}
    whole, owner = with_communication(graph, form)
    known = known_options(length_s, given.drawn_w, given.follows)
    names = {(each.stage, each.kind, each.chunk) for each in whole.instructions if each.kind == KIND}
    with_it = replace(profile, options={**profile.options, **dict.fromkeys(names, known)})
    without_it = merge(profile, known) if form == "send" else profile
    (before,) = make_plans(graph, without_it, (unplanned_s(graph, without_it),), **settings)
    clocks = [before.clocks_mhz[at] for at in owner]
    before_s, before_j = play(whole, with_it, clocks, switching_s)
    (ours,) = make_plans(whole, with_it, (unplanned_s(whole, with_it),), **settings)
    best_j = before_j
    for members in groups(whole, owner, graph):
        for mhz in CLOCKS_MHZ[::5]:
            tried = [mhz if at in members else own for at, own in enumerate(clocks)]
            time_s, energy_j = play(whole, with_it, tried, switching_s)
            holds = time_s <= before_s * (1 + 1e-9)
            few = most_changes(whole, tried) <= CHANGES_PER_S * time_s
            if energy_j < best_j and holds and few:
                best_j, clocks = energy_j, tried
    return 1 - ours.energy_j / before_j, 1 - best_j / before_j


def receives(seed: int, schedule: str, switching_s: float, given: Any) -> Shares | None:
    """Return the shares of energy that a lower clock in half of each wait saves, and in all of it."""
    graph, profile = draw(seed, schedule, long=given.long)
    if len(graph.instructions) > MOST:
        return None
    (plan,) = make_plans(
        graph, profile, (unplanned_s(graph, profile),), switching_s=switching_s, quick=True,
        changes_per_s=CHANGES_PER_S,
    )  # fmt: skip
    times = [{each.clock_mhz: each.time_s for each in profile.of(of)} for of in graph.instructions]
    lengths_s = [of[mhz] for of, mhz in zip(times, plan.clocks_mhz, strict=True)]
    starts_s, makespan_s = graph.starts_s(lengths_s), graph.makespan_s(lengths_s)
    drawn_w = {
        each.clock_mhz: each.energy_j - GPU.idle_mw / 1000 for each in known_options(1.0, given.drawn_w, 0.0)
    }
    spent_j, half_j, whole_j = plan.energy_j, 0.0, 0.0
    for chain in graph.orders:
        ended_s = starts_s[chain[-1]] + lengths_s[chain[-1]] - makespan_s
        for index in chain:
            wait_s, blocked_w = starts_s[index] - ended_s, drawn_w[plan.clocks_mhz[index]]
            less_w = blocked_w - drawn_w[CLOCKS_MHZ[-1]]
            spent_j += wait_s * blocked_w
            half_j += max(wait_s / 2 - switching_s, 0.0) * less_w
            whole_j += max(wait_s - switching_s, 0.0) * less_w
            ended_s = starts_s[index] + lengths_s[index]
    return half_j / spent_j, whole_j / spent_j


def merge(profile: PipelineProfile, sent: Sequence[ClockOption]) -> PipelineProfile:
    """Return a profile whose forwards and backwards last until what they send has arrived."""
    options = {
        name: tuple(
            ClockOption(a.clock_mhz, a.time_s + b.time_s, a.energy_j + b.energy_j)
            for a, b in zip(of, sent, strict=True)
        )
        for name, of in profile.options.items()
        if name[1] != "weight"
    }
    return replace(profile, options={**profile.options, **options})


def groups(whole: PipelineGraph, owner: Sequence[int], graph: PipelineGraph) -> list[set[int]]:
    """Return communications that get the same clock: of one stage, after one kind of pass."""
    found: dict[tuple[int, str], set[int]] = {}
    for at, each in enumerate(whole.instructions):
        if each.kind == KIND:
            found.setdefault((each.stage, graph.instructions[owner[at]].kind), set()).add(at)
    return list(found.values())


def percents(found: Sequence[Shares | None]) -> list[str]:
    """Return both shares as text, over all instances."""
    return [
        spread([100 * share for share in each], "%", 2) for each in zip(*filter(None, found), strict=True)
    ]


def main() -> None:
    """Print the tables."""
    given = options(
        __doc__, seeds=[1000, 1002], drawn_w=60.0, follows=0.1, long=False, lengths_ms=[5, 20, 50]
    )
    instances = list(product(range(*given.seeds), SCHEDULES))
    rows, waits = [], []
    for switching_ms in SWITCHINGS_MS:
        switching_s = switching_ms / 1000
        waits.append(
            [f"{switching_ms}", *percents([receives(*each, switching_s, given) for each in instances])]
        )
        lengths_ms = [each for each in given.lengths_ms if each >= switching_ms]
        for form, length_ms in product(("reduce", "send"), lengths_ms):
            found = [compare(*each, form, length_ms / 1000, switching_s, given) for each in instances]
            rows.append([form, f"{length_ms}", f"{switching_ms}", *percents(found)])
    head = (
        "communication | ms | switching, ms | saved by a plan with it | by its own clocks, others as without"
    )
    table(f"Energy of an iteration, communication at {given.drawn_w:g} W above idle", head, rows)
    head = "switching, ms | a lower clock in half of each wait | in all of each wait"
    table(f"The same for waits in receives, at {given.drawn_w:g} W above idle", head, waits)


if __name__ == "__main__":
    main()
