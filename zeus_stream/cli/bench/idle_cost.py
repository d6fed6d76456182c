"""The energy of the monitor: idle power of this host with and without a collector, in turns."""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from statistics import fmean

from msgspec import Struct
from msgspec.structs import replace

from collectors.device import Bus, Device
from collectors.devices.registry import open_bus
from zeus_stream.bench.energy_difference import compare_rounds, order_of_round
from zeus_stream.cli.run_training import as_environment
from zeus_stream.cli.running.child_services import ServicesOfCommand
from zeus_stream.cli.running.signals import Signals
from zeus_stream.cli.running.waits import until
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import RefusedError
from zeus_stream.paths import Places
from zeus_stream.settings import Settings

SETTLES_S = 15.0
"""After a start or a stop of the collector, at most: its own work is over by then."""


class IdleCost(Struct, frozen=True, kw_only=True):
    """Idle power of all devices with an energy counter."""

    devices: tuple[str, ...]
    rounds: int
    seconds: float
    """Of each interval."""
    without_w: float
    with_w: float
    difference_w: float
    difference_low_w: float
    """Lower end of the 95 % interval, as is the next its upper end."""
    difference_high_w: float
    proven: bool
    """The interval does not hold 0."""


def measure_idle_cost(settings: Settings, rounds: int, seconds: float, signals: Signals) -> IdleCost:
    """Measure idle power in turns, without a collector and with one: an even number of rounds.

    Raises RefusedError: no device counts energy, or it was stopped. UnreachableError: no collector starts.
    """
    with tempfile.TemporaryDirectory(prefix="zs-") as folder:
        where = Places(Path(folder), Path(folder))
        with closing(open_bus(settings.device, where.run / "idle", cpu=settings.cpu)) as bus:
            counted = _counting(bus)
            names = tuple(each.describe().gpu for each in counted)
            powers: tuple[list[float | None], list[float | None]] = ([], [])
            for number in range(rounds):
                for index in order_of_round(number, 2):
                    with _collector(where, settings, signals) if index else nullcontext():
                        _pause(min(seconds, SETTLES_S), signals)
                        powers[index].append(_mean_power(counted, seconds, signals))
    return idle_cost(names, *powers, rounds, seconds)


def idle_cost(
    devices: tuple[str, ...],
    powers_without_w: Sequence[float | None],
    powers_with_w: Sequence[float | None],
    rounds: int,
    seconds: float,
) -> IdleCost:
    """Return the difference of power, from intervals without and with a collector, by round."""
    change = compare_rounds(powers_without_w, powers_with_w)
    both = (powers_without_w, powers_with_w)
    without_w, with_w = (fmean(each for each in found if each is not None) for found in both)
    return IdleCost(
        devices=devices,
        rounds=rounds,
        seconds=seconds,
        without_w=without_w,
        with_w=with_w,
        difference_w=without_w * change.percent / 100,
        difference_low_w=without_w * change.low_percent / 100,
        difference_high_w=without_w * change.high_percent / 100,
        proven=change.low_percent > 0 or change.high_percent < 0,
    )


def describe_cost(cost: IdleCost) -> str:
    """Return a cost as a sentence."""
    found = (
        f"{len(cost.devices)} devices, idle: {cost.without_w:.2f} W without a collector, {cost.with_w:.2f} W"
        f" with it: {cost.difference_w:+.3f} W"
        f" ({cost.difference_low_w:+.3f} to {cost.difference_high_w:+.3f})"
    )
    return f"{found}{'' if cost.proven else ': no difference is proven'}.\n"


def _counting(bus: Bus) -> list[Device]:
    found = [each for each in bus.discover() if each.describe().counts_energy]
    if not found:
        raise RefusedError(
            "bench --idle: could not measure: no device here counts energy. `zeus-stream doctor` lists what"
            " there is; --cpu on reads the CPUs."
        )
    return found


def _mean_power(devices: Sequence[Device], seconds: float, signals: Signals) -> float | None:
    """Return the power of an interval, W: two reads of each counter, each just after a refresh."""
    begins = [_refreshed(each) for each in devices]
    _pause(seconds, signals)
    total_w = 0.0
    for device, begin in zip(devices, begins, strict=True):
        end = _refreshed(device)
        if begin is None or end is None or end[0] < begin[0]:
            return None
        total_w += (end[0] - begin[0]) / 1e3 / ((end[1] - begin[1]) / 1e9)
    return total_w


def _refreshed(device: Device) -> tuple[int, int] | None:
    """Return the counter (mJ) and the time at its next refresh. None: it is not read."""
    first, end_ns = device.sample().energy_mj, monotonic_ns() + 2_000_000_000
    while monotonic_ns() < end_ns:
        time.sleep(0.002)
        now = device.sample().energy_mj
        if now != first and now is not None:
            return now, monotonic_ns()
    return None


@contextmanager
def _collector(where: Places, settings: Settings, signals: Signals) -> Iterator[None]:
    """Run a collector that only observes, at rest as on a host without trainings."""
    observing = as_environment(replace(settings, observe=True))
    own = ServicesOfCommand(where, {**os.environ, **observing, "ZEUS_STREAM_DIR": str(where.run)}, signals)
    try:
        own.start(("collector",))
        own.wait_for(("collector",))
        yield
    finally:
        own.stop()


def _pause(seconds: float, signals: Signals) -> None:
    until(lambda: False, seconds, signals)
    if signals.told is not None:
        raise RefusedError("bench --idle: could not finish: it was stopped. Run it again to measure.")
