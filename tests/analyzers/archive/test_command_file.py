"""Rows that commands wait for beside the archive: there after a kill, in it with the next start."""

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

from analyzers.archive.process import command_file
from analyzers.archive.process.command_file import CommandFile
from analyzers.archive.process.store_client import StoreClient
from analyzers.results.limit_rows import AtLimit
from analyzers.results.rows import RecallRow
from tests.analyzers.archives import COMMAND, RUN, ask, opened
from tests.empty_archive import archive_at
from zeus_stream.errors import StorageError
from zeus_stream.settings import Settings

ROW = replace(COMMAND, command="run-1/session-1/1", gpu="GPU-0", asked_ns=1)
OTHER = replace(ROW, command="run-1/session-1/2", asked_ns=2)
RECALL = RecallRow(
    session=RUN.session, run=RUN.run, round=0, limits=(AtLimit(200.0, 10, 1.5, 300.0, "run-0", 1),)
)
KILLED = """
import os, signal, sys
from pathlib import Path
from analyzers.archive.process.command_file import CommandFile
from analyzers.results.rows import CommandRow
row = CommandRow(**eval(sys.argv[3]))
assert CommandFile(Path(sys.argv[1]), sys.argv[2]).add([row])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_rows_of_a_killed_analyzer_are_in_the_archive_after_the_next_start(tmp_path: Path) -> None:
    path = archive_at(tmp_path / "energy.duckdb")
    store = StoreClient.open(path, Settings())
    archive_id = store.archive_id
    store.put([], [ROW])
    store.close()
    for row in (ROW, OTHER):
        script = [sys.executable, "-c", KILLED, str(path), archive_id, repr(asdict(row))]
        assert subprocess.run(script, check=False).returncode == -9
    StoreClient.open(path, Settings()).close()
    with opened(path) as archive:
        stored = ask(archive, "SELECT command FROM commands ORDER BY asked_ns")
    assert stored == [(ROW.command,), (OTHER.command,)]
    assert not command_file.beside(path).exists(), "they are in the archive"


def test_a_run_whose_frames_were_not_stored_keeps_to_what_it_began_with(tmp_path: Path) -> None:
    """Its frames come again from the collector's log, after the next start or the one after that."""
    path = archive_at(tmp_path / "energy.duckdb")
    store = StoreClient.open(path, Settings())
    began = replace(RUN, start=store.starts)
    store.close()
    CommandFile(path, store.archive_id).add([began, RECALL, ROW])
    for _ in range(2):
        store = StoreClient.open(path, Settings())
        memory = store.memory()
        assert [(each.session, each.start) for each in memory.begun] == [(RUN.session, began.start)]
        assert list(memory.recalled.values()) == [RECALL]
        store.close()


def test_what_was_cut_and_what_is_of_another_archive_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "energy.duckdb"
    for archive_id in ("another", "this", "this"):
        CommandFile(path, archive_id).add([ROW])
    beside = command_file.beside(path)
    beside.write_bytes(beside.read_bytes()[:-20])
    assert CommandFile(path, "this").read() == [ROW]
    assert caplog.text.count("a line is left out") == 2
    content = bytearray(beside.read_bytes())
    content[content.index(b"\n") + 30] ^= 1
    beside.write_bytes(content)
    assert CommandFile(path, "this").read() == []


def test_what_is_in_the_archive_is_forgotten_while_later_rows_stay(tmp_path: Path) -> None:
    """A start stored it again, and a command lost the outcome that its row in the archive had by then."""
    file = CommandFile(tmp_path / "energy.duckdb", "this")
    assert file.add([ROW])
    stored = file.end
    assert file.add([OTHER])
    file.clear(stored)
    assert CommandFile(tmp_path / "energy.duckdb", "this").read() == [OTHER]
    file.clear(file.end)
    assert file.read() == []


def test_a_file_that_is_full_takes_no_more_until_all_is_stored(tmp_path: Path) -> None:
    file = CommandFile(tmp_path / "energy.duckdb", "this")
    long = replace(ROW, reason="x" * command_file.MAX_BYTES)
    assert not file.add([long])
    assert file.add([ROW])
    assert file.read() == [ROW]
    file.clear(file.end)
    assert (file.read(), file.add([OTHER]), file.read()) == ([], True, [OTHER])
    file.close()
    assert CommandFile(tmp_path / "energy.duckdb", "this").read() == [OTHER]


def test_a_line_that_had_no_room_is_taken_back(tmp_path: Path) -> None:
    file = CommandFile(tmp_path / "energy.duckdb", "this")
    assert file.add([ROW])
    held = command_file.beside(tmp_path / "energy.duckdb").stat().st_size
    script = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({held + 10}, {held + 10}))\n"
        "from pathlib import Path\n"
        "from analyzers.archive.process.command_file import CommandFile\n"
        "from analyzers.results.rows import CommandRow\n"
        "assert not CommandFile(Path(sys.argv[1]), 'this').add([CommandRow(**eval(sys.argv[2]))])\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "energy.duckdb"), repr(asdict(OTHER))]
    subprocess.run(command, check=True)
    assert CommandFile(tmp_path / "energy.duckdb", "this").add([OTHER])
    assert CommandFile(tmp_path / "energy.duckdb", "this").read() == [ROW, OTHER]


def test_a_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"energy\.duckdb\.commands: could not be opened: No such file"):
        CommandFile(tmp_path / "gone" / "energy.duckdb", "this")
