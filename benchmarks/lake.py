"""Measure an archiver of a lake: readings a second, bytes a reading, time of a query.

.venv-scale/bin/python benchmarks/lake.py

64 hosts with 8 GPUs each send batches as their relays do. Processor time is that of the archiver, from the
bytes of a batch to the end of the commit. PostgreSQL has its own.
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from analyzers.archive.rollups import rollup
from analyzers.lake import catalog
from analyzers.lake.batch_intake import BatchIntake
from analyzers.lake.lake_archive import LakeArchive
from benchmarks.common import table
from benchmarks.retention import GPUS, Load
from tests.analyzers.archives import SECOND, frame, frames
from tests.scale.servers import postgres
from zeus_stream.broker import batches
from zeus_stream.protocol import codec
from zeus_stream.protocol.frames import Body, Frame
from zeus_stream.protocol.readings import READING_BYTES, Readings
from zeus_stream.settings import Settings

HOSTS = 64
SECONDS = 120
FRAME_S = 2
COMMIT_S = 20
SETTINGS = Settings(memory_mb=1024)
QUESTIONS = {
    "readings": "SELECT count(*) FROM readings",
    "energy of each host by minute, from minutes": (
        "SELECT host, began_at, sum(energy_j) FROM minutes GROUP BY ALL ORDER BY ALL"
    ),
    "mean power of each GPU, from seconds": (
        "SELECT gpu, sum(energy_j) / sum(covered_s) FROM seconds GROUP BY gpu"
    ),
    "mean power of each GPU, from readings": "SELECT gpu, avg(power_w) FROM samples GROUP BY gpu",
}


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
            sent.append((batches.subject_of("site", host), batches.encode(pair[0].offset, pair)))
    return sent, offset + len(log)


def main() -> None:
    assert rollup.GRACE_NS < COMMIT_S * SECOND
    loads, offset, sequence = [Load(seed) for seed in range(HOSTS)], 0, 1
    took_s, sent_bytes = 0.0, 0
    with postgres() as server, tempfile.TemporaryDirectory() as data:
        dsn = server.make("lake")
        catalog.create(dsn, data, SETTINGS)
        archive = LakeArchive.take(dsn, SETTINGS, part="frames-0", holder="benchmark")
        assert archive is not None
        intake = BatchIntake({})
        for begin_s in range(0, SECONDS, COMMIT_S):
            sent, offset = messages(loads, begin_s, offset)
            began_s = time.process_time()
            for subject, data_of in sent:
                intake.take(data_of, subject, "site")
                sequence += 1
            archive.put_stream(intake.taken(), sequence)
            took_s += time.process_time() - began_s
            sent_bytes += sum(len(each) for _, each in sent)
        archive.close()
        files = list(Path(data).rglob("readings/**/*.parquet"))
        stored_bytes = sum(file.stat().st_size for file in files)
        connection = catalog.attach(dsn, SETTINGS, read_only=True)
        [(count,)] = connection.execute("SELECT count(*) FROM readings").fetchall()
        asked = []
        for question, sql in QUESTIONS.items():
            began_s = time.process_time()
            connection.execute(sql).fetchall()
            asked.append([question, f"{time.process_time() - began_s:.2f} s"])
        connection.close()
    assert count == HOSTS * len(GPUS) * 10 * SECONDS
    table(
        f"{count:,} readings of {HOSTS} hosts through an archiver",
        ["readings a CPU second", "bytes a reading in the stream", "in the lake", "raw"],
        [
            [
                f"{count / took_s:,.0f}",
                f"{sent_bytes / count:.1f}",
                f"{stored_bytes / count:.1f} ({len(files)} files)",
                READING_BYTES,
            ]
        ],
    )
    table(f"Questions on {count:,} readings, with two threads", ["question", "CPU time"], asked)


if __name__ == "__main__":
    main()
