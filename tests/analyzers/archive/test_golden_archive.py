"""An archive of version 0.1.0 (schema 1, a training of 220 steps) is read whole by each later version.

The file does not change. `zeus-stream run` made it, with the packages of commit d54078b0.
"""

import lzma
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from analyzers.archive import schema
from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.seals import verifier
from analyzers.service.replay import replay
from tests.analyzers.archives import ask
from zeus_stream.settings import Settings

GOLDEN = Path(__file__).parents[2] / "data" / "archive_0.1.0.duckdb.xz"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A copy of the archive, as an analyzer of now leaves it."""
    path = tmp_path / "energy.duckdb"
    path.write_bytes(lzma.decompress(GOLDEN.read_bytes()))
    DuckdbFile.open(path, Settings()).close()
    return path


@pytest.fixture
def archive(path: Path) -> Iterator[DuckdbFile]:
    opened = DuckdbFile.open_read_only(path, Settings())
    yield opened
    opened.close()


def test_it_is_migrated_with_every_figure(archive: DuckdbFile) -> None:
    assert ask(archive, "SELECT schema_version FROM meta") == [(schema.newest(),)]
    figures = "SELECT kind, count(*), round(sum(energy_j), 3) FROM windows GROUP BY kind ORDER BY kind"
    assert ask(archive, figures) == [
        ("epoch", 2, 934.251),
        ("run", 1, 934.619),
        ("step", 220, 893.953),
        ("window", 2, 40.205),
    ]
    assert ask(archive, "SELECT run, round, power_limit_w FROM decisions") == [("golden", 1, 175.0)]
    counts = (
        "SELECT (SELECT count(*) FROM readings), (SELECT count(*) FROM events), (SELECT count(*) FROM trials)"
    )
    assert ask(archive, counts) == [(500, 234, 4)]


def test_every_view_of_now_can_be_asked(archive: DuckdbFile) -> None:
    views = ask(archive, "SELECT view_name FROM duckdb_views() WHERE NOT internal")
    assert len(views) > 20
    for (view,) in views:
        ask(archive, f"FROM {view}")


def test_no_seal_of_it_is_broken_by_the_migration(archive: DuckdbFile) -> None:
    with archive.file.cursor() as cursor:
        checked = verifier.check(cursor)
    assert checked.wrong == ()
    assert checked.seal is not None
    assert checked.rows == checked.entries - 1  # one row was replaced


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE sessions SET pod = 'mine'",  # a column that the migration has added
        "UPDATE sessions SET start = NULL",  # the last column of then
        "UPDATE windows SET energy_j = energy_j - 1 WHERE kind = 'run'",
    ],
)
def test_a_change_after_the_migration_breaks_the_seal(path: Path, change: str) -> None:
    with duckdb.connect(path) as connection:
        connection.execute(change)
        assert len(verifier.check(connection).wrong) == 1


def test_its_messages_are_decoded_and_give_the_limit_that_was_chosen(path: Path) -> None:
    done = replay(path, Settings(), {}, None)
    assert done.frames == 416
    assert [each.power_limit_w for each in done.decisions] == [175.0]
