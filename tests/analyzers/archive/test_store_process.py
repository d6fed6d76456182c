"""The process that owns the archive: killed at any time, and queries that take all they can."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.process import store_client, store_process
from analyzers.archive.process.child_process import start_store
from analyzers.archive.process.store_channel import Call
from analyzers.archive.process.store_client import StoreClient
from analyzers.archive.process.store_process import StoreProcess
from analyzers.archive.sandbox.bounded_queries import Queries
from analyzers.results.result import OWN
from tests.analyzers.archives import LOG, RUN, A, ask, fill, frame, frames, opened, readings, window
from tests.empty_archive import archive_at
from tests.waiting import until
from zeus_stream.cli.service_commands import analyze
from zeus_stream.errors import RefusedError, SettingsError, StorageError
from zeus_stream.protocol.queries import Query
from zeus_stream.settings import Settings

MEMORY_MB = 128
SETTINGS = Settings(memory_mb=MEMORY_MB, query_seconds=300)
MORE_MB = 256
"""That a query may take beyond its memory."""
LATER_S = 2.0
"""That a query may take beyond its time, without what a busy machine has its asker and the store wait."""
READER = """
import sys, duckdb
file = duckdb.connect(sys.argv[1], read_only=True)
print("open", flush=True)
sys.stdin.read()
"""
KILLED = """
import os, signal, sys
from pathlib import Path
from analyzers.archive.process.store_client import StoreClient
from tests.analyzers.archives import fill
from zeus_stream.settings import Settings
fill(StoreClient.open(Path(sys.argv[1]), Settings()))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreClient]:
    store = StoreClient.open(archive_at(tmp_path / "energy.duckdb"), SETTINGS)
    yield store
    store.close()


@pytest.fixture
def queries(store: StoreClient) -> Iterator[Queries]:
    fill(store)
    queries = Queries(store, SETTINGS)
    yield queries
    queries.stop()


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StoreClient, Queries]]:
    """A store for queries that are refused: each has a process of its own and leaves nothing."""
    store = StoreClient.open(archive_at(tmp_path_factory.mktemp("bounded") / "energy.duckdb"), SETTINGS)
    fill(store)
    queries = Queries(store, SETTINGS)
    yield store, queries
    queries.stop()
    store.close()


def answer(queries: Queries, sql: str, *, timeout_ms: int = 300_000) -> list[dict[str, object]]:
    _, parts = queries.answer(Query(sql, 1000, timeout_ms))
    rows: list[dict[str, object]] = pa.ipc.open_stream(b"".join(parts)).read_all().to_pylist()
    return rows


def waited_s(*pids: int) -> float:
    """Return how long the threads of processes have waited for a processor, s."""
    waited_ns = 0
    for task in (task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()):
        try:
            _, waiting, _ = (task / "schedstat").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        waited_ns += int(waiting)
    return waited_ns / 1e9


