"""The wheel as a user installs it, beside packages of other projects named `collectors` and `analyzers`."""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import zmq

from tests.directories import short_directory
from tests.patience import PATIENT
from tests.processes import setup
from tests.waiting import until

ROOT = Path(__file__).parents[2]
TAKEN = 'raise ImportError("this package belongs to another project")\n'
SCRIPT = """
import zeus_stream
with zeus_stream.simulated.attach("imagenet") as gpu:
    for _ in zeus_stream.epochs(1):
        for _ in zeus_stream.steps(range(20)):
            gpu.run(0.01)
"""


@pytest.fixture(scope="module")
def wheel() -> Iterator[Path]:
    with short_directory() as directory:
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory"]
        subprocess.run([*command, directory], cwd=ROOT, check=True, capture_output=True)
        (built,) = directory.glob("*.whl")
        yield built


@pytest.fixture(scope="module")
def python(wheel: Path) -> Iterator[Path]:
    """An interpreter with the wheel, what it depends on, and two packages of another project."""
    with short_directory() as directory:
        venv.create(directory, symlinks=True)
        (installed,) = directory.glob("lib/python*/site-packages")
        found = directory / "bin" / "python"
        command = [sys.executable, "-m", "pip", "--python", str(found), "install", "--quiet", "--no-deps"]
        subprocess.run([*command, "--no-index", "--disable-pip-version-check", str(wheel)], check=True)
        for name in ("analyzers", "collectors"):
            (installed / name).mkdir()
            (installed / name / "__init__.py").write_text(TAKEN)
        libraries = [path for path in sys.path if "site-packages" in path]
        (installed / "libraries.pth").write_text("\n".join(libraries))
        yield found


@pytest.fixture
def environment(zeus_dir: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment in which nothing leads to the repository."""
    monkeypatch.chdir(zeus_dir)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ZEUS_", "PYTHON"))}
    return {**clean, **PATIENT, "ZEUS_STREAM_DIR": str(zeus_dir)}


def run(python: Path, environment: dict[str, str], *arguments: str) -> str:
    command = [str(python.with_name("zeus-stream")), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_occupies_one_name_in_site_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith((".dist-info", ".data"))} == {"zeus_stream"}


def test_the_manual_page_is_installed_where_man_finds_it(python: Path) -> None:
    page = python.parents[1] / "share" / "man" / "man1" / "zeus-stream.1"
    assert ".SH NAME" in page.read_text(encoding="utf-8")


def test_run_and_sql_work_beside_packages_of_the_same_names(
    python: Path, environment: dict[str, str], zeus_dir: Path
) -> None:
    script = zeus_dir / "train.py"
    script.write_text(SCRIPT)
    run(python, environment, "run", "--device", "simulated:v100x1", "--", str(python), str(script))
    # DuckDB parses every query in a process of its own, which finds our package as well.
    rows = run(python, environment, "sql", "--format", "csv", "select count(*) as n from steps")
    assert rows.split() == ['"n"', "20"]


def test_the_watchdog_restores_after_sigkill_beside_packages_of_the_same_names(
    python: Path, environment: dict[str, str], zeus_dir: Path
) -> None:
    with setup.simulated(zeus_dir) as found:
        host = replace(found, environment={**environment, "PYTHONPATH": ""})
        with (
            setup.collector(host, zeus_dir, python=str(python)) as collector,
            setup.trainer(host, zeus_dir),
        ):
            collector.hold()
            collector.kill()
            until(host.as_found)


def test_a_script_sees_the_packages_that_it_installed(python: Path, environment: dict[str, str]) -> None:
    """Our folder is on the import path of our processes only."""
    ask = "import zeus_stream, zeus_stream.training.publisher, sys; print(*sys.path, sep='\\n')"
    seen = subprocess.run([python, "-c", ask], env=environment, capture_output=True, text=True, check=True)
    assert "_services" not in seen.stdout


LIGHT = ("zmq", "pyzmq.libs", "msgpack", "msgspec")
"""Folders of what the wheel depends on, without its extras."""
MOST_BYTES = 15_000_000
LIGHT_SCRIPT = """
import zeus_stream
for _ in zeus_stream.steps(range(5)): pass
print(zeus_stream.start())
print("trained")
"""


def test_the_wheel_needs_three_packages_unless_asked_for_more(wheel: Path) -> None:
    assert {*requirements(wheel, "none")} == {"msgpack", "msgspec", "pyzmq"}


def test_a_training_environment_is_light_and_says_what_it_lacks(wheel: Path, zeus_dir: Path) -> None:
    folder = zeus_dir / "light"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    packages = Path(zmq.__file__).parents[1]
    for name in LIGHT:
        if (packages / name).exists():
            shutil.copytree(packages / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < MOST_BYTES
    env = {"ZEUS_STREAM_DIR": str(zeus_dir), "PYTHONPATH": str(folder), "PATH": os.environ["PATH"]}
    python = [sys.executable, "-S"]
    done = subprocess.run(
        [*python, "-c", LIGHT_SCRIPT], env=env, cwd=zeus_dir, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "False\ntrained\n"), done.stderr
    assert "pip install 'zeus-stream[services]'" in done.stderr
    done = subprocess.run(
        [*python, "-m", "zeus_stream", "status"],
        env=env, cwd=zeus_dir, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "pip install 'zeus-stream[services]'" in done.stderr


def requirements(wheel: Path, extra: str) -> list[str]:
    """Return the names of what the wheel needs with an extra."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    needed = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    of_extra = [line for line in needed if "extra ==" not in line or f"extra == '{extra}'" in line]
    return [re.split(r"[\[><=!~; ]", line)[0] for line in of_extra]


def link(folder: Path, names: Sequence[str]) -> None:
    """Give a folder the installed packages of these names, and of what they need."""
    left, seen = [*names], set[str]()
    while left:
        name = left.pop().lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # for another platform
        for top in {file.parts[0] for file in found.files or () if not file.parts[0].startswith(".")}:
            target = folder / top
            if top not in ("__pycache__", "bin") and not target.exists():
                target.symlink_to(Path(str(found.locate_file(top))))
        left += [re.split(r"[\[><=!~; ]", line)[0] for line in found.requires or () if "extra ==" not in line]


def test_a_host_that_only_collects_needs_neither_duckdb_nor_pyarrow(wheel: Path, zeus_dir: Path) -> None:
    folder = zeus_dir / "packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    link(folder, requirements(wheel, "collector"))
    assert not [name for name in ("duckdb", "pyarrow", "numpy") if (folder / name).exists()]
    files = {path.resolve() for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert sum(path.stat().st_size for path in files) < 30_000_000
    env = {**PATIENT, "ZEUS_STREAM_DIR": str(zeus_dir), "PYTHONPATH": str(folder), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-S", "-m", "zeus_stream"]
    with subprocess.Popen([*command, "collect", "--device", "simulated:v100x1"], env=env) as collector:
        try:
            until((zeus_dir / "control").exists)
            done = subprocess.run(
                [*command, "doctor", "--device", "simulated:v100x1", "--json"],
                env=env, capture_output=True, text=True, check=True,
            )  # fmt: skip
        finally:
            collector.terminate()
    said = {check["what"]: check["says"] for check in json.loads(done.stdout)}
    assert "an analyzer needs the extra `services`" in said["packages"]
    assert said["collector"].startswith(f"Process {collector.pid} runs in ")
    done = subprocess.run([*command, "sql", "SELECT 1"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"zeus-stream: could not start: {sys.executable} lacks duckdb, numpy, pyarrow"
    )
