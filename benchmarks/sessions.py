"""Cost of an event to the analyzer by the number of sessions on a host.

    python -m benchmarks.sessions [--sessions 1 10 100] [--rate 200] [--seconds 2] [--behind]

Each session has a GPU of its own (counter of 20 ms, readings in a frame every 50 ms) and publishes ``rate``
steps a second in batches of 20 ms. Printed: CPU time of decoding and interpreting, a step, and the share of
one core that takes. Nothing is stored. ``--behind``: as while frames wait, when no energy is fitted.
"""

import argparse
import platform
import time
from collections.abc import Iterator

import numpy as np

from analyzers.interpreter import Interpreter, Logged
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.readings import READING
from analyzers.results.rows import GapRow, WindowRow
from zeus_stream.protocol import codec
from zeus_stream.protocol.events import RunStarted, StepBoundary
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import CollectorStarted, DeviceFound, Notes, RunAdmitted
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
    yield Notes(
        (
            CollectorStarted(
                t_ns=begin_ns,
                incarnation="i",
                version="0.1.0",
                boot_id="boot",
                wall_ns=WALL_NS,
                wall_error_ns=0,
                observe=False,
            ),
        )
    )
    for session in range(sessions):
        yield Notes(
            (
                DeviceFound(
                    t_ns=begin_ns,
                    gpu=gpu(session),
                    index=session,
                    name="Tesla V100",
                    driver="simulated",
                    counts_energy=True,
                    min_limit_mw=100_000,
                    max_limit_mw=250_000,
                    default_limit_mw=250_000,
                    found_limit_mw=250_000,
                    mig=False,
                ),
            )
        )
        started = RunStarted(
            t_ns=begin_ns,
            job="job",
            run=f"{prefix}run{session}",
            rank=0,
            world_size=1,
            gpus=(gpu(session),),
            pid=session + 1,
            boot_id="boot",
            wall_ns=WALL_NS,
            wall_error_ns=0,
        )
        yield Events(f"s{session}", 0, 0, session + 1, (started,))
        yield Notes(
            (
                RunAdmitted(
                    t_ns=begin_ns,
                    session=f"s{session}",
                    run="r",
                    gpus=(gpu(session),),
                    may_command=False,
                    reason="x",
                ),
            )
        )


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


def measure(sessions: int, rate: int, seconds: float, *, behind: bool) -> None:
    encoded = [(t_ns, codec.encode(body)) for t_ns, body in frames(sessions, rate, seconds)]
    interpreter, rows, gaps = Interpreter(RunSettings(selector=None)), 0, 0
    began = time.process_time()
    for offset, (t_ns, data) in enumerate(encoded):
        body = codec.decode(data, Readings, Events, Notes)
        frame = Frame(log_id="log", offset=offset, host="host", t_ns=t_ns, topic="t", body=b"")
        for row in interpreter.handle(Logged(frame, body, hurried=behind), t_ns).rows:
            rows += isinstance(row, WindowRow)
            gaps += isinstance(row, GapRow)
    took_s = time.process_time() - began
    steps = sessions * rate * seconds
    print(
        f"{sessions:5d} sessions x {rate} steps/s: {took_s / steps * 1e6:6.1f} us a step,"
        f" {100 * took_s / seconds:5.0f} % of a core ({rows} rows, {gaps} gaps)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sessions")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--behind", action="store_true")
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    for sessions in arguments.sessions:
        measure(sessions, arguments.rate, arguments.seconds, behind=arguments.behind)


if __name__ == "__main__":
    main()
