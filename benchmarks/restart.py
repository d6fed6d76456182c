"""The time from the start of an analyzer until it has caught up, on an archive of 100 million readings.

python benchmarks/restart.py [--readings 100000000] [--runs 3] [--file PATH]

A run of 8 GPUs has lasted 30 days. SQL makes its readings, five a second and GPU or as many as asked for;
the start of the run and its last minutes are stored and interpreted as an analyzer does. A new process then
opens the archive, goes on from the checkpoint and interprets what came since: from there it decides as if it
had never ended. The time of a full replay is that of its first frames, times their number.

The shipped queries run on the same archive. ``--file`` keeps it; one that exists is used again.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from statistics import median

import duckdb

import analyzers.archive
from analyzers.archive.duckdb_file import Archive
from analyzers.archive.process.store_client import StoreClient
from analyzers.checkpoints.checkpoint_taker import CheckpointTaker, with_live
from analyzers.checkpoints.checkpoint_times import WORK_NS
from analyzers.checkpoints.restart import restart
from analyzers.earlier_runs import interpreter_of
from analyzers.interpreter import Interpreter, Logged
from analyzers.live.live_site import LiveSite
from analyzers.results.result import in_order, rows_only
from benchmarks.common import directory, table
from benchmarks.retention import GPUS, Load
from tests.analyzers.archives import BOOTED_NS, HOST, LOG, SECOND
from zeus_stream.clock import monotonic_ns
from zeus_stream.protocol import codec
from zeus_stream.protocol.events import RunStarted, StepBoundary
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import ClockAnchored, CollectorStarted, DeviceFound, Notes, RunAdmitted
from zeus_stream.settings import Settings

DAYS = 30
RUN_S = DAYS * 86_400
FRAME_S = 2
"""Of readings in one frame."""
BLOCK_FRAMES = 100_000
SETTINGS = Settings(select="energy")
REPLAYED = 2_000
"""Frames of a full replay that are timed."""
BULK = """
INSERT INTO readings
SELECT '{log}', first."offset", first.t_ns,
    'GPU-' || format('{{:08x}}', gpu) || '-0000-4000-8000-000000000000',
    t_ns + 1_000_000 - 500_000, t_ns + 1_000_000, (t_ns // 1_000_000) * 200 + hash(each) % 997,
    150_000 + hash(each, gpu) % 100_000, 300_000, 300_000, 1200 + hash(each) % 300, 60, 97, 'changed',
    '{host}', make_timestamp(({booted} + t_ns) // 1000)
FROM (
    SELECT range AS "offset", range * {frame_ns}::BIGINT AS t_ns FROM range({first}, {end})
) AS first, range({rate}) AS each(each), range({gpus}) AS gpu(gpu)
"""
ROLL_UPS = """
INSERT INTO {table}
SELECT 'GPU-' || format('{{:08x}}', gpu) || '-0000-4000-8000-000000000000', '{host}',
    make_timestamp(({booted} + number * {length}::BIGINT * 1_000_000_000) // 1000), 200.0 * {length} + gpu,
    {length}, 250.0, 300.0, 1300.0, 60.0, 97.0, {length} * 5
FROM range({first}, {end}) AS number(number), range({gpus}) AS gpu(gpu)
"""
EVENTS = """
INSERT INTO events
SELECT '{log}', number, '{host}', 'session', number, 'step_boundary', number * 1_000_000_000::BIGINT, NULL,
    number, NULL, NULL, 'dispatch', NULL
FROM range({run_s}) AS number(number)
"""
ANCHORS = """
INSERT INTO hosts
SELECT '{log}', number * 30, '{host}', NULL, number * 60_000_000_000::BIGINT,
    {booted} + number * 60_000_000_000::BIGINT, 500
FROM range(1, {minutes}) AS number(number)
"""


def frame(offset: int, t_ns: int, body: Body) -> tuple[Frame, Body]:
    """Return a frame of the host's log."""
    topic = f"{'readings' if hasattr(body, 'gpus') else 'events'}/{HOST}"
    return Frame(log_id=LOG, offset=offset, host=HOST, t_ns=t_ns, topic=topic, body=codec.encode(body)), body


def beginning() -> list[tuple[Frame, Body]]:
    """Return the frames of a collector that starts, and of a run on all its GPUs."""
    bodies: list[Body] = [
        Notes((CollectorStarted(
            t_ns=0, incarnation="i", version="0", boot_id="b", wall_ns=BOOTED_NS, wall_error_ns=0,
            observe=False,
        ),)),
        Notes(tuple(DeviceFound(
            t_ns=0, gpu=gpu, index=index, name="A100", driver="0", counts_energy=True, min_limit_mw=100_000,
            max_limit_mw=300_000, default_limit_mw=300_000, found_limit_mw=300_000, mig=False,
        ) for index, gpu in enumerate(GPUS))),
        Events("session", 0, 0, 1, (RunStarted(
            t_ns=1, job="job", run="run", rank=0, world_size=1, gpus=GPUS, pid=1, boot_id="b",
            wall_ns=BOOTED_NS + 1, wall_error_ns=0,
        ),)),
        Notes((RunAdmitted(
            t_ns=2, session="session", run="run", gpus=GPUS, may_command=True, reason="",
        ),)),
    ]  # fmt: skip
    return [frame(offset, offset, body) for offset, body in enumerate(bodies)]


def fill(path: Path, readings: int) -> None:
    """Store what came between the beginning of the run and its last minutes."""
    frames = RUN_S // FRAME_S
    rate = max(1, round(readings / frames / len(GPUS)))
    made = {"log": LOG, "host": HOST, "booted": BOOTED_NS, "gpus": len(GPUS)}
    with duckdb.connect(path, config={"storage_compatibility_version": "v1.5.0"}) as file:
        for first in range(4, frames, BLOCK_FRAMES):
            end = min(first + BLOCK_FRAMES, frames)
            file.execute(
                BULK.format(**made, first=first, end=end, rate=rate, frame_ns=FRAME_S * SECOND).replace(
                    "t_ns + 1_000_000", f"(t_ns + each * {FRAME_S * SECOND // rate} + 1_000_000)"
                )
            )
        for name, length, first_s in (
            ("seconds", 1, RUN_S - 14 * 86_400),
            ("minutes", 60, 0),
            ("hours", 3600, 0),
        ):
            ends = {"first": first_s // length, "end": RUN_S // length}
            file.execute(ROLL_UPS.format(**made, **ends, table=name, length=length))
        file.execute(EVENTS.format(**made, run_s=RUN_S))
        file.execute(ANCHORS.format(**made, minutes=RUN_S // 60))
        file.execute(
            "UPDATE logs SET next_offset = $1, interpreted_offset = $1, logged_ns = $2",
            [frames, RUN_S * SECOND],
        )


def interpret(
    archive: Archive, interpreter: Interpreter, taker: CheckpointTaker, frames: Sequence[tuple[Frame, Body]]
) -> None:
    """Store frames and what they give, as an analyzer does."""
    began_ns = monotonic_ns()
    result = in_order([interpreter.handle(Logged(*part), part[0].t_ns) for part in frames])
    result |= rows_only(taker.take(interpreter, frames, result.rows, monotonic_ns() - began_ns))
    archive.put([frames], with_live(result, LiveSite()).rows, {LOG: frames[-1][0].offset + 1})


def make(path: Path, readings: int) -> None:
    """Make the archive of an analyzer that was killed."""
    archive = Archive.open(path, SETTINGS)
    interpreter, taker = interpreter_of(archive, SETTINGS), CheckpointTaker(archive.starts, {}, whole=True)
    interpret(archive, interpreter, taker, beginning())
    archive.close()
    fill(path, readings)
    archive = Archive.open(path, SETTINGS, again=True)
    load, offset = Load(), RUN_S // FRAME_S
    spent_ns = 0
    for second in range(RUN_S, RUN_S + 7200, FRAME_S):
        t_ns = (second + FRAME_S) * SECOND
        bodies: list[Body] = [load.readings(second)]
        if second % 60 == 0:
            bodies.append(Notes((ClockAnchored(t_ns, BOOTED_NS + t_ns, 500),)))
        steps = range(second * 10, (second + FRAME_S) * 10)
        bodies.append(Events("session", steps[0], 0, 1, tuple(
            StepBoundary(each, None if each == RUN_S * 10 else each * SECOND // 10, each * SECOND // 10)
            for each in steps
        )))  # fmt: skip
        frames = [frame(offset + number, t_ns, body) for number, body in enumerate(bodies)]
        offset += len(frames)
        taker.times.wanted = second == RUN_S + 120
        began_ns = monotonic_ns()
        interpret(archive, interpreter, taker, frames)
        spent_ns += (monotonic_ns() - began_ns) if second > RUN_S + 120 else 0
        if spent_ns > 0.95 * WORK_NS:
            break  # as late as a kill can come before the next checkpoint
    archive.close()


def start(path: Path) -> None:
    """Be the process that starts: print how many frames it interpreted, and from where."""
    archive = StoreClient.open(path, SETTINGS)
    begin = restart(archive, SETTINGS)
    count = 0
    for part in chain.from_iterable(archive.to_replay(begin.since)):
        begin.interpreter.handle(Logged(*part), part[0].t_ns)
        count += 1
    print(count, begin.since is not None, len(begin.interpreter.open_sessions()), flush=True)
    archive.close()


def started(path: Path) -> tuple[float, float, int]:
    """Start a process. Return seconds until it had caught up, its processor time, and frames."""
    began_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(
        [sys.executable, __file__, "--start", str(path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        count, checkpoint, sessions = child.stdout.readline().split()
        took_s = time.monotonic() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (checkpoint, sessions) == ("True", "1"), (checkpoint, sessions)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took_s, cpu_s, int(count)


def full_replay_s(path: Path) -> float:
    """Return how long all frames would take, by the first of them."""
    archive = Archive.open(path, SETTINGS)
    interpreter = interpreter_of(archive, SETTINGS)
    began_s = time.monotonic()
    for part in islice(chain.from_iterable(archive.to_replay()), REPLAYED):
        interpreter.handle(Logged(*part), part[0].t_ns)
    took_s = time.monotonic() - began_s
    frames = sum(archive.interpreted().values())
    archive.close()
    return took_s / REPLAYED * frames


def queries(path: Path) -> list[tuple[str, str]]:
    """Return the shipped queries and how long each takes."""
    archive, timed = Archive.open_read_only(path, SETTINGS), []
    for file in sorted(Path(analyzers.archive.__file__).with_name("queries").glob("*.sql")):
        began_s = time.monotonic()
        with archive.reading() as reader:
            _, batches = reader.batches(file.read_text(encoding="utf-8"), 10_000)
            rows = sum(batch.num_rows for batch in batches)
        timed.append((f"query `{file.stem}`, {rows} rows", f"{time.monotonic() - began_s:.2f} s"))
    archive.close()
    return timed


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--readings", type=int, default=100_000_000)
    arguments.add_argument("--runs", type=int, default=3)
    arguments.add_argument("--file", type=Path)
    arguments.add_argument("--start", type=Path, help=argparse.SUPPRESS)
    asked = arguments.parse_args()
    if asked.start:
        start(asked.start)
        return
    with directory() as where:
        path = asked.file or where / "energy.duckdb"
        if not path.exists():
            make(path, asked.readings)
        size = path.stat().st_size
        times = [started(path) for _ in range(asked.runs)]
        whole_s = full_replay_s(path)
        rows: list[tuple[str, str]] = [
            ("archive", f"{size / 1e9:.2f} GB, about {asked.readings / 1e6:.0f} M readings"),
            ("start of the process until caught up, goal 5 s", f"{median(t for t, *_ in times):.2f} s"),
            ("least and most", f"{min(times)[0]:.2f} to {max(times)[0]:.2f} s, {len(times)} starts"),
            ("processor time of it, store and end included", f"{median(cpu for _, cpu, _ in times):.2f} s"),
            ("load of the machine, over a minute", f"{os.getloadavg()[0]:.1f}"),
            ("frames interpreted again", f"{times[0][2]}"),
            (f"full replay, from its first {REPLAYED} frames", f"{whole_s / 60:.0f} minutes"),
            *queries(path),
        ]
    table("A restart in a run of 30 days", ("what", "figure"), rows)


if __name__ == "__main__":
    main()
