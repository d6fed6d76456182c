"""SQL from outside: what it may not do, how much it may, and that it sees one instant."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from msgspec.structs import replace

from analyzers.archive.process.store_client import StoreClient
from analyzers.archive.query import export, read_file
from analyzers.archive.sandbox import bounded_queries
from analyzers.archive.sandbox.bounded_queries import Queries
from analyzers.archive.sandbox.confined_query import PART_BYTES
from tests.analyzers.archives import HOST, A, B, fill, frame, opened, readings
from tests.empty_archive import archive_at
from zeus_stream.cli.options import ask_sql
from zeus_stream.cli.screens.archive_source import answering
from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.paths import places
from zeus_stream.protocol.codec import MAX_BYTES
from zeus_stream.protocol.queries import Query, QueryDone
from zeus_stream.settings import Settings

SETTINGS = Settings(memory_mb=256, query_rows=5_000_000, query_seconds=20)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreClient]:
    archive = StoreClient.open(archive_at(tmp_path_factory.mktemp("archive") / "energy.duckdb"), SETTINGS)
    fill(archive)
    yield archive
    archive.close()


@pytest.fixture(scope="module")
def queries(archive: StoreClient) -> Iterator[Queries]:
    queries = Queries(archive, SETTINGS)
    yield queries
    queries.stop()


def ask(
    queries: Queries, sql: str, *, max_rows: int = 1000, timeout_ms: int = 10_000
) -> tuple[QueryDone, pa.Table]:
    done, parts = queries.answer(Query(sql, max_rows, timeout_ms))
    assert all(len(part) < MAX_BYTES for part in parts)
    return done, pa.ipc.open_stream(b"".join(parts)).read_all()


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("INSERT INTO runs BY NAME SELECT 'x' AS run", "INSERT is not allowed"),
        ("COMMIT", "TRANSACTION is not allowed"),
        ("SELECT 1; DROP TABLE runs", "it has several statements"),
        ("-- nothing", "there is no statement"),
        ("SELEC 1", "syntax error"),
        ("FROM absent", "absent does not exist"),
        ("EXPLAIN ANALYZE DELETE FROM runs", "EXPLAIN of DELETE is not allowed"),
        ("FROM read_text('/etc/passwd')", "read_text is not allowed here"),
        ("FROM '/etc/passwd.csv'", "files are not allowed here"),
        ("SELECT $1", "[Pp]arameter"),
    ],
)
def test_a_refusal_says_why(queries: Queries, sql: str, why: str) -> None:
    with pytest.raises(RefusedError, match=rf"^query: could not be answered: (?s:.)*{why}"):
        queries.answer(Query(sql, 10, 5000))


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param(
            "SELECT count(*) FROM range(1_000_000) a, range(1_000_000) b", id="before the first row"
        ),
        pytest.param(
            "SELECT a.range FROM range(1_000_000) a, range(1_000_000) b WHERE a.range + b.range = -1",
            id="none comes",
        ),
        pytest.param(
            "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT max(i) FROM r",
            id="recursion",
        ),
    ],
)
def test_a_query_that_would_run_for_ever_is_ended(queries: Queries, sql: str) -> None:
    began = time.monotonic()
    # on a busy host it may reach the limit of its memory before its time is looked at
    with pytest.raises(RefusedError, match=r"it took over 0\.2 s|more than memory_mb = 256"):
        ask(queries, sql, timeout_ms=200)
    assert time.monotonic() - began < 30
    assert ask(queries, "SELECT 1 AS one")[0].rows == 1


def test_the_analyzer_can_stop_while_a_query_runs(archive: StoreClient) -> None:
    queries = Queries(archive, SETTINGS)
    with ThreadPoolExecutor(1) as pool:
        endless = pool.submit(ask, queries, "SELECT count(*) FROM range(1_000_000) a, range(1_000_000) b")
        while not queries._under_way:
            assert not endless.done()
        queries.stop()
        with pytest.raises(RefusedError, match="the analyzer is stopping"):
            endless.result(timeout=60)
    with pytest.raises(RefusedError, match="the analyzer is stopping"):
        ask(queries, "SELECT count(*) FROM range(1_000_000) a, range(1_000_000) b")


@pytest.mark.parametrize(
    ("max_rows", "rows", "truncated"), [(1, 1, True), (29_999, 29_999, True), (30_000, 30_000, False)]
)
def test_an_answer_ends_at_the_rows_that_were_asked_for(
    queries: Queries, max_rows: int, rows: int, *, truncated: bool
) -> None:
    done, table = ask(queries, "SELECT range AS i FROM range(30_000) ORDER BY i", max_rows=max_rows)
    assert (done.rows, done.truncated) == (rows, truncated)
    assert table["i"].to_pylist() == list(range(rows))


def test_a_large_answer_comes_in_parts_that_any_socket_takes(queries: Queries) -> None:
    done, parts = queries.answer(Query("SELECT range AS i FROM range(2_000_000)", 5_000_000, 10_000))
    assert len(parts) > 2
    assert max(map(len, parts)) < MAX_BYTES
    assert pa.ipc.open_stream(b"".join(parts)).read_all().num_rows == done.rows == 2_000_000


def test_a_huge_answer_is_refused_with_the_cure(queries: Queries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_queries, "MAX_ANSWER_BYTES", 1024 * 1024)
    with pytest.raises(RefusedError, match=r"over 1 MiB\. Add a LIMIT, .*zeus-stream export"):
        ask(queries, "SELECT range AS i FROM range(1_000_000)", max_rows=1_000_000)
    assert ask(queries, "SELECT 1 AS one")[0].rows == 1


@pytest.mark.sweep
def test_each_query_sees_whole_commits_while_others_are_written(
    archive: StoreClient, queries: Queries
) -> None:
    """Every commit is a frame of 20 readings and the log's next offset: never one without the other."""
    stop = threading.Event()

    def write() -> int:
        offset = first = archive.position(HOST)[1] or 0
        while not stop.is_set():
            archive.put([[frame(offset, readings(offset % 100))]])
            offset += 1
        return offset - first

    sql = (
        "SELECT (SELECT count(*) FROM readings) AS readings,"
        ' (SELECT max("offset") + 1 FROM readings) AS reached,'
        " (SELECT next_offset FROM logs) AS next, (SELECT count(*) FROM readings) AS again"
    )
    seen = set()
    with ThreadPoolExecutor(3) as pool:
        written = pool.submit(write)
        try:
            for _ in range(12):
                answers = list(pool.map(lambda _: ask(queries, sql)[1].to_pylist()[0], range(2)))
                for answer in answers:
                    assert answer["readings"] == answer["again"]
                    assert answer["readings"] % 20 == 0
                    assert answer["reached"] == answer["next"]
                    seen.add(answer["next"])
        finally:
            stop.set()
        assert written.result(timeout=60) > 0
    assert len(seen) > 1, "the archive grew while it was asked"


