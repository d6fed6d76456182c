import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.pipeline.graph import PipelineGraph, PipelineInstruction, from_orders
from benchmarks.pipeline.schedules import make_graph
from zeus_stream.errors import SettingsError

PUBLISHED = Path(__file__).parents[2] / "data" / "perseus_plan" / "plan.json"


def kinds(graph: PipelineGraph, stage: int) -> str:
    """Return the order of a stage as letters."""
    return "".join(graph.instructions[index].kind[0] for index in graph.orders[stage])


@pytest.mark.parametrize(
    ("schedule", "orders"),
    [
        pytest.param("gpipe", ["ffffbbbb", "ffffbbbb", "ffffbbbb"], id="gpipe: all forwards first"),
        pytest.param("1f1b", ["fffbfbbb", "ffbfbfbb", "fbfbfbfb"], id="1f1b: warm-up by stage"),
    ],
)
def test_stages_run_in_the_order_of_their_schedule(schedule: str, orders: list[str]) -> None:
    graph = make_graph(schedule, 3, 4)
    assert [kinds(graph, stage) for stage in range(3)] == orders


def test_the_order_of_a_published_plan_is_that_of_1f1b() -> None:
    plan = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    graph = make_graph("1f1b", 2, 8)
    for stage, published in enumerate(plan["stages"]):
        assert kinds(graph, stage) == "".join(kind[0] for kind, _ in published)


def test_zero_bubble_runs_each_weight_gradient_after_its_backward_and_shortens_the_iteration() -> None:
    split, whole = make_graph("zero_bubble", 4, 8), make_graph("1f1b", 4, 8)
    assert kinds(split, 0).count("w") == 8
    unit = {"forward": 1.0, "backward": 1.0, "weight": 1.0}
    split_s = split.makespan_s([unit[each.kind] for each in split.instructions])
    whole_s = whole.makespan_s([2.0 if each.kind == "backward" else 1.0 for each in whole.instructions])
    assert split_s < whole_s == 33.0


def test_interleaving_shortens_the_bubble_by_the_number_of_chunks() -> None:
    plain, chunked = make_graph("1f1b", 4, 8), make_graph("interleaved", 4, 8, chunks=2)
    plain_s = plain.makespan_s([2.0] * len(plain.instructions))
    chunked_s = chunked.makespan_s([1.0] * len(chunked.instructions))
    assert (plain_s - 32, chunked_s - 32) == (12.0, 6.0)


@given(
    st.sampled_from(["1f1b", "gpipe", "interleaved", "zero_bubble"]),
    st.integers(1, 5),
    st.integers(1, 3),
)
def test_every_instruction_comes_after_all_it_waits_for(schedule: str, stages: int, rounds: int) -> None:
    chunks = 2 if schedule == "interleaved" else 1
    graph = make_graph(schedule, stages, stages * rounds, chunks)
    assert all(before < after for before, after in graph.edges)
    assert sorted(index for order in graph.orders for index in order) == list(range(len(graph.instructions)))
    for order in graph.orders:
        assert list(order) == sorted(order)


ONE = PipelineInstruction(0, "forward", 0)
TWO = PipelineInstruction(1, "forward", 0)
BACK = PipelineInstruction(0, "backward", 0)


@pytest.mark.parametrize(
    ("orders", "sentence"),
    [
        ([], "there are 0 instructions. Give 1 to 20000"),
        ([[ONE, ONE]], "forward 0 on stage 0 is there twice"),
        ([[BACK, ONE]], "backward 0 on stage 0 waits for itself"),
        ([[TWO]], "order 0 is not of stage 0"),
        ([[], [TWO]], "order 0 is not of stage 0"),
        ([[BACK], [TWO]], "waits for forward 0 on stage 0, which no stage runs"),
    ],
)
def test_a_wrong_graph_is_refused_with_a_sentence(
    orders: list[list[PipelineInstruction]], sentence: str
) -> None:
    with pytest.raises(SettingsError, match=r"pipeline: could not make a graph: .*\.") as wrong:
        from_orders(orders)
    assert sentence in str(wrong.value)
