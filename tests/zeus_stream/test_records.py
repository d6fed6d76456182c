"""Records behave as the frozen dataclasses with slots of the standard library do."""

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from typing import Any

import pytest

from zeus_stream.records import record


@record
class Reading:
    """A record with every kind of field."""

    gpu: str
    energy_mj: int = 0
    tags: list[str] = field(default_factory=list)
    note: str = field(default="-", compare=False, repr=False)
    host: str = field(default="here", init=False)
    power_mw: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class Expected:
    gpu: str
    energy_mj: int = 0
    tags: list[str] = field(default_factory=list)
    note: str = field(default="-", compare=False, repr=False)
    host: str = field(default="here", init=False)
    power_mw: int = field(default=0, kw_only=True)


@record(kw_only=True)
class Place:
    x: int
    y: tuple[int, ...] = ()


@record
class Far(Place):
    distance: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Far) and other.distance == self.distance

    def __hash__(self) -> int:
        return self.distance


@record
class Checked:
    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("size")


@record
class Nothing: ...


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        (("a",), {}),
        (("a", 1, ["x"], "n"), {"power_mw": 2}),
        ((), {"gpu": "a", "note": "n"}),
        ((), {}),
        (("a",), {"gpu": "b"}),
        (("a",), {"colour": 1}),
        (("a", 1, [], "n", 5), {}),
    ],
)
def test_a_record_is_made_and_shown_as_a_dataclass(arguments: Any, keywords: Any) -> None:
    def made(cls: Any) -> Any:
        try:
            of = cls(*arguments, **keywords)
        except TypeError as wrong:
            return str(wrong).replace(cls.__name__, "")
        return repr(of).removeprefix(cls.__name__), asdict(of), [each.name for each in fields(of)]

    assert made(Reading) == made(Expected)


def test_its_signature_and_match_arguments_are_those_of_a_dataclass() -> None:
    mine, theirs = inspect.signature(Reading), inspect.signature(Expected)
    assert list(mine.parameters) == list(theirs.parameters)
    assert mine.return_annotation is theirs.return_annotation
    for name, parameter in mine.parameters.items():
        other = theirs.parameters[name]
        assert (parameter.kind, parameter.annotation) == (other.kind, other.annotation)
        assert repr(parameter.default) == repr(other.default)
    assert Reading.__match_args__ == Expected.__match_args__


def test_equality_and_hash_are_of_the_compared_fields() -> None:
    assert Place(x=1) == Place(x=1)
    assert Place(x=1) != Place(x=2)
    assert len({Place(x=1), Place(x=1), Place(x=1, y=(2,))}) == 2
    assert Reading("a", note="one") == Reading("a", note="two")
    assert Place(x=1) != Far(x=1, distance=1)
    assert Far(x=1, distance=3) == Far(x=2, distance=3)
    assert hash(Far(x=1, distance=3)) == 3
    assert Checked(1) == Checked(1)
    assert Checked(1) != 1  # type: ignore[comparison-overlap]
    assert Nothing() == Nothing()
    assert hash(Nothing()) == hash(Nothing())


def test_a_record_is_frozen_and_has_no_other_attributes() -> None:
    reading = Reading("a")
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'gpu'"):
        reading.gpu = "b"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'gpu'"):
        del reading.gpu
    with pytest.raises(FrozenInstanceError):
        reading.colour = 1  # type: ignore[attr-defined]
    assert not hasattr(reading, "__dict__")


def test_a_default_is_made_for_each_record() -> None:
    assert Reading("a").tags is not Reading("a").tags


def test_a_record_is_replaced_copied_and_pickled() -> None:
    reading = replace(Reading("a", 2, ["x"], power_mw=5), energy_mj=3)
    assert reading == Reading("a", 3, ["x"], power_mw=5)
    for other in (pickle.loads(pickle.dumps(reading)), copy.copy(reading), copy.deepcopy(reading)):  # noqa: S301
        assert other == reading
    with pytest.raises(ValueError, match="size"):
        replace(Checked(1), size=-1)