class Sampler(threading.Thread):
    """The most memory that a child of a process had beyond what it shares with it, MB."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid = pid
        self._stop_it = threading.Event()
        self.children = set[str]()
        self.most_mb = 0.0

    def run(self) -> None:
        while not self._stop_it.wait(0.002):
            for child in Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split():
                try:
                    lines = Path(f"/proc/{child}/smaps_rollup").read_text().splitlines()
                except OSError:
                    continue  # it has ended
                self.children.add(child)
                figures = {line.split()[0]: int(line.split()[1]) for line in lines[1:]}
                own_kb = figures["Private_Clean:"] + figures["Private_Dirty:"]
                self.most_mb = max(self.most_mb, own_kb / 1024)

    def stop(self) -> None:
        self._stop_it.set()
        self.join()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT length(repeat('a', 2_000_000_000)) AS n",
        "SELECT len(range(400_000_000)) AS n",
        "SELECT length(string_agg(range::VARCHAR, 'xxxxxxxxxxxxxxxxxxxx')) AS n FROM range(200_000_000)",
        "SELECT len(list(range)) AS n FROM range(500_000_000)",
        "SELECT len(list_transform(range(20_000_000), lambda x: repeat('a', 100))) AS n",
        "SELECT max(length(repeat('a', 1_000_000) || i::VARCHAR)) FROM generate_series(1_000_000_000) t(i)",
        "SELECT count(*) AS n FROM range(10_000_000_000) a(i) WHERE i % 7 = sqrt(i)",
        "SELECT DISTINCT a.range * b.range AS n FROM range(100_000) a, range(100_000) b ORDER BY n",
        "SELECT json_array_length(repeat('[', 1_000_000_000)) AS n",
        "SELECT regexp_replace(repeat('a', 300_000_000), '(a*)*b', 'x') AS n",
        "WITH RECURSIVE r(i) AS (SELECT 'a' UNION ALL SELECT i || i FROM r) SELECT max(length(i)) FROM r",
        "SELECT " + "(" * 90_000,
        "WITH a AS (" * 10,
    ],
)
def test_no_query_takes_more_than_its_memory_and_time(bounded: tuple[StoreClient, Queries], sql: str) -> None:
    store, queries = bounded
    sampler = Sampler(store.pid)
    sampler.start()
    began, waited = time.monotonic(), waited_s(os.getpid(), store.pid)
    with pytest.raises(RefusedError, match=r"^query: could not be (answered|finished)") as refused:
        answer(queries, sql, timeout_ms=1_000)
    waited = waited_s(os.getpid(), store.pid) - waited
    took_s = time.monotonic() - began
    sampler.stop()
    assert took_s - waited < 1 + LATER_S
    assert sampler.children or took_s < 1, f"{refused.value} (after {took_s:.1f} s)"
    assert sampler.most_mb < MEMORY_MB + MORE_MB


def test_others_are_answered_while_a_query_takes_all_it_can(queries: Queries) -> None:
    endless = "SELECT count(*) AS n FROM range(10_000_000) a, range(10_000_000) b"
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(queries.answer, Query(endless, 10, 300_000), key="endless")
        for _ in range(5):
            assert answer(queries, "SELECT count(*) AS n FROM runs") == [{"n": 1}]
            assert not answered.done()
        queries.cancel("endless")
        with pytest.raises(RefusedError, match="it was cancelled"):
            answered.result()


@pytest.mark.sweep
def test_a_sort_that_does_not_fit_into_memory_is_done_on_disk(queries: Queries) -> None:
    sql = (
        "SELECT max(n) AS n FROM (SELECT row_number() OVER (ORDER BY hash(range)) AS n FROM range(8_000_000))"
    )
    assert answer(queries, sql) == [{"n": 8_000_000}]


def test_a_query_that_was_cancelled_ends_and_leaves_nothing(
    store: StoreClient, queries: Queries, tmp_path: Path
) -> None:
    endless = "SELECT count(*) AS n FROM range(10_000_000) a, range(10_000_000) b"
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(queries.answer, Query(endless, 10, 20_000), key="mine")
        children = Path(f"/proc/{store.pid}/task/{store.pid}/children")
        while not children.read_text().split():
            assert not answered.done()
        queries.cancel("another's")
        queries.cancel("mine")
        with pytest.raises(RefusedError, match="it was cancelled"):
            answered.result(timeout=30)
    until(lambda: not children.read_text().split())
    until(lambda: not list(tmp_path.glob("*.tmp/*")))


def test_a_store_that_was_started_before_its_analyzer_was_imported_opens_the_archive(tmp_path: Path) -> None:
    started = start_store()
    store = StoreClient.open(archive_at(tmp_path / "energy.duckdb"), SETTINGS, started)
    assert store.pid == started.process.pid
    assert store.starts == 1
    store.close()
    assert started.process.returncode == 0


def test_what_a_run_wasted_is_stored_after_the_commit_of_its_end_if_there_is_memory_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An analyzer with 64 MB ended when a run of 500,000 steps did."""
    monkeypatch.setattr(store_process, "KEEP_S", 0.0)
    archive = DuckdbFile.open(archive_at(tmp_path / "energy.duckdb"), Settings())
    store = StoreProcess(archive)

    def answers() -> list[int]:
        views = "SELECT count(*) FROM ended_waste", "SELECT count(*) FROM waste WHERE run = 'run-1'"
        return [count for view in views for (count,) in ask(archive, view)]

    # A row that comes again changes what is stored.
    for energy_j, memory_mb, stored in ((600.0, 4, 0), (500.0, MEMORY_MB, 1), (400.0, MEMORY_MB, 1)):
        rows = [RUN, replace(window("run", 0, 10, 50, A), energy_j=energy_j)]
        assert store.call(Call("put", ([], rows, {}, False))) == (True, None)
        assert answers() == [0, 1], "until then it is computed"
        archive.file.connection.execute(f"SET memory_limit = '{memory_mb}MiB'")
        store.tidy()
        archive.file.connection.execute(f"SET memory_limit = '{MEMORY_MB}MiB'")
        assert answers() == [stored, 1]
    assert "Raise memory_mb of the analyzer. Each query computes the waste of run run-1." in caplog.text
    archive.close()


def test_a_store_that_was_started_for_nothing_ends_with_its_channel() -> None:
    started = start_store()
    started.channel.close()
    assert started.process.wait(timeout=60) == 0


