"""One table of all that may befall a host: what was tried, what was lost, and what was wrong.

    python -m benchmarks.faults.exercises [--only worlds,kills,...] [--seed 0]

worlds     the whole pipeline in one thread, ``--worlds`` seeds from ``--first-world`` on
           (``soak_worlds.py``); ``--stored``: all archive into DuckDB
kills      ``--kills`` SIGKILLs of collector, analyzer and trainings in turn, ``--between-s`` apart on average
           (``kills.py``), beside ``--load`` busy processes and the steps of ``--sessions`` more runs
           (``--rate`` a second each), into a log of ``--log-mb``
messages   ``--messages`` that nobody should send, to every socket of live processes (``hostile.py``)
flood      connections without a byte for ``--flood-s``, to collectors that may open ``--files`` files
attack     all attackers of a host together for ``--attack-minutes`` (``under_attack.py``)
cuts       log and archive as they lie at a loss of power, cut at ``--cuts`` random places
room       writes of log and archive that fail in the middle, and then work again
pauses     SIGSTOP of each process for ``--pause-s``, then SIGCONT
disks      a disk that becomes read-only or fails under log or archive (``disk_faults.py``; root)

Exit code 1 if anything was lost, stored twice, set above the limit found, left in force, restored too late,
crashed, or ended without a sentence.
"""

import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import duckdb

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.process.store_client import StoreClient
from analyzers.archive.repair import set_aside
from benchmarks.faults import hostile, kills, under_attack
from benchmarks.faults.disk_faults import disks
from benchmarks.faults.soak_worlds import simulations
from benchmarks.harness import Found, directory, judged, options, sentences
from collectors.log.sqlite import SqliteLog
from tests.analyzers.archives import fill
from tests.directories import EAGER
from tests.processes.pipeline import pipeline
from tests.waiting import until
from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.settings import Settings

FRAMES = 300
FRAME_BYTES = 400
SETTINGS = Settings(memory_mb=128)
FIRST_S = 3.0
"""Of a pipeline, before anything is done to it."""


# ---- loss of power ----------------------------------------------------------------------------------------


def cuts(trials: int, rng: random.Random) -> Found:
    """Cut a log, and a fourth as often an archive, at random places."""
    log, archive, wrong = Counter[str](), Counter[str](), list[str]()
    with tempfile.TemporaryDirectory() as made:
        whole = Path(made)
        _log_at_a_loss_of_power(whole / "log")
        _archive_at_a_loss_of_power(whole / "archive")
        for _ in range(trials):
            log.update([_cut(whole / "log", rng, _reopened_log, wrong)])
        for _ in range((trials + 3) // 4):
            archive.update([_cut(whole / "archive", rng, _reopened_archive, wrong)])
    return [("log", _words(log)), ("archive", _words(archive))], wrong


def _words(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))


def _log_at_a_loss_of_power(folder: Path) -> None:
    """Leave the files of a log as they lie while it is open."""
    with tempfile.TemporaryDirectory() as made:
        log = SqliteLog(Path(made) / "log.sqlite", "host", "boot")
        for number in range(FRAMES):
            log.append([("readings/host", random.Random(number).randbytes(FRAME_BYTES))], number)
        shutil.copytree(made, folder)
        log.close()


