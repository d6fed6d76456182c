"""Chained and sealed rows: a change of one without the key is found, and the first row is named."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.seals.verifier import Checked, check, fingerprint, seal_of
from tests.analyzers import archives
from tests.empty_archive import archive_at
from zeus_stream.settings import Settings

DAY_NS = 86_400_000_000_000


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sealed") / "energy.duckdb"
    archive = DuckdbFile.open(archive_at(path), Settings())
    archives.fill(archive)
    archive.close()
    return path


@pytest.fixture
def archive(sealed: Path, tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    for file in sealed.parent.iterdir():
        shutil.copy(file, tmp_path / file.name)
    with duckdb.connect(tmp_path / sealed.name) as connection:
        yield connection


def test_an_archive_that_nobody_changed_is_whole(archive: duckdb.DuckDBPyConnection, sealed: Path) -> None:
    checked = check(archive)
    assert checked.wrong == ()
    assert checked.rows == checked.entries > 50
    assert checked.seal is not None
    assert checked.seal.holds
    assert seal_of(f"text {checked.seal.word} text") == checked.seal
    kinds = {kind for (kind,) in archive.execute('SELECT DISTINCT "table" FROM chain').fetchall()}
    assert kinds >= {"settings", "sessions", "windows", "decisions"}
    assert (sealed.with_name("seal.key").stat().st_mode & 0o777) == 0o600
    assert check(archive, fingerprint(checked.seal.public)).wrong == ()
    assert "not signed by this key" in check(archive, "0" * 16).wrong[0]


def first_wrong(archive: duckdb.DuckDBPyConnection, *statements: str) -> str:
    for statement in statements:
        archive.execute(statement)
    return check(archive).wrong[0]


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("UPDATE windows SET energy_j = energy_j - 1 WHERE kind = 'run'", "changed since entry"),
        ("UPDATE decisions SET power_limit_w = 1", "decisions"),
        ("UPDATE settings SET value = 'x' WHERE name = 'select'", 'settings [1,"select"]: changed'),
        ("DELETE FROM windows WHERE kind = 'epoch' AND index = 1", "removed since entry"),
        ("INSERT INTO gaps VALUES ('h', 'events', 1, 1, 'x', NULL, NULL)", "added behind the chain"),
        ("UPDATE chain SET row = repeat('0', 64) WHERE number = 9", "chain: entry 9, "),
        ("DELETE FROM chain WHERE number = 7", "chain: entry 7, "),
        ("DELETE FROM chain WHERE number >= (SELECT max(number) FROM seals)", "is missing, and sealed"),
        ("UPDATE seals SET sealed_ns = sealed_ns + 1", "was not signed by its key"),
        ("UPDATE seals SET public_key = repeat('00', 32)", "was not signed by its key"),
        ("UPDATE seals SET signature = 'no'", "was not signed by its key"),
    ],
)  # fmt: skip
def test_the_first_row_that_was_changed_is_named(
    archive: duckdb.DuckDBPyConnection, statement: str, says: str
) -> None:
    assert says in first_wrong(archive, statement)


def test_a_chain_that_is_written_again_without_the_key_is_not_what_its_seal_says(
    archive: duckdb.DuckDBPyConnection,
) -> None:
    from analyzers.archive.seals.sealed_rows import entry_hash

    archive.execute("UPDATE chain SET row = repeat('0', 64) WHERE number = 9")
    last = ""
    for number, table, key, row in archive.execute(
        'SELECT number, "table", key, row FROM chain ORDER BY number'
    ).fetchall():
        last = entry_hash(last, table, key, row)
        archive.execute("UPDATE chain SET hash = $1 WHERE number = $2", [last, number])
    assert "is not what its seal says" in check(archive).wrong[0]


def test_a_row_that_was_changed_with_an_entry_behind_the_last_seal_is_named(
    archive: duckdb.DuckDBPyConnection,
) -> None:
    """Entries can be made without the key, as long as no seal has to cover them."""
    from analyzers.archive.seals.sealed_rows import TABLES, entry_hash, hash_row, key_of

    archive.execute("UPDATE windows SET energy_j = 1 WHERE kind = 'run'")
    table = TABLES["windows"]
    row, *_ = archive.execute(f"{table.select} WHERE kind = 'run'").fetchall()
    [(number, last)] = archive.execute("SELECT max(number), max_by(hash, number) FROM chain").fetchall()
    hashed = entry_hash(last, "windows", key_of(table, row), hash_row(row))
    archive.execute(
        "INSERT INTO chain VALUES (?, ?, ?, ?, ?)",
        [number + 1, "windows", key_of(table, row), hash_row(row), hashed],
    )
    assert f"changed by entry {number + 1}, which no seal covers" in check(archive).wrong[0]


@pytest.fixture
def reopened(sealed: Path, tmp_path: Path) -> Iterator[Callable[[], DuckdbFile]]:
    for file in sealed.parent.iterdir():
        shutil.copy(file, tmp_path / file.name)
    opened: list[DuckdbFile] = []

    def again() -> DuckdbFile:
        for each in opened:
            each.close()
        opened[:] = [DuckdbFile.open(tmp_path / sealed.name, Settings())]
        return opened[0]

    yield again
    for each in opened:
        each.close()


def checked_in(archive: DuckdbFile) -> Checked:
    with archive.file.cursor() as cursor:
        return check(cursor)


def test_a_row_that_is_stored_again_has_an_entry_only_if_it_changed(
    reopened: Callable[[], DuckdbFile],
) -> None:
    archive = reopened()
    archive.put([], [archives.RUN], {})
    before = checked_in(archive)
    assert before.wrong == ()
    archive.put([], [archives.RUN], {})
    assert checked_in(archive).entries == before.entries
    archive.put([], [replace(archives.RUN, job="another")], {})
    after = checked_in(archive)
    assert (after.entries, after.rows, after.wrong) == (before.entries + 1, before.rows, ())


def test_retention_leaves_the_chain_whole(reopened: Callable[[], DuckdbFile]) -> None:
    archive = reopened()
    removed = archive.prune(
        Settings(),
        4_000_000_000_000_000_000,
    )
    assert removed["windows"] > 0
    assert checked_in(archive).wrong == ()


def test_without_a_key_rows_are_stored_and_are_not_sealed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "seal.key").write_bytes(b"short")
    (tmp_path / "seal.key").chmod(0o600)
    archive = DuckdbFile.open(archive_at(tmp_path / "energy.duckdb"), Settings())
    archives.fill(archive)
    checked = checked_in(archive)
    archive.close()
    assert (checked.seal, checked.wrong) == (None, ())
    assert "could not be used: it is no key" in caplog.text


@pytest.mark.sweep
def test_the_command_checks_an_archive_and_a_statement_of_it(sealed: Path, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from zeus_stream.cli.main import main

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, arguments)
        return done.exit_code, done.output

    path = tmp_path / sealed.name
    shutil.copy(sealed, path)
    code, said = run("verify", str(path))
    assert code == 0, said
    assert "It does not prove" in said
    code, text = run("statement", archives.RUN.job, "--archive", str(path))
    assert code == 0, text
    statement = tmp_path / "energy.md"
    statement.write_text(text)
    assert run("verify", str(statement), "--archive", str(path))[0] == 0
    statement.write_text(text.replace("zeus-seal:", "zeus-seal:0")[:-3])
    assert "has no seal" in run("verify", str(statement))[1]
    seal = seal_of(text)
    assert seal is not None
    statement.write_text(text.replace(seal.signature, "0" * 128))
    code, said = run("verify", str(statement))
    assert (code, "not signed by its key" in said) == (1, True)
    with duckdb.connect(path) as connection:
        connection.execute("UPDATE windows SET energy_j = 1 WHERE kind = 'run'")
    code, said = run("verify", str(path))
    assert code == 1
    assert "verify: windows" in said
