"""Cost of an event to the analyzer by the number of sessions on a host.

    python -m benchmarks.load.sessions [--sessions 1 10 50] [--rate 200] [--seconds 14] [--behind]

Each session has a GPU of its own (counter of 20 ms, readings in a frame every 50 ms) and publishes ``rate``
steps a second in batches of 20 ms. Steps are measured once the kind of the counter is known, after 10 s.
Printed: processor time of each part of the way of a step, from the bytes of its frame to the end of its
commit, all in this process. ``--behind``: as while frames wait, when no energy is fitted.
"""

import pickle
import platform
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.process.store_channel import packed, unpacked
from analyzers.archive.store import Received
from analyzers.interpreter.interpreter import Interpreter, Logged
from analyzers.live.live_site import LiveSite
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.readings import READING
from analyzers.results.result import in_order
from analyzers.results.rows import Derived, GapRow, WindowRow, each_row
from benchmarks.harness import options
from tests.messages import COLLECTOR_STARTED, DEVICE_FOUND, RUN_ADMITTED, RUN_STARTED
from zeus_stream.protocol import codec
from zeus_stream.protocol.events import StepBoundary
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import DeviceFound, Notes
from zeus_stream.protocol.readings import Readings, Seen
from zeus_stream.service_packages import collect_seldom
from zeus_stream.settings import Settings

MS, S = 1_000_000, 1_000_000_000
START_NS = 1_000 * S
BATCH_NS, FLUSH_NS, REFRESH_NS = 20 * MS, 50 * MS, 20 * MS
WALL_NS = 1_700_000_000 * S
POWER_W = 200
SLICE_NS, SLICES = 250 * MS, 20
"""Of the stream that are interpreted at once; so many are a commit."""


def gpu(session: int) -> str:
    return f"GPU-{session:08d}"


def found_gpu(t_ns: int, number: int) -> DeviceFound:
    """Return the note of a simulated V100."""
    return replace(DEVICE_FOUND, t_ns=t_ns, gpu=gpu(number), index=number)


def begin(sessions: int, begin_ns: int = START_NS, prefix: str = "") -> Iterator[Body]:
    """Return what comes before the first step. ``prefix``: of the names of runs."""
    yield Notes((replace(COLLECTOR_STARTED, t_ns=begin_ns, incarnation="i", wall_ns=WALL_NS),))
    for number in range(sessions):
        session, run, gpus = f"s{number}", f"{prefix}run{number}", (gpu(number),)
        yield Notes((found_gpu(begin_ns, number),))
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


class Parts:
    """The processor time of the parts of the way."""

    def __init__(self) -> None:
        self.spent_s: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the processor time of the block to a part."""
        began_s = time.process_time()
        yield
        self.spent_s[name] = self.spent_s.get(name, 0.0) + time.process_time() - began_s


def measure(where: Path, sessions: int, rate: int, seconds: float, *, behind: bool) -> None:
    logged = [(t_ns, codec.encode(body)) for t_ns, body in frames(sessions, rate, seconds)]
    interpreter, live, parts = Interpreter(RunSettings(selector=None)), LiveSite(), Parts()
    archive = DuckdbFile.open(where / f"{sessions}.duckdb", Settings())
    offset, counts = 0, Counter[type]()
    waiting, rows = list[Received](), list[Derived]()
    for slot, group in groupby(logged, key=lambda each: each[0] // SLICE_NS):
        received = []
        for t_ns, data in group:
            received.append(
                Frame(log_id="log", offset=offset, host="host", t_ns=t_ns, topic="events/host", body=data)
            )
            offset += 1
        with parts.part("decode"):
            decoded = [(frame, codec.decode(frame.body, Readings, Events, Notes)) for frame in received]
        with parts.part("interpret"):
            given = in_order(
                interpreter.handle(Logged(frame, body, hurried=behind), frame.t_ns) for frame, body in decoded
            )
        with parts.part("live state"):
            live.take(decoded, given.rows, received[-1].t_ns, live=True)
        waiting.append(decoded)
        rows += given.rows
        counts.update(map(type, each_row(given.rows)))
        if slot % SLICES == 0 or offset == len(logged):
            with parts.part("to the store"):
                sent = pickle.loads(pickle.dumps((list(map(packed, waiting)), rows), 5))  # noqa: S301
            with parts.part("store"):
                archive.put(list(map(unpacked, sent[0])), sent[1])
            waiting, rows = [], []
    archive.close()
    steps = sessions * rate * seconds
    shares = {name: 1e6 * spent_s / steps for name, spent_s in parts.spent_s.items()}
    print(
        f"{sessions:5d} sessions x {rate} steps/s: {sum(shares.values()):6.1f} us a step,"
        f" {sum(shares.values()) * sessions * rate / 1e4:5.0f} % of a core"
        f" ({', '.join(f'{name} {us:.1f}' for name, us in shares.items())};"
        f" {counts[WindowRow]} rows, {counts[GapRow]} gaps)",
        flush=True,
    )


def main() -> None:
    arguments = options(__doc__, sessions=[1, 10, 50], rate=200, seconds=14.0, behind=False)
    collect_seldom()  # as the analyzer does
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as where:
        for sessions in arguments.sessions:
            measure(Path(where), sessions, arguments.rate, arguments.seconds, behind=arguments.behind)


if __name__ == "__main__":
    main()
