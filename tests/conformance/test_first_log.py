"""A log of the first version, 51a3483 (`tests/data/first_log.sql`): it is continued and measured."""

import sqlite3
import struct
from pathlib import Path

import pytest

from analyzers.archive.duckdb_file import Archive
from analyzers.archive.query import read_own
from analyzers.interpreter import Interpreter, Logged
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.result import in_order
from collectors.log.sqlite import Log
from zeus_stream.protocol import codec
from zeus_stream.protocol.frames import Events
from zeus_stream.protocol.notes import Notes
from zeus_stream.protocol.readings import Readings
from zeus_stream.settings import Settings

WRITTEN = Path(__file__).parents[1] / "data" / "first_log.sql"
FRAMES, STEPS, LEAST_J, MOST_J = 30, 8, 19.0, 21.0
STORED = """
SELECT (SELECT count(*) FROM readings) AS readings, (SELECT count(*) FROM frames) AS frames,
    (SELECT count(*) FROM events WHERE kind = 'step_boundary') AS boundaries,
    (SELECT count(*) FROM windows WHERE kind = 'step' AND energy_j BETWEEN $least AND $most) AS measured,
    (SELECT ended_how FROM runs) AS ended
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the log as the first version left it: the database, and the mark beside it."""
    path = tmp_path / "log.sqlite"
    database = sqlite3.connect(path)
    database.executescript(WRITTEN.read_text(encoding="utf-8"))
    [(log_id,)] = database.execute("SELECT value FROM meta WHERE key = 'log_id'").fetchall()
    database.close()
    Path(f"{path}-mark").write_bytes(struct.pack("<16sQ", log_id.encode(), FRAMES))
    return path


def test_a_log_of_the_first_version_is_continued_archived_and_measured(path: Path, tmp_path: Path) -> None:
    log = Log(path, "host", "boot")
    assert log.started_over is None
    [added] = log.append([("notes/host", codec.encode(Notes(())))], 1_010 * 10**9)
    assert added.offset == FRAMES
    frames = log.fetch(0, FRAMES + 1, 1 << 20)
    assert [memory.next_sequence for memory in log.sessions()] == [14]
    log.close()
    decoded = [(frame, codec.decode(frame.body, Readings, Events, Notes)) for frame in frames]
    interpreter = Interpreter(RunSettings(selector=None))
    rows = in_order(interpreter.handle(Logged(frame, body), frame.t_ns) for frame, body in decoded).rows
    archive = Archive.open(tmp_path / "energy.duckdb", Settings())
    archive.put([decoded], rows)
    with archive.reading() as reader:
        [stored] = read_own(
            reader, STORED.replace("$least", str(LEAST_J)).replace("$most", str(MOST_J))
        ).to_pylist()
    archive.close()
    assert stored == {
        "readings": 150,
        "frames": FRAMES + 1 - 15,
        "boundaries": STEPS + 1,
        "measured": STEPS - 1,  # no reading is from before the first
        "ended": "ended",
    }
