"""An RTX 3090 without counter, recorded beside an external meter: energy of windows and what intervals hold.

python -m benchmarks.windows.meter [--data DIR]

The driver's readings (every 6 to 7 ms) pass through sampler, timeline and energy as a collector's would, and
through the arithmetic of Zeus's PowerMonitor: changed readings within a window, joined by straight lines.
The meter (5 kHz) is the truth of windows that begin everywhere in a recording but in its first second. Of the
card's own sensor the one factor is removed that `zeus-stream calibrate` would find.

Source of the recording: GPU_Power_Benchmark (Yang, Adamek, Armour), MIT.
"""

import bisect
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from analyzers.measurement.energy import KnownEnergy, Meter, measure
from analyzers.measurement.sensors import Sensor, sensor
from analyzers.measurement.timeline import Timeline
from analyzers.results.readings import READING
from benchmarks.harness import ROOT, options, table
from collectors.device import Sample
from collectors.sampling.sampled_device import DetectorState, observe, pack

RECORDED = ROOT.parent / "shared" / "data" / "power_meter"
WINDOWS_S = (0.25, 0.5, 1.0, 2.0)
HEARTBEAT_NS = 500_000_000
FIRST_NS = 1_000_000_000
PARTS = 7
"""A window begins at every such part of its length."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Recording(Struct, frozen=True):
    """Times are ns since 1970. Shape (n,) of the sensor's, (m,) of the meter's."""

    sensor_ns: Ints
    sensor_mw: Ints
    meter_ns: Ints
    meter_j: Floats
    """Counted by the meter until then."""
    edges_ns: Ints
    """Begins and ends of kernels, in turn."""

    def truth_j(self, begin_ns: Ints, end_ns: Ints) -> Floats:
        until: Floats = np.interp(end_ns, self.meter_ns, self.meter_j)
        return until - np.interp(begin_ns, self.meter_ns, self.meter_j)


def recording(directory: Path) -> Recording:
    sensor: Any  # columns by name, which the types of NumPy do not know
    seen: Any
    sensor = np.genfromtxt(directory / "sensor.csv", delimiter=",", names=True, dtype=np.int64)
    seen = np.genfromtxt(directory / "meter.csv", delimiter=",", names=True, dtype=np.int64)
    t_ns, power_w = seen["t_us"] * 1000, seen["power_mw"] / 1000
    used_j = np.diff(t_ns) / 1e9 * (power_w[1:] + power_w[:-1]) / 2
    counted_j = np.concatenate(([0.0], np.cumsum(used_j)))
    edges_ns = np.unique(np.loadtxt(directory / "load.csv", np.int64, skiprows=1)) * 1000
    return Recording(sensor["t_us"] * 1000, sensor["instant_mw"], t_ns, counted_j, edges_ns)


def sampled(recorded: Recording, period_ns: int, window_ns: int) -> Recording:
    """Return what a sensor that sees ``window_ns`` of each period would have shown of the meter's power."""
    t_ns = np.arange(recorded.meter_ns[0] + period_ns, recorded.meter_ns[-1], period_ns)
    shown_mw = np.rint(recorded.truth_j(t_ns - window_ns, t_ns) / window_ns * 1e12).astype(np.int64)
    read_ns = np.arange(t_ns[0], t_ns[-1], 10_000_000)
    held_mw = shown_mw[np.searchsorted(t_ns, read_ns, side="right") - 1]
    return replace(recorded, sensor_ns=read_ns, sensor_mw=held_mw)


