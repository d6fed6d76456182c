"""The extra `scale`: a lake works with what it names and nothing else, in versions that it allows."""

import os
import subprocess
import tomllib
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.directories import short_directory
from tests.scale.conftest import missing_lake, need
from tests.scale.servers import Postgres

ROOT = Path(__file__).parents[2]
PACKAGES = ("zeus_stream", "analyzers", "collectors")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def asked_by(wanted: Requirement) -> list[str]:
    """Return what a package asks for with its extras. Raises PackageNotFoundError."""
    if wanted.name == PROJECT["name"]:
        extras = (PROJECT["optional-dependencies"][extra] for extra in sorted(wanted.extras))
        return [*PROJECT["dependencies"], *(line for lines in extras for line in lines)]
    return distribution(wanted.name).requires or []


def named_by(first: str) -> dict[str, Distribution]:
    """Return what a requirement brings with it, by name. Each version is one that is allowed."""
    found: dict[str, Distribution] = {}
    waiting, seen = [first], set[str]()
    while waiting:
        if (line := waiting.pop()) in seen:
            continue
        seen.add(line)
        wanted = Requirement(line)
        if wanted.name != PROJECT["name"]:
            package = found[canonicalize_name(wanted.name)] = distribution(wanted.name)
            assert wanted.specifier.contains(package.version), line
        for each in asked_by(wanted):
            marker = Requirement(each).marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*wanted.extras, "")):
                waiting.append(each.partition(";")[0])
    return found


@pytest.fixture
def python() -> Iterator[Path]:
    """Return a fresh interpreter that has the project and what its extra names, as links."""
    with short_directory() as directory:
        venv.create(directory, symlinks=True)
        (installed,) = directory.glob("lib/python*/site-packages")
        for name in PACKAGES:
            (installed / name).symlink_to(ROOT / name)
        for each in named_by("zeus-stream[scale]").values():
            tops = {file.parts[0] for file in each.files or ()} - {"..", "__pycache__"}
            for top in tops:
                (installed / top).symlink_to(Path(str(each.locate_file(top))))
        yield directory / "bin" / "python"


def test_a_lake_is_made_and_asked_from_an_environment_with_the_extra_alone(
    python: Path, server: Postgres, tmp_path: Path
) -> None:
    need(missing_lake())
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ZEUS_", "PYTHON"))}
    lake = {"ZEUS_STREAM_DATABASE": server.make("fresh"), "ZEUS_STREAM_DIR": str(tmp_path / "dir")}

    def run(*arguments: str) -> str:
        command = [str(python), "-m", "zeus_stream", "lake", *arguments]
        done = subprocess.run(
            command, env=clean | lake, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("create", "--data", str(tmp_path / "files")).startswith("The lake is made")
    assert run("sql", "--format", "csv", "SELECT count(*) AS n FROM runs") == '"n"\n0\n'


def test_the_extra_pins_what_the_tests_of_the_lake_run_with() -> None:
    extra = {line for line in PROJECT["optional-dependencies"]["scale"] if line.startswith("duckdb")}
    tested = {
        line
        for line in (ROOT / "requirements-scale.in").read_text().splitlines()
        if line.startswith("duckdb")
    }
    assert extra == tested
