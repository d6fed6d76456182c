"""A collector of one version and an analyzer of another: do they work together, or say why not?"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.harness import ROOT, directory
from zeus_stream.errors import ZeusStreamError
from zeus_stream.paths import Places
from zeus_stream.transport.client import Connection

TRAINING = """
import zeus_stream
from zeus_stream import simulated
accelerator = simulated.attach("imagenet")
for _ in zeus_stream.steps(iter(int, 1)):
    accelerator.run(0.05)
"""
COMMAND = """
import sys
try:
    from zeus_stream.__main__ import main
except ImportError:  # the layout of the first versions
    from zeus_stream.cli import main
sys.argv[0] = "zeus-stream"
main()
"""
STARTS_S, WORKS_S = 30.0, 45.0
LAST_WORDS = 300
MEASURED = "SELECT count(*) AS n FROM windows WHERE kind = 'step' AND energy_j IS NOT NULL"


@contextmanager
def _process(checkout: Path, where: Path, *arguments: str) -> Iterator[Path]:
    """Run the Python of this process over another checkout; give the file of its words."""
    words = where / f"{len(list(where.iterdir()))}.words"
    environment = os.environ | {"ZEUS_STREAM_DIR": str(where), "PYTHONPATH": str(checkout)}
    with words.open("wb") as out:
        running = subprocess.Popen(
            [sys.executable, "-P", *arguments], env=environment, cwd=where, stdout=out, stderr=out
        )
    try:
        yield words
    finally:
        running.terminate()
        running.wait(20)


def together(collector: Path, analyzer: Path) -> str:
    """Return what came of a collector and a training of one checkout, and an analyzer of another."""
    with directory() as where, ExitStack() as held:
        collect = ("-c", COMMAND, "collect", "--device", "simulated:v100x1")
        words_of = [held.enter_context(_process(collector, where, *collect))]
        _wait((where / "publish").exists, STARTS_S)
        words_of.append(held.enter_context(_process(analyzer, where, "-c", COMMAND, "analyze")))
        _wait((where / "query").exists, STARTS_S)
        held.enter_context(_process(collector, where, "-c", TRAINING))
        _wait(lambda: _measured(where) > 0, WORKS_S)
        steps = _measured(where)
        if steps:
            return f"{steps} steps measured"
        words = [file.read_text(errors="replace").strip().splitlines() for file in words_of]
        last = [lines[-1] for lines in words if lines]
        return f"nothing measured; the last words: {' / '.join(last)[-LAST_WORDS:] or 'none'}"


def _measured(where: Path) -> int:
    try:
        [row] = Connection(Places(where, where)).sql(MEASURED).to_pylist()
    except ZeusStreamError:
        return 0
    return int(row["n"])


def _wait(condition: object, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:  # type: ignore[operator]
        time.sleep(0.2)


def both_ways(older: Path) -> list[str]:
    """Return a sentence for each way round."""
    return [
        f"older collector, this analyzer: {together(older, ROOT)}",
        f"this collector, older analyzer: {together(ROOT, older)}",
    ]
