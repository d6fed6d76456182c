"""Files that commands and services leave in a directory are for their user alone, whatever the umask."""

import os
import stat
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes.setup import FOUND_MW, simulated
from tests.processes.test_run_killed import start_run
from tests.waiting import until
from tests.zeus_stream.cli.test_wait_command import soon
from tests.zeus_stream.conftest import ANSWERS, Cli
from zeus_stream.cli.main import COMMANDS

NOBODY = 65534
DURING_RUN: tuple[tuple[str, ...], ...] = (
    ("status",),
    ("doctor",),
    ("sql", "FROM runs"),
    ("budget", "--watts", "400"),
    ("keys", "create", "another"),
    ("signals", "import", "--country", "DEU"),
    ("jobs",),
    ("profiles",),
    ("calibrate",),
    ("export", "tables"),
    ("backup", "copy"),
    ("wait", "--price", "--within", "1s", "--lasts", "1s", "--file", "price.csv", "--", "true"),
    ("mcp",),
    ("slurm", "begin"),
)
PROLOG = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0"}
"""Variables that Slurm sets for a prolog."""

AFTER_RUN: tuple[tuple[str, ...], ...] = (
    ("report",),
    ("statement", "killed"),
    ("replay", "energy.duckdb"),
    ("verify", "energy.duckdb"),
    ("record", "recording", "--device", "simulated:v100x1", "--seconds", "0.2"),
    ("prune",),
    ("restore", "--device", "simulated:v100x1"),
    ("completions", "bash"),
)
STAYING = (("top",), ("web", "--listen", "unix:web"), ("metrics",), ("forward", "jsonl:results.jsonl"))
"""These go on until they are stopped."""
ELSEWHERE = {"measure", "bench", "lake", "archive", "serve-sql", "simulate"}
"""Commands that use what `run` starts here, open the archive alone, or need servers of a site."""
SERVICES = {"run", "collect", "analyze", "set-aside"}
FOR_ALL = {
    "publish": stat.S_IFSOCK | 0o666,
    "position": stat.S_IFSOCK | 0o666,
    "web": stat.S_IFSOCK | 0o660,
}
"""Every user may publish. A web page without its token shows nothing, and a proxy may be in its group."""
CHOSEN = ("tables", "price.csv", "results.jsonl", "recording", "simulated")
"""Files that a user asked for under a name of his own; GPUs that are simulated are there for every user."""
MAY = 'while IFS= read -r path; do if [ -r "$path" ] || [ -w "$path" ]; then echo "$path"; fi; done'
"""A script of another user that names the files it may open: who can open a file can hold a lock of it."""


def left(directory: Path) -> Iterator[Path]:
    """Yield all that is in a directory, but for what a user asked for."""
    for path in directory.rglob("*"):
        if not path.relative_to(directory).parts[0].startswith(CHOSEN):
            yield path


def open_to_others(directory: Path) -> dict[str, str]:
    """Return what others may do more with than they should, and its mode."""
    found = {}
    for path in left(directory):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        others = 0o022 if stat.S_ISDIR(mode) else 0o077
        if mode & others and FOR_ALL.get(path.name) != mode:
            found[str(path.relative_to(directory))] = stat.filemode(mode)
    return found


def opened_by_another_user(directory: Path) -> set[str]:
    """Return the files that a process of another user can open."""
    files = [str(path) for path in left(directory) if path.is_file()]
    done = subprocess.run(
        ["sh", "-c", MAY],
        input="\n".join([*files, ""]),
        user=NOBODY,
        group=NOBODY,
        extra_groups=(),
        capture_output=True,
        text=True,
        check=True,
    )
    return {Path(line).name for line in done.stdout.splitlines()}


@contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


def run(zeus: Cli, *commands: tuple[str, ...]) -> None:
    """Run commands, those that do not answer at once beside each other, where others may do everything with
    what is made."""
    with umask(0):
        slow = {each: zeus.start(*each, **variables(each)) for each in commands if each[0] not in ANSWERS}
        for each in commands:
            if each[0] in ANSWERS:
                done = zeus(*each)
                os.umask(0)  # the command has set its own
                check(each, done.returncode, done.stderr)
    for each, process in slow.items():
        _, err = process.communicate(timeout=300)
        check(each, process.returncode, err)


def variables(command: tuple[str, ...]) -> Mapping[str, str]:
    return PROLOG if command[0] == "slurm" else {}


def check(command: tuple[str, ...], code: int | None, err: str) -> None:
    may_warn = command == ("doctor",)
    assert code in (0, may_warn), (command, err)


def test_every_command_is_among_these() -> None:
    tried = {command[0] for command in (*DURING_RUN, *AFTER_RUN, *STAYING)}
    assert tried | SERVICES | ELSEWHERE == {name for names in COMMANDS.values() for name in names}


@pytest.mark.sweep
def test_nothing_that_a_setup_makes_is_open_to_others(zeus_dir: Path) -> None:
    zeus = Cli(zeus_dir)
    with simulated(zeus_dir) as host:
        with umask(0):
            services = start_run(host, zeus_dir)
        with services:
            assert services.stdin is not None
            assert services.stdout is not None
            assert services.stdout.readline() == "trains\n"
            until(lambda: host.read_mw() < FOUND_MW)
            with umask(0):
                staying = [zeus.start(*arguments) for arguments in STAYING]
            soon(zeus, 60)
            run(zeus, *DURING_RUN)
            until(lambda: (zeus_dir / "web").exists() and (zeus_dir / "results.jsonl").exists())
            in_run = open_to_others(zeus_dir)
            if os.geteuid() == 0:
                (zeus_dir / "readable").touch(0o604)
                assert opened_by_another_user(zeus_dir) == {"readable"}
                (zeus_dir / "readable").unlink()
            for process in staying:
                process.terminate()
                process.communicate(timeout=300)
            services.communicate("\n", timeout=300)
    for arguments in AFTER_RUN:
        run(zeus, arguments)
    os.truncate(zeus_dir / "energy.duckdb", 5_000)
    run(zeus, ("set-aside",))
    assert in_run == {}
    assert open_to_others(zeus_dir) == {}


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o604])
def test_what_is_open_to_others_is_found(tmp_path: Path, mode: int) -> None:
    (tmp_path / "publish").touch()
    (tmp_path / "publish").chmod(mode)
    assert set(open_to_others(tmp_path)) == {"publish"}
