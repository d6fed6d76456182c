"""Measure the sensor of a GPU, and keep its card: ``zeus-stream doctor --sensor``."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

from collectors.controls.lease_messages import Limits, SetDone
from collectors.controls.restore_record import RestoreRecord, RestoreRecordFile
from collectors.controls.value_changes import change, put_back
from collectors.device import Bus, Device
from collectors.devices.cards.known_cards import keep_card
from collectors.devices.cards.sensor_card import (
    LimitSets,
    SensorCard,
    make_card,
    read_closely,
)
from zeus_stream.clock import boot_id, monotonic_ns
from zeus_stream.errors import RefusedError, StorageError, explaining
from zeus_stream.paths import Places
from zeus_stream.protocol.fields import of_host
from zeus_stream.service_packages import python_child

STEPS_MW = (1_000, 2_500, 5_000, 10_000)
"""Below the limit found: the limits that `try_limits` sets, before the lowest."""
FOLLOWS, FOLLOWS_NS, HELD_NS = 1.02, 3_000_000_000, 1_000_000_000
"""Power follows a limit once it is at most so many times as high; it is waited for so long, and read on."""
SQUARE_MS, LOAD_S = 370.0, 2.0
"""Period of the square load, in time with no refresh; it lasts so much longer than the reads."""


def try_limits(
    device: Device,
    records: Path,
    now: Callable[[], int] = monotonic_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> LimitSets | None:
    """Set some limits below the one found, under a restore record, and restore it. None: it has no limit."""
    description = device.describe()
    found_mw = device.read_control("power_limit")
    if description.min_limit_mw is None or found_mw is None:
        return None
    with closing(RestoreRecordFile(records, description.gpu, 0.0)) as file:
        if file.read() is not None:
            raise RefusedError(
                f"{description.gpu}: could not try limits: a killed collector left one."
                " Run `zeus-stream restore`."
            )
        asked_mw, taken_mw, took_ms, limits, reason = list[int](), list[int](), [], Limits(found_mw), ""
        followed = list[tuple[float, float]]()
        lowest_mw = description.min_limit_mw
        wanted_mw = [found_mw - step_mw for step_mw in STEPS_MW if found_mw - step_mw > lowest_mw]
        try:
            for limit_mw in (*wanted_mw, lowest_mw) if lowest_mw < found_mw else ():
                limits = Limits(found_mw, limits.confirmed, limit_mw)
                file.write(RestoreRecord(gpu=description.gpu, limits=limits, boot_id=boot_id(), time=""))
                before_ns = now()
                outcome = change(device, "power_limit", limits)
                if not isinstance(outcome, SetDone):
                    reason = getattr(outcome, "reason", "the driver did not take it")
                    break
                took_ms.append((now() - before_ns) / 1e6)
                asked_mw.append(limit_mw)
                taken_mw.append(outcome.requested)
                limits = Limits(found_mw, outcome.requested)
                followed += _follow(device, outcome.requested, now, sleep)
        finally:
            restored_mw = put_back(device, limits).requested
            file.clear()
    return LimitSets(
        asked_mw=tuple(asked_mw),
        taken_mw=tuple(taken_mw),
        took_ms=median(took_ms or [0.0]),
        restored_mw=restored_mw,
        reason=reason,
        follows_ms=median(ms for ms, _ in followed) if followed else None,
        held=max((held for _, held in followed), default=None),
    )


def _follow(
    device: Device, limit_mw: int, now: Callable[[], int], sleep: Callable[[float], None]
) -> Iterator[tuple[float, float]]:
    """Yield in how many ms power follows a limit, and what it keeps to, over it; nothing: it drew less."""
    begin_ns = since_ns = now()
    follows_ms, held, above = None, 0.0, False
    while now() < (since_ns + HELD_NS if follows_ms is not None else begin_ns + FOLLOWS_NS):
        power_mw = device.sample().power_mw
        if power_mw is not None and power_mw > FOLLOWS * limit_mw and follows_ms is None:
            above = True
        elif power_mw is not None and not above:
            return
        elif power_mw is not None and follows_ms is None:
            since_ns = now()
            follows_ms = (since_ns - begin_ns) / 1e6
        if power_mw is not None and follows_ms is not None:
            held = max(held, power_mw / limit_mw)
        sleep(0.002)
    if follows_ms is not None:
        yield follows_ms, held


def sensor_card(
    bus: Bus, wanted: str, seconds: float, where: Places, *, sets: bool, load: Sequence[str] | None = None
) -> tuple[SensorCard, Path]:
    """Return the card of a GPU, by UUID, its beginning or index (empty: the first), and where it is kept.

    ``sets``: limits are tried. ``load``: the command of a square load that prints when work began and ended;
    default: one by torch, where that sees a GPU.
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
    command = load or python_child("zeus_stream.bench.square_load", f"{SQUARE_MS:g}", f"{seconds + LOAD_S:g}")
    with square_load(command, gpu) as marks_ns:
        reads = read_closely(device, monotonic_ns() + round(seconds * 1e9), time.sleep)
    sets_done = try_limits(device, where.records) if sets else None
    card = make_card(device.describe(), reads, sets_done, marks_ns=marks_ns)
    with explaining(StorageError, f"{where.cards}: the card could not be kept", "Make room, or give access."):
        return card, keep_card(where.cards, gpu, card)


@contextmanager
def square_load(command: Sequence[str], gpu: str) -> Iterator[list[tuple[int, int]]]:
    """Have a GPU work in a square; give begins and ends of work, which are there afterwards, none without."""
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
    pairs = (line.split() for line in lines)
    marks_ns += [(int(pair[0]), int(pair[1])) for pair in pairs if len(pair) == len(("begin", "end"))]
