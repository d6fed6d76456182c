"""A file shrinks after retention, and is whole at every moment."""

from pathlib import Path

import duckdb
import pytest

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.repair import compact
from tests.empty_archive import archive_at
from zeus_stream.errors import StorageError
from zeus_stream.settings import Settings

SETTINGS = Settings(memory_mb=256)
NOISE = """
INSERT INTO frames
SELECT 'log', range, 'alpha', range, 'topic', encode(uuid()::VARCHAR) FROM range(400000)
"""


@pytest.fixture
def pruned(tmp_path: Path) -> Path:
    """Return an archive that has lost most of its rows."""
    path = archive_at(tmp_path / "it's.duckdb")
    with duckdb.connect(path) as file:
        file.execute(NOISE)
        file.execute("INSERT INTO gaps BY NAME SELECT 'alpha' AS host, 'frames' AS what, 7 AS count")
    with duckdb.connect(path) as file:
        file.execute('DELETE FROM frames WHERE "offset" < 370000')
        file.execute("CHECKPOINT")
    return path


def content(path: Path) -> list[object]:
    with duckdb.connect(path, read_only=True) as file:
        return [
            *file.execute('SELECT "offset", body FROM frames ORDER BY rowid').fetchall(),
            *file.execute("FROM gaps").fetchall(),
            *file.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal ORDER BY ALL").fetchall(),
            *file.execute(
                "SELECT function_name, macro_definition FROM duckdb_functions() WHERE NOT internal"
                " ORDER BY ALL"
            ).fetchall(),
            *file.execute("FROM meta").fetchall(),
        ]


def test_a_file_that_is_half_free_is_rewritten_with_the_same_content_and_goes_on(pruned: Path) -> None:
    before = content(pruned)
    sizes = compact(pruned, SETTINGS)
    assert sizes is not None
    assert sizes[1] < sizes[0] / 2
    assert pruned.stat().st_size == sizes[1]
    assert content(pruned) == before
    assert compact(pruned, SETTINGS) is None, "nothing is free any more"
    assert [each.name for each in pruned.parent.iterdir()] == [pruned.name]
    file = DuckdbFile.open(pruned, SETTINGS)
    assert file.starts == 1
    file.close()


def test_a_file_that_somebody_writes_is_left_alone(pruned: Path) -> None:
    file = DuckdbFile.open(pruned, SETTINGS)
    try:
        with pytest.raises(StorageError, match=r"could not be compacted.*It is as it was"):
            compact(pruned, SETTINGS)
    finally:
        file.close()
    assert compact(pruned, SETTINGS) is not None


def test_a_copy_that_a_killed_compaction_left_is_in_nobodys_way(pruned: Path) -> None:
    before = content(pruned)
    pruned.with_name(f"{pruned.name}.compact").write_bytes(b"half a copy")
    assert compact(pruned, SETTINGS) is not None
    assert content(pruned) == before
