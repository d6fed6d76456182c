"""Energy of a GPU between two instants, with bounds, or `NoEnergy`. Pure.

The energy at an instant is what `energy_fit` fixed from the events around it, or is read off a straight
line between the knots on either side; the energy of a window is the difference at its two ends. So adjacent
windows share an edge, and add up to the last uJ.

Bounds of a counter that integrates are hard: at an instant it had counted at least what it was *surely*
seen to show before, and at most what it was *surely* seen to show only later, plus the mJ it rounds away.
The truth of this counter lies within, however the power moved. A counter that sees a part of the time has
none, nor has a sum of power readings: nothing limits what was drawn between them.

The 95 % interval of power readings that no events shape comes from their scatter: what the sensor did not
see differs from what it saw as readings differ from each other, the same way for `CORRELATED_NS`.
"""

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import replace

from analyzers.measurement.counter_kind import COVERED
from analyzers.measurement.energy_fit import WAIT_NS, EnergyFit
from analyzers.measurement.fixed_energies import FITTED, LeftOut
from analyzers.measurement.knots import GAP_NS, REFRESH_NS, Ints, Knots
from analyzers.measurement.timeline import Timeline
from analyzers.results.window_rows import NO_JOULES, Energies, Estimator, KnownEnergy, NoEnergy

__all__ = ("NO_JOULES", "Energies", "Estimator", "KnownEnergy", "Meter", "NoEnergy", "measure")

QUANTUM_UJ = 1_000
"""A counter shows whole millijoules."""
MOST_UJ = 2.0**62
"""No energy is more: what a device says need not be possible."""
CORRELATED_NS = 1_000_000_000
"""What a sensor does not see may differ from what it sees in one direction for so long."""
SAMPLES_STRAY_S, SAMPLES_STRAY_FOR_S = 1.8e-5, 1.0
"""Variance by which samples of power stray from their counter: this, times duration and square of the power.
It grows for so long: then the counter corrects them."""
ALIASED = 0.15
"""Of the range of readings: the deviation of a mean power while steps beat with a sensor that sees a part. It
does not average out, however long a window is."""
HIDDEN = 0.15
"""The same, as a part of its power, for a window much shorter than a refresh: a reading is a mean of steps
and gaps. Of a window as long as a refresh it is half as much, and so on."""
AROUND = 2
"""Refreshes before and after that of an edge which show how far power changes there."""
FIRST_TIMES = 10
"""Before a counter's first change its energy is known worse: at most one part in so many lies there."""
SCATTER_NS = 10_000_000_000
"""Power readings within this much of a window tell how far they scatter."""


FILLED = "the counter jumped: filled from power"
SEES_A_PART = "the sensor sees a part of the time"
WIDE, WIDE_WORDS = 0.25, "readings of power say little of a window so short"
"""Intervals of power readings whose half is more than this part of the energy are named as wide."""
Z = 1.96
"""Standard deviations on either side that hold 95 %."""


LEAST_DOUBT, LIKELY = (Z**-2, 0.0067), 1e-4
"""Of two hypotheses each counts so much in the interval: enough that it holds what either says, or less where
one is less likely than `LIKELY`. Of steps of 50 ms with rests, on a counter of 100 ms that integrates, 80 to
90 % of intervals held."""


