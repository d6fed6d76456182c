"""The phases of one session: marks and readings in, rows of `phases` out. Pure.

Refreshes are taken in once they are settled and marks lie behind them, each once. One that two epochs or
two power limits share counts for the epoch in which it began, and for no limit that changed.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from analyzers.measurement.energy import Meter
from analyzers.measurement.knots import Ints, Knots
from analyzers.measurement.phases.mark_times import MarkTimes
from analyzers.measurement.phases.phase_fit import AROUND_S, PhaseFit, Shares, hypotheses
from analyzers.measurement.windows import Owner
from analyzers.results.window_rows import PhaseRow
from zeus_stream.protocol.events import PhasesRan, unpack_marks

SETTLE_NS = 60_000_000
"""Marks of an instant are there when a mark is this much later, or a frame much later."""
WAIT_NS = 2_000_000_000
"""A frame so much later: no marks of that time will come."""
BATCH_NS = 1_000_000_000
ROWS_NS = 10_000_000_000
"""Between two rows of a run that goes on."""
MAX_FITS = 24
"""Power limits of an epoch or a run that are distinguished; refreshes at others are left out."""
MAX_EPOCHS = 64
"""Begins of epochs that are remembered."""
PERIODS = 3
"""A refresh that took longer than so many others was missed, and says nothing of phases."""
CLOSE = 0.05
"""A refresh whose instants are known less closely than to this part of the period says nothing either."""
NOT_IDENTIFIED = "not identifiable: its marks do not move against the counter"
WHOLE = -1
"""Number of the epoch that is the whole run."""
Fits = dict[tuple[int, int], PhaseFit]
"""By epoch and power limit (mW)."""


class PhaseTracker:
    """The phases of one session on its GPUs."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._marks = MarkTimes()
        self._epochs: list[tuple[int, int]] = []
        """Begin, and number; `WHOLE`: between two."""
        self._taken_ns: dict[str, int] = {}
        """By GPU, until when refreshes were taken in."""
        self._fits: dict[str, Fits] = {}
        self._windows_ns: dict[str, int | None] = {}
        self._measured_ns = self._row_ns = 0

    @property
    def marked(self) -> bool:
        return len(self._marks) > 0

    def take(self, event: PhasesRan) -> None:
        numbers = [0, *(self._marks.number(name) for name in event.names)]
        marks = [(t_ns, numbers[place] if place < len(numbers) else 0) for t_ns, place in unpack_marks(event)]
        if marks:
            self._marks.add(*zip(*marks, strict=True))

    def epoch(self, t_ns: int, index: int | None) -> None:
        """From here on, an epoch is under way, or (None) none."""
        self._epochs = [*self._epochs[1 - MAX_EPOCHS :], (t_ns, WHOLE if index is None else index)]

    def measure(self, meters: Mapping[str, Meter], now_ns: int, *, ended: bool) -> list[PhaseRow]:
        """Take in what readings there are. Return rows, every `ROWS_NS` and at the ``end``."""
        if not self.marked or (not ended and 0 <= now_ns - self._measured_ns < BATCH_NS):
            return []
        self._measured_ns = now_ns
        silent = ended or now_ns - self._marks.last_ns > WAIT_NS
        until_ns = self._marks.last_ns if silent else self._marks.last_ns - SETTLE_NS
        for gpu, meter in meters.items():
            self._take_in(gpu, meter, until_ns)
        self._marks.forget(min(self._taken_ns.values(), default=until_ns) - round(AROUND_S[-1] * 1e9) * 2)
        if not ended and 0 <= now_ns - self._row_ns < ROWS_NS:
            return []
        self._row_ns = now_ns
        return [row for gpu, meter in meters.items() for row in self._rows(gpu, meter)]

    # ---- readings

    def _take_in(self, gpu: str, meter: Meter, until_ns: int) -> None:
        knots = meter.timeline.knots()
        window_ns = meter.shape.window_ns
        if not meter.timeline.follows_events or meter.timeline.estimator == "power":
            return
        if self._windows_ns.setdefault(gpu, window_ns) != window_ns:
            self._windows_ns[gpu] = window_ns
            self._fits.pop(
                gpu, None
            )  # the counter is of another kind than thought: what was learned is wrong
        since_ns = self._taken_ns.setdefault(gpu, self._marks.first_ns + 10_000_000)
        first, end = (
            knots.mid_ns.searchsorted(since_ns),
            int(knots.mid_ns.searchsorted(until_ns, side="right")),
        )
        if end - first < 2:
            return
        part = slice(int(first), end)
        t_ns = knots.mid_ns[part]
        self._taken_ns[gpu] = int(t_ns[-1])
        begins, ends = t_ns[:-1].tolist(), t_ns[1:].tolist()
        limits = meter.timeline.limits_mw(begins, ends)
        shares = self._shares(knots, part, window_ns)
        whole = _whole(knots, part)
        fits = self._fits.setdefault(gpu, {})
        keys = [
            (self._epoch_at(begin), limit_mw or 0) for begin, limit_mw in zip(begins, limits, strict=True)
        ]
        for key in dict.fromkeys(keys):
            chosen = np.array([each == key for each in keys]) & whole
            for epoch in {key[0], WHOLE} if chosen.any() else ():
                self._add(fits, (epoch, key[1]), shares, np.flatnonzero(chosen))

    def _add(self, fits: Fits, key: tuple[int, int], shares: Shares, chosen: Ints) -> None:
        if key not in fits and sum(epoch == key[0] for epoch, _ in fits) >= MAX_FITS:
            return
        fit = fits.setdefault(key, PhaseFit(len(self._marks.names)))
        fit.grow(len(self._marks.names))
        fit.add(
            Shares(
                lagged_s=shares.lagged_s[:, chosen],
                grown_j=shares.grown_j[chosen],
                open_s2=shares.open_s2[chosen],
                marked_s=shares.marked_s[chosen],
                entered=shares.entered[chosen],
            )
        )

    def _shares(self, knots: Knots, part: slice, window_ns: int | None) -> Shares:
        """Return the phases in each refresh; a boxcar saw the last ``window_ns`` of each, equation (5)."""
        t_ns, marks = knots.mid_ns[part], self._marks
        lags_ns = np.rint(AROUND_S * 1e9).astype(np.int64)
        ends = marks.until((t_ns - lags_ns[:, None]).ravel()).reshape(len(lags_ns), len(t_ns), -1)
        open_s = (knots.hi_ns[part] - knots.lo_ns[part]) / 1e9
        at = np.eye(len(marks.names))[marks.under_way(t_ns)] * (open_s**2 / 12)[:, None]
        marked_s = np.diff(marks.until(t_ns), axis=0)
        if window_ns is None:
            lagged_s, open_s2 = np.diff(ends, axis=1), at[1:] + at[:-1]
        else:
            since = marks.until((t_ns[1:] - window_ns - lags_ns[:, None]).ravel())
            scale = float(np.median(np.diff(t_ns))) / window_ns
            lagged_s = scale * (ends[:, 1:] - since.reshape(len(lags_ns), len(t_ns) - 1, -1))
            open_s2 = 2 * scale**2 * at[1:]
        return Shares(
            lagged_s=hypotheses(lagged_s),
            grown_j=np.diff(knots.energy_uj[part]) / 1e6,
            open_s2=open_s2,
            marked_s=marked_s,
            entered=marks.entered(t_ns),
        )

    def _epoch_at(self, t_ns: int) -> int:
        for begin_ns, index in reversed(self._epochs):
            if begin_ns <= t_ns:
                return index
        return WHOLE

    # ---- rows

    def _rows(self, gpu: str, meter: Meter) -> Iterator[PhaseRow]:
        """Yield the rows of a GPU: of each epoch that is not over or has no last row yet, and of the run."""
        fits = self._fits.get(gpu, {})
        now = self._epoch_at(self._taken_ns.get(gpu, 0))
        for epoch in dict.fromkeys(epoch for epoch, _ in fits):
            of_epoch = {limit: fit for (each, limit), fit in fits.items() if each == epoch}
            yield from self._of_epoch(gpu, meter, epoch, of_epoch)
            if epoch not in (now, WHOLE):
                for limit in of_epoch:
                    del fits[epoch, limit]  # it is over

    def _of_epoch(
        self, gpu: str, meter: Meter, epoch: int, fits: Mapping[int, PhaseFit]
    ) -> Iterator[PhaseRow]:
        count, owner = len(self._marks.names), self._owner
        energy_j, variance_j2, seconds, times = (np.zeros(count) for _ in range(4))
        before_j, gain = np.zeros(count), meter.timeline.gain
        for fit in fits.values():
            fit.grow(count)
            found = fit.energies()
            seconds += fit.seconds
            times += fit.entered.sum(axis=0)
            if found is not None:
                energy_j += found.energy_j
                variance_j2 += found.error_j**2
                before_j += found.before_j
        if gain is not None:
            energy_j = (energy_j - gain.offset_w * seconds) / gain.gain
            variance_j2 /= gain.gain**2
        error_j = np.sqrt(variance_j2)
        identified, total_j = error_j <= before_j, float(energy_j.sum())
        for place, name in enumerate(self._marks.names):
            if not seconds[place]:
                continue
            known = bool(identified[place])
            yield PhaseRow(
                session=owner.session,
                run=owner.run,
                job=owner.job,
                rank=owner.rank,
                host=owner.host,
                gpu=gpu,
                epoch=None if epoch == WHOLE else epoch,
                phase=name,
                times=round(float(times[place])),
                duration_s=float(seconds[place]),
                energy_j=float(energy_j[place]) if known else None,
                energy_p2_5_j=max(float(energy_j[place] - error_j[place]), 0.0) if known else None,
                energy_p97_5_j=float(energy_j[place] + error_j[place]) if known else None,
                share=float(energy_j[place]) / total_j if known and total_j > 0 else None,
                quality="ok" if known else NOT_IDENTIFIED,
            )


def _whole(knots: Knots, part: slice) -> np.ndarray:
    """Return which refreshes are of one epoch of the counter, and were not missed."""
    took_ns, epoch = np.diff(knots.mid_ns[part]), knots.epoch[part]
    whole = (epoch[1:] == epoch[:-1]) & (epoch[1:] % 2 == 0) & (took_ns < PERIODS * np.median(took_ns))
    # A look that came late says little of when the refresh came.
    close = knots.hi_ns[part] - knots.lo_ns[part] < CLOSE * np.median(took_ns)
    found: np.ndarray = whole & close[1:] & close[:-1] & (np.diff(knots.unseen_ns[part]) == 0)
    return found
