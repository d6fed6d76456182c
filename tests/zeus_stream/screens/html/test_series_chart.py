"""Charts are well-formed, and draw every value where it belongs."""

import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeus_stream.screens.svg.axes import Axis, Bend
from zeus_stream.screens.svg.series_chart import HEIGHT, WIDTH, Cell, ChartSeries, series_chart

VALUES = st.lists(st.tuples(st.floats(0.01, 1e6), st.floats(0.01, 1e6)), max_size=20)


def dots(svg: str) -> list[tuple[float, float]]:
    marks = re.findall(r'<path class="dots" d="([^"]*)"', svg)
    return [(float(x), float(y)) for mark in marks for x, y in re.findall(r"M([-\d.]+) ([-\d.]+)h0", mark)]


@settings(max_examples=40)
@given(VALUES, st.sampled_from(["linear", "log", "asinh"]))
def test_every_point_is_inside_and_in_its_order(points: list[tuple[float, float]], scale: Bend) -> None:
    svg = series_chart(
        "a < b",
        Axis("x", bend=scale),
        Axis("y", bend=scale),
        [ChartSeries("one & only", points, 3, mark="dots")],
    )
    ET.fromstring(svg)  # noqa: S314  (our own)
    places = dots(svg)
    assert len(places) == len(points)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)
    for (a, b), (x, y) in zip(points, places, strict=True):
        for (other_a, other_b), (other_x, other_y) in zip(points, places, strict=True):
            assert a <= other_a or x >= other_x
            assert b <= other_b or y <= other_y


def test_ticks_are_round_or_those_that_were_given() -> None:
    svg = series_chart(
        "",
        Axis("x"),
        Axis("y", ticks=[(8, "eight"), (64, "64")], bend="log"),
        [ChartSeries("", [(0, 8), (100, 64)], 0)],
    )
    texts = re.findall(r'class="tick(?: x)?"[^>]*>([^<]*)<', svg)
    assert texts == ["eight", "64", "0", "50", "100"]


@pytest.mark.parametrize(("low", "high"), [(-5, 300), (0, 1e6), (0.2, 0.3), (7, 7)])
def test_a_scale_for_both_signs_has_some_ticks_and_not_many(low: float, high: float) -> None:
    svg = series_chart("", Axis("x"), Axis("y", bend="asinh"), [ChartSeries("", [(0, low), (1, high)], 0)])
    texts = re.findall(r'class="tick"[^>]*text-anchor="end">([^<]*)<', svg)
    assert 1 <= len(texts) <= 8
    assert all(low <= float(text.replace(",", "")) <= high for text in texts)


def test_series_that_are_the_same_are_drawn_once_and_named_together() -> None:
    series = [
        ChartSeries("one", [(1, 2), (3, 4)], 0),
        ChartSeries("two", [(1, 2), (3, 4)], 1),
        ChartSeries("other", [(1, 3)], 2),
    ]
    svg = series_chart("title", Axis("x"), Axis("y"), series)
    assert svg.count('class="line"') == 2
    assert re.findall(r"<title>(.*?)</title>", svg) == ["one = two", "other"]
    assert "; one = two</figcaption>" in svg


def test_cells_of_a_heat_map_lie_side_by_side_under_the_points() -> None:
    cells = [Cell(0, 0, 0.2, "a"), Cell(1, 0, 1, "b")]
    svg = series_chart(
        "",
        Axis("x", ticks=[(0, "0"), (1, "1")]),
        Axis("y"),
        [ChartSeries("", [(0, 0)], 0, mark="dots")],
        cells=cells,
    )
    ET.fromstring(svg)  # noqa: S314  (our own)
    left, right = re.findall(r'<rect class="cell" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', svg)
    assert float(left[0]) + float(left[1]) == pytest.approx(float(right[0]), abs=0.2)
    assert svg.index("<rect") < svg.index('class="dots"')
    assert float(right[0]) + float(right[1]) <= WIDTH