class Meter(Struct, frozen=True):
    """One GPU: what was read of it, and what its events tell beside."""

    timeline: Timeline
    shape: EnergyFit = field(default_factory=EnergyFit)
    hurried: bool = False
    """There is no time to fit the energy of single steps."""

    def settled(self, t_ns: int, now_ns: int) -> bool:
        """Return whether the energy at ``t_ns`` may be asked for at frame time ``now_ns``, for good."""
        timeline = self.timeline
        if timeline.gone is not None or not timeline.follows_events or not timeline.settled(t_ns):
            return timeline.settled(t_ns)
        return now_ns >= timeline.seen_ns(t_ns) + WAIT_NS

    def mixes(self) -> bool:
        """Return whether an energy is the mean of two hypotheses, each of which may be right."""
        return self.shape.rival is not None and not self.hurried and not self.shape.alike

    def identify(self, now_ns: int) -> bool:
        """Learn the counter's kind from what has come. Return whether it is open what steps used."""
        return not self.hurried and self.shape.identify(self.timeline, now_ns)

    def measure(
        self, begin_ns: Sequence[int], end_ns: Sequence[int], now_ns: int
    ) -> list[KnownEnergy | NoEnergy]:
        """Return the energies of windows like `measure`, shaped by the events received until ``now_ns``."""
        energies = self.measure_columns(begin_ns, end_ns, now_ns).each()
        if (rival := self.shape.rival) is None or not self.mixes():
            return energies
        others = measure(self.timeline, begin_ns, end_ns, rival)
        share = self.shape.counter.boxcar_share
        return [mixed(*both, share) for both in zip(energies, others, strict=True)]

    def measure_columns(
        self, begin_ns: Sequence[int] | Ints, end_ns: Sequence[int] | Ints, now_ns: int
    ) -> Energies:
        """Return the energies of `measure` as columns, by the first hypothesis where two may be right."""
        until_ns = int(np.max(end_ns))
        if self.hurried:
            self.shape.shed(self.timeline, until_ns)
        else:
            self.shape.advance(self.timeline, until_ns, now_ns)
        return measure_columns(self.timeline, begin_ns, end_ns, self.shape)


def mixed(one: KnownEnergy | NoEnergy, other: KnownEnergy | NoEnergy, share: float) -> KnownEnergy | NoEnergy:
    """Return the energy while two hypotheses may be right; the interval holds both where both are likely.

    ``share``: the probability of the other.
    """
    if isinstance(one, NoEnergy) or isinstance(other, NoEnergy):
        return one
    mean_uj = (1 - share) * one.energy_uj + share * other.energy_uj
    least = LEAST_DOUBT[min(share, 1 - share) < LIKELY]
    in_doubt = min(max(share, least), 1 - least)
    var = sum(
        weight * (((each.p97_5_uj - each.p2_5_uj) / (2 * Z)) ** 2 + (each.energy_uj - mean_uj) ** 2)
        for weight, each in ((1 - in_doubt, one), (in_doubt, other))
    )
    return replace(
        one,
        energy_uj=round(mean_uj),
        p2_5_uj=max(round(mean_uj - Z * var**0.5), 0),
        p97_5_uj=round(mean_uj + Z * var**0.5),
    )


class _Edges(Struct, frozen=True, kw_only=True):
    """Where the edges of windows lie among the knots: begins, then ends; shape (2n,) each."""

    t_ns: Ints
    before: Ints
    """The last knot surely before it."""
    after: Ints
    """The first knot surely after it."""
    early: npt.NDArray[np.bool_]
    """There is no knot before it."""
    late: npt.NDArray[np.bool_]
    left: Ints
    """The last knot whose middle lies before it."""
    width_ns: Ints
    """From there to the next."""
    part: npt.NDArray[np.float64]
    """Of that, which lies before it."""

    def at(self, sums: Ints) -> Ints:
        """Return a sum at each edge, by straight lines."""
        line: Ints = sums[self.left] + np.rint(self.part * (sums[self.left + 1] - sums[self.left])).astype(
            np.int64
        )
        return line


class _Figures(Struct, kw_only=True):
    """Energies of windows, shape (n,) each."""

    used_uj: Ints
    low_uj: Ints
    high_uj: Ints
    likely_low_uj: Ints
    likely_high_uj: Ints
    shaped: npt.NDArray[np.bool_]
    filled: npt.NDArray[np.bool_]
    """The counter jumped within, and its energy there is filled from power."""
    beats: npt.NDArray[np.bool_]
    """See `analyzers.measurement.counter_kind.CounterKnowledge.beats`."""
    bounded: bool
    """``low_uj`` and ``high_uj`` are hard."""


