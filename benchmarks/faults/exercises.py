"""Print one table of kills, cuts, full disks, pauses and clocks: what was tried and what was lost.

    python -m benchmarks.faults.exercises [--only cuts,room] [--kills 300] [--cuts 100] [--pause-s 120]
                                   [--load 0]
                                   [--sessions 0] [--rate 200] [--between-s 1.5] [--log-mb 256]
                                   [--seed 0]

kills      SIGKILLs of collector, analyzer and trainings in turn (``soak.py``), beside ``--load``
           busy processes, and the steps of ``--sessions`` more runs
disks      a disk that becomes read-only or fails under log or archive (``disk_faults.py``; root)
cuts       log and archive as they lie at a loss of power, cut at random places
room       writes of log and archive that fail in the middle, and then work again
pauses     SIGSTOP of each process for ``--pause-s``, then SIGCONT
clocks     simulated worlds with and without steps of the wall clock: the same energies

Exit code 1 if anything was lost, stored twice, or ended without a sentence.
"""

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.process.store_client import StoreClient
from analyzers.archive.repair import set_aside
from benchmarks.faults.disk_faults import faults
from benchmarks.harness import ROOT, directory, table
from collectors.log.sqlite import SqliteLog
from tests.analyzers.archives import fill
from tests.processes.pipeline import pipeline
from tests.simulation.troubled_world import TroubledWorld
from tests.waiting import until
from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.settings import Settings

FRAMES = 300
FRAME_BYTES = 400
SETTINGS = Settings(memory_mb=128)
EAGER = ("--search", "exhaustive", "--profile-steps", "5", "--warmup-steps", "2", "--stride-w", "40")
FIRST_S = 3.0
"""Of a pipeline, before anything is done to it."""
STRESS = "while True:\n    pass"
READINGS = "SELECT count(*) FROM readings"


class Outcome(Struct, frozen=True):
    """The figures of an exercise, and a sentence for each thing that was wrong."""

    figures: tuple[str, ...]
    wrong: tuple[str, ...] = ()


# ---- loss of power ----------------------------------------------------------------------------------------


def cuts(trials: int, rng: random.Random) -> Outcome:
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
    return Outcome((f"log: {_words(log)}", f"archive: {_words(archive)}"), tuple(wrong))


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


def room(rng: random.Random) -> Outcome:
    """Have writes of log and archive fail in the middle, and let them work again."""
    figures, wrong = list[str](), list[str]()
    with tempfile.TemporaryDirectory() as made:
        refused = _log_without_room(Path(made), rng, wrong)
        figures.append(f"log: {refused} appends refused, then all {FRAMES} frames stored")
    with tempfile.TemporaryDirectory() as made:
        figures.append(f"archive: {_archive_without_room(Path(made), wrong)}")
    return Outcome(tuple(figures), tuple(wrong))


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
    archive, whole = DuckdbFile.open_read_only(path, SETTINGS), folder / "whole.duckdb"
    reference = DuckdbFile.open(whole, SETTINGS)
    fill(reference)
    reference.close()
    counts = []
    for each in (archive, DuckdbFile.open_read_only(whole, SETTINGS)):
        with each.reading() as reader:
            _, batches = reader.batches(READINGS, 10)
            counts.append(next(iter(batches)).to_pylist()[0]["count_star()"])
        each.close()
    if counts[0] != counts[1]:
        wrong.append(f"archive: {counts[0]} readings after a commit that failed, {counts[1]} without.")
    return f"the commit was refused with a sentence, then {counts[0]} of {counts[1]} readings stored"


# ---- processes --------------------------------------------------------------------------------------------


