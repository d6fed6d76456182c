"""The description of a simulated GPU, and its text form. Pure.

    simulated:v100x4
    simulated:a40x3,seed=7,noise=0.02+a40,seed=7,fault=lost@5-8

After ``simulated:`` come groups of equal GPUs, joined by ``+``: a model (``v100``, ``a40``, ``p100``,
``rtx6000``, ``a100``, ``h100``), ``x`` and their number (1 if left out), then options:

``period_ms``, ``jitter_ms``, ``phase_ms``
    Refresh of power and counter; by default as the real model, without jitter, with a phase from the seed.
``kind``, ``window_ms``
    ``integrating`` (default) or ``boxcar``, and the window at the end of each period that power (and a
    boxcar counter) is averaged over: by default a quarter of it for a boxcar, as on an A100, else as the
    real model.
``power_only=1``
    No energy counter.
``noise``, ``seed``
    Relative standard deviation of the draw (at most 0.3), and what fixes it, the phase and the UUIDs.
``slower``
    Times as long as the model takes for everything, 1 to 10: one GPU of a job that the others wait for.
``set_ms``
    How long a change of the limit or of a clock's lock blocks; it takes effect at the end.
``fault``
    ``lost``, ``timeout``, ``permission``, ``reset`` (of the counter) or ``hang`` (every call blocks until its
    end), any number of them; ``@5`` from 5 s after the bus was opened, ``@5-8`` until 8 s; for ever where it
    does not say. A reset is an instant, and a hang has an end.

In place of a model, the sensor card of a real GPU makes one with its name and sensor, and the draw and limits
of the model that is nearest in its highest limit: ``simulated:CARD.json``, or one of those that this package
brings, ``simulated:rtx3090`` (`sensor_card`).

The graphics and the memory clock can be locked. The lock of the graphics clock lowers the draw and slows the
work (`zeus_stream.simulated_gpu.workloads`); that of the memory clock changes neither.
"""

import hashlib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from collectors.devices.cards.known_cards import SHIPPED
from collectors.devices.cards.sensor_card import read_card
from collectors.devices.virtual_gpu import Kind
from zeus_stream.errors import SettingsError
from zeus_stream.simulated_gpu.workloads import Model
from zeus_stream.simulated_gpu.workloads import load as load_models

MAX_GPUS = 64
SEES_ALL = 0.9
"""A counter whose window is this part of its period, or more, sees all of the time."""
BOXCAR_SHARE = 0.25
"""Of the time, an A100 sees this much."""
_NUMBERS = {  # option: least, most
    "period_ms": (1.0, 10_000.0),
    "window_ms": (0.1, 10_000.0),
    "phase_ms": (0.0, 10_000.0),
    "jitter_ms": (0.0, 5_000.0),
    "noise": (0.0, 0.3),
    "slower": (1.0, 10.0),
    "set_ms": (0.0, 60_000.0),
}
_FAULTS = ("lost", "timeout", "permission", "reset", "hang")
_OPTIONS = (*_NUMBERS, "kind", "seed", "power_only", "fault")


class Fault(Struct, frozen=True):
    """``kind`` of trouble between two times after the bus was opened."""

    kind: str
    begin_s: float = 0.0
    end_s: float = float("inf")


class Spec(Struct, frozen=True, kw_only=True):
    """The description of one simulated GPU. The module's docstring has its text form."""

    key: str
    """Short name of the model, e.g. ``v100``."""
    model: Model
    period_ms: float
    window_ms: float
    kind: Kind = Kind.INTEGRATING
    phase_ms: float | None = None
    jitter_ms: float = 0.0
    noise: float = 0.0
    seed: int = 0
    slower: float = 1.0
    """The model takes it into account."""
    set_ms: float = 0.0
    power_only: bool = False
    faults: tuple[Fault, ...] = ()

    def uuid(self, index: int, host: str) -> str:
        """Return the UUID of such a GPU: the same for the same model, seed, host and place on it."""
        digest = hashlib.sha256(f"{self.key} {self.seed} {index} {host}".encode()).digest()
        return f"GPU-{uuid.UUID(bytes=digest[:16])}"


def parse(text: str) -> tuple[Spec, ...]:
    """Return one spec a GPU. Raises SettingsError with what may be written instead."""
    kind, _, groups = text.partition(":")
    if kind != "simulated" or not groups:
        raise _wrong(text, "it is not simulated:MODELxCOUNT")
    specs = tuple(spec for group in groups.split("+") for spec in _group(text, group))
    if len(specs) > MAX_GPUS:
        raise _wrong(text, f"there are more than {MAX_GPUS} GPUs")
    return specs