def measure(
    timeline: Timeline, begin_ns: Sequence[int], end_ns: Sequence[int], shape: EnergyFit | None = None
) -> list[KnownEnergy | NoEnergy]:
    """Return the energies of `measure_columns`, one by one."""
    return measure_columns(timeline, begin_ns, end_ns, shape).each()


def measure_columns(
    timeline: Timeline,
    begin_ns: Sequence[int] | Ints,
    end_ns: Sequence[int] | Ints,
    shape: EnergyFit | None = None,
) -> Energies:
    """Return the energies of many windows at the price of one.

    Nothing is extrapolated but from a counter's first change back to its first value, within both.

    Instants are CLOCK_MONOTONIC of the GPU's host; shape (n,). ``shape``: what was fixed of its energies;
    where it was not, or without one, lines are straight.
    """
    count, knots = len(begin_ns), timeline.knots()
    if len(knots.mid_ns) < 2:
        return Energies.missing(["no readings of this GPU"] * count)
    edges = _locate(knots, np.concatenate((begin_ns, end_ns)).astype(np.int64, copy=False))
    before, after = edges.before, edges.after
    whole = ~edges.early & ~edges.late & (knots.epoch[before] == knots.epoch[after])
    whole[:count] |= _begun(knots, edges)
    whole = whole[:count] & whole[count:] & (knots.epoch[after[:count]] == knots.epoch[before[count:]])
    ordered = edges.t_ns[:count] <= edges.t_ns[count:]
    figures = _straight(timeline, knots, edges)
    if shape is not None and timeline.follows_events:
        _overlay(figures, shape, knots, edges)
    _widen(figures, timeline, edges)
    # A counter's first value (odd epoch) is not yet a change.
    early = edges.early[:count] | (knots.epoch[before[:count]] % 2 == 1)
    late = edges.late[count:]
    unseen_ns = _between(edges.at(knots.unseen_ns))
    apart = (edges.width_ns > GAP_NS) & ~timeline.rested(edges.left + 1)
    apart_ns = np.where(apart, edges.width_ns, 0)
    coarse_ns = np.maximum(apart_ns[:count], apart_ns[count:])
    known = whole & ordered
    quality = _qualities(timeline, shape, edges, figures)
    for i in np.flatnonzero(known & figures.filled).tolist():
        quality[i] = FILLED if quality[i] == "ok" else f"{FILLED}; {quality[i]}"
    plain = known & (unseen_ns <= 0) & (coarse_ns <= 0)
    for i in np.flatnonzero(~plain).tolist():
        if known[i]:
            gaps = _gaps(int(unseen_ns[i]), int(coarse_ns[i]))
            quality[i] = "; ".join((*gaps, *((quality[i],) if quality[i] != "ok" else ())))
        else:
            quality[i] = _reason(
                timeline, begin_ns[i], end_ns[i], early=early[i], late=late[i], ordered=ordered[i]
            )
    straight: Estimator = timeline.estimator
    return Energies(
        known=known,
        energy_uj=figures.used_uj,
        low_uj=figures.low_uj if figures.bounded else None,
        high_uj=figures.high_uj if figures.bounded else None,
        p2_5_uj=figures.likely_low_uj,
        p97_5_uj=figures.likely_high_uj,
        phase_coverage=shape.counter.phase_coverage if shape and timeline.follows_events else None,
        estimator=["shaped" if each else straight for each in figures.shaped.tolist()],
        quality=quality,
    )


