"""Kinds of message that earlier versions stored, as the kinds of this one. Pure.

A power limit and a clock once had messages of their own. Logs and archives hold them: `codec` asks here
for every kind it does not know.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from zeus_stream.protocol.fields import UNLOCKED

Content: TypeAlias = Mapping[str, Any]
"""Fields of a message as MessagePack decoded them, not checked yet."""


def modernize(kind: str, content: object) -> tuple[str, dict[str, Any]] | None:
    """Return kind and fields of today for a message of an earlier version. None: it is not one."""
    known = _OLD.get(kind)
    if known is None or not isinstance(content, dict):
        return None
    today, change = known
    return today, {**content, **change(content)}


def _limit_applied(old: Content) -> Content:
    return {"control": "power_limit", "value": old.get("limit_mw")}


def _clock_applied(old: Content) -> Content:
    clock_mhz = old.get("clock_mhz")
    return {"control": "graphics_clock", "value": UNLOCKED if clock_mhz is None else clock_mhz}


def _clock_lease_ended(old: Content) -> Content:
    return {"control": "graphics_clock", "value": UNLOCKED if old.get("unlocked") is True else None}


_OLD: dict[str, tuple[str, Callable[[Content], Content]]] = {
    "Applied": ("ControlApplied", _limit_applied),
    "ClockApplied": ("ControlApplied", _clock_applied),
    "Refused": ("ControlRefused", lambda _: {}),
    "LeaseEnded": ("ControlLeaseEnded", _limit_applied),
    "ClockLeaseEnded": ("ControlLeaseEnded", _clock_lease_ended),
}