def _group(text: str, group: str) -> tuple[Spec, ...]:
    head, *options = group.split(",")
    models = load_models()
    if head.endswith(".json"):
        return _of_card(text, Path(head), models)
    if head not in models and (shipped := SHIPPED / f"{head}.json").exists():
        return _of_card(text, shipped, models)
    key, times, count = (head, "", "") if head in models else head.rpartition("x")  # rtx6000 has an x
    if key not in models:
        raise _wrong(text, f"there is no model {key or head!r}; models: {', '.join(models)}")
    if times and not (count.isdecimal() and int(count) >= 1):
        raise _wrong(text, f"{count!r} is not how many GPUs there are")
    model, chosen, faults = models[key], dict[str, Any](), []
    for option in options:
        name, _, value = option.partition("=")
        try:
            if name == "fault":
                faults.append(_fault(value))
            else:
                chosen[name] = _value(name, value)
        except LookupError as wrong:
            raise _wrong(text, f"there is no option {name!r}; options: {', '.join(_OPTIONS)}") from wrong
        except ValueError as wrong:
            raise _wrong(text, f"{name} cannot be {value!r}") from wrong
    period_ms = chosen.setdefault("period_ms", model.period_ms)
    boxcar = chosen.get("kind") is Kind.BOXCAR
    chosen.setdefault("window_ms", period_ms * BOXCAR_SHARE if boxcar else min(period_ms, model.window_ms))
    spec = Spec(key=key, model=model.slowed(chosen.get("slower", 1.0)), **chosen, faults=tuple(faults))
    if not 2 * spec.jitter_ms < spec.period_ms:
        raise _wrong(text, "jitter_ms has to be below half of period_ms")
    if not spec.window_ms <= spec.period_ms:
        raise _wrong(text, "window_ms has to be within period_ms")
    return (spec,) * int(count or 1)


def _of_card(text: str, path: Path, models: Mapping[str, Model]) -> tuple[Spec, ...]:
    """Return a GPU with the sensor of a card."""
    try:
        card = read_card(path)
    except (OSError, msgspec.DecodeError) as wrong:
        raise _wrong(text, f"{path} is no sensor card: {wrong}") from wrong
    refreshed = card.counter or card.power
    if refreshed is None:
        raise _wrong(text, f"the card {path} has no refreshes: make it while the GPU works")
    key = min(models, key=lambda each: abs(models[each].max_limit_mw - (card.max_limit_mw or 0)))
    period_ms = min(max(refreshed.period_ms, 1.0), 10_000.0)
    blind = card.counter is not None and (card.counter.window_ms or period_ms) < SEES_ALL * period_ms
    return (
        Spec(
            key=key,
            model=replace(models[key], name=card.name),
            period_ms=period_ms,
            window_ms=min(period_ms, max(refreshed.window_ms or models[key].window_ms, 0.1)),
            kind=Kind.BOXCAR if blind else Kind.INTEGRATING,
            jitter_ms=min(refreshed.jitter_ms, 0.49 * period_ms),
            power_only=card.counter is None,
        ),
    )


def _value(name: str, value: str) -> object:
    """Return the value of an option. Raises LookupError for its name, ValueError for the value."""
    match name:
        case "kind":
            return Kind(value)
        case "seed":
            return int(value)
        case "power_only":
            return bool(("0", "1").index(value))
        case _:
            least, most = _NUMBERS[name]
            number = float(value)
            if not least <= number <= most:
                raise ValueError(value)
            return number


def _fault(value: str) -> Fault:
    """Return ``kind[@begin[-end]]``, or raise ValueError."""
    kind, _, span = value.partition("@")
    begin, _, end = span.partition("-")
    fault = Fault(kind, float(begin or 0), float(end or "inf"))
    if kind not in _FAULTS or not 0 <= fault.begin_s < fault.end_s or (kind == "hang" and not end):
        raise ValueError(value)
    return fault


def _wrong(text: str, why: str) -> SettingsError:
    return SettingsError(
        f"device {text!r}: could not be simulated: {why}."
        " Write it like simulated:v100x4 or simulated:a40x2,kind=boxcar,fault=lost@5-8."
    )
