"""A load of `tests.simulation.loads` played to sampler, schedule, timeline and shape, in virtual time."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from analyzers.measurement.energy import KnownEnergy, Meter
from analyzers.measurement.energy_fit import EnergyFit
from analyzers.measurement.knots import Ints
from analyzers.measurement.timeline import Timeline
from analyzers.measurement.windows import BATCH_NS
from analyzers.results.readings import READING
from collectors.device import Sample
from collectors.sampling import sampled_device, schedule
from tests.simulation.loads import Load
from zeus_stream.protocol.readings import Seen

Rows = npt.NDArray[np.void]
READ_NS = 50_000
FLUSH_NS = 50_000_000
EVENTS_NS = 20_000_000
HEARTBEAT_NS = 500_000_000


class Counter(Struct, frozen=True):
    """A counter over a load: when it was refreshed, and what it showed from then on; shape (n,) each."""

    t_ns: Ints
    energy_mj: Ints

    def read_mj(self, t_ns: Ints) -> Ints:
        """Return what a direct read shows."""
        return self.energy_mj[np.maximum(np.searchsorted(self.t_ns, t_ns, side="right") - 1, 0)]


def counter(
    load: Load,
    period_ns: int = 100_000_000,
    window_ns: int | None = None,
    jitter_ns: int = 200_000,
    seed: int = 0,
) -> Counter:
    """Return a counter that integrates, or (``window_ns``) sees the last part of each period."""
    rng = np.random.default_rng(seed)
    count = load.end_ns // period_ns
    off_ns = np.rint(rng.uniform(-jitter_ns, jitter_ns, count)).astype(np.int64)
    t_ns = np.arange(count) * period_ns + round(rng.uniform(0.1, 0.9) * period_ns) + off_ns
    if window_ns is None:
        sums_mj = load.energy_pj(0, t_ns) // 10**9
    else:
        seen_pj = load.energy_pj(t_ns - window_ns, t_ns)
        sums_mj = np.cumsum(seen_pj / window_ns * period_ns / 1e9).astype(np.int64)
    return Counter(t_ns, sums_mj)


def readings(shown: Counter, end_ns: int, late_ns: Callable[[], int] = lambda: 0) -> list[tuple[int, Rows]]:
    """Return what a collector reads of it, in frames: (frame time, rows). ``late_ns``: of each read."""
    state, polls = sampled_device.DetectorState(), schedule.Schedule(0)
    frames: list[tuple[int, Rows]] = []
    rows, now_ns, flush_ns = bytearray(), 0, FLUSH_NS
    t_ns, energy_mj = shown.t_ns.tolist(), shown.energy_mj.tolist()
    at = -1
    while now_ns < end_ns:
        while at + 1 < len(t_ns) and t_ns[at + 1] <= now_ns:
            at += 1
        while now_ns >= flush_ns:
            frames.append((flush_ns, np.frombuffer(bytes(rows), READING)))
            rows.clear()
            flush_ns += FLUSH_NS
        sample = Sample(energy_mj[at] if at >= 0 else 0, None, 300_000, 300_000)
        state, reading = sampled_device.observe(state, sample, now_ns, now_ns + READ_NS, HEARTBEAT_NS)
        change = None
        if reading is not None:
            rows += sampled_device.pack(reading, 0)
            if reading.seen == Seen.CHANGED:
                change = reading.t_lo_ns, reading.t_hi_ns
        polls = schedule.was_read(polls, state.period_ns, change)
        now_ns = max(schedule.next_poll_ns(polls, now_ns), now_ns + 2 * READ_NS) + late_ns()
    frames.append((flush_ns, np.frombuffer(bytes(rows), READING)))
    return frames


def _sharpened(rows: Rows, shown: Counter) -> Rows:
    rows = rows.copy()
    changed = rows["seen"] == Seen.CHANGED
    at = np.minimum(np.searchsorted(shown.energy_mj, rows["energy_mj"][changed]), len(shown.t_ns) - 1)
    rows["t_lo_ns"][changed] = rows["t_hi_ns"][changed] = shown.t_ns[at]
    return rows


class Measured(Struct, frozen=True):
    """One step."""

    begin_ns: int
    end_ns: int
    truth_j: float
    answer: KnownEnergy


def play(
    load: Load,
    shown: Counter,
    shape: EnergyFit | None = None,
    until_ns: int | None = None,
    *,
    exact: bool = False,
    every_ns: int = BATCH_NS,
    waits_ns: int = 0,
    gaps: bool = False,
) -> tuple[list[Measured], Meter]:
    """Return what is measured of the steps of a load, in batches.

    Args:
        load, shown: what was used, and what the counter showed.
        shape: what is known of it before.
        until_ns: where it ends; None: with the load.
        exact: as if every change of the counter had been seen the instant it came.
        every_ns: between two batches.
        waits_ns: steps wait so long until the kind of the counter is known.
        gaps: some steps have no energy, and are left out.
    """
    meter = Meter(Timeline(), shape or EnergyFit())
    between = "job//rest" if load.name == "epochs" else "job//gap"
    marks = [
        (t_ns, phase)
        for begin_ns, end_ns in load.steps_ns.tolist()
        for t_ns, phase in ((begin_ns, "job//step"), (end_ns, between))
    ]
    truths = (load.energy_pj(load.steps_ns[:, 0], load.steps_ns[:, 1]) / 1e12).tolist()
    meter.shape.mark("session", 1, "job//rest")
    measured: list[Measured] = []
    heard, answered, measured_ns = 0, 0, -every_ns
    for now_ns, rows in readings(shown, min(load.end_ns, until_ns or load.end_ns)):
        if len(rows):
            meter.timeline.add(_sharpened(rows, shown) if exact else rows)
        while heard < len(marks) and marks[heard][0] <= now_ns - EVENTS_NS:
            meter.shape.mark("session", *marks[heard])
            heard += 1
        if now_ns - measured_ns < every_ns:
            continue
        ended = load.steps_ns[answered : heard // 2].tolist()
        due = [(begin, end) for begin, end in ended if meter.settled(end, now_ns)]
        if not due:
            continue
        measured_ns = now_ns
        if now_ns < ended[0][1] + waits_ns and meter.identify(now_ns):
            continue
        answers = meter.measure([begin for begin, _ in due], [end for _, end in due], now_ns)
        for (begin_ns, end_ns), answer in zip(due, answers, strict=True):
            if isinstance(answer, KnownEnergy):
                measured.append(Measured(begin_ns, end_ns, truths[answered], answer))
            assert gaps or isinstance(answer, KnownEnergy), answer
            answered += 1
    return measured, meter
