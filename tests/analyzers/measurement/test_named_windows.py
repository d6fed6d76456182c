"""The view ``named``: windows of one name, added up over the GPUs, ranks and hosts of a run."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.query import read_file
from analyzers.results.rows import RunRow, WindowRow
from tests.analyzers.archives import RUN, WINDOW
from tests.empty_archive import archive_at
from zeus_stream.settings import Settings

S = 1_000_000_000
Named = Callable[[Sequence[WindowRow]], list[dict[str, Any]]]


@pytest.fixture
def named(tmp_path: Path) -> Named:
    """What the view says of these windows; they may come in any order."""

    def ask(rows: Sequence[WindowRow]) -> list[dict[str, Any]]:
        shuffled = random.Random(0).sample(rows, len(rows))
        path, settings = tmp_path / "energy.duckdb", Settings()
        archive = DuckdbFile.open(archive_at(path), settings)
        sessions = {(row.session, row.run, row.job, row.rank, row.host) for row in rows}
        archive.put([], [*map(_run, *zip(*sorted(sessions), strict=True)), *shuffled])
        archive.close()
        answer = read_file(path, "FROM named ORDER BY run, name, occurrence", settings)
        found: list[dict[str, Any]] = answer.to_pylist()
        return found

    return ask


def _run(session: str, run: str, job: str, rank: int, host: str) -> RunRow:
    wall_ns = 1_767_225_600 * S
    return replace(
        RUN,
        session=session,
        run=run,
        job=job,
        rank=rank,
        world_size=2,
        host=host,
        gpus=(),
        began_ns=0,
        began_wall_ns=wall_ns,
        wall_error_ns=0,
    )


def window(
    begin_s: float,
    end_s: float,
    energy_j: float | None,
    *,
    rank: int = 0,
    gpu: str | None = "GPU-a",
    name: str = "eval",
    kind: str = "window",
    index: int | None = None,
    session: str = "",
) -> WindowRow:
    """A window of a rank, each rank on a host of its own; its bounds are 1 J on either side."""
    begin_ns, end_ns = round(begin_s * S), round(end_s * S)
    low_j, high_j = (None, None) if energy_j is None else (energy_j - 1, energy_j + 1)
    return replace(
        WINDOW,
        session=session or f"session-{rank}",
        run="run",
        job="job",
        rank=rank,
        host=f"host-{rank}",
        kind=kind,
        name=name,
        index=begin_ns if index is None else index,
        gpu=gpu,
        begin_ns=begin_ns,
        end_ns=end_ns,
        duration_s=end_s - begin_s,
        energy_j=energy_j,
        energy_low_j=low_j,
        energy_high_j=high_j,
        energy_p2_5_j=low_j,
        energy_p97_5_j=high_j,
        phase_coverage=1.0,
        quality="ok" if energy_j is not None else "lost",
    )


def energies(rows: list[dict[str, Any]]) -> list[tuple[str, int, float | None]]:
    return [(row["name"], row["occurrence"], row["energy_j"]) for row in rows]


def test_the_nth_windows_of_all_ranks_are_one_though_their_clocks_and_numbers_differ(named: Named) -> None:
    rows = [
        window(1, 2, 10, rank=0, index=4),
        window(5, 6, 20, rank=0, index=9),
        window(1001, 1003, 30, rank=1, gpu="GPU-b", index=0),
        window(1005, 1006, 40, rank=1, gpu="GPU-b", index=1),
        window(1, 2, 99, name="step", kind="step"),
    ]
    first, second = named(rows)
    assert (first["occurrence"], first["energy_j"], first["energy_low_j"], first["energy_high_j"]) == (
        1, 40, 38, 42,
    )  # fmt: skip
    assert (first["duration_s"], first["ranks"], first["gpus"], first["quality"]) == (2, 2, 2, "ok")
    assert (first["job"], first["power_limit_w"], first["shared"]) == ("job", 300, False)
    assert (second["occurrence"], second["energy_j"]) == (2, 60)


def test_a_window_has_a_row_a_gpu_and_is_one_occurrence(named: Named) -> None:
    rows = [window(t, t + 1, t, gpu=gpu) for t in (1, 3) for gpu in ("GPU-a", "GPU-b")]
    assert energies(named(rows)) == [("eval", 1, 2), ("eval", 2, 6)]


def test_names_are_counted_apart_and_windows_of_threads_by_their_beginning(named: Named) -> None:
    rows = [window(1, 9, 80, index=0), window(2, 3, 10, index=1), window(4, 5, 7, name="save", index=2)]
    assert energies(named(rows)) == [("eval", 1, 80), ("eval", 2, 10), ("save", 1, 7)]


def test_a_rank_that_goes_on_in_another_session_goes_on_counting(named: Named) -> None:
    rows = [window(1, 2, 10, session="before"), window(3, 4, 20, session="after")]
    assert energies(named(rows)) == [("eval", 1, 10), ("eval", 2, 20)]


def test_a_rank_that_has_not_closed_its_window_is_seen_to_be_absent(named: Named) -> None:
    rows = [window(1, 2, 10), window(1, 2, 10, rank=1, gpu="GPU-b"), window(3, 4, 20)]
    assert [(row["energy_j"], row["ranks"]) for row in named(rows)] == [(20, 2), (20, 1)]


def test_a_sum_with_a_part_missing_is_missing_for_its_reason(named: Named) -> None:
    [row] = named([window(1, 2, 10), window(1, 2, None, rank=1, gpu="GPU-b")])
    assert (row["energy_j"], row["energy_low_j"], row["energy_high_j"]) == (None, None, None)
    assert row["quality"] == "lost"


@pytest.mark.parametrize(
    ("other", "energy_j", "quality"),
    [
        pytest.param(window(1, 5, 40, rank=1), 40, "ok", id="the same time counts once"),
        pytest.param(window(2, 4, 20, rank=1), 40, "ok", id="a part of it is in there already"),
        pytest.param(window(5, 7, 20, rank=1), 60, "ok", id="another time is added"),
        pytest.param(
            window(3, 7, 40, rank=1), None, "windows of two ranks overlap in part on one GPU", id="overlap"
        ),
    ],
)
def test_a_gpu_that_ranks_have_in_common_counts_once(
    named: Named, other: WindowRow, energy_j: float | None, quality: str
) -> None:
    [row] = named([window(1, 5, 40), other])
    assert (row["energy_j"], row["quality"]) == (energy_j, quality)
    assert (row["ranks"], row["gpus"]) == (2, 1)


def test_a_processors_energy_is_in_no_sum_over_gpus(named: Named) -> None:
    [row] = named([window(1, 2, 10), window(1, 2, 90, gpu="CPU-0")])
    assert (row["energy_j"], row["gpus"]) == (10, 1)


def test_a_rank_without_a_gpu_leaves_the_sum_unknown(named: Named) -> None:
    [row] = named([window(1, 2, 10), window(1, 2, None, rank=1, gpu=None)])
    assert (row["energy_j"], row["ranks"], row["gpus"]) == (None, 2, 1)
