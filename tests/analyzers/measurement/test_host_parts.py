"""CPUs and their memory beside the GPUs: every session's on the host, in no sum over GPUs."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.query import read_file
from analyzers.interpreter.interpreter import Interpreter
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.result import GiveAnswer
from analyzers.results.rows import GpuRow, PhaseRow, RunRow, WindowRow
from tests.analyzers.archives import FOUND, HOST, SECOND, STARTED, A, energy_mj, frame, readings
from tests.analyzers.archives import B as AS_CPU
from tests.empty_archive import archive_at
from tests.messages import COLLECTOR_STARTED, DEVICE_FOUND
from tests.simulation.world import Output, asked, outputs_of
from zeus_stream.protocol.events import (
    Ask,
    Event,
    PhasesRan,
    RunEnded,
    StepBoundary,
    WindowBegan,
    WindowEnded,
    pack_marks,
)
from zeus_stream.protocol.frames import Body, Events
from zeus_stream.protocol.notes import DeviceFound, GpuShared, Notes, RunAdmitted
from zeus_stream.settings import Settings

CPU = "CPU-alpha-package-0"
BOOT = replace(COLLECTOR_STARTED, incarnation="inc-1", version="0.1.0", boot_id="boot-1", wall_error_ns=500)
CPU_FOUND = replace(
    DEVICE_FOUND,
    gpu=CPU,
    name="CPU package 0",
    driver="powercap",
    min_limit_mw=None,
    max_limit_mw=None,
    default_limit_mw=None,
    found_limit_mw=None,
)


def cpu_j(begin_s: float, end_s: float) -> float:
    """Return what the CPU used: it is read as `archives.B` is."""
    return (energy_mj(AS_CPU, end_s) - energy_mj(AS_CPU, begin_s)) / 1000


def said(session: str, second: int, *events: Event) -> Events:
    return Events(session, second, 1000, 7, events)


def started(session: str, run: str, second: int, rank: int = 0, gpus: tuple[str, ...] = (A,)) -> list[Body]:
    """Return the beginning of a session, and the collector's word on it."""
    event = replace(
        STARTED, t_ns=second * SECOND, run=run, rank=rank, pid=1000 + int(session), gpus=gpus or ("index:9",)
    )
    word = RunAdmitted(
        t_ns=second * SECOND, session=session, run=run, gpus=gpus, may_command=False, reason=""
    )
    return [said(session, second, event), Notes((word,))]


def stepped(session: str, *seconds: int) -> list[Body]:
    """Return steps from each second to the next."""
    return [
        said(
            session,
            second,
            StepBoundary(
                index,
                second * SECOND if index else None,
                second * SECOND if second < seconds[-1] else None,
            ),
        )
        for index, second in enumerate(seconds)
    ]


def heard(bodies: Sequence[Body], asks: Sequence[Ask] = (), found: DeviceFound = FOUND) -> list[Output]:
    """Return what an interpreter makes of these, said after 40 s of readings."""
    interpreter = Interpreter(RunSettings(selector=None))
    notes = Notes((BOOT, found, CPU_FOUND))
    sampled = [replace(readings(second), gpus=(A, CPU)) for second in range(1, 40)]
    outputs: list[Output] = []
    for offset, body in enumerate([notes, *sampled, *bodies]):
        if offset == 1 + len(sampled):
            outputs += [output for ask in asks for output in asked(interpreter, HOST, ask)]
        outputs += outputs_of(interpreter, *frame(offset, body, t_ns=(41 + offset) * SECOND))
    return outputs


def windows(outputs: Sequence[Output], kind: str) -> dict[tuple[str, int, str | None], WindowRow]:
    rows = [row for row in outputs if isinstance(row, WindowRow) and row.kind == kind]
    return {(row.session, row.index, row.gpu): row for row in rows}


