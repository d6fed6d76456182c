"""Profiles of pipelines that later runs of the job start from."""

from pathlib import Path

import pytest

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.pipeline.known_pipelines import KnownPipelines, PipelineIdentity
from analyzers.power_limit.run_settings import PipelineSettings
from analyzers.results.pipeline_rows import InstructionRow, PipelineRow
from analyzers.results.result import ApplyControl
from tests.analyzers.pipeline.stages import CLOCKS_MHZ, Stages
from tests.empty_archive import archive_at
from zeus_stream.settings import Settings

SETTINGS = PipelineSettings(iterations=8)


def followed(**more: object) -> Stages:
    """Return a pipeline that follows its plan."""
    return Stages(SETTINGS, **more).follow()  # type: ignore[arg-type]  # its fields


@pytest.fixture(scope="module")
def first() -> Stages:
    return followed()


def clocks_visited(world: Stages) -> set[int]:
    return {each.value for each in world.sent if isinstance(each, ApplyControl)}


def test_a_later_run_measures_one_clock_again_and_has_the_same_plan(first: Stages) -> None:
    again = followed(name="second", known=first.known)
    assert clocks_visited(again) == {CLOCKS_MHZ[0]}
    assert again.iteration < 0.5 * first.iteration
    assert again.last_plan().promised_j == pytest.approx(first.last_plan().promised_j, rel=0.001)
    rows = [row for row in again.rows if isinstance(row, PipelineRow)]
    assert rows[-1].profile_run == "run"
    assert not [row for row in again.rows if isinstance(row, InstructionRow)]


def test_a_run_whose_instructions_take_longer_profiles_all_clocks(first: Stages) -> None:
    other = followed(name="third", known=first.known, slow={0: 1.2})
    assert len(clocks_visited(other)) > 3
    rows = [row for row in other.rows if isinstance(row, PipelineRow)]
    assert rows[-1].profile_run is None
    assert other.last_plan().unplanned_s == pytest.approx(1.2 * first.last_plan().unplanned_s, rel=0.01)


def test_profiles_are_found_again_in_the_archive_unless_they_were_forgotten(tmp_path: Path) -> None:
    world = followed()
    archive = DuckdbFile.open(archive_at(tmp_path / "energy.duckdb"), Settings())
    archive.put([], world.rows)
    known = KnownPipelines(archive.memory().instructions)
    archive.close()
    identity = PipelineIdentity("job", "A100", 4)
    found = known.find(identity)
    assert set(found) == set(world.known.find(identity)) != set()
    assert not known.find(PipelineIdentity("job", "H100", 4))
    known.forgotten_wall_ns = {"job": found[0].measured_wall_ns}
    assert not known.find(identity)
