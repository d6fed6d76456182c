"""Scenes of a site: the live snapshot and the archive of the same simulated world, at one instant."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from pathlib import Path

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.open_file import opened
from analyzers.archive.query import read_own
from analyzers.live.live_site import site_head
from analyzers.power_limit import selectors
from analyzers.power_limit.run_settings import PipelineSettings, RunSettings
from analyzers.results.result import Instruction
from analyzers.results.rows import Row
from tests.analyzers.archives import RUN, window
from tests.analyzers.archives import SECOND as S
from tests.analyzers.live.test_live_site import Watched
from tests.analyzers.pipeline.stages import Stages
from tests.analyzers.test_run_forecast import QUICK
from tests.empty_archive import archive_at
from tests.simulation.simulated_site import Training
from zeus_stream.protocol.frames import Body, Frame
from zeus_stream.protocol.snapshots import HostNow, Snapshot
from zeus_stream.settings import Settings

Answer = Callable[[str], pa.Table]
SEARCHING = replace(QUICK, exhaustive=False)
SEARCHED = Training("imagenet", 0.05, 300, epoch_steps=100)


class Scene(Struct, frozen=True, kw_only=True):
    """A world that has come to an interesting point."""

    now: Snapshot
    rows: Sequence[Row]
    frames: Sequence[tuple[Frame, Body]] = ()


def _scene(
    device: str,
    training: Training,
    plan: RunSettings = QUICK,
    *,
    until_s: float = inf,
    idle_s: float = 0.0,
    silent_s: float = 0.0,
) -> Scene:
    """Play a world, let its GPUs idle after the end, then have its collector silent for so long."""
    world = Watched(device, training, plan)
    world.run(until_s)
    if idle_s:
        world.idle(idle_s)
    now_ns = world.now_ns + round(silent_s * 1e9)
    host = HostNow(host="h0", state="silent" if silent_s else "connected", trouble="")
    head = replace(site_head({}, "archive", now_ns, 0, {}), hosts=(host,))
    return Scene(
        now=world.site.snapshot(head, world.interpreter.searches(), now_ns, None),
        rows=[row for row in world.outputs if not isinstance(row, Instruction)],
        frames=world.frames,
    )


def _stored_only(rows: Sequence[Row]) -> Scene:
    """Return a scene of an archive: no service shows it live."""
    return Scene(now=site_head({}, "archive", RUN.began_wall_ns, 0, {}), rows=rows)


def _pipeline() -> Scene:
    """Play a pipeline until its plan is followed for some iterations."""
    world = Stages(PipelineSettings(iterations=4, slowdown=1.05))
    while world.state != "following":
        world.play(1)
    world.play(20)
    return _stored_only([replace(RUN, session="s", run="run", job="job"), *world.rows])


def _no_gpu() -> Scene:
    """Return a run of two steps that uses no GPU."""
    run = replace(RUN, run="run", job="job", gpus=(), ended_ns=RUN.began_ns + 2 * S, ended_how="ended")
    spans = [("step", 0, 0, 1), ("step", 1, 1, 2), ("run", 0, 0, 2)]
    rows = [
        replace(
            window(kind, index, RUN.began_ns // S + begin, RUN.began_ns // S + end, None),
            run="run", job="job", energy_j=None, energy_low_j=None, energy_high_j=None, energy_p2_5_j=None,
            energy_p97_5_j=None, quality="the run uses no GPU",
        )
        for kind, index, begin, end in spans
    ]  # fmt: skip
    return _stored_only([run, *rows])


SCENES: dict[str, Callable[[], Scene]] = {
    "open, in its search": lambda: _scene("simulated:v100x1", SEARCHED, until_s=4),
    "open, a limit chosen": lambda: _scene("simulated:v100x2", SEARCHED, until_s=14),
    "open, searching again": lambda: _scene(
        "simulated:v100x1",
        replace(SEARCHED, steps=900, heavier=(400, 3.0), noise=0.02),
        SEARCHING,
        until_s=40,
    ),
    "ended, its GPUs idle on": lambda: _scene("simulated:v100x2", SEARCHED, idle_s=20),
    "the limit found is kept": lambda: _scene(
        "simulated:v100x1", SEARCHED, replace(QUICK, selector=selectors.parse("time")), idle_s=1
    ),
    "the workload changes, in noise": lambda: _scene(
        "simulated:v100x1", replace(SEARCHED, steps=800, heavier=(400, 3.0), noise=0.02), SEARCHING, idle_s=1
    ),
    "no epochs, too short to decide": lambda: _scene(
        "simulated:v100x1", Training("imagenet", 0.05, 12), idle_s=1
    ),
    "only observed": lambda: _scene(
        "simulated:v100x1", replace(SEARCHED, steps=100, may_command=False), idle_s=1
    ),
    "the collector is dead": lambda: _scene("simulated:v100x1", SEARCHED, until_s=8, silent_s=28),
    "32 GPUs": lambda: _scene(
        "simulated:v100x32", Training("imagenet", 0.05, 10), RunSettings(selector=None), idle_s=1
    ),
    "64 GPUs": lambda: _scene(
        "simulated:v100x64", Training("imagenet", 0.05, 120), RunSettings(selector=None), until_s=4
    ),
    "a pipeline": _pipeline,
    "no GPU": _no_gpu,
}


@contextmanager
def stored(scene: Scene, path: Path) -> Iterator[Answer]:
    """Give what answers SQL about the archive of a scene."""
    archive = DuckdbFile.open(archive_at(path), Settings())
    archive.put([scene.frames], scene.rows)
    archive.close()
    with opened(path, Settings()) as file, file.reading() as reader:
        yield partial(read_own, reader)
