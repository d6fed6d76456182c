"""The command line as a person uses it: real processes, in a setup of their own."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.directories import QUICK_FILE, short_directory
from tests.empty_archive import archive_at
from tests.environment import ROOT, environment
from tests.zeus_stream.stand_in_collector import Collector
from zeus_stream.cli.main import main
from zeus_stream.transport.client import connect

SIMULATED = "simulated:v100x1"
QUICK = (
    *(*QUICK_FILE, "--warmup-steps", "1", "--profile-steps", "4"),
    *("--search", "exhaustive", "--stride-w", "50"),
)
"""Flags that let a run of 200 short steps find its limit."""
SCRIPT = """
import sys, zeus_stream
from zeus_stream.simulated_gpu.accelerator import attach
with attach("imagenet") as gpu:
    for epoch in zeus_stream.epochs(4):
        for _ in zeus_stream.steps(range(int(sys.argv[1]) // 4)):
            gpu.run(0.01 * int((sys.argv[2:] or [1])[0]))
        with zeus_stream.window("validation"):
            gpu.run(0.05)
print("trained")
"""


ANSWERS = frozenset(
    {
        *("backup", "budget", "calibrate", "completions", "doctor", "export", "jobs", "keys", "profiles"),
        *("prune", "replay", "report", "signals", "sql", "statement", "status", "verify"),
    }
)
"""Commands that answer and end. The half second of a process is spent on imports."""


OPENS_ARCHIVE = frozenset({"analyze", "run"})


def answer(arguments: Sequence[str], environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run a command in this process: its exit code, and what it wrote to files in place of the terminal."""
    code: object = 0
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with (
            patch.dict(os.environ, environment, clear=True),
            Path(os.devnull).open() as nothing,
            patch.object(sys, "stdin", nothing),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            try:
                main(arguments, prog_name="zeus-stream")
            except SystemExit as ended:
                code = ended.code
        if isinstance(code, str):
            err.write(f"{code}\n")
        for stream in (out, err):
            stream.flush()
            stream.seek(0)
        number = code if isinstance(code, int) else int(bool(code))
        return subprocess.CompletedProcess(list(arguments), number, out.read(), err.read())


def waits_for_others() -> bool:
    """Return whether a command in this thread would stop an event loop, or would not get its signals."""
    with suppress(RuntimeError):
        return asyncio.get_running_loop().is_running()
    return threading.current_thread() is not threading.main_thread()


@dataclass(frozen=True)
class Cli:
    """Runs ``zeus-stream`` in one setup."""

    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        return environment(self.directory, PYTHONPATH=str(ROOT), COLUMNS="120")

    def script(self, text: str = SCRIPT) -> str:
        """Write a training script, and return its path."""
        path = self.directory / "train.py"
        path.write_text(text, encoding="utf-8")
        return str(path)

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        if arguments[:1] and arguments[0] in OPENS_ARCHIVE and "--archive" not in arguments:
            archive_at(self.directory / "energy.duckdb")
        return subprocess.Popen(
            [sys.executable, "-m", "zeus_stream", *arguments],
            env={**self.environment, **environment},
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @contextmanager
    def serving(self, *arguments: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
        """Run a collector or an analyzer until the end of the block, once it has said that it is ready."""
        with self.start(*arguments, **environment) as process:
            try:
                assert process.stderr is not None
                first = process.stderr.readline()
                assert first.startswith(("collector:", "analyzer:")), first + process.stderr.read()
                yield process
            finally:
                process.terminate()

    def ask(self, query: str) -> list[dict[str, Any]]:
        """Return the answer of the analyzer that runs."""
        rows: list[dict[str, Any]] = connect(self.environment).sql(query).to_pylist()
        return rows

    def refused(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run a command in this process: one that answers, or one that ends before it begins its work."""
        with chdir(self.directory):
            return answer(arguments, {**self.environment, **environment})

    def __call__(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        if arguments[:1] and arguments[0] in ANSWERS and not waits_for_others():
            return self.refused(*arguments, **environment)
        with self.start(*arguments, **environment) as process:
            try:
                out, err = process.communicate(timeout=300)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def said(completed: "subprocess.CompletedProcess[str]") -> str:
    """Return the one sentence of a command that failed as it should."""
    assert completed.returncode == 1, completed
    assert completed.stdout == ""
    assert "Traceback" not in completed.stderr
    assert completed.stderr.startswith("zeus-stream: ")
    assert completed.stderr.count("\n") == 1, completed.stderr
    return completed.stderr


@pytest.fixture
def zeus(zeus_dir: Path) -> Cli:
    return Cli(zeus_dir)


@dataclass(frozen=True)
class Ran:
    """A setup in which one command was run to its end, and what that said."""

    zeus: Cli
    completed: "subprocess.CompletedProcess[str]"


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """One short training under ``zeus-stream run`` with its archive; each worker has a copy."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    kept = shared / "ran"
    with (shared / "ran.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not kept.exists():
            _train(kept)
    with short_directory() as directory:
        shutil.copytree(kept, directory, dirs_exist_ok=True)
        code, out, err = json.loads((directory / ENDED).read_text(encoding="utf-8"))
        yield Ran(Cli(directory), subprocess.CompletedProcess((), code, out, err))


ENDED = "ended.json"
"""Exit code, stdout and stderr of the training."""


TRIES = 5
"""A busy machine may answer the first commands after a short training: then the next has slower steps."""


def _train(kept: Path) -> None:
    """Train until a limit is chosen, and keep the files in a directory that is not there before they are."""
    for slower in range(1, TRIES + 1):
        with short_directory() as directory:
            zeus = Cli(directory)
            command = (sys.executable, zeus.script(), "240", str(slower))
            done = zeus("run", "--device", SIMULATED, *QUICK, "--", *command)
            ended = [done.returncode, done.stdout, done.stderr]
            (directory / ENDED).write_text(json.dumps(ended), encoding="utf-8")
            if done.returncode or zeus("sql", "FROM decisions", "--format", "csv").stdout.count("\n") > 1:
                made = Path(shutil.copytree(directory, kept.with_name("ran.part"), ignore=no_files))
                made.rename(kept)
                return
    pytest.fail(f"no limit was chosen in {TRIES} trainings")


def no_files(folder: str, names: list[str]) -> list[str]:
    """Return what cannot be copied: sockets."""
    return [name for name in names if not ((path := Path(folder, name)).is_file() or path.is_dir())]


@pytest.fixture
def collector(zeus_dir: Path) -> Iterator[Collector]:
    """Give a stand-in of a collector at the setup's socket for events."""
    with Collector(zeus_dir / "publish") as running:
        yield running