def windows(recorded: Recording, window_s: float) -> tuple[Ints, Ints]:
    """Return begins and ends of windows of one length, all over a recording."""
    window_ns = round(window_s * 1e9)
    first_ns = max(recorded.meter_ns[0], recorded.sensor_ns[0]) + FIRST_NS
    last_ns = min(recorded.meter_ns[-1], recorded.sensor_ns[-1]) - HEARTBEAT_NS - window_ns
    begin_ns = np.arange(first_ns, last_ns, window_ns // PARTS)
    return begin_ns, begin_ns + window_ns


def published(recorded: Recording) -> Iterator[tuple[int, npt.NDArray[np.void]]]:
    """Yield what a collector would publish of the readings, each with its time."""
    state = DetectorState()
    for t_ns, power_mw in zip(recorded.sensor_ns.tolist(), recorded.sensor_mw.tolist(), strict=True):
        state, reading = observe(state, Sample(None, power_mw, None, None), t_ns, t_ns, HEARTBEAT_NS)
        if reading is not None:
            yield t_ns, np.frombuffer(pack(reading, 0), READING)


def with_edges(recorded: Recording, sensor: Sensor, begin_ns: Ints, end_ns: Ints) -> list[KnownEnergy]:
    """Return the energies of windows, each as soon as it may be measured, with the load's edges as events."""
    one = Meter(Timeline())
    one.timeline.sensor = sensor
    one.shape.mark("load", int(recorded.sensor_ns[0]), "load//rest")
    edges, begins, ends = recorded.edges_ns.tolist(), begin_ns.tolist(), end_ns.tolist()
    known, answered = 0, list[KnownEnergy]()
    for now_ns, row in published(recorded):
        while known < len(edges) and edges[known] <= now_ns:
            phase = "rest" if known == len(edges) - 1 else ("step", "gap")[known % 2]
            one.shape.mark("load", edges[known], f"load//{phase}")
            known += 1
        one.timeline.add(row)
        while len(answered) < len(ends) and one.settled(ends[len(answered)], now_ns):
            at = len(answered)
            [found] = one.measure(begins[at : at + 1], ends[at : at + 1], now_ns)
            assert isinstance(found, KnownEnergy), found
            answered.append(found)
    return answered


def without_edges(recorded: Recording, sensor: Sensor, begin_ns: Ints, end_ns: Ints) -> list[KnownEnergy]:
    """Return the energies of windows without events."""
    timeline = Timeline()
    timeline.sensor = sensor
    timeline.add(np.concatenate([row for _, row in published(recorded)]))
    found = measure(timeline, begin_ns.tolist(), end_ns.tolist())
    return [one for one in found if isinstance(one, KnownEnergy)]


def of_power_monitor(recorded: Recording, begin_ns: Ints, end_ns: Ints) -> Floats:
    """Return what Zeus's PowerMonitor makes of windows, J."""
    changed = np.flatnonzero(np.diff(recorded.sensor_mw, prepend=-1))
    t_ns, power_w = recorded.sensor_ns[changed].tolist(), recorded.sensor_mw[changed] / 1000

    def energy_j(begin_ns: int, end_ns: int) -> float:
        first, last = bisect.bisect_left(t_ns, begin_ns), bisect.bisect_right(t_ns, end_ns)
        return float(np.trapezoid(power_w[first:last], np.array(t_ns[first:last]) / 1e9))

    edges = zip(begin_ns.tolist(), end_ns.tolist(), strict=True)
    return np.array([energy_j(begin, end) for begin, end in edges])


def figures(recorded: Recording, sensor: Sensor, window_s: float, *, edges: bool, removed: bool) -> list[str]:
    """Return PowerMonitor's mean error, ours, what intervals hold, their half width, and quality, as text.

    ``edges``: those of the load are known. ``removed``: the gain that windows of this length show is taken
    out, of each method its own.
    """
    begin_ns, end_ns = windows(recorded, window_s)
    truth_j, theirs_j = recorded.truth_j(begin_ns, end_ns), of_power_monitor(recorded, begin_ns, end_ns)
    found = (with_edges if edges else without_edges)(recorded, sensor, begin_ns, end_ns)
    their_gain = theirs_j.sum() / truth_j.sum() if removed else 1.0
    their_error = np.mean(np.abs(theirs_j / their_gain / truth_j - 1))
    truth_j, found = truth_j[: len(found)], found[: len(truth_j)]
    gain = sum(one.energy_uj for one in found) / truth_j.sum() / 1e6 if removed else 1.0
    truth_uj = truth_j * gain * 1e6
    inside = [one.p2_5_uj <= true <= one.p97_5_uj for one, true in zip(found, truth_uj, strict=True)]
    width = np.mean([one.p97_5_uj - one.p2_5_uj for one in found] / truth_uj) / 2
    error = np.mean(np.abs([one.energy_uj for one in found] / truth_uj - 1))
    quality = Counter(one.quality for one in found).most_common(1)[0][0]
    shares = [f"{100 * share:.1f} %" for share in (their_error, error, width)]
    return [*shares[:2], f"{np.mean(inside) * 100:.0f} %", shares[2], quality]


def main() -> None:
    data = options(__doc__, data=RECORDED).data
    if not data.exists():
        sys.exit(f"{data}: there are no recordings of a meter. Name their folder with --data.")
    rows = []
    for name in ("rtx3090_square", "rtx3090_step"):
        own = recording(data / name)
        part = sampled(own, 101_000_000, 25_000_000)
        for label, recorded, known, removed in (
            ("its own, gain removed", own, sensor("NVIDIA GeForce RTX 3090"), True),
            ("25 of 101 ms", part, sensor("A100"), False),
            ("25 of 101 ms, not known", part, Sensor(), False),
        ):
            for edges in (False, True):
                for window_s in WINDOWS_S:
                    found = figures(recorded, known, window_s, edges=edges, removed=removed)
                    rows.append([name, label, "known" if edges else "", f"{window_s:g} s", *found])
    head = "recording | sensor | edges | windows | PowerMonitor's mean error | ours | in 95 % | half width"
    table("Recorded RTX 3090 against the meter", f"{head} | quality", rows)


if __name__ == "__main__":
    main()
