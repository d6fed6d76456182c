"""What the archive says of jobs that recur: figures by hand, and what people are shown."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.sandbox.bounded_queries import Queries
from analyzers.results.rows import TryRow
from tests.analyzers.batch_size.test_history import ROW, SETUP, a_try
from tests.empty_archive import archive_at
from zeus_stream.cli.main import main
from zeus_stream.cli.screens.recurring_jobs import ALL, look_up, print_job
from zeus_stream.protocol.queries import Query
from zeus_stream.settings import Settings

A100 = "NVIDIA A100-SXM4-40GB x8"


def tried(number: int, ended: str, size: int, energy_j: float | None, recurrence: int, **more: Any) -> TryRow:
    row = a_try(number, ended, 10 * number, 5, size)
    cost_j = None if energy_j is None else 2 * energy_j
    return replace(row, energy_j=energy_j, cost_j=cost_j, recurrence=recurrence, **more)


TRIES = (
    tried(1, "converged", 32, 900.0, 1, version=0),  # of an earlier version: it does not count
    tried(2, "converged", 32, 100.0, 2),
    tried(3, "stopped", 16, 40.0, 3),
    tried(4, "converged", 64, 50.0, 3),
    tried(5, "lost", 64, 30.0, 4),
    tried(6, "converged", 64, 70.0, 4),
    tried(7, "converged", 32, 120.0, 5),
    tried(8, "running", 64, 10.0, 6),
    tried(9, "converged", 64, 70.0, 7, setup=A100),
)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckdbFile]:
    made = DuckdbFile.open(archive_at(tmp_path_factory.mktemp("archive") / "energy.duckdb"), Settings())
    made.put([], [replace(ROW, version=0, target=0.8), ROW, *TRIES], {}, replaying=False)
    yield made
    made.close()


@pytest.fixture(scope="module")
def queries(archive: DuckdbFile) -> Iterator[Queries]:
    made = Queries(archive, Settings())
    yield made
    made.stop()


def asking(queries: Queries) -> Any:
    def ask(sql: str) -> pa.Table:
        _, parts = queries.answer(Query(sql, 1000, 30_000))
        return pa.ipc.open_stream(b"".join(parts)).read_all()

    return ask


def test_what_is_known_of_jobs_comes_back_as_it_was_stored(archive: DuckdbFile) -> None:
    assert (archive.memory().jobs, archive.memory().tries) == ((ROW,), TRIES)
    archive.put([], [TRIES[7]], {}, replaying=False)  # a repeat replaces
    assert (archive.memory().jobs, archive.memory().tries) == ((ROW,), TRIES)


def test_savings_are_against_as_many_trainings_with_the_default(queries: Queries) -> None:
    other, row = asking(queries)(ALL).to_pylist()
    assert (row["setup"], row["recurrences"], row["tries"], row["lost"], row["running"]) == (
        SETUP,
        4,
        6,
        1,
        1,
    )
    assert (row["default_batch_size"], row["best_batch_size"]) == (32, 64)
    assert row["energy_j"] == pytest.approx(100 + 40 + 50 + 70 + 120)
    assert row["default_energy_j"] == pytest.approx(110)
    assert row["saved_j"] == pytest.approx(4 * 110 - 380)
    assert row["saved_percent"] == pytest.approx(100 * (1 - 380 / 440))
    assert row["time_added_percent"] == pytest.approx(100 * (5 / 4 - 1))
    # Nobody trained with the default there.
    assert (other["setup"], other["recurrences"], other["saved_j"]) == (A100, 1, None)


@pytest.mark.parametrize("policy", [None, "adaptive", "reference", "default"])
def test_a_job_is_shown_with_its_tries_and_what_comes_next(queries: Queries, policy: str | None) -> None:
    shown = look_up(asking(queries), "nightly", policy)
    assert shown is not None
    assert any(of.estimates for of in shown.setups) == (policy != "default")
    assert [setup for setup, _, _ in shown.next] == [SETUP, A100]
    assert all(size in ROW.batch_sizes and reason for _, size, reason in shown.next)
    assert shown.history["number"].to_pylist() == list(range(2, 10))
    out = io.StringIO()
    print_job(shown, out)
    for words in ("accuracy of at least 0.9", "16, 32, 64; 32", "Tries", "Sizes", "Saved", "0.5 x energy"):
        assert words in out.getvalue()


def test_a_job_that_is_not_there_is_not_shown(queries: Queries, tmp_path: Path) -> None:
    assert look_up(asking(queries), "unheard of") is None
    empty = DuckdbFile.open(archive_at(tmp_path / "empty.duckdb"), Settings())
    none = Queries(empty, Settings())
    assert asking(none)(ALL).num_rows == 0
    none.stop()
    empty.close()


def test_the_command_line_shows_jobs_and_names_the_cure(zeus_dir: Path) -> None:
    path = zeus_dir / "energy.duckdb"
    made = DuckdbFile.open(archive_at(path), Settings())
    made.put([], [ROW, *TRIES[1:]], {}, replaying=False)
    made.close()

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["jobs", *arguments])

    listed = run("--format", "json")
    assert listed.exit_code == 0, listed.output
    assert {row["setup"] for row in json.loads(listed.output)} == {SETUP, A100}
    shown = run("show", "nightly", "--policy", "reference")
    assert shown.exit_code == 0, shown.output
    assert "accuracy of at least 0.9" in shown.output
    for arguments, cure in (
        (("show", "unheard of"), "List them: zeus-stream jobs"),
        (("show", "nightly", "--policy", "clever"), "Choose one of adaptive, reference, default"),
        (("forget", "nightly"), "Start one with `zeus-stream analyze`"),
    ):
        refused = run(*arguments)
        assert refused.exit_code == 1
        assert cure in refused.output
