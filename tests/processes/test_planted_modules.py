"""Commands in a folder that another user filled with modules of the names that ours import."""

import subprocess
import sys
from pathlib import Path

import pytest
from click import Command, Group

from tests.environment import PATIENCE_S, environment
from zeus_stream.cli.main import main
from zeus_stream.service_packages import ANALYZER, COLLECTOR, SCREENS

ZEUS_STREAM = Path(sys.executable).with_name("zeus-stream")


OURS = ("zeus_stream", "collectors", "analyzers", "msgpack", "msgspec", "zmq", "tests")


def plant(folder: Path, trace: Path) -> None:
    """Make a folder of modules that leave a trace when one is imported."""
    folder.mkdir()
    for name in {*sys.stdlib_module_names, *OURS, *COLLECTOR, *ANALYZER, *SCREENS}:
        (folder / f"{name}.py").write_text(
            f"with open({str(trace)!r}, 'a') as trace: trace.write({name!r} + ' ')\n"
        )


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder of modules that leave a trace when one is imported."""
    plant(tmp_path / "planted", tmp_path / "trace")
    return tmp_path / "planted"


def run_in(folder: Path, zeus_dir: Path, *command: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run a command that publishes nothing there, as its user would: no path names our packages."""
    environ = environment(zeus_dir) | {"ZEUS_STREAM_FLUSH_S": "0"}
    del environ["PYTHONPATH"]
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


def commands(group: Command, *names: str) -> list[tuple[str, ...]]:
    if isinstance(group, Group):
        return [found for name, each in group.commands.items() for found in commands(each, *names, name)]
    return [names]


def test_a_run_with_its_page_and_the_services_of_a_script_import_nothing_planted(
    planted: Path, zeus_dir: Path, tmp_path: Path
) -> None:
    ran = run_in(
        planted, zeus_dir, ZEUS_STREAM, "run", "--web", "--device", "simulated:v100x1", "--", "sleep", "1"
    )  # fmt: skip
    assert not (tmp_path / "trace").exists(), (tmp_path / "trace").read_text()
    assert ran.returncode == 0, ran.stderr
    assert "watch it at http://127.0.0.1" in ran.stderr
    script = tmp_path / "script.py"
    script.write_text(
        "import zeus_stream\n"
        "assert zeus_stream.start()\n"
        f"print(zeus_stream.open({str(zeus_dir / 'energy.duckdb')!r}).sql('SELECT 1 AS n').to_pylist())\n"
    )
    scripted = run_in(planted, zeus_dir, sys.executable, script)
    assert not (tmp_path / "trace").exists(), (tmp_path / "trace").read_text()
    assert (scripted.returncode, scripted.stdout) == (0, "[{'n': 1}]\n"), scripted.stderr


def test_no_command_imports_what_lies_in_its_working_directory(
    planted: Path, zeus_dir: Path, tmp_path: Path
) -> None:
    for names in commands(main):
        asked = run_in(planted, zeus_dir, ZEUS_STREAM, *names, "--help")
        assert asked.returncode == 0, (names, asked.stderr)
    assert not (tmp_path / "trace").exists(), (tmp_path / "trace").read_text()