def _qualities(timeline: Timeline, shape: EnergyFit | None, edges: _Edges, figures: _Figures) -> list[str]:
    """Return what is to be known of each window that has readings all the while, ``ok`` if nothing is."""
    count, shaped = len(figures.shaped), figures.shaped
    coarse = (edges.left[:count] == edges.left[count:]) & ~shaped
    left_out = LeftOut() if shape is None else shape.left_out
    unfitted = np.where(shaped, FITTED, left_out.which(edges.t_ns[:count], edges.t_ns[count:]))
    wide = np.zeros(count, np.bool_)
    if timeline.estimator == "power":
        wide = figures.likely_high_uj - figures.likely_low_uj > 2 * WIDE * figures.used_uj
    sensor_words = [tuple(_sensor_words(timeline, shape, aliased=beats)) for beats in (False, True)]

    @cache
    def words_of(alike: int) -> str:
        which, flags = alike // 8 + FITTED, alike % 8
        named = ("within one refresh",) if flags & 2 else ()
        words = (*named, *sensor_words[flags & 1])
        words = (WIDE_WORDS,) if flags & 4 and not words else words
        return "; ".join(words if which == FITTED else (*words, left_out.reasons[which])) or "ok"

    alike = 8 * (unfitted - FITTED) + 4 * wide + 2 * coarse + figures.beats
    return list(map(words_of, alike.tolist()))


def _locate(knots: Knots, t_ns: Ints) -> _Edges:
    size = len(knots.mid_ns)
    before = np.searchsorted(knots.hi_ns, t_ns, side="right") - 1
    after = np.searchsorted(knots.lo_ns, t_ns)
    if knots.sampled.any():  # samples are not so sure: bounds are those of refreshes
        sure = np.searchsorted(knots.hi_ns, t_ns - REFRESH_NS, side="right") - 1
        before = np.where(knots.sampled[before.clip(0)] & (sure >= 0), sure, before)
        sure = np.searchsorted(knots.lo_ns, t_ns + REFRESH_NS)
        after = np.where(knots.sampled[after.clip(max=size - 1)] & (sure < size), sure, after)
    left = np.clip(np.searchsorted(knots.mid_ns, t_ns, side="right") - 1, 0, size - 2)
    width_ns = knots.mid_ns[left + 1] - knots.mid_ns[left]
    return _Edges(
        t_ns=t_ns,
        # Outside the knots what follows means nothing, and is not used.
        before=np.maximum(before, 0),
        after=np.minimum(after, size - 1),
        early=before < 0,
        late=after == size,
        left=left,
        width_ns=width_ns,
        part=np.clip((t_ns - knots.mid_ns[left]) / np.maximum(width_ns, 1), 0.0, 1.0),
    )


def _between(line: Ints) -> Ints:
    """Return how far a sum grew in each window, from the sums at begins, then ends."""
    count = len(line) // 2
    return line[count:] - line[:count]


def _begun(knots: Knots, edges: _Edges) -> npt.NDArray[np.bool_]:
    """Return which windows begin after a counter's first value (odd epoch) and before its first change.

    Only those count that are `FIRST_TIMES` as long as the time between both; shape (n,).
    """
    count = len(edges.t_ns) // 2
    before, after = edges.before[:count], edges.after[:count]
    first = (knots.epoch[before] % 2 == 1) & (knots.epoch[after] == knots.epoch[before] + 1)
    long = _between(edges.t_ns) >= FIRST_TIMES * (knots.hi_ns[after] - knots.lo_ns[before])
    begun: npt.NDArray[np.bool_] = first & long & ~edges.early[:count] & ~edges.late[:count]
    return begun


def _counted_uj(knots: Knots, edges: _Edges) -> Ints:
    """Return the energy counted until each edge, by straight lines; shape (2n,).

    How long a counter had stood at its first value is not known. From there to its first change the line is
    that of the next interval.
    """
    counted_uj, first = edges.at(knots.energy_uj), knots.epoch[edges.left] % 2 == 1
    if first.any():
        change = edges.left[first] + 1
        following = np.minimum(change + 1, len(knots.mid_ns) - 1)
        grown_uj = knots.energy_uj[following] - knots.energy_uj[change]
        slope = grown_uj / np.maximum(knots.mid_ns[following] - knots.mid_ns[change], 1)
        back_uj = _rounded(slope * (knots.mid_ns[change] - edges.t_ns[first]))
        least_uj = np.minimum(knots.energy_uj[change - 1], knots.energy_uj[change])
        counted_uj[first] = np.maximum(knots.energy_uj[change] - np.maximum(back_uj, 0), least_uj)
    return counted_uj