def kills(chosen: argparse.Namespace) -> Outcome:
    """Kill processes in turn, beside busy ones and the steps of many sessions."""
    command = ["-m", "benchmarks.faults.soak", "--seeds", "0", "--messages", "0"]
    for name in ("kills", "sessions", "rate", "between_s", "log_mb", "seed"):
        command += [f"--{name.replace('_', '-')}", str(getattr(chosen, name))]
    with ExitStack() as held:
        for _ in range(chosen.load):
            busy = held.enter_context(subprocess.Popen([sys.executable, "-c", STRESS]))
            held.callback(busy.kill)
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    cells = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| real processes")]
    figures = tuple(f"{cell[1]}: {cell[2].rstrip(' |')}" for cell in cells)
    lines = done.stderr.strip().splitlines() or ["it ended without a word."]
    return Outcome(figures, tuple(lines[-5:]) if done.returncode else ())


def pauses(where: Path, pause_s: float, between_s: float = FIRST_S) -> Outcome:
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
    wrong = [
        f"{count} {what} after pauses."
        for what, count in (
            ("items were lost", account.lost),
            ("items are stored twice", account.twice),
            ("steps have no measurement", account.unmeasured),
        )
        if count
    ]
    named = f"; gaps: {'; '.join(account.gaps)}" if account.gaps else ""
    figure = (
        f"{', '.join(stopped)} for {pause_s:g} s each: {account.archived} events archived, 0 lost or twice"
    )
    return Outcome((f"{figure}{named}",), tuple(wrong))


def _store_of(analyzer: int) -> int:
    """Return the process that has the archive open, once there is one: a thread may have started another."""

    def children() -> list[str]:
        tasks = Path(f"/proc/{analyzer}/task").iterdir()
        try:
            return [child for task in tasks for child in (task / "children").read_text().split()]
        except FileNotFoundError:  # a thread has ended since
            return []

    return int(until(children)[0])


# ---- clocks and schemas -----------------------------------------------------------------------------------


def clocks(seeds: int) -> Outcome:
    """Compare worlds with and without steps of the wall clock."""
    steps, windows, wrong = 0, 0, list[str]()
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as made:
            stepped = TroubledWorld(seed, Path(made) / "a")
            steady = TroubledWorld(seed, Path(made) / "b", wall_steps=False)
            steps += stepped.run().wall_steps
            steady.run()
            windows += len(stepped.windows)
            if stepped.windows != steady.windows:
                wrong.append(f"seed {seed}: steps of the wall clock changed energies or durations.")
    return Outcome(
        (f"{seeds} worlds, {steps} steps of the wall clock: {windows} windows the same",), tuple(wrong)
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.exercises")
    parser.add_argument("--only", default="", help="names of exercises, with commas")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--load", type=int, default=0, help="busy processes beside the kills")
    parser.add_argument("--sessions", type=int, default=0, help="sessions that send steps beside the kills")
    parser.add_argument("--rate", type=int, default=200, help="steps a second of each of them")
    parser.add_argument("--between-s", type=float, default=1.5, help="from kill to kill, on average")
    parser.add_argument("--log-mb", type=int, default=256, help="of the collector's log, and a user's hour")
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--pause-s", type=float, default=120)
    parser.add_argument("--worlds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    rng = random.Random(chosen.seed)

    def within_directory(exercise: Callable[[Path], Outcome]) -> Outcome:
        with directory() as where:
            return exercise(where)

    exercises: Mapping[str, Callable[[], Outcome]] = {
        "cuts": partial(cuts, chosen.cuts, rng),
        "room": partial(room, rng),
        "clocks": partial(clocks, chosen.worlds),
        "disks": lambda: Outcome(*map(tuple, faults(1, rng))),
        "pauses": partial(within_directory, lambda where: pauses(where, chosen.pause_s)),
        "kills": partial(kills, chosen),
    }
    wanted = [name for name in exercises if not chosen.only or name in chosen.only.split(",")]
    found = {name: exercises[name]() for name in wanted}
    table(
        f"Exercises, load {os.getloadavg()[0]:.1f}",
        ["exercise", "what came of it", "wrong"],
        [[name, "; ".join(outcome.figures), len(outcome.wrong)] for name, outcome in found.items()],
    )
    wrong = [f"{name}: {sentence}" for name, outcome in found.items() for sentence in outcome.wrong]
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