@pytest.mark.parametrize("option", ["--select", "--policy"])
def test_an_analyzer_with_a_wrong_option_starts_no_store(option: str) -> None:
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = children.read_text()
    refused = CliRunner().invoke(analyze, [option, "nonsense"])
    assert isinstance(refused.exception, SettingsError)
    assert children.read_text() == before


@pytest.mark.sweep
def test_a_store_that_is_killed_is_replaced_and_nothing_is_lost_or_stored_twice(
    store: StoreClient, tmp_path: Path
) -> None:
    stored = list(frames())
    rows = [window("step", number, 11, 12, A) for number in range(len(stored))]
    for number, part in enumerate(stored):
        if number in (3, 33):
            os.kill(store.pid, signal.SIGKILL)
        if number in (17, 47):
            threading.Timer(0.001, os.kill, (store.pid, signal.SIGKILL)).start()
        store.put([[part]], [rows[number], *([RUN] if number == 0 else [])], {LOG: number + 1})
    assert store.replaced >= 4
    assert store.position("alpha") == (LOG, len(stored))
    assert store.starts == 1
    store.close()
    counts = "(SELECT count(*) FROM windows), (SELECT count(*) FROM events), (SELECT count(*) FROM readings)"
    with opened(tmp_path / "energy.duckdb") as archive:
        found = ask(archive, f"SELECT {counts}, interpreted_offset FROM logs")  # noqa: S608  (ours)
    assert found == [(len(stored), 42, 2400, len(stored))]


def test_an_archive_that_a_command_reads_is_opened_as_soon_as_it_ends(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An analyzer ended at once when `zeus-stream jobs` had begun to read before it had come up."""
    path, said = archive_at(tmp_path / "energy.duckdb"), ""
    command = [sys.executable, "-c", READER, str(path)]
    with (
        ThreadPoolExecutor(1) as pool,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader,
    ):
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"open\n"
        opened = pool.submit(StoreClient.open, path, SETTINGS)
        while f"process {reader.pid} holds it" not in said:
            assert not opened.done()
            said += capfd.readouterr().err
        reader.communicate()
        opened.result().close()


def test_a_store_whose_analyzer_was_killed_ends_at_once_and_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    """It wrote the log of the file into the file, and the next analyzer found the file held."""
    path = archive_at(tmp_path / "energy.duckdb")
    before = path.read_bytes()
    # The store has the same stderr: at its end, both have ended.
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], stderr=subprocess.PIPE, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert path.read_bytes() == before
    store = StoreClient.open(path, SETTINGS)
    assert store.position("alpha")[1]
    store.close()


def test_what_is_interpreted_again_goes_on_with_another_store(store: StoreClient) -> None:
    fill(store)
    whole = [frame.offset for page in store.replay() for frame, _ in page]
    offsets = []
    for page in store.replay():
        offsets += [frame.offset for frame, _ in page]
        if store.replaced == 0:
            os.kill(store.pid, signal.SIGKILL)
    assert offsets == whole


@pytest.mark.sweep
def test_a_store_that_keeps_ending_is_given_up_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_client, "RESTARTS", 2)
    store = StoreClient.open(archive_at(tmp_path / "energy.duckdb"), SETTINGS)
    os.kill(store.pid, signal.SIGKILL)
    store.position(OWN)
    os.kill(store.pid, signal.SIGKILL)
    with pytest.raises(StorageError, match=r"could not be used: .* SIGKILL\. Look for"):
        store.position(OWN)


def test_a_query_after_its_store_was_killed_is_answered_by_the_next(
    store: StoreClient, queries: Queries
) -> None:
    """It was lost with the store, and its refusal spoke of memory."""
    os.kill(store.pid, signal.SIGKILL)
    os.waitid(os.P_PID, store.pid, os.WEXITED | os.WNOWAIT)
    assert answer(queries, "SELECT 1 AS one") == [{"one": 1}]
    assert store.replaced == 1


def test_a_query_under_way_when_its_store_is_killed_is_refused(store: StoreClient, queries: Queries) -> None:
    endless = "SELECT count(*) AS n FROM range(10_000_000) a, range(10_000_000) b"
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answer, queries, endless)
        while not Path(f"/proc/{store.pid}/task/{store.pid}/children").read_text().split():
            assert not answered.done()
        os.kill(store.pid, signal.SIGKILL)
        with pytest.raises(RefusedError, match="could not be"):
            answered.result(timeout=30)
    assert answer(queries, "SELECT count(*) AS n FROM runs") == [{"n": 1}]
    store.put([[frame(store.position("alpha")[1] or 0, readings(121))]])