def _straight(timeline: Timeline, knots: Knots, edges: _Edges) -> _Figures:
    """Return energies by straight lines, with bounds from the knots around each edge or from scatter."""
    used_uj = _between(_counted_uj(knots, edges))
    count = len(used_uj)
    if timeline.sees_all:
        least_uj, most_uj = knots.energy_uj[edges.before], knots.energy_uj[edges.after] + QUANTUM_UJ
        low_uj = np.maximum(least_uj[count:] - most_uj[:count], 0)
        high_uj = most_uj[count:] - least_uj[:count]
    else:
        period_ns = timeline.period_ns or 0
        hidden = HIDDEN * period_ns / np.maximum(_between(edges.t_ns) + period_ns, 1)
        give_or_take_uj = _rounded(Z * np.hypot(_scatter_uj(knots, edges), hidden * used_uj))
        low_uj, high_uj = np.maximum(used_uj - give_or_take_uj, 0), used_uj + give_or_take_uj
    return _Figures(
        used_uj=used_uj,
        low_uj=low_uj,
        high_uj=high_uj,
        likely_low_uj=np.clip(low_uj, 0, used_uj),
        likely_high_uj=np.maximum(high_uj, used_uj),
        shaped=np.zeros(count, np.bool_),
        filled=np.zeros(count, np.bool_),
        beats=np.zeros(count, np.bool_),
        bounded=timeline.estimator == "counter",
    )


def _scatter_uj(knots: Knots, edges: _Edges) -> npt.NDArray[np.float64]:
    """Return the standard deviation of the energies of windows between power readings; shape (n,)."""
    power_w = np.diff(knots.energy_uj) * 1e3 / np.maximum(np.diff(knots.mid_ns), 1)
    sums = np.concatenate(([[0.0], [0.0]], np.cumsum((power_w, power_w**2), axis=1)), axis=1)
    begin_ns, end_ns = np.split(edges.t_ns, 2)
    first = np.minimum(knots.mid_ns.searchsorted(begin_ns - SCATTER_NS), len(power_w) - 1)
    last = np.clip(knots.mid_ns.searchsorted(end_ns + SCATTER_NS), first + 1, len(power_w))
    mean_w, square_w2 = (sums[:, last] - sums[:, first]) / (last - first)
    spread_w: npt.NDArray[np.float64] = np.sqrt(np.maximum(square_w2 - mean_w**2, 0.0))
    duration_ns = (end_ns - begin_ns).astype(np.float64)
    counted_ns = np.sqrt(duration_ns * np.minimum(duration_ns, CORRELATED_NS))
    spread_uj: npt.NDArray[np.float64] = spread_w * counted_ns / 1e3  # W x ns = nJ
    return spread_uj