def test_every_session_has_rows_of_the_hosts_cpu_and_its_run_has_gpus_only() -> None:
    outputs = heard([*started("1", "run", 10), *stepped("1", 20, 22, 24)])
    steps = windows(outputs, "step")
    assert set(steps) == {("1", index, gpu) for index in (0, 1) for gpu in (A, CPU)}
    row = steps["1", 0, CPU]
    assert row.energy_j == pytest.approx(cpu_j(20, 22), abs=0.01)
    assert (row.power_limit_w, row.quality, row.shared) == (300.0, "ok", False)
    assert [row.gpus for row in outputs if isinstance(row, RunRow)][-1] == (A,)
    assert {row.gpu for row in outputs if isinstance(row, GpuRow)} == {A, CPU}


def test_a_process_without_gpus_has_the_cpus_energy_and_says_that_it_has_no_gpu() -> None:
    steps = windows(heard([*started("1", "run", 10, gpus=()), *stepped("1", 20, 22)]), "step")
    assert steps["1", 0, CPU].energy_j == pytest.approx(cpu_j(20, 22), abs=0.01)
    assert steps["1", 0, None].quality == "the session has no GPU"


def test_the_cpu_is_shared_with_every_other_run_of_the_host_and_with_no_rank_of_ones_own() -> None:
    bodies = [*started("1", "run", 10), *started("2", "run", 10, rank=1), *stepped("1", 20, 22)]
    assert not windows(heard(bodies), "step")["1", 0, CPU].shared
    bodies = [*started("1", "run", 10), *started("2", "other", 10, gpus=()), *stepped("1", 20, 22)]
    steps = windows(heard(bodies), "step")
    assert steps["1", 0, CPU].shared
    assert not steps["1", 0, A].shared
    gone = [said("2", 12, RunEnded(12 * SECOND))]
    assert not windows(heard([*bodies[:4], *gone, *bodies[4:]]), "step")["1", 0, CPU].shared


def test_a_run_is_on_the_host_until_its_last_rank_has_ended() -> None:
    bodies = [*started("1", "run", 10), *started("2", "other", 10), *started("3", "other", 10, rank=1)]
    over = [said(session, 12, RunEnded(12 * SECOND)) for session in ("2", "3")]
    steps = stepped("1", 20, 22)
    assert windows(heard([*bodies, over[0], *steps]), "step")["1", 0, CPU].shared
    assert not windows(heard([*bodies, *over, *steps]), "step")["1", 0, CPU].shared


def test_a_script_is_told_the_energy_of_its_gpus() -> None:
    window = [
        said("1", 20, WindowBegan(20 * SECOND, 5, "validation")),
        said("1", 22, WindowEnded(22 * SECOND, 5)),
    ]
    outputs = heard([*started("1", "run", 10), *window], asks=[Ask("q", "1", 5)])
    (told,) = [output.answer for output in outputs if isinstance(output, GiveAnswer)]
    assert [one.gpu for one in told.gpus] == [A]


@pytest.mark.parametrize(
    ("found", "quality"),
    [
        (replace(FOUND, mig=True, tenants=("MIG-1", "MIG-2")), "whole GPU, MIG"),
        (replace(FOUND, scope="module"), "whole module, with its CPU"),
        (FOUND, "ok"),
    ],
)
def test_a_row_says_whose_energy_it_is(found: DeviceFound, quality: str) -> None:
    outputs = heard([*started("1", "run", 10), *stepped("1", 20, 22)], found=found)
    steps = windows(outputs, "step")
    assert (steps["1", 0, A].quality, steps["1", 0, CPU].quality) == (quality, "ok")
    (gpu, *_) = [row for row in outputs if isinstance(row, GpuRow) and row.gpu == A]
    assert (gpu.scope, gpu.tenants) == (found.scope, found.tenants)


def test_steps_beside_a_process_of_no_run_say_so_and_those_of_whole_gpus_do_not() -> None:
    others = [
        Notes((GpuShared((21 + since) * SECOND, A, (20 + since) * SECOND, count),))
        for since, count in ((1, 2), (3, 0))
    ]
    begun = replace(STARTED, t_ns=10 * SECOND, run="watcher", world_size=0, pid=1002, gpus=(A,))
    watcher = [said("2", 10, begun), *started("2", "watcher", 10)[1:]]
    steps = [*stepped("1", 20, 21, 22, 24, 26), *stepped("2", 20, 21, 22, 24, 26)]
    rows = windows(heard([*started("1", "run", 10), *watcher, *others, *steps]), "step")
    shared = "shared with 2 other processes"
    assert [rows["1", index, A].quality for index in range(4)] == ["ok", shared, shared, "ok"]
    assert {rows["2", index, A].quality for index in range(4)} == {"ok"}
    assert rows["1", 1, CPU].quality == "ok"


