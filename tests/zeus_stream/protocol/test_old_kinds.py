"""Logs and archives of earlier versions hold kinds of notes that are written no more."""

import msgpack
import pytest

from zeus_stream.errors import MalformedError
from zeus_stream.protocol import codec
from zeus_stream.protocol.fields import UNLOCKED, VERSION, Unknown
from zeus_stream.protocol.notes import ControlApplied, ControlLeaseEnded, ControlRefused, Notes

OUTCOME = {"t_ns": 1, "command": "c", "gpu": "g"}
ENDED = {"t_ns": 2, "gpu": "g", "owner": "o", "cause": "lapsed", "reason": "silent"}


def stored(kind: str, content: object) -> bytes:
    return bytes(msgpack.packb([VERSION, "Notes", {"notes": [[kind, content]]}]))


def ended(control: str, value: int | None) -> ControlLeaseEnded:
    return ControlLeaseEnded(**ENDED, control=control, value=value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "content", "note"),
    [
        (
            "Applied",
            OUTCOME | {"limit_mw": 200_000},
            ControlApplied(1, "c", "g", "power_limit", 200_000),
        ),
        (
            "ClockApplied",
            OUTCOME | {"clock_mhz": 1380},
            ControlApplied(1, "c", "g", "graphics_clock", 1380),
        ),
        (
            "ClockApplied",
            OUTCOME | {"clock_mhz": None},
            ControlApplied(1, "c", "g", "graphics_clock", UNLOCKED),
        ),
        (
            "Refused",
            OUTCOME | {"cause": "range", "reason": "no"},
            ControlRefused(1, "c", "g", "range", "no"),
        ),
        ("LeaseEnded", ENDED | {"limit_mw": 250_000}, ended("power_limit", 250_000)),
        ("LeaseEnded", ENDED | {"limit_mw": None}, ended("power_limit", None)),
        ("ClockLeaseEnded", ENDED | {"unlocked": True}, ended("graphics_clock", UNLOCKED)),
        ("ClockLeaseEnded", ENDED | {"unlocked": False}, ended("graphics_clock", None)),
    ],
)
def test_an_old_kind_is_read_as_the_one_that_replaced_it(kind: str, content: object, note: object) -> None:
    assert codec.decode(stored(kind, content), Notes) == Notes((note,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("Applied", OUTCOME),
        ("Applied", OUTCOME | {"limit_mw": -1}),
        ("Applied", OUTCOME | {"limit_mw": None}),
        ("ClockApplied", OUTCOME | {"clock_mhz": "fast"}),
        ("LeaseEnded", ENDED | {"limit_mw": 2**40}),
    ],
)
def test_an_old_kind_with_a_field_out_of_its_bounds_is_malformed(kind: str, content: object) -> None:
    with pytest.raises(MalformedError, match="value"):
        codec.decode(stored(kind, content), Notes)


def test_an_old_name_without_fields_is_an_unknown_kind() -> None:
    assert codec.decode(stored("Applied", 7), Notes) == Notes((Unknown("Applied"),))