# ---- when no analyzer runs --------------------------------------------------------------------------


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    path = tmp_path / "energy.duckdb"
    with opened(path, SETTINGS) as archive:
        fill(archive)
    return path


def test_the_file_answers_when_no_analyzer_runs(closed: Path) -> None:
    assert read_file(closed, "SELECT gpu FROM gpus ORDER BY gpu", SETTINGS)["gpu"].to_pylist() == [A, B]
    with pytest.raises(RefusedError, match="DELETE is not allowed"):
        read_file(closed, "DELETE FROM gpus", SETTINGS)
    with pytest.raises(RefusedError, match="more than 5 rows"):
        read_file(closed, "FROM steps", Settings(query_rows=5))
    with pytest.raises(StorageError, match="there is no such file"):
        read_file(closed.with_name("other"), "SELECT 1", SETTINGS)


def test_sql_and_reports_have_one_sentence_where_neither_an_analyzer_nor_an_archive_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report named an analyzer that did not answer, and SQL the file that is not there."""
    monkeypatch.setenv("ZEUS_STREAM_DIR", str(tmp_path))
    with pytest.raises(StorageError, match="there is no such file") as of_sql:
        ask_sql(SETTINGS, "SELECT 1")
    with (
        pytest.raises(StorageError) as of_report,
        answering(SETTINGS, places({"ZEUS_STREAM_DIR": str(tmp_path)})) as ask,
    ):
        ask("SELECT 1")
    assert str(of_report.value) == str(of_sql.value)


@pytest.mark.sweep
def test_an_export_has_every_table_and_every_row(closed: Path, tmp_path: Path) -> None:
    written = dict(export(closed, tmp_path / "out", "parquet", SETTINGS))
    assert sorted(written) == sorted((tmp_path / "out").iterdir())
    with duckdb.connect(closed, read_only=True) as reader:
        tables = reader.sql("SELECT table_name FROM information_schema.tables").fetchall()
        assert {(path.stem,) for path in written} == set(tables)
        for path, rows in written.items():
            stored = reader.sql(f"FROM {path.stem}").to_arrow_table()
            assert pa.parquet.read_table(path).cast(stored.schema).num_rows == rows == stored.num_rows


def test_an_export_as_csv_is_read_back(closed: Path, tmp_path: Path) -> None:
    with duckdb.connect(closed) as hostile:
        hostile.execute("UPDATE sessions SET job = '=HYPERLINK(1)'")
    for _ in range(2):  # what is there already is replaced
        written = dict(export(closed, tmp_path, "csv", SETTINGS))
    assert pa.csv.read_csv(tmp_path / "runs.csv")["gpus"].to_pylist() == [f"{A} {B}"]
    assert pa.csv.read_csv(tmp_path / "runs.csv")["job"].to_pylist() == ["'=HYPERLINK(1)"]
    assert pa.csv.read_csv(tmp_path / "readings.csv").num_rows == written[tmp_path / "readings.csv"] == 2400
    assert bytes.fromhex(pa.csv.read_csv(tmp_path / "frames.csv")["body"][0].as_py())


def test_an_export_to_where_nothing_can_be_written_says_so(closed: Path) -> None:
    with pytest.raises(
        StorageError, match=r"could not be written: .*\. Make room, or name another directory"
    ):
        list(export(closed, closed / "in a file", "parquet", SETTINGS))


@pytest.mark.parametrize("name", ["../escaped", "\x1b[2Jtable", "a b"])
def test_an_export_writes_no_file_that_a_hostile_name_chooses(
    closed: Path, tmp_path: Path, name: str
) -> None:
    with duckdb.connect(closed) as hostile:
        hostile.execute(f'CREATE TABLE "{name}" (a INTEGER)')
    with pytest.raises(StorageError, match="no file can have the name of its table") as refused:
        list(export(closed, tmp_path / "out" / "below", "csv", SETTINGS))
    assert str(refused.value).isprintable()
    assert not [file for file in (tmp_path / "out").rglob("*") if file.is_file()]


def test_a_view_of_a_hostile_archive_reads_no_other_file(closed: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("it is secret")
    with duckdb.connect(closed) as hostile:
        reads = f"SELECT content AS run FROM read_text('{secret}')"  # noqa: S608  (what is attacked)
        hostile.execute(f"CREATE OR REPLACE VIEW epochs AS {reads}")
    with pytest.raises(RefusedError, match="Cannot access file"):
        list(export(closed, tmp_path / "out", "csv", SETTINGS))
    with (
        pytest.raises(RefusedError, match="Cannot access file"),
        answering(replace(SETTINGS, archive=closed), places({"ZEUS_STREAM_DIR": str(tmp_path)})) as ask,
    ):
        ask("FROM epochs")
    assert not (tmp_path / "out" / "epochs.csv").exists()


def test_a_part_of_an_answer_fits_into_a_message() -> None:
    assert PART_BYTES <= MAX_BYTES // 2
