"""Commands under ``zeus-stream run`` beside services that run already: they start nothing."""

import json
import os
import re
import signal
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.directories import short_directory
from tests.patience import complaints
from tests.zeus_stream.conftest import SCRIPT, SIMULATED, Cli
from zeus_stream.cli.running.checks import say_ignored
from zeus_stream.cli.running.child_services import STARTS_S
from zeus_stream.own_services import KEEPER
from zeus_stream.paths import Places, claim, holder


@pytest.fixture(scope="module")
def site() -> Iterator[Cli]:
    """A setup whose collector and analyzer run, for tests that are not about starting them."""
    with short_directory() as directory:
        zeus = Cli(directory)
        with (
            zeus.serving("collect", "--device", SIMULATED),
            zeus.serving("analyze", "--select", "none"),
        ):
            yield zeus


def test_a_command_that_publishes_nothing_is_told_the_one_line(site: Cli) -> None:
    completed = site("run", "--device", SIMULATED, "--", sys.executable, "-c", "print(1); exit(3)")
    assert (completed.returncode, completed.stdout) == (3, "1\n")
    assert "zeus_stream.steps(" in completed.stderr
    assert "the last readings" not in completed.stderr, "there are none to wait for"


def test_a_script_that_names_its_runs_is_told_how_to_print_their_cost(site: Cli) -> None:
    script = site.script(
        "from zeus_stream import Publisher\n"
        "for name in ('one', 'two'):\n"
        "    with Publisher(run=name) as publisher, publisher.step():\n"
        "        pass\n"
    )
    wait = {"ZEUS_STREAM_FLUSH_S": "15"}  # all of it is waited for a run of the name
    completed = site(
        "run", "--device", SIMULATED, "--", sys.executable, script, ZEUS_STREAM_RUN="mine", **wait
    )
    assert "published no run of its name, mine. In its time began: one, two." in completed.stderr
    assert "zeus-stream report two" in completed.stderr
    assert "nothing was measured" not in completed.stderr
    measure = (sys.executable, "-m", "zeus_stream", "measure", "--seconds", "0.5")
    completed = site("run", "--device", SIMULATED, "--", *measure, **wait)
    assert completed.returncode == 0, completed.stderr
    assert "In its time began" not in completed.stderr, "measure began a session, but no run"


def test_a_quiet_run_says_nothing_but_what_the_command_says(site: Cli) -> None:
    completed = site("run", "-q", "--device", SIMULATED, "--", sys.executable, "-c", "print(1); exit(3)")
    assert (completed.returncode, completed.stdout, completed.stderr) == (3, "1\n", "")


def test_a_python_without_the_package_is_named(site: Cli) -> None:
    bare = site.directory / "bare"
    venv.create(bare, symlinks=True)
    python = str(bare / "bin" / "python")
    script = site.script("import zeus_stream\n")
    completed = site("run", "--device", SIMULATED, "--", python, script, PYTHONPATH="")
    assert completed.returncode == 1
    assert f"{python} has no package zeus_stream." in completed.stderr


def test_an_option_without_effect_says_when_it_will_have_one(
    zeus_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where, given = Places(zeus_dir, zeus_dir), {"--device": ["collector"]}
    say_ignored(given, [], where)
    assert "Give it where that is started." in capsys.readouterr().err
    with claim(zeus_dir / KEEPER, "keeper"):
        say_ignored(given, [], where)
    assert "some seconds after the last script" in capsys.readouterr().err
    say_ignored(given, ["collector"], where)
    assert capsys.readouterr().err == ""


def test_services_that_run_already_are_used_and_left_running_and_options_without_an_effect_are_named(
    site: Cli,
) -> None:
    locks = [site.directory / f"{process}.lock" for process in ("collector", "analyzer")]
    before = [holder(lock) for lock in locks]
    assert None not in before
    other = site.directory / "other.duckdb"
    options = ("--select", "energy", "--stride-w", "50", "--archive", str(other), "--nice", "1")
    completed = site("run", *options, "--device", "nvml", "--", sys.executable, site.script(), "8")
    assert completed.returncode == 0, completed.stderr
    assert "8 steps" in completed.stderr
    for option in ("--select", "--stride-w", "--archive"):
        assert f"{option} has no effect: the analyzer runs already." in completed.stderr
    assert "--device has no effect: the collector runs already." in completed.stderr
    assert "--nice has no effect: the collector and the analyzer runs already." in completed.stderr
    assert completed.stderr.count("has no effect") == 5
    assert not other.exists()
    assert f"Archive: {other}" not in completed.stderr
    assert [holder(lock) for lock in locks] == before


def test_an_analyzer_that_hangs_delays_the_prompt_by_seconds_and_what_is_waited_for_is_named(
    site: Cli,
) -> None:
    analyzer = holder(site.directory / "analyzer.lock")
    assert analyzer is not None
    os.kill(analyzer, signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        completed = site("run", "--", sys.executable, "-c", "pass", ZEUS_STREAM_FLUSH_S="0")
        took_s = time.monotonic() - began_s
    finally:
        os.kill(analyzer, signal.SIGCONT)
    assert completed.returncode == 0
    assert "waiting for the report: 3 s at most ..." in completed.stderr
    assert "the report is not ready after 3 s: the analyzer does not answer." in completed.stderr
    assert "`zeus-stream report" in completed.stderr
    assert took_s < STARTS_S


def test_a_command_that_fails_is_stored_and_reported_as_failed(site: Cli) -> None:
    script = site.script(SCRIPT + "raise ValueError('no such file')\n")
    completed = site("run", "--device", SIMULATED, "--select", "none", "--", sys.executable, script, "8")
    assert completed.returncode == 1
    assert re.search(r"^failed +exit code 1: ValueError: no such file", completed.stderr, re.MULTILINE)
    run = json.loads(site("report", "--json").stdout)
    assert run["command_ended_how"] == "exit code 1"
    assert run["ended_how"] == "ValueError: no such file"


def test_an_option_of_the_environment_is_not_complained_about(site: Cli) -> None:
    completed = site("measure", "--seconds", "0.1", ZEUS_STREAM_SELECT="energy")
    assert (completed.returncode, complaints(completed.stderr)) == (0, "")
