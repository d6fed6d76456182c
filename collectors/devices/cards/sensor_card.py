"""The sensor card of a GPU: what calls cost, how counter and power are refreshed, what a set does.

A card is made from reads that are as close as the driver lets them be (`read_closely`). It is JSON with a
schema (`SCHEMA`), twelve lines for people (`SensorCard.lines`), and the description of a simulated GPU with
that sensor (``simulated:CARD.json``). `known_cards` has those of the package and of this host.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from collectors.device import Description, Device, PowerSample, Sample, SampleTimes, power_samples_of
from collectors.devices.cards.sensor_window import find_window, powers
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import DeviceError

VERSION = 1
SAMPLES_NS = 1_000_000_000
"""Samples of power are read this often: a driver keeps those of about two seconds."""
LEAST_CHANGES = 5
"""Fewer changes tell no period."""
FILLS = 3
"""So many samples of power at least between two refreshes of a counter fill it."""
SEES_ALL = 0.9
"""A window of more than this part of the period is all of it: windows are tried in twentieths."""


class Read(NamedTuple):
    """One read of a device."""

    before_ns: int
    after_ns: int
    sample: Sample | None
    """None: it failed."""


class CardRefreshes(Struct, frozen=True, kw_only=True):
    """The refreshes of one figure."""

    period_ms: float
    """Mean distance of two changes; more than one and a half medians are two of them, and so on."""
    jitter_ms: float
    """Half of the range that holds 90 % of the distances."""
    open_ms: float
    """Median distance of the two reads between which a change lies."""
    quantum: int
    """Greatest common divisor of its steps, in the device's unit."""
    changes: int
    window_ms: float | None = None
    """The time before a refresh of which it shows the mean; None: no square load has shown it."""
    lag_ms: float | None = None
    """From the end of that to the refresh."""

    @property
    def sees_all(self) -> bool:
        """Its windows leave out nothing."""
        return self.window_ms is not None and self.window_ms > SEES_ALL * self.period_ms


class ControlSets(Struct, frozen=True, kw_only=True):
    """Values of a control that were set, and what the GPU made of them: mW, or MHz of a locked clock."""

    asked: tuple[int, ...]
    taken: tuple[int, ...]
    """The limit as read back, or the clock at which the GPU then ran; in the same order."""
    took_ms: float
    """Median duration of a set with its read-back."""
    restored: int
    """Afterwards: the limit requested, or the clock once it was unlocked."""
    follows_ms: float | None = None
    """From a set to power, or the clock, at or below it, median; None: it was lower anyway."""
    held: float | None = None
    """Highest power that was read since then, over the limit: what throttling keeps to."""
    throttled_mhz: int | None = None
    """The clock of the GPU that the lowest limit held down."""
    reason: str = ""
    """Why no further value was tried."""

    @property
    def rounding(self) -> int:
        """Return by how much it is rounded at most."""
        return max((abs(a - t) for a, t in zip(self.asked, self.taken, strict=True)), default=0)


class SensorCard(Struct, frozen=True, kw_only=True):
    """The sensor of one GPU, as measured from outside."""

    version: int = VERSION
    name: str
    driver: str
    scope: str
    unanswered: tuple[str, ...]
    """What the driver did not answer, a sentence each."""
    min_limit_mw: int | None
    max_limit_mw: int | None
    default_limit_mw: int | None
    requested_mw: int | None
    enforced_mw: int | None
    """The limit in force, any limiter included."""
    read_p50_ms: float
    read_p99_ms: float
    reads: int
    failed_reads: int
    counter: CardRefreshes | None
    """None: there is no energy counter, or it hardly changed."""
    power: CardRefreshes | None
    counter_to_power: float | None
    """Growth of the counter over the energy of the power readings beside it."""
    least_power_mw: int | None
    most_power_mw: int | None
    limit_sets: ControlSets | None = None
    """None: nothing was set."""
    clock_sets: ControlSets | None = None
    """Of the graphics clock. None: nothing was set."""
    power_samples: CardRefreshes | None = None
    """The samples of power that the driver keeps; None: it keeps none."""

    @property
    def sample_times(self) -> SampleTimes | None:
        """The times by which samples fill the counter between its refreshes. None: they do not.

        The counter sees all of the time, and samples come closer than its refreshes, and see all of it too.
        """
        counter, samples = self.counter, self.power_samples
        if counter is None or samples is None or FILLS * samples.period_ms > counter.period_ms:
            return None
        if counter.lag_ms is None or samples.lag_ms is None or not (counter.sees_all and samples.sees_all):
            return None
        late_ms = samples.lag_ms + ((samples.window_ms or 0.0) - samples.period_ms) / 2
        times_ms = samples.period_ms, counter.period_ms, late_ms, counter.lag_ms
        return SampleTimes(*(round(ms * 1e6) for ms in times_ms))

    def lines(self) -> list[str]:
        """Return the card in twelve lines for people."""
        power = "none was read"
        if self.least_power_mw is not None and self.most_power_mw is not None:
            power = f"{self.least_power_mw / 1000:g} to {self.most_power_mw / 1000:g} W"
        requested, enforced = _watts(self.requested_mw), _watts(self.enforced_mw)
        allowed = f"{_watts(self.min_limit_mw)} to {_watts(self.max_limit_mw)}"
        ratio = "not known" if self.counter_to_power is None else f"{self.counter_to_power:.3f}"
        return [
            f"GPU: {self.name}, driver {self.driver}, figures of the {self.scope}",
            f"reads: {self.reads}, {self.read_p50_ms:.3f} ms p50, {self.read_p99_ms:.3f} ms p99",
            f"failed reads: {self.failed_reads}",
            f"energy counter: {_words(self.counter, 'mJ')}",
            f"power: {_words(self.power, 'mW')}",
            f"power read: {power}",
            f"counter over power: {ratio}",
            f"limit: {requested} requested, {enforced} enforced, {allowed} allowed",
            f"limits set: {_spell_limits(self.limit_sets)}",
            f"clocks set: {_spell_clocks(self.clock_sets)}",
            f"samples of power: {_words(self.power_samples, 'mW')}",
            f"not answered: {' '.join(self.unanswered) or 'nothing'}",
        ]


