"""Instructions of pipelines by minute: each counts once, however its frames are stored."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from tests.analyzers.archive.rollups.test_retention import KEPT, at
from tests.analyzers.archives import BOOTED_NS, LOG, SECOND, ask, frame, opened
from tests.messages import RUN_STARTED
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import ClockAnchored, Notes
from zeus_stream.protocol.pipelines import IterationRan, PipelineBegan, encode_instruction, pack_rows

ITERATIONS = 100
PASSES = (("forward", 0, 0.2), ("forward", 1, 0.4), ("backward", 0, 0.6), ("backward", 1, 0.5))
"""Kind, micro-batch and seconds; an iteration begins every 2 s."""


def events(session: str, *found: Any, sequence: int) -> Events:
    return Events(session=session, sequence=sequence, uid=0, pid=1, events=tuple(found))


def log() -> list[tuple[Frame, Body]]:
    """Return a log of two stages of a pipeline, an iteration of both a frame."""
    bodies: list[Body] = [Notes((ClockAnchored(0, BOOTED_NS, 9),))]
    for stage in (0, 1):
        started = replace(
            RUN_STARTED, t_ns=1, job="j", run="r", rank=stage, world_size=2, gpus=("index:all",)
        )
        began = PipelineBegan(t_ns=2, stage=stage, stages=2, micro_batches=2, schedule="1f1b")
        bodies.append(events(f"s{stage}", started, began, sequence=0))
    for iteration in range(ITERATIONS):
        for stage in (0, 1):
            spans, t_ns = [], 2 * SECOND * iteration
            for kind, micro_batch, length_s in PASSES:
                end_ns = t_ns + round(length_s * (1 + stage) / 2 * SECOND)
                spans.append((encode_instruction(kind, micro_batch), t_ns, end_ns))
                t_ns = end_ns
            ran = IterationRan(
                t_ns=spans[0][1], ended_ns=t_ns, iteration=iteration, rows=pack_rows(spans[0][1], spans)
            )
            bodies.append(events(f"s{stage}", ran, sequence=iteration + 2))
    bodies.append(Notes((ClockAnchored(300 * SECOND, BOOTED_NS + 300 * SECOND, 9),)))
    return [frame(offset, body) for offset, body in enumerate(bodies)]


def by_minute(archive: DuckdbFile) -> list[tuple[Any, ...]]:
    return ask(
        archive,
        "SELECT stage, kind, date_diff('minute', min(began_at) OVER (), began_at), instructions,"
        " round(busy_s, 4), round(mean_s, 4), shortest_s, longest_s, ranks, run"
        " FROM instructions_by_minute ORDER BY ALL",
    )


@pytest.mark.parametrize("batch", [1000, 31])
def test_every_instruction_counts_once_by_stage_kind_and_minute(path: Path, batch: int) -> None:
    stored = log()
    for begin in range(0, len(stored), batch):
        with opened(path) as archive:
            part = stored[begin : begin + batch]
            archive.put([part])
            archive.put([part])  # stored already
            found = by_minute(archive)
    assert sum(row[3] for row in found) == 800
    first = [row for row in found if row[:2] == (0, "forward")]
    assert [row[2] for row in first] == [0, 1, 2, 3], "200 s"
    assert first[0][3:] == (60, 9.0, 0.15, 0.1, 0.2, 1, "r")
    assert next(row for row in found if row[:3] == (1, "backward", 0))[4:8] == (33.0, 0.55, 0.5, 0.6)


def test_a_commit_that_fails_counts_nothing(archive: DuckdbFile) -> None:
    stored = log()
    archive.put([stored[:20]])
    before = by_minute(archive)
    with pytest.raises(Exception, match="NotARow"):
        archive.put([stored[20:]], [], {LOG: "NotARow"})  # type: ignore[dict-item]
    assert by_minute(archive) == before
    archive.put([stored[20:]])
    assert sum(row[3] for row in by_minute(archive)) == 800


def test_minutes_of_instructions_go_with_the_other_minutes(archive: DuckdbFile) -> None:
    stored = log()
    archive.put([stored], (), {LOG: len(stored)})
    archive.prune(KEPT, at(399))
    assert by_minute(archive), "what says their stage is kept as well"
    removed = archive.prune(KEPT, at(402))
    assert removed["instruction_minutes"] == 16
    assert by_minute(archive) == []
    assert ask(archive, "SELECT count(*) FROM events WHERE kind = 'pipeline_began'") == [(2,)]
