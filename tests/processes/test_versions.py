"""Two versions side by side, an upgrade and a way back: processes of an earlier commit beside those of now.

0.1.0 has no tag yet. `RELEASED` is the state that counts as it: from then on, an archive and a message of
one version are read by the next, and the way back is open.
"""

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from analyzers.archive import schema
from tests.directories import EAGER
from tests.empty_archive import archive_at
from tests.environment import PATIENCE_S, ROOT, ZEUS_STREAM, rows, run, running
from tests.processes import setup
from tests.processes.pipeline import ask
from tests.waiting import until
from zeus_stream.paths import Places, places

RELEASED = "36d8a3dc41605324b3dcb3f006891fa18b5cc90f"
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
OF_NOW = {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
Environment = Mapping[str, str]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Variables with which Python imports the packages of 0.1.0."""
    packed = subprocess.run(
        ["git", "archive", RELEASED, "zeus_stream", "collectors", "analyzers"],
        cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    if packed.returncode:
        pytest.skip(f"this clone lacks the commit {RELEASED[:8]}: fetch the whole history")
    folder = tmp_path_factory.mktemp("released")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as content:
        content.extractall(folder, filter="data")
    others = (each for each in sys.path if each and Path(each) != ROOT)
    return {"PYTHONPATH": os.pathsep.join((str(folder), *others)), "PYTHONSAFEPATH": "1"}


@contextmanager
def service(version: Environment, directory: Path, *arguments: str) -> Iterator[None]:
    """Run a collector or an analyzer of a version until the end of the block."""
    with running(directory, *ZEUS_STREAM, *arguments, env=version) as process:
        assert process.stderr is not None
        line = ""
        while not line.startswith(("collector:", "analyzer:")):  # before that: what it migrates or interprets
            line = process.stderr.readline()
            assert line, f"{arguments[0]} has ended"
        yield


def collect(version: Environment, directory: Path) -> AbstractContextManager[None]:
    return service(version, directory, "collect", "--device", "simulated:v100x1")


def analyze(version: Environment, directory: Path) -> AbstractContextManager[None]:
    return service(version, directory, "analyze", *EAGER)


def at(directory: Path) -> Places:
    return places({"ZEUS_STREAM_DIR": str(directory)})


def train(version: Environment, directory: Path, name: str) -> None:
    """Train with the library of a version until limits are set, and check that every step has its joules."""
    enough = directory / f"{name}.enough"
    named = {"ZEUS_STREAM_RUN": name, "ZEUS_STREAM_JOB": name}
    with running(directory, "-c", TRAINING, enough, env={**version, **named}) as training:
        until(lambda: ask(at(directory), LIMITS.format(run=name)) not in ([], [{"n": 0}], [{"n": 1}]))
        enough.touch()
        out, _ = training.communicate(timeout=PATIENCE_S)
    steps, _, library = out.partition(" ")
    assert library.startswith(version["PYTHONPATH"].split(os.pathsep)[0])
    until(lambda: ask(at(directory), f"FROM windows WHERE run = '{name}' AND kind = 'run'"))
    (found,) = ask(at(directory), MEASURED.format(run=name))
    assert found == {"n": int(steps), "m": int(steps)}


def test_a_collector_of_now_works_with_an_analyzer_of_an_earlier_version(
    released: Environment, zeus_dir: Path
) -> None:
    with collect(OF_NOW, zeus_dir), analyze(released, zeus_dir):
        for run, library in (("earlier", released), ("now", OF_NOW)):
            train(library, zeus_dir, run)
        assert ask(at(zeus_dir), "FROM gaps") == []
        for name in ("collector", "analyzer"):
            assert rows(zeus_dir, name, 60)


def test_an_upgrade_keeps_every_figure_and_the_way_back_is_the_backup_by_which_nothing_is_lost(
    released: Environment, zeus_dir: Path
) -> None:
    saved = zeus_dir / "backup"
    backup = (*ZEUS_STREAM, "backup", "--archive", zeus_dir / "energy.duckdb")
    with collect(released, zeus_dir):
        with analyze(released, zeus_dir):
            train(released, zeus_dir, "before")
            figures = ask(at(zeus_dir), FIGURES)
            run(zeus_dir, *backup, saved, env=released).check_returncode()
        with analyze(OF_NOW, zeus_dir):  # migrates
            assert ask(at(zeus_dir), FIGURES) == figures
            for name, library in (("between", released), ("library of now", OF_NOW)):
                train(library, zeus_dir, name)
            assert ask(at(zeus_dir), "FROM gaps") == []
            for name in ("collector", "analyzer"):
                assert rows(zeus_dir, name, 60)
    with collect(OF_NOW, zeus_dir), analyze(OF_NOW, zeus_dir):  # the log of the earlier collector goes on
        train(OF_NOW, zeus_dir, "after")
        assert ask(at(zeus_dir), FIGURES) == figures
    run(zeus_dir, *backup, "--restore", saved, env=released).check_returncode()
    with collect(released, zeus_dir), analyze(released, zeus_dir):
        assert ask(at(zeus_dir), FIGURES) == figures
        until(lambda: ask(at(zeus_dir), RUNS) == [{"n": 4}])  # the log has what came later


def test_an_earlier_version_refuses_an_archive_of_a_later_schema(
    released: Environment, zeus_dir: Path
) -> None:
    archive = archive_at(zeus_dir / "energy.duckdb")
    done = run(
        zeus_dir, *ZEUS_STREAM, "sql", "--archive", archive, "SELECT schema_version FROM meta", env=released
    )
    if done.returncode == 0:  # the same schema
        assert str(schema.newest()) in done.stdout
    else:
        assert f"its schema is of version {schema.newest()}" in done.stderr


def test_limits_in_force_return_when_another_version_takes_over(
    released: Environment, zeus_dir: Path
) -> None:
    """An upgrade and two ways back of the collector, while a power limit and two clocks are set."""
    with setup.simulated(zeus_dir) as found:
        now, earlier = (replace(found, environment=each) for each in (OF_NOW, released))
        with setup.trainer(now, zeus_dir):
            with setup.collector(now, zeus_dir) as running:
                running.hold()
                running.process.terminate()
                running.process.wait(PATIENCE_S)
                assert found.as_found()
            for host in (earlier, now):
                with setup.collector(host, zeus_dir) as running:
                    until(found.as_found)
                    running.hold()  # and it can set them again
                    running.kill_with_guard()
                    assert not found.as_found()
            with setup.collector(earlier, zeus_dir):
                until(found.as_found)
