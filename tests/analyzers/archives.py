"""A small world whose every figure is known, and an archive filled with it the way the analyzer does.

One host, two GPUs. For 60 s GPU A draws 200 W and GPU B 100 W, then both draw 50 W for 60 s. From 10 s
to 50 s a run of job ``train`` has both: 40 steps of 1 s, 4 epochs of 10 s, a validation of 2 s at the end
of each epoch. The limit is 300 W for 20 steps, then 200 W.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.store import Store
from analyzers.power_limit import selectors
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.readings import READING
from analyzers.results.rows import (
    CommandRow,
    DecisionRow,
    GapRow,
    GpuLimitRow,
    GpuRow,
    MetricRow,
    Row,
    RunRow,
    TrialRow,
    WindowRow,
)
from tests.empty_archive import archive_at
from tests.messages import COLLECTOR_STARTED, DEVICE_FOUND, RUN_STARTED
from zeus_stream.protocol import codec
from zeus_stream.protocol.events import StepBoundary
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import ClockAnchored, Notes
from zeus_stream.protocol.readings import Readings, Seen
from zeus_stream.settings import Settings

A = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
B = "GPU-bbbbbbbb-0000-4000-8000-000000000000"
LOG = "log-1"
HOST = "alpha"
SECOND = 1_000_000_000
BOOTED_NS = 1_767_225_600 * SECOND
"""UTC at 0 of the host's clock: 2026-01-01."""
PERIOD_NS = SECOND // 10
SECONDS = 120
POWER_W = {A: 200, B: 100}
IDLE_W = 50
BUSY_S = 60
RUN = RunRow(
    session="session-1",
    run="run-1",
    job="train",
    rank=0,
    world_size=1,
    host=HOST,
    pid=7,
    uid=1000,
    gpus=(A, B),
    boundary="dispatch",
    began_ns=10 * SECOND,
    ended_ns=None,
    began_wall_ns=BOOTED_NS + 10 * SECOND,
    wall_error_ns=1000,
    ended_how=None,
    may_command=True,
    command_reason="",
)
STARTED = replace(
    RUN_STARTED, t_ns=RUN.began_ns, job=RUN.job, run=RUN.run, gpus=RUN.gpus, pid=RUN.pid, boot_id="boot-1",
    wall_ns=RUN.began_wall_ns, wall_error_ns=1000,
)  # fmt: skip
FOUND = replace(
    DEVICE_FOUND, gpu=A, name="Model X", driver="1.0", max_limit_mw=300_000, default_limit_mw=300_000,
    found_limit_mw=300_000,
)  # fmt: skip


def energy_mj(gpu: str, second: float) -> int:
    """Return what a GPU has used since 0, mJ."""
    busy = min(second, BUSY_S)
    return round(1000 * (busy * POWER_W[gpu] + (second - busy) * IDLE_W))


def readings(second: int) -> Readings:
    """Return a second of changes, every 100 ms and seen within 2 ms, and power; B does not say its clock."""
    rows = np.zeros(20, READING)
    for number in range(20):
        tick, gpu = second * 10 + number // 2, number % 2
        t_ns = tick * PERIOD_NS
        rows[number] = (
            t_ns - SECOND // 1000,
            t_ns + SECOND // 1000,
            energy_mj((A, B)[gpu], tick / 10),
            (POWER_W[(A, B)[gpu]] if second < BUSY_S else IDLE_W) * 1000,
            300_000,
            300_000,
            (1400, -1)[gpu],
            (60, 50)[gpu],
            90,
            gpu,
            Seen.FIRST if tick == 1 else Seen.CHANGED,
        )
    return Readings((A, B), rows.tobytes())


def frame(offset: int, body: Body, *, log_id: str = LOG, t_ns: int | None = None) -> tuple[Frame, Body]:
    """Return a frame as a collector logs it, and its body."""
    topic = {Readings: "readings", Events: "events", Notes: "notes"}[type(body)]
    name = f"{topic}/{HOST}"
    logged_ns = offset * SECOND if t_ns is None else t_ns
    return Frame(
        log_id=log_id, offset=offset, host=HOST, t_ns=logged_ns, topic=name, body=codec.encode(body)
    ), body


def frames() -> Iterator[tuple[Frame, Body]]:
    """Yield the log: the collector's start, then every second its readings; events of the run among them."""
    started = replace(
        COLLECTOR_STARTED, incarnation="inc-1", version="0.1.0", boot_id="boot-1", wall_ns=BOOTED_NS,
        wall_error_ns=500,
    )  # fmt: skip
    bodies: list[Body] = [Notes((started, FOUND, replace(FOUND, gpu=B, index=1)))]
    for second in range(1, SECONDS + 1):
        bodies.append(readings(second))
        if second == 10:
            bodies.append(Events(RUN.session, 0, 1000, 7, (STARTED, StepBoundary(0, None, 10 * SECOND))))
        elif 10 < second <= 50:
            step = StepBoundary(second - 10, second * SECOND, second * SECOND if second < 50 else None)
            bodies.append(Events(RUN.session, second - 9, 1000, 7, (step,)))
        if second == 60:
            bodies.append(Notes((ClockAnchored(60 * SECOND, BOOTED_NS + 60 * SECOND, 500),)))
    yield from (frame(offset, body) for offset, body in enumerate(bodies))


