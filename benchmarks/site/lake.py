"""Measure an archiver of a lake: readings a second, bytes a reading.

    PYTHONPATH=. .venv-scale/bin/python -m benchmarks.site.lake [--hosts 64] [--seconds 120]

Hosts with 8 GPUs each send batches as their relays do. Processor time is that of the archiver, from the
bytes of a batch to the end of the commit. PostgreSQL has its own. Bytes a reading are those of the files as
the archiver writes them, and as `zeus-stream lake keep` merges them: the more readings of a GPU are in one
file, the fewer. Power, clocks and times of reads are random, which is the worst case for their encodings.
"""

import tempfile
import time

from msgspec.structs import replace

from analyzers.archive.opening import Connection
from analyzers.archive.rollups import rollup
from analyzers.lake import catalog, keeper
from analyzers.lake.archiver import BatchIntake
from analyzers.lake.lake_archive import LakeArchive, frames_of
from analyzers.leases.site_leases import SiteLeases
from benchmarks.harness import options, table
from benchmarks.load.retention import GPUS, Load
from tests.analyzers.archives import BOOTED_NS, SECOND, frame, frames
from tests.scale.servers import postgres
from zeus_stream.broker import batches
from zeus_stream.protocol import codec
from zeus_stream.protocol.frames import Body, Frame
from zeus_stream.protocol.readings import READING_BYTES, Readings
from zeus_stream.settings import Settings

GOAL_BYTES = 15
FRAME_S = 2
COMMIT_S = 20
SETTINGS = Settings(memory_mb=1024)


def of_host(host: str, each: Frame, body: Body) -> Frame:
    """Return a frame as the log of another host has it."""
    named = body
    if isinstance(body, Readings):
        named = Readings(tuple(f"{gpu[:-6]}{host[-6:]}" for gpu in body.gpus), body.rows)
    topic = f"{each.topic.split('/')[0]}/{host}"
    return replace(each, log_id=f"log-{host}", host=host, topic=topic, body=codec.encode(named))


def messages(loads: list[Load], begin_s: int, offset: int) -> tuple[list[tuple[str, bytes]], int]:
    """Return what the hosts' relays send in COMMIT_S, and the offset that comes next."""
    sent, log = [], list[tuple[Frame, Body]]()
    for number, load in enumerate(loads):
        host = f"host-{number:06}"
        log = [next(frames())] if not offset else []
        for second in range(begin_s, begin_s + COMMIT_S, FRAME_S):
            logged_ns = (second + FRAME_S) * SECOND
            log.append(frame(offset + len(log), load.readings(second), t_ns=logged_ns))
        mine = [of_host(host, each, body) for each, body in log]
        for at in range(0, len(mine), 2):
            pair = mine[at : at + 2]
            sent.append(
                (
                    batches.subject_of("site", host, batches.part_of(host)),
                    batches.encode(pair[0].offset, pair),
                )
            )
    return sent, offset + len(log)


def of_readings(connection: Connection) -> tuple[int, int]:
    """Return the number of files of readings, and their bytes."""
    [(number, size)] = connection.execute(
        "SELECT file_count, file_size_bytes FROM ducklake_table_info($1) WHERE table_name = 'readings'",
        [catalog.LAKE],
    ).fetchall()
    return number, size


def fill(dsn: str, hosts: int, seconds: int) -> tuple[float, int]:
    """Archive what hosts send. Return the archiver's processor time, s, and the bytes that were sent."""
    loads, offset, sequence = [Load(seed) for seed in range(hosts)], 0, 1
    took_s, sent_bytes = 0.0, 0
    leases = SiteLeases(dsn, "site", "benchmark")
    names = [frames_of(part) for part in range(batches.PARTS)]
    taken = leases.take(names, 3600.0)
    archive = LakeArchive(dsn, SETTINGS, leases)
    archive.hold(taken)
    intakes = [BatchIntake({}) for _ in names]
    for begin_s in range(0, seconds, COMMIT_S):
        sent, offset = messages(loads, begin_s, offset)
        began_s = time.process_time()
        for subject, data_of in sent:
            intakes[int(subject.split(".")[3])].take(data_of, subject, "site")
            sequence += 1
        received = [part for intake in intakes for part in intake.taken()]
        archive.put_stream(received, dict.fromkeys(names, sequence))
        took_s += time.process_time() - began_s
        sent_bytes += sum(len(each) for _, each in sent)
    archive.close()
    leases.close()
    return took_s, sent_bytes


def main() -> None:
    assert rollup.GRACE_NS < COMMIT_S * SECOND
    given = options(__doc__, hosts=64, seconds=120)
    with postgres() as server, tempfile.TemporaryDirectory() as data:
        dsn = server.make("lake")
        catalog.create(dsn, data, SETTINGS)
        took_s, sent_bytes = fill(dsn, given.hosts, given.seconds)
        connection = catalog.attach(dsn, SETTINGS, read_only=True)
        [(count,)] = connection.execute("SELECT count(*) FROM readings").fetchall()
        written = of_readings(connection)
        connection.close()
        began_s = time.process_time()
        keeper.keep(dsn, SETTINGS, holder="benchmark", wall_ns=BOOTED_NS + given.seconds * SECOND)
        merging_s = time.process_time() - began_s
        connection = catalog.attach(dsn, SETTINGS, read_only=True)
        merged = of_readings(connection)
        connection.close()
    assert count == given.hosts * len(GPUS) * 10 * given.seconds
    table(
        f"{count:,} readings of {given.hosts} hosts through an archiver",
        ["what", "figure", "goal"],
        [
            ["readings a CPU second", f"{count / took_s:,.0f}", "250,000"],
            ["bytes a reading at the collector", READING_BYTES, ""],
            ["in the stream", f"{sent_bytes / count:.1f}", ""],
            [f"in {written[0]} files of the lake", f"{written[1] / count:.1f}", ""],
            [f"after `lake keep`, in {merged[0]} files", f"{merged[1] / count:.1f}", GOAL_BYTES],
            ["readings that are merged a CPU second", f"{count / merging_s:,.0f}", ""],
        ],
    )


if __name__ == "__main__":
    main()