def _archive_at_a_loss_of_power(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as made:
        archive = DuckdbFile.open(Path(made) / "energy.duckdb", SETTINGS)
        fill(archive)
        shutil.copytree(made, folder)
        archive.close()


def _cut(whole: Path, rng: random.Random, reopen: Callable[[Path], str], wrong: list[str]) -> str:
    """Cut one file of a copy and open it again. Return in a word what became of it."""
    with tempfile.TemporaryDirectory() as made:
        copy = Path(made) / "copy"
        shutil.copytree(whole, copy)
        files = sorted(file for file in copy.iterdir() if file.stat().st_size)
        file = rng.choice(files)
        size = rng.randrange(file.stat().st_size)
        os.truncate(file, size)
        try:
            return reopen(copy)
        except Exception as failed:  # noqa: BLE001  (any other end is what is looked for)
            wrong.append(f"{file.name} cut to {size} bytes: {failed!r}.")
            return "failed"


def _reopened_log(folder: Path) -> str:
    log = SqliteLog(folder / "log.sqlite", "host", "boot")
    try:
        if log.started_over is not None:
            return "began again and gave a reason"
        frames = log.fetch(0, FRAMES + 1, 1 << 30)
        if [frame.offset for frame in frames] != list(range(FRAMES)):
            raise AssertionError(f"it goes on with {len(frames)} of {FRAMES} frames and says nothing")
        return "whole"
    finally:
        log.close()


def _reopened_archive(folder: Path) -> str:
    path = folder / "energy.duckdb"
    try:
        DuckdbFile.open(path, SETTINGS).close()
    except StorageError as refused:
        if "\n" in str(refused).strip():
            raise AssertionError(f"more than a sentence: {refused}") from refused
    else:
        return "opened"
    try:
        set_aside(path, SETTINGS, "damaged")
    except (RefusedError, StorageError) as refused:
        raise AssertionError(f"it cannot be set aside: {refused}") from refused
    DuckdbFile.open(path, SETTINGS).close()
    return "named and set aside"


# ---- no room ----------------------------------------------------------------------------------------------


@contextmanager
def no_room(pid: int, most_bytes: int) -> Iterator[None]:
    """Let writes of a process fail (EFBIG) where a file would be longer than this."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def room(rng: random.Random) -> Found:
    """Have writes of log and archive fail in the middle, and let them work again."""
    wrong = list[str]()
    with tempfile.TemporaryDirectory() as made:
        refused = _log_without_room(Path(made), rng, wrong)
    with tempfile.TemporaryDirectory() as made:
        stored = _archive_without_room(Path(made), wrong)
    figure = f"{refused} appends refused, then all {FRAMES} frames stored"
    return [("log", figure), ("archive", stored)], wrong


def _log_without_room(folder: Path, rng: random.Random, wrong: list[str]) -> int:
    path, refused, number = folder / "log.sqlite", 0, 0
    log = SqliteLog(path, "host", "boot")
    try:
        while number < FRAMES:
            largest = max(file.stat().st_size for file in folder.iterdir())
            with no_room(0, largest + rng.randrange(20_000)):
                try:
                    for _ in range(50):
                        log.append([("readings/host", rng.randbytes(FRAME_BYTES))], number)
                        number += 1
                except StorageError:
                    refused += 1
            log.append([("readings/host", rng.randbytes(FRAME_BYTES))], number)
            number += 1
        offsets = [frame.offset for frame in log.fetch(0, 2 * FRAMES, 1 << 30)]
        if offsets != list(range(number)):
            wrong.append(f"log: {len(offsets)} of {number} frames are there after writes that failed.")
    finally:
        log.close()
    return refused


def _archive_without_room(folder: Path, wrong: list[str]) -> str:
    path = folder / "energy.duckdb"
    store = StoreClient.open(path, SETTINGS)
    sentence = ""
    try:
        with no_room(store.pid, 20_000):
            fill(store)
    except StorageError as refused:
        sentence = str(refused)
    finally:
        store.close()
    if not sentence or "\n" in sentence.strip():
        wrong.append(f"archive: a commit without room gave {sentence!r}.")
    again = StoreClient.open(path, SETTINGS)
    try:
        fill(again)
    finally:
        again.close()
    whole = folder / "whole.duckdb"
    reference = DuckdbFile.open(whole, SETTINGS)
    fill(reference)
    reference.close()
    stored, expected = (_readings(each) for each in (path, whole))
    if stored != expected:
        wrong.append(f"archive: {stored} readings after a commit that failed, {expected} without.")
    return f"the commit was refused with a sentence, then {stored} of {expected} readings stored"


def _readings(path: Path) -> int:
    with duckdb.connect(path, read_only=True) as archive:
        [(count,)] = archive.execute("SELECT count(*) FROM readings").fetchall()
    return int(count)


# ---- processes --------------------------------------------------------------------------------------------


def pauses(where: Path, pause_s: float, between_s: float = FIRST_S) -> Found:
    """Stop each process of a setup for a while, one after the other."""
    with pipeline(where, 1, EAGER) as setup:
        time.sleep(between_s)
        stopped = []
        for name in ("collector", "analyzer", "store", "publisher 0"):
            pid = _store_of(setup.pid("analyzer")) if name == "store" else setup.pid(name)
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(pause_s)
            finally:
                os.kill(pid, signal.SIGCONT)
            stopped.append(name)
            time.sleep(between_s)
        account = setup.finish()
    wrong = sentences(
        (f"{account.lost} items were lost after pauses.", account.lost),
        (f"{account.twice} items are stored twice after pauses.", account.twice),
        (f"{account.unmeasured} steps have no measurement after pauses.", account.unmeasured),
    )
    named = f"; gaps: {'; '.join(account.gaps)}" if account.gaps else ""
    figure = f"{account.archived} events archived, {account.lost} lost, {account.twice} twice{named}"
    return [(f"{', '.join(stopped)} for {pause_s:g} s each", figure)], wrong


def _store_of(analyzer: int) -> int:
    """Return the process that has the archive open, once there is one: a thread may have started another."""

    def children() -> list[str]:
        tasks = Path(f"/proc/{analyzer}/task").iterdir()
        try:
            return [child for task in tasks for child in (task / "children").read_text().split()]
        except FileNotFoundError:  # a thread has ended since
            return []

    return int(until(children)[0])


# ---- all -------------------------------------------------------------------------------------------------


def within_directory(exercise: Callable[[Path], Found]) -> Found:
    with directory() as where:
        return exercise(where)


def main() -> int:
    given = options(
        __doc__,
        only="", seed=0, worlds=1000, first_world=0, processes=2, stored=False,
        kills=60, load=0, sessions=0, rate=200, between_s=1.5, log_mb=Settings().log_mb,
        messages=100_000, flood_s=60.0, files=[1_024, 4_096, 65_536], attack_minutes=1.0,
        cuts=100, pause_s=120.0,
    )  # fmt: skip
    rng = random.Random(given.seed)
    worlds = range(given.first_world, given.first_world + given.worlds)
    exercises: Mapping[str, Callable[[], Found]] = {
        "worlds": partial(simulations, worlds, given.processes, stored=given.stored),
        "kills": partial(within_directory, lambda where: kills.kills(where, given)),
        "messages": partial(hostile.messages, given.messages, rng),
        "flood": partial(hostile.floods, given.files, given.flood_s),
        "attack": partial(under_attack.under_attack, given.attack_minutes),
        "cuts": partial(cuts, given.cuts, rng),
        "room": partial(room, rng),
        "pauses": partial(within_directory, lambda where: pauses(where, given.pause_s)),
        "disks": partial(disks, rng),
    }
    wanted = [name for name in exercises if not given.only or name in given.only.split(",")]
    found = {name: exercises[name]() for name in wanted}
    rows = [(name, what, figure) for name, (figures, _) in found.items() for what, figure in figures]
    wrong = [f"{name}: {sentence}" for name, (_, its) in found.items() for sentence in its]
    return judged(f"Exercises, load {os.getloadavg()[0]:.1f}", ("exercise", "what", "figure"), rows, wrong)


if __name__ == "__main__":
    sys.exit(main())
