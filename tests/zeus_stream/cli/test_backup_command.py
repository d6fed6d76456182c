"""A running archive is backed up, lost, and restored: nothing is lost or stored twice."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from tests.zeus_stream.conftest import QUICK, SIMULATED, TRIES, Cli, Ran

FIGURES = """
SELECT run, kind, count(*) AS rows, sum(energy_j) AS energy_j, sum(energy_high_j - energy_low_j) AS width_j
FROM windows
WHERE run IN ('before', 'between') GROUP BY run, kind ORDER BY run, kind
"""
KINDS = ("epoch", "run", "step", "window")


def rows(figures: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    """Return the number of windows by run and kind."""
    return {(row["run"], row["kind"]): row["rows"] for row in figures}


def train(zeus: Cli, run: str, slower: int = 1) -> None:
    done = zeus("run", "--", sys.executable, zeus.script(), "80", str(slower), ZEUS_STREAM_RUN=run)
    assert done.returncode == 0, done.stderr
    until(lambda: bool(zeus.ask(f"FROM windows WHERE run = '{run}' AND kind = 'run'")))


def obeyed(zeus: Cli, slower: int) -> bool:
    """Train with steps that take so many times as long; return whether a limit was set."""
    train(zeus, f"after {slower}", slower)
    of = f"run = 'after {slower}' AND outcome = 'applied'"
    return bool(zeus.ask(f"SELECT 1 AS one FROM commands WHERE {of}"))  # noqa: S608  (ours)


def test_after_a_restore_all_runs_are_there_once_and_the_collector_obeys(zeus: Cli) -> None:
    analyze = ("analyze", *QUICK)
    saved = zeus.directory / "backup"
    with zeus.serving("collect", "--device", SIMULATED):
        with zeus.serving(*analyze) as analyzer:
            train(zeus, "before")
            done = zeus("backup", str(saved))
            assert done.returncode == 0, done.stderr
        analyzer.wait(60)
        with zeus.serving(*analyze) as analyzer:  # the collector now knows a start that the backup lacks
            train(zeus, "between")
            figures = zeus.ask(FIGURES)
            refused = zeus("backup", "--restore", str(saved))
            assert refused.returncode == 1
            assert "already is the analyzer" in refused.stderr
        analyzer.wait(60)
        archive = zeus.directory / "energy.duckdb"
        archive.write_bytes(b"lost")
        restored = zeus("backup", "--restore", str(saved))
        assert restored.returncode == 0, restored.stderr
        assert (zeus.directory / "energy.duckdb.before-restore").read_bytes() == b"lost"
        assert zeus("verify", str(archive)).returncode == 0
        with zeus.serving(*analyze):
            until(lambda: rows(zeus.ask(FIGURES)) == rows(figures))
            again = zeus.ask(FIGURES)
            assert [row for row in again if row["run"] == "before"] == figures[:4]
            for found, known in zip(again, figures, strict=True):  # both are estimates, within their bounds
                width_j = sum(each["width_j"] or 0.0 for each in (found, known))
                assert found["energy_j"] == pytest.approx(known["energy_j"], rel=0.02, abs=width_j)
            assert any(map(partial(obeyed, zeus), range(1, TRIES + 1)))
    assert set(rows(figures)) == {(run, kind) for run in ("before", "between") for kind in KINDS}


def test_a_backup_is_private_whole_and_never_overwrites(ran: Ran, tmp_path: Path) -> None:
    saved = tmp_path / "backup"
    assert ran.zeus("backup", str(saved)).returncode == 0
    assert {path.stat().st_mode & 0o077 for path in (saved, *saved.rglob("*"))} == {0}
    assert {"energy.duckdb", "seal.key", "backup.json"} <= {path.name for path in saved.iterdir()}
    assert not [path for path in saved.rglob("*") if "log" in path.name or "restore" in path.name]
    again = ran.zeus("backup", str(saved))
    assert again.returncode == 1
    assert "it is there already" in again.stderr
    assert not (tmp_path / "backup.partial").exists()


@pytest.mark.parametrize("harm", ["damaged", "absent", "no manifest"])
def test_a_damaged_backup_replaces_nothing(ran: Ran, tmp_path: Path, harm: str) -> None:
    saved, archive = tmp_path / "backup", ran.zeus.directory / "energy.duckdb"
    assert ran.zeus("backup", str(saved)).returncode == 0
    before = archive.read_bytes()
    if harm == "damaged":
        with (saved / "energy.duckdb").open("r+b") as file:
            file.seek(20_000)
            file.write(b"harm")
    else:
        (saved / ("seal.key" if harm == "absent" else "backup.json")).unlink()
    done = ran.zeus("backup", "--restore", str(saved))
    assert done.returncode == 1
    assert "could not be restored" in done.stderr
    assert archive.read_bytes() == before


def test_a_second_setup_reads_a_restored_archive_beside_the_first(
    ran: Ran, zeus: Cli, tmp_path: Path
) -> None:
    saved = tmp_path / "backup"
    assert ran.zeus("backup", str(saved)).returncode == 0
    assert zeus("backup", "--restore", str(saved)).returncode == 0
    query = ("sql", "FROM epochs ORDER BY ALL", "--format", "json")
    assert json.loads(zeus(*query).stdout) == json.loads(ran.zeus(*query).stdout) != []
