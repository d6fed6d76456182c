"""The frames of a host with many sessions, each with a GPU of its own, in virtual time.

A counter is refreshed each 20 ms, readings come in a frame every 50 ms, steps in batches of 20 ms.
"""

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from analyzers.results.readings import READING
from tests.messages import COLLECTOR_STARTED, DEVICE_FOUND, RUN_ADMITTED, RUN_STARTED
from zeus_stream.protocol.events import StepBoundary
from zeus_stream.protocol.frames import Body, Events
from zeus_stream.protocol.notes import Notes
from zeus_stream.protocol.readings import Readings, Seen

MS, S = 1_000_000, 1_000_000_000
START_NS = 1_000 * S
BATCH_NS, FLUSH_NS, REFRESH_NS = 20 * MS, 50 * MS, 20 * MS
WALL_NS = 1_700_000_000 * S
POWER_W = 200


def gpu(session: int) -> str:
    return f"GPU-{session:08d}"


def begin(sessions: int, begin_ns: int = START_NS, prefix: str = "") -> Iterator[Body]:
    """Return what comes before the first step. ``prefix``: of the names of runs."""
    yield Notes((replace(COLLECTOR_STARTED, t_ns=begin_ns, incarnation="i", wall_ns=WALL_NS),))
    for number in range(sessions):
        session, run, gpus = f"s{number}", f"{prefix}run{number}", (gpu(number),)
        yield Notes((replace(DEVICE_FOUND, t_ns=begin_ns, gpu=gpu(number), index=number),))
        started = replace(RUN_STARTED, t_ns=begin_ns, run=run, gpus=gpus, pid=number + 1, wall_ns=WALL_NS)
        yield Events(session, 0, 0, number + 1, (started,))
        admitted = replace(
            RUN_ADMITTED, t_ns=begin_ns, session=session, run="r", gpus=gpus, may_command=False
        )
        yield Notes((admitted,))


def readings(sessions: int, until_ns: int, begin_ns: int = START_NS) -> Readings:
    """Return the refreshes of all GPUs in the last `FLUSH_NS`."""
    t_ns = np.arange(until_ns - FLUSH_NS, until_ns, REFRESH_NS) // REFRESH_NS * REFRESH_NS
    rows = np.zeros(len(t_ns) * sessions, READING)
    rows["t_hi_ns"] = np.tile(t_ns, sessions)
    rows["t_lo_ns"] = rows["t_hi_ns"] - MS
    rows["energy_mj"] = np.maximum(rows["t_hi_ns"] - begin_ns, 0) // MS * POWER_W
    rows["power_mw"], rows["limit_mw"], rows["requested_mw"] = POWER_W * 1000, 250_000, 250_000
    rows["gpu"], rows["seen"] = np.repeat(np.arange(sessions), len(t_ns)), Seen.CHANGED
    return Readings(tuple(map(gpu, range(sessions))), rows.tobytes())


def steps_and_readings(
    sessions: int, rate: int, seconds: float, begin_ns: int = START_NS, after_s: float = 0.0
) -> Iterator[tuple[int, Body]]:
    """Yield time and body of the steps of all sessions, and of the readings until ``after_s`` later."""
    step_ns, sent, flushed_ns = S // rate, 0, begin_ns
    for now_ns in range(begin_ns + BATCH_NS, begin_ns + round((seconds + after_s) * S), BATCH_NS):
        due = min((now_ns - begin_ns) // step_ns, round(seconds * rate))
        for session in range(sessions):
            steps = tuple(
                StepBoundary(
                    index,
                    None if index == 0 else begin_ns + index * step_ns - MS // 10,
                    begin_ns + index * step_ns,
                )
                for index in range(sent, due)
            )
            if steps:
                yield now_ns, Events(f"s{session}", 1 + sent, 0, session + 1, steps)
        sent = due
        if now_ns - flushed_ns >= FLUSH_NS:
            flushed_ns += FLUSH_NS
            yield now_ns, readings(sessions, flushed_ns, begin_ns)


def frames(sessions: int, rate: int, seconds: float) -> Iterator[tuple[int, Body]]:
    """Return time and body of each frame, in order."""
    for body in begin(sessions):
        yield START_NS, body
    yield from steps_and_readings(sessions, rate, seconds)