def _overlay(figures: _Figures, shape: EnergyFit, knots: Knots, edges: _Edges) -> None:
    """Put in the energies that the events shaped, and what is likely of them."""
    count = len(figures.used_uj)
    fixed = shape.at(edges.t_ns, knots.epoch[edges.before])
    figures.shaped = shaped = fixed.known[:count] & fixed.known[count:]
    figures.bounded &= shape.counter.bounded
    # What a boxcar counted and what was used run apart: there both ends are of one or the other.
    usable = fixed.known if shape.window_ns is None else np.tile(shaped, 2)
    used_uj = _between(np.where(usable, fixed.energy_uj, _counted_uj(knots, edges)))
    deviation_uj = 1e6 * np.sqrt(shape.variance(fixed))
    if shape.window_ns is not None:  # else it sees all
        begin_ns, end_ns = edges.t_ns[:count].tolist(), edges.t_ns[count:].tolist()
        beats = [shape.counter.beats(*window) for window in zip(begin_ns, end_ns, strict=True)]
        deviation_uj = np.hypot(deviation_uj, shape.counter.window_doubt_ns * _change_w(knots, edges) / 1e3)
        figures.beats = np.array([found is True for found in beats])
        doubtful = [found is not False for found in beats]
        if any(doubtful):
            # What differs between the phases that it sees and the others, the model cannot know.
            deviation_uj = np.hypot(deviation_uj, np.where(doubtful, _scatter_uj(knots, edges), 0.0))
    if knots.sampled.any():
        duration_s = (edges.t_ns[count:] - edges.t_ns[:count]) / 1e9
        walked_s2 = SAMPLES_STRAY_S * np.minimum(duration_s, SAMPLES_STRAY_FOR_S)
        deviation_uj = np.hypot(deviation_uj, used_uj / np.maximum(duration_s, 1e-9) * np.sqrt(walked_s2))
    give_or_take_uj = np.nan_to_num(Z * deviation_uj, nan=MOST_UJ, posinf=MOST_UJ)
    # How far off it is while it may not be of this kind, the model cannot tell.
    sure = shaped & shape.sure
    low_uj = _rounded(np.where(sure, used_uj - give_or_take_uj, figures.low_uj))
    high_uj = _rounded(np.where(sure, used_uj + give_or_take_uj, figures.high_uj))
    if figures.bounded:
        low_uj, high_uj = np.maximum(low_uj, figures.low_uj), np.minimum(high_uj, figures.high_uj)
    figures.used_uj = used_uj
    if figures.beats.any():  # then what it does not see of each step is the same all through
        duration_ns = (edges.t_ns[count:] - edges.t_ns[:count]).astype(np.float64)
        common_uj = _rounded(Z * ALIASED * _range_w(knots, edges) * duration_ns / 1e3)  # W x ns
        low_uj = np.where(figures.beats, np.minimum(low_uj, used_uj - common_uj), low_uj)
        high_uj = np.where(figures.beats, np.maximum(high_uj, used_uj + common_uj), high_uj)
    figures.likely_low_uj, figures.likely_high_uj = np.clip(low_uj, 0, used_uj), np.maximum(high_uj, used_uj)


def _range_w(knots: Knots, edges: _Edges) -> float:
    """Return by how much the readings within `SCATTER_NS` of some windows differ at most, W."""
    first = int(knots.mid_ns.searchsorted(edges.t_ns.min() - SCATTER_NS))
    last = int(knots.mid_ns.searchsorted(edges.t_ns.max() + SCATTER_NS))
    near = slice(max(first - 1, 0), last)
    power_w = np.diff(knots.energy_uj[near]) * 1e3 / np.maximum(np.diff(knots.mid_ns[near]), 1)
    return float(np.ptp(power_w)) if len(power_w) else 0.0


def _change_w(knots: Knots, edges: _Edges) -> npt.NDArray[np.float64]:
    """Return how much power changes around an edge of windows, the greater of both, W; shape (n,)."""
    around = edges.left[:, None] + np.arange(-AROUND, AROUND + 1)
    power_w = np.diff(knots.energy_uj) * 1e3 / np.maximum(np.diff(knots.mid_ns), 1)
    change_w = np.ptp(power_w[np.clip(around, 0, len(power_w) - 1)], axis=1)
    greater_w: npt.NDArray[np.float64] = np.maximum(*np.split(change_w, 2))
    return greater_w


def _widen(figures: _Figures, timeline: Timeline, edges: _Edges) -> None:
    """Widen bounds and intervals by what is not known where a jump of the counter was filled from power."""
    count = len(figures.used_uj)
    for jump, met in timeline.filled(edges.t_ns[:count], edges.t_ns[count:]):
        filled_uj, give_or_take_uj = jump.filled_uj or 0, round(Z * jump.deviation_uj)
        figures.filled |= met
        figures.low_uj = np.where(met, np.maximum(figures.low_uj - filled_uj, 0), figures.low_uj)
        figures.high_uj = figures.high_uj + met * (jump.most_uj - filled_uj)
        likely_low_uj = np.maximum(figures.likely_low_uj - give_or_take_uj, figures.low_uj)
        figures.likely_low_uj = np.where(met, likely_low_uj, figures.likely_low_uj)
        likely_high_uj = np.minimum(figures.likely_high_uj + give_or_take_uj, figures.high_uj)
        figures.likely_high_uj = np.where(met, likely_high_uj, figures.likely_high_uj)


