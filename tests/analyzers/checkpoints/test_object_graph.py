"""Objects to bytes and back: the same values, and the same references between them."""

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from analyzers.checkpoints import object_graph, state_classes
from analyzers.checkpoints.object_graph import UnknownObjectError, decode, encode
from analyzers.fleet.fleet import Fleet, Gpu, Use
from analyzers.measurement.knots import Knots
from analyzers.power_limit.visits import Purpose
from analyzers.results.readings import READING
from zeus_stream.errors import MalformedError

FLOATS = st.floats(allow_nan=False)
"""Not a number is no equal of itself: it has an example of its own."""
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | FLOATS | st.text() | st.binary()
VALUES = st.recursive(
    PLAIN,
    lambda part: (
        st.lists(part)
        | st.lists(part).map(tuple)
        | st.lists(part).map(deque)
        | st.dictionaries(st.text() | st.integers(0, 9) | st.tuples(st.text(), st.integers(0, 9)), part)
        | st.frozensets(st.text())
        | st.sets(st.integers(0, 99))
    ),
    max_leaves=20,
)


@settings(max_examples=40, deadline=None)
@given(VALUES)
@example(float("nan"))
def test_a_value_is_the_same_after_a_round_trip(value: Any) -> None:
    (again,) = decode(encode([value]))
    assert repr(again) == repr(value) or again == value  # the order in a set may change
    assert type(again) is type(value)


def test_two_references_to_one_object_are_two_references_to_one_object() -> None:
    shared = [1, 2]
    gpu = Gpu(host="h", uses=[Use("r", 1)])
    one, other, again, uses = decode(encode([shared, {"x": shared}, gpu, (gpu.uses, gpu)]))
    assert other["x"] is one
    assert (uses[0], uses[1]) == (again.uses, again)
    assert uses[0] is again.uses
    assert uses[1] is again


def test_objects_that_refer_to_each_other_come_back() -> None:
    first: dict[str, Any] = {}
    first["me"] = [first]
    (again,) = decode(encode([first]))
    assert again["me"][0] is again


def test_all_kinds_of_containers_and_numbers_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    # What Python 3.11.0 to 3.11.3 has, and with it Debian 12: no checkpoint was taken there.
    monkeypatch.setattr(Purpose, "__reduce_ex__", lambda member, _: (getattr, (Purpose, member.name)))
    rows = np.zeros(3, READING)
    rows["t_hi_ns"] = 1, 2, 3
    values: list[Any] = [
        deque([1, [2]], maxlen=5),
        defaultdict(list, {"a": [1]}),
        defaultdict(Counter.mro()[1], {"a": {"b": 1}}),
        Counter({"x": 3}),
        Purpose.CONFIRM,
        np.float64(0.1),
        Knots(*[np.arange(2)] * 6, np.arange(2.0), np.arange(2) > 0),  # type: ignore[arg-type,call-arg]
        rows,
    ]
    again = decode(encode(values))
    for one, other in zip(values[:-2], again, strict=False):
        assert one == other
        assert type(one) is type(other)
    assert again[0].maxlen == 5
    again[1]["new"].append(1)
    assert all((one == other).all() for one, other in zip(values[-2], again[-2], strict=True))
    assert (again[-1] == rows).all()
    again[-1]["t_hi_ns"] = 0  # it may be changed


def test_what_is_outside_is_named_and_not_written() -> None:
    fleet, gpu, other = Fleet(), Gpu(host="h"), Fleet()
    data = encode([[fleet, gpu]], {id(fleet): "fleet"})
    assert decode(data, {"fleet": other})[0][0] is other


@dataclass
class OfTests:
    """A class of another package."""

    of: list[int] = field(default_factory=list)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        pytest.param(lambda: 1, "function", id="a function"),
        pytest.param([].append, "is no state class", id="a method of a built-in"),
        pytest.param(OfTests(), "OfTests is no state class", id="a class of another package"),
        pytest.param(np.array([object()]), "Object arrays", id="an array of objects"),
        pytest.param(defaultdict(lambda: 1), "is no state class", id="a factory that is a function"),
    ],
)
def test_what_cannot_be_written_is_refused(value: Any, says: str) -> None:
    with pytest.raises(UnknownObjectError, match=says):
        encode([value])


def test_an_array_and_a_view_of_it_are_refused_since_they_would_come_apart() -> None:
    whole = np.arange(4)
    with pytest.raises(UnknownObjectError, match="view"):
        encode([whole, whole[:2]])
    assert list(decode(encode([whole[:2]]))[0]) == [0, 1]


def test_a_state_of_classes_that_have_changed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode([1])
    monkeypatch.setattr(object_graph, "version", lambda: "another")
    with pytest.raises(MalformedError, match="its classes consist of other parts by now"):
        decode(data)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_state_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedError, match="it is damaged"):
        decode(data)


def test_a_state_that_was_cut_is_refused() -> None:
    data = encode([{"x": [1, 2]}, Gpu(host="h"), Use("r", 1), np.arange(3)])
    for length in range(len(data)):
        with pytest.raises(MalformedError, match="could not be read"):
            decode(data[:length])


@pytest.mark.parametrize(
    "name",
    [
        ("os", "system"),
        ("builtins", "getattr"),
        ("subprocess", "Popen"),
        ("analyzers.service.analyzer", "analyze"),
        ("analyzers.dispatch.collector_link", "Link"),
        ("analyzers.results.result", "in_order"),
        ("analyzers.results.result", "Mapping"),
    ],
)
def test_nothing_but_classes_of_ours_can_be_named(name: tuple[str, str]) -> None:
    crafted = "c{}\n{}\n.".format(*name).encode()
    with pytest.raises(MalformedError, match="is no state class"):
        decode(state_classes.version().encode() + crafted)


def test_what_stands_for_an_object_calls_nothing_else() -> None:
    crafted = b"canalyzers.checkpoints.object_graph\npickle\n."
    with pytest.raises(MalformedError, match="could not be read"):
        decode(state_classes.version().encode() + crafted)
