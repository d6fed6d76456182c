"""A damaged archive: one sentence, and what is lost is named as it is moved aside."""

import os
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from analyzers.archive.process.store_client import StoreClient
from analyzers.archive.repair import read_whole, set_aside
from tests.analyzers.archives import HOST, LOG, fill, opened
from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.settings import Settings

SETTINGS = Settings(memory_mb=128)
WRITTEN_AND_KILLED = """
import os, sys
from contextlib import closing
from pathlib import Path
from analyzers.archive.duckdb_file import DuckdbFile
from tests.analyzers.archives import fill
from zeus_stream.settings import Settings
DuckdbFile.open(Path(sys.argv[1]), Settings()).close()
archive = DuckdbFile.open(Path(sys.argv[1]), Settings())
fill(archive)
os._exit(0)
"""


@pytest.fixture
def stored(path: Path) -> Path:
    """An archive with a checkpoint."""
    with opened(path, SETTINGS) as archive:
        fill(archive)
    return path


@pytest.fixture
def killed(path: Path) -> Path:
    """An archive of which all but the schema is in its WAL."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", WRITTEN_AND_KILLED, path], check=True, env=environ)
    return path


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.sweep
def test_a_flipped_bit_in_the_wal_is_one_sentence_and_the_wal_can_be_moved_aside(killed: Path) -> None:
    wal = Path(f"{killed}.wal")
    flip(wal, wal.stat().st_size // 2)
    with pytest.raises(StorageError, match=r"it is damaged, .*\. `zeus-stream set-aside` moves") as refused:
        StoreClient.open(killed, SETTINGS)
    assert "\n" not in str(refused.value)
    done = set_aside(killed, SETTINGS, "damaged")
    assert done.moved == (Path(f"{wal}.damaged"),)
    assert "since the last checkpoint is lost" in done.lost
    store = StoreClient.open(killed, SETTINGS)
    fill(store)  # the collector's log still has it
    assert store.position(HOST)[0] == LOG
    store.close()


def test_an_archive_whose_wal_was_cut_anywhere_opens_or_says_why_not_and_goes_on(
    killed: Path, tmp_path: Path
) -> None:
    wal, sentences = Path(f"{killed}.wal").read_bytes(), list[str]()
    for number in range(3):
        copy = tmp_path / f"{number}.duckdb"
        copy.write_bytes(killed.read_bytes())
        Path(f"{copy}.wal").write_bytes(wal[: Random(number).randrange(len(wal))])
        try:
            read_whole(copy, SETTINGS)
        except StorageError as refused:
            sentences.append(str(refused))
            set_aside(copy, SETTINGS, "damaged")
        with opened(copy, SETTINGS) as archive:
            fill(archive)  # the collector's log still has it
            assert archive.position(HOST)[0] == LOG
    assert not any("\n" in sentence for sentence in sentences)


@pytest.mark.parametrize("seed", range(3))
def test_a_flipped_bit_in_the_file_is_one_sentence(stored: Path, seed: int) -> None:
    flip(stored, Random(seed).randrange(stored.stat().st_size))
    _damaged_or_whole(stored)


@pytest.mark.parametrize("size", [0, 4096, 900_000])
def test_a_file_that_was_cut_is_one_sentence(stored: Path, size: int) -> None:
    os.truncate(stored, size)
    _damaged_or_whole(stored)


def _damaged_or_whole(path: Path) -> None:
    """A bit that nothing reads does no harm; all others are a sentence when they are read."""
    sentence = None
    try:
        read_whole(path, SETTINGS)
    except StorageError as wrong:
        sentence = str(wrong)
    if sentence is not None:
        assert sentence.startswith(f"{path}: could not be ")
        assert "\n" not in sentence
        size = path.stat().st_size
        done = set_aside(path, SETTINGS, "damaged")
        assert done.moved == (Path(f"{path}.damaged"),)
        assert f"All of the archive is lost, {size} bytes" in done.lost
        assert done.moved[0].stat().st_size == size


def test_a_whole_archive_is_not_moved(stored: Path) -> None:
    with pytest.raises(RefusedError, match="all of it can be read"):
        set_aside(stored, SETTINGS, "damaged")
    assert stored.exists()


@pytest.mark.sweep
def test_archive_and_wal_are_for_their_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "energy.duckdb"
    with closing(StoreClient.open(path, SETTINGS)) as store:
        fill(store)
        for file in tmp_path.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file
