"""Charts are well-formed, and draw every value where it belongs."""

import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.simulation.svg import HEIGHT, WIDTH, Axis, Scale, Series, chart

VALUES = st.lists(st.tuples(st.floats(0.01, 1e6), st.floats(0.01, 1e6)), max_size=20)


def circles(svg: str) -> list[tuple[float, float]]:
    found = re.findall(r'<circle class="dot" cx="([-\d.]+)" cy="([-\d.]+)"', svg)
    return [(float(x), float(y)) for x, y in found]


@settings(max_examples=40)
@given(VALUES, st.sampled_from(["linear", "log", "asinh"]))
def test_every_point_is_inside_and_in_its_order(points: list[tuple[float, float]], scale: Scale) -> None:
    svg = chart("a < b", Axis("x", scale), Axis("y", scale), [Series("one & only", points, 3, mark="dot")])
    ET.fromstring(svg)  # noqa: S314  (our own)
    places = circles(svg)
    assert len(places) == len(points)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)
    for (a, b), (x, y) in zip(points, places, strict=True):
        for (other_a, other_b), (other_x, other_y) in zip(points, places, strict=True):
            assert a <= other_a or x >= other_x
            assert b <= other_b or y <= other_y


def test_ticks_are_round_or_those_that_were_given() -> None:
    svg = chart(
        "", Axis("x"), Axis("y", "log", [(8, "eight"), (64, "64")]), [Series("", [(0, 8), (100, 64)], 0)]
    )
    texts = re.findall(r'class="tick"[^>]*>([^<]*)<', svg)
    assert texts == ["eight", "64", "0", "20", "40", "60", "80", "100"]


@pytest.mark.parametrize(("low", "high"), [(-5, 300), (0, 1e6), (0.2, 0.3), (7, 7)])
def test_a_scale_for_both_signs_has_some_ticks_and_not_many(low: float, high: float) -> None:
    svg = chart("", Axis("x"), Axis("y", "asinh"), [Series("", [(0, low), (1, high)], 0)])
    texts = re.findall(r'text-anchor="end">([^<]*)<', svg)
    assert 1 <= len(texts) <= 8
    assert all(low <= float(text) <= high for text in texts)
