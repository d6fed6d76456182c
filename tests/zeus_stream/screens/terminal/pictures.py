"""Make the pictures of the screen in the docs, from a recorded run of two trainings on simulated GPUs.

python -m tests.zeus_stream.screens.terminal.pictures             draw them again
python -m tests.zeus_stream.screens.terminal.pictures --record    run the trainings again first
"""

import argparse
import asyncio
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from msgspec import convert, to_builtins

from zeus_stream.errors import UnreachableError
from zeus_stream.paths import places
from zeus_stream.protocol.snapshots import GapNow, Snapshot
from zeus_stream.screens.terminal.history import History
from zeus_stream.screens.terminal.panels.run_page import Details, Row
from zeus_stream.screens.terminal.top_app import TopApp
from zeus_stream.transport.client import Connection

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "docs" / "images"
RECORDED = ROOT / "tests" / "data" / "top_run.json.gz"
SIZES = {"top-160": (160, 33), "top-80": (80, 33)}
"""Columns and rows of each picture."""
MOVING, MOVING_SIZE, FRAMES, FRAME_S = "top-moving", (100, 27), 9, 2.0
"""The moving picture: its size, its frames and the time that each is shown."""
SERVICES = ("run", "--device", "simulated:a40x4", "--stride-w", "50", "--", "sh", "-c")
TRAINING = """\
import zeus_stream
from zeus_stream import simulated

with simulated.attach({workload!r}, {gpus}) as gpu:
    for _ in zeus_stream.epochs({epochs}):
        for _ in zeus_stream.steps(range(200)):
            gpu.run(0.06)
        with zeus_stream.window("validation"):
            gpu.run(1.0)
"""
TRAININGS = {"imagenet": ("0,1", 4), "squad": ("2,3", 3)}
"""By workload, the GPUs and the epochs of a training."""


class NoArchive:
    """An archive that knows nothing."""

    async def details(self, run: str) -> Details:
        """Return nothing about a run."""
        return Details(trouble=f"{run}: nothing is known.")

    async def gaps(self) -> list[GapNow]:
        """Return no gap."""
        return []

    async def power(self) -> list[Row]:
        """Return no power of before."""
        return []

    async def price(self) -> None:
        """Return no price."""


class StillApp(TopApp):
    """The screen at the last of some snapshots."""

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        last = snapshots[-1]

        async def look() -> Snapshot:
            return last

        super().__init__(look, NoArchive(), last, 60.0)
        self._history = History()
        for snapshot in snapshots:
            self._history.remember(snapshot)


@cache
def recorded() -> tuple[Snapshot, ...]:
    """Return the snapshots of the recorded run, one for each second."""
    return convert(json.loads(gzip.decompress(RECORDED.read_bytes())), tuple[Snapshot, ...])


def record() -> None:
    """Run the trainings, and store what the analyzer answers each second until both have ended."""
    found: list[Snapshot] = []
    with tempfile.TemporaryDirectory(prefix="zs-") as directory:
        for workload, (gpus, epochs) in TRAININGS.items():
            text = TRAINING.format(workload=workload, gpus=f"[{gpus}]", epochs=epochs)
            Path(directory, f"{workload}.py").write_text(text, encoding="utf-8")
        script = " & ".join(
            f"ZEUS_STREAM_RUN={workload}-1 ZEUS_STREAM_JOB={workload} ZEUS_STREAM_GPUS={gpus}"
            f" {sys.executable} {directory}/{workload}.py"
            for workload, (gpus, _) in TRAININGS.items()
        )
        environment = {**os.environ, "ZEUS_STREAM_DIR": directory, "ZEUS_STREAM_HOST": "node-1"}
        command = (sys.executable, "-m", "zeus_stream", *SERVICES, f"{script} & wait")
        with subprocess.Popen(command, env=environment) as process:
            connection = Connection(places(environment))
            while process.poll() is None:
                with suppress(UnreachableError):
                    found.append(connection.now())
                time.sleep(1.0)
    searched = [snapshot for snapshot in found if snapshot.runs]
    first = next(at for at, snapshot in enumerate(searched) if len(snapshot.runs) == len(TRAININGS))
    text = json.dumps(to_builtins(searched[first:]))
    RECORDED.write_bytes(gzip.compress(text.encode(), mtime=0))


async def drawn(snapshots: Sequence[Snapshot], size: tuple[int, int]) -> str:
    """Return the screen at the last snapshot as SVG, with no font from elsewhere."""
    app = StillApp(snapshots)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        svg = app.export_screenshot(title="zeus-stream top")
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family: [^;]*;", "font-family: monospace;", svg)
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


async def picture(size: tuple[int, int]) -> str:
    """Return the screen of this size, two thirds into the recorded run."""
    return await drawn(recorded()[: len(recorded()) * 2 // 3], size)


async def moving() -> str:
    """Return the recorded run as one SVG: its frames after each other, without a script."""
    ends = [
        round(len(recorded()) * ((frame + 1) / FRAMES) ** 1.6) for frame in range(FRAMES)
    ]  # the search is first
    frames = [await drawn(recorded()[:end], MOVING_SIZE) for end in ends]
    head, _, _ = frames[0].partition("<style>")
    shown = [f"<g class='frame' style='animation-delay:{at * FRAME_S:.1f}s'>" for at in range(FRAMES)]
    parts = [re.sub(r"terminal-(\d+-)?", f"f{at}-", each) for at, each in enumerate(frames)]
    parts = [
        re.sub(
            r' clip-path="url\(#f\d+-line-\d+\)"|<clipPath id="f\d+-line-.*?</clipPath>\s*',
            "",
            each,
            flags=re.DOTALL,
        )
        for each in parts
    ]
    bodies = [re.sub(r"^<svg[^>]*>|</svg>\s*$", "", part) for part in parts]
    whole_s, share = FRAMES * FRAME_S, 100 / FRAMES
    style = (
        f"<style>.frame{{visibility:hidden;animation:turn {whole_s:.1f}s step-end infinite}}"
        f"@keyframes turn{{0%{{visibility:visible}}{share:.3f}%{{visibility:hidden}}}}"
        "@media(prefers-reduced-motion:reduce){.frame{animation:none}.frame:last-of-type{visibility:visible}}"
        "</style>"
    )
    groups = "".join(f"{group}{body}</g>\n" for group, body in zip(shown, bodies, strict=True))
    return f"{head}{style}\n{groups}</svg>\n"


def main() -> None:
    """Write all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="run the trainings again first")
    if parser.parse_args().record:
        record()
    for name, size in SIZES.items():
        (FOLDER / f"{name}.svg").write_text(asyncio.run(picture(size)), encoding="utf-8")
    (FOLDER / f"{MOVING}.svg").write_text(asyncio.run(moving()), encoding="utf-8")


if __name__ == "__main__":
    main()
