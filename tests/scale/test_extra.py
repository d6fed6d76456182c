"""The extra `scale`, installed by pip into an environment that has nothing else."""

import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.directories import short_directory
from tests.scale.servers import Postgres

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def run(*command: str, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ZEUS_", "PYTHON"))}
    done = subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def zeus_stream() -> Iterator[str]:
    """Return the command in a fresh environment, installed as the guide says."""
    if subprocess.run([*PIP, "index", "versions", "nats-py"], check=False, capture_output=True).returncode:
        pytest.skip("no package index can be reached")
    with short_directory() as directory:
        venv.create(directory / "fresh", symlinks=True)
        python = str(directory / "fresh" / "bin" / "python")
        run(*PIP, "--python", python, "install", "--quiet", "--no-compile", f"{ROOT}[scale]")
        yield str(directory / "fresh" / "bin" / "zeus-stream")


def test_a_lake_is_made_and_asked_from_an_environment_with_the_extra_alone(
    zeus_stream: str, server: Postgres, tmp_path: Path
) -> None:
    lake = {"ZEUS_STREAM_DATABASE": server.make("fresh"), "ZEUS_STREAM_DIR": str(tmp_path / "dir")}
    assert run(zeus_stream, "lake", "create", "--data", str(tmp_path / "files"), **lake).startswith(
        "The lake is made"
    )
    assert (
        run(zeus_stream, "lake", "sql", "--format", "csv", "SELECT count(*) AS n FROM runs", **lake)
        == '"n"\n0\n'
    )


def test_the_extra_pins_what_the_tests_of_the_lake_run_with() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = {line for line in project["optional-dependencies"]["scale"] if line.startswith("duckdb")}
    tested = {
        line
        for line in (ROOT / "requirements-scale.in").read_text().splitlines()
        if line.startswith("duckdb")
    }
    assert extra == tested
