"""Two versions side by side, an upgrade and a way back: processes of an earlier commit beside those of now.

0.1.0 has no tag yet. `RELEASED` is the state that counts as it: from then on, an archive and a message of
one version are read by the next, and the way back is open. `FIRST` is the earliest that is read today: its
archives have schema 1, and its collector cannot read a log of later ones.
"""

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from analyzers.archive import schema
from tests.directories import QUICK_FILE
from tests.environment import environment
from tests.processes import setup
from tests.waiting import until
from zeus_stream.paths import places
from zeus_stream.transport.client import Connection, status

ROOT = Path(__file__).parents[2]
RELEASED = "36d8a3dc41605324b3dcb3f006891fa18b5cc90f"
FIRST = "d54078b0d59f4e2c3821b3f920f8f9b00ad576ed"
EARLIER = {"0.1.0": RELEASED, "schema 1": FIRST}
SEARCH = (
    *("--search", "exhaustive", "--profile-steps", "3", "--warmup-steps", "1"),
    *("--stride-w", "75", *QUICK_FILE),
)
TRAINING = """
import sys, zeus_stream
from pathlib import Path
from zeus_stream.simulated_gpu.accelerator import attach
enough, number = Path(sys.argv[1]), 0
with attach("imagenet") as gpu:
    for number, _ in enumerate(zeus_stream.steps(range(100_000)), 1):
        gpu.run(0.01)
        if enough.exists():
            break
print(number, zeus_stream.__file__)
"""
MEASURED = "SELECT count(*) AS n, count(energy_j) AS m FROM steps WHERE run = '{run}'"
LIMITS = "SELECT count(*) AS n FROM commands WHERE run = '{run}' AND outcome = 'applied'"
FIGURES = """
SELECT run, kind, count(*) AS rows, count(energy_j) AS measured, sum(energy_j) AS energy_j FROM windows
WHERE run = 'before' GROUP BY run, kind ORDER BY kind
"""
RUNS = "SELECT count(*) AS n FROM windows WHERE kind = 'run'"
OF_NOW = {"PYTHONPATH": str(ROOT)}
Environment = Mapping[str, str]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Variables with which Python imports the packages of 0.1.0."""
    return unpacked(RELEASED, tmp_path_factory.mktemp("released"))


@pytest.fixture(scope="module", params=EARLIER)
def earlier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Variables with which Python imports the packages of an earlier commit."""
    return unpacked(EARLIER[request.param], tmp_path_factory.mktemp("earlier"))


