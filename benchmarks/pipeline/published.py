"""Our frontier beside that of the published solver, on the same instances in the same run.

    python -m benchmarks.pipeline.published [--seconds 60] [--small]

The published solver is `lowtime` 0.3.0 (Perseus, SOSP'24): repeated minimum cuts, units of 1 ms, exponential
cost model. It is no dependency, but a peer of the benchmarks. Both get the same times and energies
(those of `benchmarks.pipeline.groupings`), and their clocks are played by the same arithmetic, without
switches. At each deadline a solver's plan is the best of its frontier that holds it.
"""

import sys
import time
from collections.abc import Iterator

from analyzers.pipeline.frontier import PipelineProfile
from analyzers.pipeline.graph import PipelineGraph
from analyzers.pipeline.plan import make_plans, play, unplanned_s
from benchmarks.harness import options, peer_python, table
from benchmarks.pipeline.groupings import draw

SLOWDOWNS = (1.0, 1.05, 1.1)
UNIT_S = 0.001
INSTANCES = ((101, "gpipe"), (103, "1f1b"), (104, "1f1b"), (104, "interleaved"), (101, "zero_bubble"))
SMALL = ((104, "gpipe"),)
Played = tuple[float, float]
"""Duration, s, and energy, J, of an iteration."""


def published(graph: PipelineGraph, profile: PipelineProfile) -> Iterator[Played]:
    """Yield the frontier of the published solver, from slow to fast."""
    sys.path += map(str, peer_python().parent.parent.glob("lib/python*/site-packages"))
    import networkx as nx
    from lowtime import operation as of
    from lowtime.cost_model import ExponentialModel
    from lowtime.solver import PhillipsDessouky

    specs = {}
    for name, known in profile.options.items():
        waiting_w = profile.waiting_w[name[0]]
        options = of.CandidateExecutionOptions(
            [
                of.ExecutionOption(
                    real_time=each.time_s,
                    unit_time=UNIT_S,
                    cost=each.energy_j - waiting_w * each.time_s,
                    knob=each.clock_mhz,
                )
                for each in known
            ]
        )
        specs[name] = of.OperationSpec(options=options, cost_model=ExponentialModel(options))
    last = len(graph.instructions)
    dag = nx.DiGraph()
    operations = [of.Operation(spec=specs[e.stage, e.kind, e.chunk]) for e in graph.instructions]
    for index, operation in enumerate(operations):
        dag.add_node(index, op=operation)
    dag.add_node(-1, op=of.DummyOperation())
    dag.add_node(last, op=of.DummyOperation())
    dag.graph |= {"source_node": -1, "sink_node": last}
    dag.add_edges_from(graph.edges)
    begun = {after for _, after in graph.edges}
    dag.add_edges_from((-1, index) for index in range(last) if index not in begun)
    dag.add_edges_from((index, last) for index, after in enumerate(graph.successors) if not after)
    for _ in PhillipsDessouky(dag).run():
        yield play(graph, profile, [each.assigned_knob for each in operations], 0.0)


def row(seed: int, schedule: str, seconds: float) -> list[str]:
    """Return a row of the table."""
    graph, profile = draw(seed, schedule, long=False)
    deadlines_s = [unplanned_s(graph, profile) * each for each in SLOWDOWNS]
    begin_s = time.process_time()
    ours = make_plans(graph, profile, deadlines_s)
    our_s = time.process_time() - begin_s
    points, begin_s, done = list[Played](), time.process_time(), True
    for point in published(graph, profile):
        points.append(point)
        if time.process_time() - begin_s > seconds:
            done = False
            break
    peer_s = time.process_time() - begin_s
    unplanned_j = play(
        graph, profile, [known[0].clock_mhz for known in map(profile.of, graph.instructions)], 0.0
    )[1]
    cells = []
    for plan, deadline_s in zip(ours, deadlines_s, strict=True):
        held = [energy_j for time_s, energy_j in points if time_s <= deadline_s * (1 + 1e-9)]
        peer = f"{100 * (1 - min(held) / unplanned_j):.2f}" if held else "none holds it"
        cells += [f"{100 * (1 - plan.energy_j / unplanned_j):.2f}", peer]
    name = f"{schedule}, {graph.stages} stages, {len(graph.instructions)} instructions"
    return [name, *cells, f"{our_s:.1f}", f"{peer_s:.1f}" if done else f"not done after {peer_s:.0f}"]


def main() -> None:
    """Print the table."""
    given = options(__doc__, seconds=60.0, small=False)
    head = ["pipeline"]
    for each in SLOWDOWNS:
        head += [f"saved at x {each:g}, %", f"published, x {each:g}, %"]
    rows = [row(*each, given.seconds) for each in (SMALL if given.small else INSTANCES)]
    table(
        "Energy saved by single instructions without switches",
        [*head, "ours, CPU s", "published, CPU s"],
        rows,
    )


if __name__ == "__main__":
    main()
