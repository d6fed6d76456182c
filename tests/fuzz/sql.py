"""Fuzz what may be asked: python -m tests.fuzz.sql [--seconds 60] [--seed 0]

Attempts to write through a query are spliced, doubled, cut and quoted at random, and asked of a real store.
Any answer is fine, and so is any refusal; a file that changed, or a query past its time, is not. What fails
is printed.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from analyzers.archive.process.store_client import StoreClient
from analyzers.archive.sandbox.bounded_queries import Queries
from tests.analyzers.archive.sql_attempts import AROUND, STATEMENTS
from tests.analyzers.archives import HOST, fill
from tests.empty_archive import archive_at
from zeus_stream.errors import RefusedError
from zeus_stream.protocol.queries import Query
from zeus_stream.settings import Settings

PIECES = (
    "SELECT 1", "FROM runs", "WITH x AS (", ")", "(", ";", "--", "\n", "/*", "*/", "'", '"', "$$", "EXPLAIN",
    "ANALYZE", "UNION ALL", "AS MATERIALIZED", "::", "[", "]", "{", "}", ",", "\0", "\ufeff", "RETURNING *",
)  # fmt: skip
TIMEOUT_MS = 2_000
LATER_S = 2.0


def attempt(rng: Random, archive: Path) -> str:
    """Return a text that was made of attempts."""
    text = rng.choice(AROUND).replace("{}", rng.choice(STATEMENTS))
    for _ in range(rng.randrange(4)):
        words = text.split(" ")
        at = rng.randrange(len(words) + 1)
        match rng.randrange(5):
            case 0:
                words[at:at] = [rng.choice(PIECES)]
            case 1:
                del words[at : at + 1]
            case 2:
                words[at:at] = rng.choice(STATEMENTS).split(" ")
            case 3:
                words[at:at] = words[at : at + 2]
            case _:
                words = [word.swapcase() if rng.random() < 0.5 else word for word in words]
        text = " ".join(words)
    there = archive.with_name("there.csv")
    return text.replace("{archive}", str(archive)).replace("{there}", str(there)) or " "


def touched(directory: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change of every file in a directory."""
    files = [path for path in directory.iterdir() if path.is_file()]
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def fuzz(directory: Path, seconds: float, seed: int) -> tuple[int, int]:
    """Ask for so long; return the number of texts and of answers. Raises AssertionError with the text."""
    settings = Settings(memory_mb=128)
    archive = directory / "energy.duckdb"
    store = StoreClient.open(archive_at(archive), settings)
    try:
        fill(store)
        store.position(HOST)  # answered once the run that ended is summed up, which nobody waits for
        queries, rng = Queries(store, settings), Random(seed)
        before = touched(directory)
        deadline, asked, answered = time.monotonic() + seconds, 0, 0
        while time.monotonic() < deadline:
            text = attempt(rng, archive)
            began = time.monotonic()
            asked += 1
            try:
                queries.answer(Query(text, 1000, TIMEOUT_MS))
            except RefusedError:
                pass
            else:
                answered += 1
            assert time.monotonic() - began < TIMEOUT_MS / 1000 + LATER_S, f"too late: {text!r}"
            assert touched(directory) == before, f"it writes: {text!r}"
        assert store.replaced == 0, "a query ended its store"
    finally:
        store.close()
    return asked, answered


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.sql")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="zs-sql-") as directory:
        asked, answered = fuzz(Path(directory), arguments.seconds, arguments.seed)
    print(f"{asked} texts in {arguments.seconds} s, {answered} answered, no file changed", file=sys.stdout)


if __name__ == "__main__":
    main()