def unpacked(commit: str, folder: Path) -> Environment:
    """Unpack the packages of a commit; skip the test where the clone lacks it."""
    packed = subprocess.run(
        ["git", "archive", commit, "zeus_stream", "collectors", "analyzers"],
        cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    if packed.returncode:
        pytest.skip(f"this clone lacks the commit {commit[:8]}: fetch the whole history")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as content:
        content.extractall(folder, filter="data")
    return {"PYTHONPATH": str(folder)}


def in_version(version: Environment, directory: Path) -> dict[str, str]:
    """Return the environment of a process whose packages are of a version, in any working directory."""
    others = (each for each in sys.path if each and Path(each) != ROOT)
    path = os.pathsep.join((version["PYTHONPATH"], *others))
    return environment(directory, PYTHONPATH=path, PYTHONSAFEPATH="1")


@contextmanager
def service(version: Environment, directory: Path, name: str, *arguments: str) -> Iterator[None]:
    """Run a collector or an analyzer of a version until the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "zeus_stream", name, *arguments],
        env=in_version(version, directory), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        line = ""
        while not line.startswith(("collector:", "analyzer:")):  # before that: what it migrates or interprets
            line = process.stderr.readline()
            assert line, f"{name} has ended"
        yield
    finally:
        process.terminate()
        process.communicate(timeout=setup.PATIENCE_S)


def collect(version: Environment, directory: Path) -> Any:
    return service(version, directory, "collect", "--device", "simulated:v100x1")


def analyze(version: Environment, directory: Path) -> Any:
    return service(version, directory, "analyze", *SEARCH)


def ask(directory: Path, query: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        Connection(places({"ZEUS_STREAM_DIR": str(directory)})).sql(query).to_pylist()
    )
    return rows


def train(version: Environment, directory: Path, run: str) -> None:
    """Train with the library of a version until limits are set, and check that every step has its joules."""
    enough = directory / f"{run}.enough"
    with subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(enough)],
        env={**in_version(version, directory), "ZEUS_STREAM_RUN": run, "ZEUS_STREAM_JOB": run},
        stdout=subprocess.PIPE, text=True,
    ) as training:  # fmt: skip
        try:
            until(lambda: ask(directory, LIMITS.format(run=run))[0]["n"] >= 2)
            enough.touch()
            out, _ = training.communicate(timeout=setup.PATIENCE_S)
        finally:
            training.kill()
    steps, _, library = out.partition(" ")
    assert library.startswith(version["PYTHONPATH"])
    until(lambda: ask(directory, f"FROM windows WHERE run = '{run}' AND kind = 'run'"))
    (found,) = ask(directory, MEASURED.format(run=run))
    assert found == {"n": int(steps), "m": int(steps)}


@pytest.mark.parametrize("which", ["collector", "analyzer"])
def test_a_service_of_an_earlier_version_works_with_the_other_of_now(
    earlier: Environment, zeus_dir: Path, which: str
) -> None:
    versions = (earlier, OF_NOW) if which == "collector" else (OF_NOW, earlier)
    with collect(versions[0], zeus_dir), analyze(versions[1], zeus_dir):
        for run, library in (("earlier", earlier), ("now", OF_NOW)):
            train(library, zeus_dir, run)
        assert ask(zeus_dir, "FROM gaps") == []
        for name in ("collector", "analyzer"):
            assert status(places({"ZEUS_STREAM_DIR": str(zeus_dir)}), name, 60).rows


def test_an_upgrade_of_one_service_after_the_other_keeps_every_figure(
    earlier: Environment, zeus_dir: Path
) -> None:
    with collect(earlier, zeus_dir):
        with analyze(earlier, zeus_dir):
            train(earlier, zeus_dir, "before")
            figures = ask(zeus_dir, FIGURES)
        with analyze(OF_NOW, zeus_dir):  # migrates
            assert ask(zeus_dir, FIGURES) == figures
            train(earlier, zeus_dir, "between")
    with collect(OF_NOW, zeus_dir), analyze(OF_NOW, zeus_dir):  # the log of the earlier collector goes on
        train(OF_NOW, zeus_dir, "after")
        assert ask(zeus_dir, FIGURES) == figures


def test_the_way_back_is_the_backup_and_nothing_is_lost_by_it(released: Environment, zeus_dir: Path) -> None:
    saved = zeus_dir / "backup"
    backup = [sys.executable, "-m", "zeus_stream", "backup", "--archive", str(zeus_dir / "energy.duckdb")]
    with collect(released, zeus_dir), analyze(released, zeus_dir):
        train(released, zeus_dir, "before")
        figures = ask(zeus_dir, FIGURES)
        subprocess.run([*backup, str(saved)], env=in_version(released, zeus_dir), check=True)
    with collect(OF_NOW, zeus_dir), analyze(OF_NOW, zeus_dir):
        train(OF_NOW, zeus_dir, "after")
    env = in_version(released, zeus_dir)
    subprocess.run([*backup, "--restore", str(saved)], env=env, check=True)
    with collect(released, zeus_dir), analyze(released, zeus_dir):
        assert ask(zeus_dir, FIGURES) == figures
        until(lambda: ask(zeus_dir, RUNS) == [{"n": 2}])  # the log has what came later


def test_an_earlier_version_refuses_an_archive_of_a_later_schema(
    earlier: Environment, zeus_dir: Path
) -> None:
    archive = zeus_dir / "energy.duckdb"
    with analyze(OF_NOW, zeus_dir):
        pass
    query = ["sql", "--archive", str(archive), "SELECT schema_version FROM meta"]
    done = subprocess.run(
        [sys.executable, "-m", "zeus_stream", *query],
        env=in_version(earlier, zeus_dir), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 0:  # the same schema
        assert str(schema.newest()) in done.stdout
    else:
        assert f"its schema is of version {schema.newest()}" in done.stderr


@pytest.mark.parametrize("to", ["earlier", "now"])
@pytest.mark.parametrize("ends", ["stopped", "killed with its watchdog"])
def test_limits_in_force_return_when_another_version_takes_over(
    released: Environment, zeus_dir: Path, ends: str, to: str
) -> None:
    """An upgrade and a rollback of the collector, while a power limit and two clocks are set."""
    before, after = (OF_NOW, released) if to == "earlier" else (released, OF_NOW)
    with setup.simulated(zeus_dir) as found:
        hosts = [
            setup.Host(
                found.device, found.gpu, found.read_mw, found.write_mw, found.read_locked_mhz,
                in_version(each, zeus_dir),
            )
            for each in (before, after)
        ]  # fmt: skip
        with setup.trainer(hosts[0], zeus_dir):
            with setup.collector(hosts[0], zeus_dir) as running:
                running.hold()
                if ends == "stopped":
                    running.process.terminate()
                    running.process.wait(setup.PATIENCE_S)
                    assert found.as_found()
                else:
                    running.kill_with_guard()
                    assert not found.as_found()
            with setup.collector(hosts[1], zeus_dir) as running:
                until(found.as_found)
                running.hold()  # and it can set them again
                running.process.terminate()
                running.process.wait(setup.PATIENCE_S)
        assert found.as_found()
