"""Measure the sensor of a GPU, and keep its card: ``zeus-stream doctor --sensor``."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import NamedTuple

from msgspec.structs import replace

from collectors.control import words
from collectors.controls.lease_messages import Limits, SetDone, SetFoundOther
from collectors.controls.restore_record import RestoreRecord, RestoreRecordFile
from collectors.controls.value_changes import change, put_back
from collectors.device import Bus, Device, PowerSample, clock_of
from collectors.devices.cards.known_cards import keep_card
from collectors.devices.cards.sensor_card import ControlSets, SensorCard, make_card, read_closely
from zeus_stream.clock import boot_id, monotonic_ns
from zeus_stream.errors import RefusedError, StorageError, explaining
from zeus_stream.paths import Places
from zeus_stream.protocol.fields import UNLOCKED, Control, of_host
from zeus_stream.service_packages import python_child

STEPS_MW = (1_000, 2_500, 5_000, 10_000)
"""Below the limit found: the limits that `try_limits` sets, before the lowest."""
CLOCKS_BELOW = (1, 2, 4, 8, 16, 32)
"""Places in the list of clocks, below the one at which the GPU runs: those that `try_clocks` locks."""
FOLLOWS, FOLLOWS_NS, HELD_NS = 1.02, 3_000_000_000, 1_000_000_000
"""Power follows a limit once it is at most so many times as high; it is waited for so long, and read on."""
LOOK_S = 0.002
"""Between two looks at power or clock."""
SETTLES_NS = 200_000_000
"""From when the clock follows until it is read again."""
SQUARE_MS, LOAD_S, STEADY_S = 370.0, 2.0, 90.0
"""Period of the square load, in time with no refresh; it lasts so much longer than the reads. While values
are set, the load is steady, and is ended after them."""


class GpuFollowed(NamedTuple):
    """The GPU after a set."""

    taken: int
    follows_ms: float | None = None
    held: float | None = None
    clock_mhz: int | None = None


Look = Callable[[int, int], GpuFollowed | str]
"""Waits until the GPU follows a value, after it had another; a text: why no further one is worth a try."""


class SensorTrials:
    """Values of the controls of one device, set under a restore record, and restored whatever happens."""

    def __init__(
        self,
        device: Device,
        records: Path,
        now: Callable[[], int] = monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._device, self._records, self._now, self._sleep = device, records, now, sleep

    def try_limits(self) -> ControlSets | None:
        """Set some limits below the one found. None: the device has no limit."""
        found_mw, lowest_mw = self._device.read_control("power_limit"), self._device.describe().min_limit_mw
        if lowest_mw is None or found_mw is None:
            return None
        wanted_mw = [found_mw - step_mw for step_mw in STEPS_MW if found_mw - step_mw > lowest_mw]
        wanted_mw += [lowest_mw] if lowest_mw < found_mw else []
        return self._try("power_limit", wanted_mw, Limits(found_mw), found_mw, self._follow_power)

    def try_clocks(self) -> ControlSets | None:
        """Lock some graphics clocks below that of now. None: the device locks none, or says no clock."""
        free_mhz = clock_of(self._device)
        clocks_mhz = self._device.describe().graphics_clocks_mhz
        if free_mhz is None or not clocks_mhz:
            return None
        below_mhz = [clock_mhz for clock_mhz in clocks_mhz if clock_mhz < free_mhz]
        wanted_mhz = [below_mhz[place - 1] for place in takewhile(len(below_mhz).__ge__, CLOCKS_BELOW)]
        sets = self._try("graphics_clock", wanted_mhz, Limits(UNLOCKED), free_mhz, self._follow_clock)
        if not wanted_mhz:
            return replace(sets, restored=free_mhz, reason="it runs at its lowest clock: let it work")
        return replace(sets, restored=self._unlocked_mhz(min(sets.taken, default=0)))

    def _try(
        self, control: Control, values: Sequence[int], limits: Limits, before: int, look: Look
    ) -> ControlSets:
        """Set values of a control, and restore what was found.

        ``limits``: what was found. ``before``: the limit or the clock before the first of them.
        Raises RefusedError, DeviceError and StorageError.
        """
        gpu = self._device.describe().gpu
        asked, took_ms, followed, reason = list[int](), list[float](), list[GpuFollowed](), ""
        with closing(RestoreRecordFile(self._records, gpu, 0.0)) as file:
            if file.read(control) is not None:
                raise RefusedError(
                    f"{gpu}: could not try its {words(control)}: a killed collector or doctor left one."
                    " Run `zeus-stream restore`."
                )
            try:
                for value in values:
                    limits = Limits(limits.found, limits.confirmed, value)
                    file.write(
                        RestoreRecord(gpu=gpu, limits=limits, boot_id=boot_id(), time="", control=control)
                    )
                    before_ns = self._now()
                    outcome = change(self._device, control, limits)
                    if isinstance(outcome, SetFoundOther):
                        limits = Limits(limits.found, limits.confirmed)  # nothing was set
                    if not isinstance(outcome, SetDone):
                        reason = getattr(outcome, "reason", "the driver did not take it")
                        break
                    took = (self._now() - before_ns) / 1e6
                    limits = limits.read_back(outcome.requested)
                    found = look(outcome.requested, followed[-1].taken if followed else before)
                    if isinstance(found, str):
                        reason = found
                        break
                    asked.append(value)
                    took_ms.append(took)
                    followed.append(found)
            finally:
                restored = put_back(self._device, limits, control).requested
                file.clear(control)
        follows_ms = [each.follows_ms for each in followed if each.follows_ms is not None]
        return ControlSets(
            asked=tuple(asked),
            taken=tuple(each.taken for each in followed),
            took_ms=median(took_ms or [0.0]),
            restored=restored,
            follows_ms=median(follows_ms) if follows_ms else None,
            held=max((each.held for each in followed if each.held is not None), default=None),
            throttled_mhz=followed[-1].clock_mhz if followed else None,
            reason=reason,
        )

    def _follow_power(self, limit_mw: int, _before_mw: int) -> GpuFollowed:
        """Read the power until it follows a limit, and what it keeps to then."""
        begin_ns = since_ns = self._now()
        follows_ms, held, above = None, 0.0, False
        while self._now() < (since_ns + HELD_NS if follows_ms is not None else begin_ns + FOLLOWS_NS):
            power_mw = self._device.sample().power_mw
            if power_mw is not None and power_mw > FOLLOWS * limit_mw and follows_ms is None:
                above = True
            elif power_mw is not None and not above:
                break  # it drew less anyway
            elif power_mw is not None and follows_ms is None:
                since_ns = self._now()
                follows_ms = (since_ns - begin_ns) / 1e6
            if power_mw is not None and follows_ms is not None:
                held = max(held, power_mw / limit_mw)
            self._sleep(LOOK_S)
        if follows_ms is None:
            return GpuFollowed(limit_mw)
        return GpuFollowed(limit_mw, follows_ms, held, clock_of(self._device))

    def _follow_clock(self, clock_mhz: int, before_mhz: int) -> GpuFollowed | str:
        """Read the clock until it is nearer to the one that was locked than to the one before."""
        begin_ns = self._now()
        while (now_ns := self._now()) < begin_ns + FOLLOWS_NS:
            ran_mhz = clock_of(self._device)
            if ran_mhz is not None and 2 * ran_mhz < clock_mhz + before_mhz:
                self._sleep(SETTLES_NS / 1e9)
                return GpuFollowed(clock_of(self._device) or ran_mhz, (now_ns - begin_ns) / 1e6)
            self._sleep(LOOK_S)
        return (
            f"the driver locked {clock_mhz} MHz, and the GPU still ran at more {FOLLOWS_NS / 1e9:g} s later"
        )

    def _unlocked_mhz(self, locked_mhz: int) -> int:
        """Return the clock after it was unlocked, once it is above the lowest lock, or `FOLLOWS_NS` later."""
        until_ns = self._now() + FOLLOWS_NS
        while (ran_mhz := clock_of(self._device) or 0) <= locked_mhz and self._now() < until_ns:
            self._sleep(LOOK_S)
        self._sleep(SETTLES_NS / 1e9)
        return clock_of(self._device) or ran_mhz


def torch_load(period_ms: float, seconds: float) -> Sequence[str]:
    """Return the command of a square load, made where torch sees the GPU."""
    return python_child("zeus_stream.bench.square_load", f"{period_ms:g}", f"{seconds:g}")


def sensor_card(
    bus: Bus,
    wanted: str,
    seconds: float,
    where: Places,
    *,
    sets: bool,
    load: Callable[[float, float], Sequence[str]] = torch_load,
) -> tuple[SensorCard, Path]:
    """Return the card of a GPU, by UUID, its beginning or index (empty: the first), and where it is kept.

    ``sets``: limits and clocks are tried, under a steady load. ``load``: the command of a square load by its
    period (ms) and time (s), which prints when work began and ended, a line each.
    Raises RefusedError (there is no such GPU), DeviceError and StorageError.
    """
    found = {device.describe().gpu: device for device in bus.discover()}
    gpus = [gpu for gpu in found if not of_host(gpu)]
    chosen = [gpu for gpu in gpus if not wanted or gpu.startswith(wanted)] or (
        [gpus[int(wanted)]] if wanted.isdecimal() and int(wanted) < len(gpus) else []
    )
    if not chosen:
        raise RefusedError(f"GPU {wanted!r}: could not be found. There are {', '.join(gpus) or 'none'}.")
    gpu, device = chosen[0], found[chosen[0]]
    kept: list[PowerSample] = []
    with square_load(load(SQUARE_MS, seconds + LOAD_S), gpu) as marks_ns:
        reads = read_closely(device, monotonic_ns() + round(seconds * 1e9), time.sleep, samples=kept)
    limit_sets = clock_sets = None
    if sets:
        with square_load(load(2000 * STEADY_S, 2 * STEADY_S), gpu):
            time.sleep(SETTLES_NS / 1e9)
            trials = SensorTrials(device, where.records)
            clock_sets, limit_sets = trials.try_clocks(), trials.try_limits()
    card = make_card(
        device.describe(),
        reads,
        limit_sets=limit_sets,
        clock_sets=clock_sets,
        marks_ns=marks_ns,
        power_samples=kept,
    )
    with explaining(StorageError, f"{where.cards}: the card could not be kept", "Make room, or give access."):
        return card, keep_card(where.cards, gpu, card)


@contextmanager
def square_load(command: Sequence[str], gpu: str) -> Iterator[list[tuple[int, int]]]:
    """Have a GPU work in a square; give begins and ends of work, which are there afterwards, none without.

    ``gpu``: its UUID, or its index in CUDA's order.
    """
    marks_ns: list[tuple[int, int]] = []
    environ = os.environ | {"CUDA_VISIBLE_DEVICES": gpu}
    with subprocess.Popen(  # noqa: S603  (a module of ours)
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ
    ) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline()]  # until work has begun, or there is no torch
        try:
            yield marks_ns
        finally:
            child.terminate()
            lines += child.stdout.readlines()
    instants_ns = [int(line) for line in lines if line.endswith("\n")]
    marks_ns += zip(instants_ns[::2], instants_ns[1::2], strict=False)  # the last may have been cut off