SCHEMA: dict[str, Any] = msgspec.json.schema(SensorCard)
"""The JSON schema of a card."""


def read_card(path: Path) -> SensorCard:
    """Return the card in a file. Raises OSError or msgspec.ValidationError."""
    return msgspec.json.decode(path.read_bytes(), type=SensorCard)


def read_closely(
    device: Device,
    until_ns: int,
    sleep: Callable[[float], None],
    pause_s: float = 0.001,
    now: Callable[[], int] = monotonic_ns,
    samples: list[PowerSample] | None = None,
) -> list[Read]:
    """Read a device about every ``pause_s`` until an instant. ``samples``: gets those of its power."""
    reads = []
    sampled_ns, asked_ns = now(), now()
    while (before_ns := now()) < until_ns:
        try:
            sample = device.sample()
        except DeviceError:
            sample = None
        reads.append(Read(before_ns, now(), sample))
        if samples is not None and before_ns - asked_ns > SAMPLES_NS:
            with suppress(DeviceError):
                samples += power_samples_of(device, sampled_ns)
            asked_ns, sampled_ns = before_ns, samples[-1].t_ns if samples else sampled_ns
        sleep(pause_s)
    return reads


def make_card(
    description: Description,
    reads: Sequence[Read],
    *,
    limit_sets: ControlSets | None = None,
    clock_sets: ControlSets | None = None,
    marks_ns: Sequence[tuple[int, int]] = (),
    power_samples: Sequence[PowerSample] = (),
) -> SensorCard:
    """Return the card of a device that was read closely. There is at least one read.

    ``marks_ns``: begins and ends of work, of a square load. ``power_samples``: as the driver keeps them.
    """
    good = [read for read in reads if read.sample is not None]
    samples = [read.sample for read in good if read.sample is not None]
    took_ms = sorted((read.after_ns - read.before_ns) / 1e6 for read in reads)
    power_mw = [sample.power_mw for sample in samples if sample.power_mw is not None]
    last = samples[-1] if samples else Sample(None, None, None, None)
    return SensorCard(
        name=description.name,
        driver=description.driver,
        scope=description.scope,
        unanswered=description.unanswered,
        min_limit_mw=description.min_limit_mw,
        max_limit_mw=description.max_limit_mw,
        default_limit_mw=description.default_limit_mw,
        requested_mw=last.requested_mw,
        enforced_mw=last.limit_mw,
        read_p50_ms=took_ms[len(took_ms) // 2],
        read_p99_ms=took_ms[len(took_ms) * 99 // 100],
        reads=len(reads),
        failed_reads=len(reads) - len(good),
        counter=_refreshes(good, [sample.energy_mj for sample in samples], marks_ns, counter=True),
        power=_refreshes(good, [sample.power_mw for sample in samples], marks_ns, counter=False),
        counter_to_power=_counter_to_power(good, samples),
        least_power_mw=min(power_mw, default=None),
        most_power_mw=max(power_mw, default=None),
        limit_sets=limit_sets,
        clock_sets=clock_sets,
        power_samples=_samples(power_samples, marks_ns),
    )


def _refreshes(
    reads: Sequence[Read],
    figures: Sequence[int | None],
    marks_ns: Sequence[tuple[int, int]],
    *,
    counter: bool,
) -> CardRefreshes | None:
    """Return the refreshes of a figure; None: it hardly changed."""
    middle_ns, open_ns, steps, shown = [], [], [], []
    for (earlier, was), (later, figure) in pairwise(zip(reads, figures, strict=True)):
        if was is not None and figure is not None and was != figure:
            middle_ns.append((earlier.before_ns + later.after_ns) / 2)
            open_ns.append(later.after_ns - earlier.before_ns)
            steps.append(abs(figure - was))
            shown.append((round(middle_ns[-1]), figure))
    if len(middle_ns) < LEAST_CHANGES:
        return None
    gaps_ms = sorted((after - before) / 1e6 for before, after in pairwise(middle_ns))
    low_ms, high_ms = gaps_ms[len(gaps_ms) // 20], gaps_ms[len(gaps_ms) * 19 // 20]
    passed = sum(max(1, round(gap_ms / median(gaps_ms))) for gap_ms in gaps_ms)
    period_ms = (middle_ns[-1] - middle_ns[0]) / passed / 1e6
    window = None
    if marks_ns:
        window = find_window(powers(shown, counter=counter), marks_ns, round(period_ms * 1e6))
    return CardRefreshes(
        period_ms=period_ms,
        jitter_ms=(high_ms - low_ms) / 2,
        open_ms=median(open_ns) / 1e6,
        quantum=math.gcd(*steps),
        changes=len(middle_ns),
        window_ms=None if window is None else window.window_ms,
        lag_ms=None if window is None else window.lag_ms,
    )


def _samples(samples: Sequence[PowerSample], marks_ns: Sequence[tuple[int, int]]) -> CardRefreshes | None:
    """Return how samples of power come; None: there are too few."""
    if len(samples) < LEAST_CHANGES:
        return None
    gaps_ms = sorted((later.t_ns - earlier.t_ns) / 1e6 for earlier, later in pairwise(samples))
    low_ms, high_ms = gaps_ms[len(gaps_ms) // 20], gaps_ms[len(gaps_ms) * 19 // 20]
    period_ms = median(gaps_ms)
    figures = powers(samples, counter=False)
    window = find_window(figures, marks_ns, round(period_ms * 1e6)) if marks_ns else None
    return CardRefreshes(
        period_ms=period_ms,
        jitter_ms=(high_ms - low_ms) / 2,
        open_ms=0.0,
        quantum=math.gcd(*(each.power_mw for each in samples)),
        changes=len(samples),
        window_ms=None if window is None else window.window_ms,
        lag_ms=None if window is None else window.lag_ms,
    )


def _counter_to_power(reads: Sequence[Read], samples: Sequence[Sample]) -> float | None:
    if not samples or samples[0].energy_mj is None or samples[-1].energy_mj is None:
        return None
    drawn_mj = 0.0
    for (earlier, before), (later, _) in pairwise(zip(reads, samples, strict=True)):
        if before.power_mw is None:
            return None
        drawn_mj += before.power_mw * (later.after_ns - earlier.after_ns) / 1e9
    return (samples[-1].energy_mj - samples[0].energy_mj) / drawn_mj if drawn_mj else None


def _words(found: CardRefreshes | None, unit: str) -> str:
    if found is None:
        return "none, or it hardly changed"
    seen = ""
    if found.window_ms is not None and found.lag_ms is not None:
        part = found.window_ms / found.period_ms
        sees = "all of the time" if found.sees_all else f"{part:.0%} of the time"
        seen = f", sees {sees}: {found.window_ms:.0f} ms ending {found.lag_ms:.0f} ms before"
    return (
        f"every {found.period_ms:.1f} ms +-{found.jitter_ms:.1f}, in steps of {found.quantum} {unit},"
        f" {found.changes} changes seen to {found.open_ms:.2f} ms{seen}"
    )


def _spell_limits(sets: ControlSets | None) -> str:
    if sets is None:
        return "none was tried (--set tries some)"
    said = f"rounded by {sets.rounding / 1000:g} W at most, {sets.took_ms:.1f} ms each;"
    said += f" {_watts(sets.restored)} requested afterwards"
    if sets.follows_ms is not None and sets.held is not None:
        said += f"; power follows in {sets.follows_ms:.0f} ms, to {sets.held:.1%} of the limit"
        said += "" if sets.throttled_mhz is None else f", throttled to {sets.throttled_mhz} MHz"
    return said + (f"; {sets.reason}" if sets.reason else "")


def _spell_clocks(sets: ControlSets | None) -> str:
    if sets is None:
        return "none was tried (--set tries some)"
    said = (
        f"rounded by {sets.rounding} MHz at most, {sets.took_ms:.1f} ms each; {sets.restored} MHz afterwards"
    )
    if sets.follows_ms is not None:
        said += f"; the clock follows in {sets.follows_ms:.0f} ms"
    return said + (f"; {sets.reason}" if sets.reason else "")


def _watts(milliwatts: int | None) -> str:
    return "unknown" if milliwatts is None else f"{milliwatts / 1000:g} W"