def _rounded(values: npt.NDArray[np.float64]) -> Ints:
    """Return whole microjoules, at most `MOST_UJ` in size."""
    whole: Ints = np.rint(np.clip(values, -MOST_UJ, MOST_UJ)).astype(np.int64)
    return whole


def _gaps(unseen_ns: int, coarse_ns: int) -> Iterator[str]:
    if unseen_ns > 0:
        yield f"unseen for {_duration(unseen_ns)}"
    if coarse_ns > 0:
        yield f"an edge between readings {coarse_ns / 1e9:.1f} s apart"


def _duration(t_ns: int) -> str:
    """Return seconds, or milliseconds where there are less than 100; nothing is shorter than 1 ms."""
    return f"{t_ns / 1e9:.1f} s" if t_ns >= 100_000_000 else f"{max(round(t_ns / 1e6), 1)} ms"


def _sensor_words(timeline: Timeline, shape: EnergyFit | None, *, aliased: bool) -> Iterator[str]:
    """Yield what the sensor cannot see of a window."""
    if timeline.estimator == "power":
        if timeline.sensor.blind:
            yield SEES_A_PART
        elif not timeline.sees_all:
            yield "a sensor that is not known"
    elif shape is not None and not shape.counter.bounded:
        yield SEES_A_PART if shape.window_ns is not None else "counter kind not known yet (doctor --sensor)"
    coverage = shape.counter.phase_coverage if shape is not None and timeline.follows_events else None
    if aliased or (coverage is not None and coverage < COVERED):
        yield "aliased"


def _reason(timeline: Timeline, begin_ns: int, end_ns: int, *, early: bool, late: bool, ordered: bool) -> str:
    if not ordered:
        return "it ends before it begins"
    if (why := timeline.loss(begin_ns, end_ns)) is not None:
        return f"GPU lost: {why}"
    if early:
        return "no counter change or power reading was seen before its begin"
    if not late:
        return "the counter started over (reset, or its collector was gone)"
    if timeline.received_ns >= end_ns:
        return "the counter did not change after its end"
    return "no reading from after its end"


def calibrated(
    timeline: Timeline,
    found: Sequence[KnownEnergy | NoEnergy],
    begin_ns: Sequence[int],
    end_ns: Sequence[int],
) -> list[KnownEnergy | NoEnergy]:
    """Return energies with the GPU's gain taken out, which ``quality`` then names, and with what gives
    reason for doubt: a counter that does not agree with the power beside it.
    """
    gain, doubt = timeline.gain, timeline.doubt
    if gain is None and doubt is None:
        return list(found)
    words = [word for word in (gain and gain.words, doubt) if word]

    def one(energy: KnownEnergy | NoEnergy, duration_ns: int) -> KnownEnergy | NoEnergy:
        if isinstance(energy, NoEnergy):
            return energy
        quality = "; ".join(words if energy.quality == "ok" else [energy.quality, *words])
        if gain is None:
            return replace(energy, quality=quality)
        offset_uj = gain.offset_w * duration_ns / 1000
        names = [name for name in energy.__struct_fields__ if name.endswith("_uj")]
        true_uj = {
            name: max(round((shown_uj - offset_uj) / gain.gain), 0)
            for name in names
            if (shown_uj := getattr(energy, name)) is not None
        }
        return replace(energy, quality=quality, **true_uj)

    return [one(energy, end - begin) for energy, begin, end in zip(found, begin_ns, end_ns, strict=True)]
