"""Positions up to which logs are interpreted, as commits store it with rows."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.results.rows import Derived, Row
from analyzers.service.commits import Commits
from tests.analyzers.archives import LOG, RUN, frames
from tests.empty_archive import archive_at
from zeus_stream.settings import Settings

pytestmark = pytest.mark.anyio
OTHER = "the log that came after it"


def unread(rows: Sequence[Derived], *, replayed: bool) -> None:
    """Take rows that nobody follows."""


async def test_frames_that_gave_no_rows_are_interpreted_with_the_next_rows_of_any_log(tmp_path: Path) -> None:
    """Else a replay leaves them out, and measures the steps after them without their readings."""
    archive = DuckdbFile.open(archive_at(tmp_path / "energy.duckdb"), Settings())
    commits, told = Commits(archive, unread), list(frames())[:3]
    commits.add_received(told)
    await commits.commit()
    await commits.add_derived([], {LOG: 3}, [])
    await commits.commit()
    assert archive.memory().interpreted.get(LOG, 0) == 0, "frames without rows alone need no transaction"
    rows: list[Row] = [RUN]
    await commits.add_derived(rows, {OTHER: 1}, [])
    await commits.commit()
    assert archive.memory().interpreted[LOG] == 3
    assert [frame.offset for frame, _ in archive.reader.stored_frames()] == [0, 1, 2]
    archive.close()