def window(kind: str, index: int, begin_s: float, end_s: float, gpu: str | None, name: str = "") -> WindowRow:
    """Return a measured window of the run."""
    energy_j = None if gpu is None else (energy_mj(gpu, end_s) - energy_mj(gpu, begin_s)) / 1000
    limit_w = 300.0 if end_s <= 30 else 200.0 if begin_s >= 30 else None
    return WindowRow(
        session=RUN.session,
        run=RUN.run,
        job=RUN.job,
        rank=0,
        host=HOST,
        kind=kind,
        name=name or kind,
        index=index,
        gpu=gpu,
        begin_ns=round(begin_s * SECOND),
        end_ns=round(end_s * SECOND),
        duration_s=end_s - begin_s,
        energy_j=energy_j,
        energy_low_j=None if energy_j is None else energy_j - 1,
        energy_high_j=None if energy_j is None else energy_j + 1,
        energy_p2_5_j=None if energy_j is None else energy_j - 0.3,
        energy_p97_5_j=None if energy_j is None else energy_j + 0.4,
        phase_coverage=None,
        power_limit_w=limit_w,
        estimator=None if gpu is None else "counter",
        quality="ok" if gpu else "no GPU",
        shared=False,
    )


def trial(
    number: int, limit_w: float, *, run: str = RUN.run, round_: int = 1, confirms: bool = False
) -> TrialRow:
    return TrialRow(
        run=run,
        number=number,
        round=round_,
        power_limit_w=limit_w,
        steps=5,
        duration_s=5.0,
        energy_j=5 * limit_w,
        average_power_w=limit_w,
        cost=7.5,
        temperature_c=60.0,
        began_ns=0,
        ended_ns=5 * SECOND,
        confirms=confirms,
    )


TRIAL = trial(0, 300.0)
WINDOW = window("step", 0, 10, 11, A)
DECISION = DecisionRow(
    run=RUN.run,
    number=0,
    round=1,
    t_ns=30 * SECOND,
    selector="cost:0.5",
    power_limit_w=200.0,
    steps=20,
    default_limit_w=300.0,
    energy_per_step_j=300.0,
    step_s=1.0,
    default_energy_per_step_j=400.0,
    default_step_s=0.8,
    applied=True,
    reason="least cost",
    excess_percent=0.1,
    excess_p95_percent=0.5,
)
GPU = GpuRow(
    gpu=A,
    host=HOST,
    index=0,
    name="Model X",
    driver="1.0",
    counts_energy=True,
    min_limit_w=100.0,
    max_limit_w=300.0,
    default_limit_w=300.0,
    found_limit_w=300.0,
    mig=False,
    period_ms=100.0,
    counter_kind="integrating",
    sensor_window_ms=100.0,
    gone=None,
)

COMMAND = CommandRow(
    command="run-1/1", run=RUN.run, gpu=A, asked_ns=30 * SECOND, limit_w=200.0, outcome=None, outcome_ns=None,
    outcome_limit_w=None, reason="",
)  # fmt: skip
GPU_LIMIT = GpuLimitRow(
    run=RUN.run, round=1, gpu=B, t_ns=35 * SECOND, power_limit_w=150.0, job_limit_w=200.0, steps=300,
    energy_percent=-5.0, time_percent=0.1, reason="the job does not wait for it",
)  # fmt: skip


def rows() -> list[Row]:
    """Return what is derived from the log."""
    derived: list[Row] = [RUN, GPU, replace(GPU, gpu=B, index=1)]
    for gpu in (A, B):
        derived += [window("step", step, 10 + step, 11 + step, gpu) for step in range(40)]
        derived += [window("epoch", epoch, 10 + 10 * epoch, 20 + 10 * epoch, gpu) for epoch in range(4)]
        derived += [
            window("window", number, 18 + 10 * number, 20 + 10 * number, gpu, "validation")
            for number in range(4)
        ]
        derived.append(window("run", 0, 10, 50, gpu))
    derived += [trial(0, 300.0), trial(1, 200.0), trial(2, 200.0, confirms=True), DECISION]
    derived += [
        GPU_LIMIT,
        COMMAND,
        replace(COMMAND, outcome="applied", outcome_ns=31 * SECOND, outcome_limit_w=200.0),
        GapRow(HOST, "events", 40 * SECOND, 3, "the publisher's buffer was full"),
        MetricRow(session=RUN.session, run=RUN.run, name="accuracy", t_ns=20 * SECOND, step=9, value=0.8),
        MetricRow(session=RUN.session, run=RUN.run, name="accuracy", t_ns=40 * SECOND, step=29, value=0.9),
        replace(RUN, ended_ns=50 * SECOND, ended_how="ended"),
    ]
    return derived


def plan_of(settings: Settings, start: int | None = None) -> RunSettings:
    """Return the settings of runs of an analyzer with these settings."""
    return RunSettings.of(settings, selectors.parse(settings.select), start)


@contextmanager
def opened(path: Path, settings: Settings | None = None) -> Iterator[DuckdbFile]:
    """Give the archive at a path, which is made if it is not there."""
    archive = DuckdbFile.open(archive_at(path), settings or Settings())
    try:
        yield archive
    finally:
        archive.close()


def ask(archive: DuckdbFile, sql: str) -> list[tuple[Any, ...]]:
    with archive.file.cursor() as cursor:
        return cursor.execute(sql).fetchall()


def asked(archive: DuckdbFile, sql: str) -> list[dict[str, Any]]:
    """Return rows by the names of their columns."""
    with archive.file.cursor() as cursor:
        rows: list[dict[str, Any]] = cursor.sql(sql).to_arrow_table().to_pylist()
    return rows


def fill(archive: Store) -> None:
    """Store it all."""
    stored = list(frames())
    archive.put([stored], rows(), {LOG: len(stored)})
