"""Every command of the pages is typed as it stands, in its order, and every verb is interrupted once.

The tutorial and the guide of a site have tests of their own: test_pages.py and test_guide.py.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.directories import short_directory
from tests.docs.test_pages import PAGES, ROOT, blocks, commands, name
from tests.waiting import until
from tests.zeus_stream.conftest import ANSWERS, SCRIPT, Cli, Ran, answer, no_files

pytestmark = pytest.mark.sweep

ELSEWHERE = {
    "pip install": "tests/packaging/test_wheel.py installs",
    "make ": "runs this",
    ". .venv": "the environment of this test",
    "python -m pytest": "runs this",
    "python3 -m http.server": "does not end",
    "zeus-stream run --device simulated:a40x1 --stride-w 50": "tests/processes/test_examples.py",
    "zeus-stream run -- python examples": "needs a framework: tests/frameworks/test_seeds.py",
    "zeus-stream run -- torchrun": "the same",
    "zeus-stream run --device simulated:a100x": "tests/processes/test_pipeline_example.py",
    "zeus-stream calibrate --reference": "needs a meter: tests/analyzers/measurement has one",
    "zeus-stream jobs show": "needs a job that recurs: tests/zeus_stream/cli/test_recurring_jobs.py",
    "zeus-stream jobs forget": "the same",
    "zeus-stream top --analyzer": "needs another host: tests/processes/test_across_hosts.py",
    "zeus-stream budget --watts 1200 --group": "the same",
    "zeus-stream budget --end rack1": "the same",
    "zeus-stream web --listen 0.0.0.0": "needs a certificate: tests/zeus_stream/screens/web has its doors",
    "check-jsonschema": "needs the network",
    "docker": "tests/packaging/test_container.py",
    "kubectl": "the same",
    "apt": "tests/packaging/test_debian.py",
    "systemctl": "the same",
    "ssh": "needs another host",
}
"""Beginnings of commands that are not run here, and why."""
ON = re.compile(r"zeus-stream (web|metrics(?!.*--once)|top(?!.*(--once|--json))|simulate)\b")
"""Commands that go on until they are interrupted, and those that would take minutes."""
CALLED = {
    "nightly": "train",
    "run-1": "{run}",
    "/etc/zeus-stream/metrics-token": "token",
    "0.0.0.0:9464": "127.0.0.1:0",
    "measure --seconds 10": "measure --seconds 0.1",
    "unix:/run/zeus-stream/web": "unix:{directory}/web",
    "zeus-stream web --archive": "zeus-stream web --listen 127.0.0.1:0 --archive",
}
"""Words of a guide, and what they are here: another name, or something shorter."""
TWO_GPUS = "simulated:v100x2"
LIMIT_S = 300.0
STARTS = 3
"""Processor time of the start of Python, which nobody can guard from Ctrl-C, times this: it is over."""
ENDED = {0, 130, -signal.SIGINT}
"""Exit codes after Ctrl-C; the last one while modules are imported."""
WAITS_S = 20.0
"""After this time a command that used less waits for something."""
FIRST = {line: page for page in reversed(PAGES) for line in commands(page)}
"""The first page that has a command: there it is typed."""
TYPED = {
    page: [
        line
        for line in dict.fromkeys(commands(page))
        if FIRST[line] == page and not line.startswith(tuple(ELSEWHERE))
    ]
    for page in PAGES
    if page.stem not in {"first-saving", "cluster"}
}
VERBS = {
    line.split()[1]: line for lines in TYPED.values() for line in lines if line.startswith("zeus-stream")
}


@dataclass(frozen=True)
class Typist:
    """Types commands in a folder that has what the pages speak of, beside services that run."""

    zeus: Cli
    folder: Path
    run: str
    starts_s: float
    """Processor time of the start of Python and of the first modules."""

    @property
    def environment(self) -> dict[str, str]:
        environment = {**self.zeus.environment, "TERM": "dumb", "ZEUS_STREAM_DEVICE": TWO_GPUS}
        return {**environment, "PATH": f"{self.folder / 'bin'}:{environment['PATH']}"}

    def here(self, line: str) -> str:
        """Return a command as it is typed here."""
        for word, here in CALLED.items():
            line = line.replace(word, here.format(run=self.run, directory=self.zeus.directory))
        if re.fullmatch(r"zeus-stream web( --url)?", line):
            line += " --listen 127.0.0.1:0"
        if line.startswith("zeus-stream metrics") and "--listen" not in line and "--once" not in line:
            line += " --listen 127.0.0.1:0"
        return line

    def answer(self, line: str) -> tuple[int, str]:
        """Run a command that answers in this process: its exit code, and what it said to stderr."""
        with chdir(self.folder):
            done = answer(shlex.split(line)[1:], self.environment)
        return done.returncode, done.stderr

    def start(self, line: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            ["sh", "-c", f"exec {line}" if line.startswith("zeus-stream") else line],
            env=self.environment, cwd=self.folder, text=True, process_group=0,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def finish(self, line: str, *, interrupted: bool) -> tuple[int, str]:
        """Return the exit code of a command and what it said to stderr."""
        line = self.here(line)
        if not interrupted and line.split()[1] in ANSWERS and ">" not in line:
            return self.answer(line)
        with self.start(line) as process:
            try:
                if interrupted:
                    by_s = time.monotonic() + WAITS_S
                    until(
                        lambda: (
                            process.poll() is not None
                            or _cpu_s(process.pid) > STARTS * self.starts_s
                            or time.monotonic() > by_s
                        )
                    )
                    process.send_signal(signal.SIGINT)
                _, said = process.communicate(timeout=LIMIT_S)
            finally:
                process.kill()
        return process.returncode, said


def _start_s(environment: Mapping[str, str]) -> float:
    """Return the processor time until our command line begins, s."""
    begin = "import os, zeus_stream.__main__; print(sum(os.times()[:2]))"
    done = subprocess.run([sys.executable, "-c", begin], env=environment, capture_output=True, check=True)
    return float(done.stdout)


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process, s."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def typist(ran: Ran) -> Iterator[Typist]:
    with short_directory() as directory, short_directory() as folder:
        shutil.copytree(ran.zeus.directory, directory, dirs_exist_ok=True, ignore=no_files)
        shutil.copy(directory / "energy.duckdb", folder)
        zeus = Cli(directory)
        (folder / "train.py").write_text(SCRIPT.replace("sys.argv[1]", "8"), encoding="utf-8")
        (folder / "bin").mkdir()
        for program, text in (
            (folder / "bin" / "zeus-stream", f'exec {sys.executable} -m zeus_stream "$@"'),
            (folder / "bin" / "python", f'exec {sys.executable} "$@"'),
            (folder / "program", "sleep 0.2"),
        ):
            program.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
            program.chmod(0o755)
        (folder / "token").write_text("secret\n")
        (folder / "token").chmod(0o600)
        (sql,) = blocks(ROOT / "docs/coming-from/codecarbon.md", "sql")
        (folder / "emissions.sql").write_text(sql, encoding="utf-8")
        for name_of, guide in (("price", "costs-and-carbon"), ("load", "power-budgets")):
            texts = blocks(ROOT / f"docs/how-to/{guide}.md", "text")
            series = next(text for text in texts if f"name={name_of}" in text)
            (folder / f"{name_of}.csv").write_text(f"{series}\n", encoding="utf-8")
        statement = zeus("statement", "train", "--archive", str(folder / "energy.duckdb"))
        (folder / "energy.md").write_text(statement.stdout, encoding="utf-8")
        with zeus.serving("collect", "--device", TWO_GPUS), zeus.serving("analyze", "--select", "none"):
            run = zeus("sql", "SELECT run FROM runs LIMIT 1", "--format", "csv").stdout.splitlines()[1]
            yield Typist(zeus, folder, run.strip('"'), _start_s(zeus.environment))


@pytest.mark.parametrize("page", [page for page in TYPED if TYPED[page]], ids=name)
def test_every_command_of_a_page_ends_well_within_its_time(page: Path, typist: Typist) -> None:
    for line in TYPED[page]:
        goes_on = ON.match(line) is not None
        code, said = typist.finish(line, interrupted=goes_on)
        assert code in (ENDED if goes_on else {0}), (line, said)
        assert "Traceback" not in said, (line, said)


@pytest.mark.parametrize("verb", VERBS)
def test_a_command_that_is_interrupted_ends_without_a_traceback(verb: str, typist: Typist) -> None:
    code, said = typist.finish(VERBS[verb], interrupted=True)
    assert code in ENDED, said
    assert "Traceback" not in said, said


def test_what_is_not_run_here_is_on_a_page() -> None:
    typed = [line for page in PAGES for line in commands(page)]
    assert [begin for begin in ELSEWHERE if not any(line.startswith(begin) for line in typed)] == []