def test_a_collector_that_starts_without_cpus_has_none() -> None:
    again = Notes((replace(BOOT, t_ns=15 * SECOND, incarnation="inc-2"),))
    interpreter = Interpreter(RunSettings(selector=None))
    bodies = [Notes((BOOT, FOUND, CPU_FOUND)), *started("1", "run", 10), again, Notes((FOUND,))]
    bodies += stepped("1", 20, 22)
    bodies += [replace(readings(second), gpus=(A, "GPU-b")) for second in range(16, 30)]
    outputs = [
        output
        for offset, body in enumerate(bodies)
        for output in outputs_of(interpreter, *frame(offset, body, t_ns=(20 + offset) * SECOND))
    ]
    assert set(windows(outputs, "step")) == {("1", 0, A)}


@pytest.fixture
def archived(tmp_path: Path) -> Path:
    """Two ranks of a run, both on the same CPU."""
    path = tmp_path / "energy.duckdb"
    outputs = heard(
        [
            *started("1", "run", 10),
            *started("2", "run", 10, rank=1),
            *stepped("1", 20, 22, 24),
            *stepped("2", 20, 22, 24),
            *started("3", "alone", 10, gpus=()),
            *stepped("3", 20, 22),
        ]
    )
    archive = DuckdbFile.open(archive_at(path), Settings())
    archive.put([], [row for row in outputs if isinstance(row, WindowRow)])
    archive.close()
    return path


def test_the_sum_over_gpus_leaves_the_cpu_out_which_counts_once_for_all_ranks(archived: Path) -> None:
    query = "SELECT run, step, energy_j, cpu_energy_j, gpus, quality FROM steps ORDER BY run, step"
    alone, first, second = read_file(archived, query, Settings()).to_pylist()
    gpu_j = (energy_mj(A, 22) - energy_mj(A, 20)) / 1000
    assert (first["step"], second["step"]) == (0, 1)
    assert first["energy_j"] == pytest.approx(2 * gpu_j, abs=0.01)  # as before: both ranks name this GPU
    assert first["cpu_energy_j"] == pytest.approx(cpu_j(20, 22), abs=0.01)
    assert (first["gpus"], first["quality"]) == (2, "ok")
    assert (alone["energy_j"], alone["gpus"], alone["quality"]) == (None, 0, "the session has no GPU")
    assert alone["cpu_energy_j"] == pytest.approx(cpu_j(20, 22), abs=0.01)


def test_where_the_cpu_was_not_sampled_its_energy_is_null(tmp_path: Path) -> None:
    path = tmp_path / "energy.duckdb"
    outputs = heard([*started("1", "run", 10), *stepped("1", 20, 22)])
    archive = DuckdbFile.open(archive_at(path), Settings())
    rows = [row for row in outputs if isinstance(row, WindowRow) and row.gpu == A]
    archive.put([], rows)
    archive.close()
    (step,) = read_file(path, "FROM steps", Settings()).to_pylist()
    assert step["cpu_energy_j"] is None
    assert step["energy_j"] is not None


def test_phases_of_a_session_have_rows_for_its_gpus_once_it_has_ended() -> None:
    marks = [(second * SECOND, 1 + second % 2) for second in range(20, 36)]
    ran = PhasesRan(20 * SECOND, ("forward", "backward"), pack_marks(20 * SECOND, marks))
    bodies = [*started("1", "run", 10), said("1", 36, ran), said("1", 37, RunEnded(37 * SECOND))]
    rows = [row for row in heard(bodies) if isinstance(row, PhaseRow)]
    assert {(row.run, row.gpu, row.epoch) for row in rows} == {("run", A, None)}, "a CPU has none"
    last = {row.phase: row.duration_s for row in rows}
    assert set(last) == {"forward", "backward"}
    assert sum(last.values()) == pytest.approx(15, abs=1.5)
