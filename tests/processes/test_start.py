"""A script that starts its own services: they live as long as a script asks for them, and no longer."""

import os
import re
import signal
import socket
from pathlib import Path

import pytest

from tests.environment import ZEUS_STREAM, run, running
from tests.patience import complaints
from tests.waiting import until
from zeus_stream import own_services
from zeus_stream.paths import holder

SIMULATED = {"ZEUS_STREAM_DEVICE": "simulated:v100x1"}
MEASURES = """
import zeus_stream
with zeus_stream.simulated.attach("imagenet") as gpu, zeus_stream.window("work") as w:
    gpu.run(0.5)
energy = w.energy(120)
print(energy.energy_j or energy)
"""
STARTS = """
import sys, time, zeus_stream
print(zeus_stream.start(), flush=True)
time.sleep(600)
"""


def held(directory: Path) -> list[str]:
    """Return the services that run in a setup."""
    names = ("collector", "analyzer", "keeper")
    return [name for name in names if holder(directory / f"{name}.lock") is not None]


@pytest.mark.parametrize(("start", "quiet"), [("1", ""), ("1", "1"), ("", "")])
def test_a_bare_script_gets_its_joules_says_what_it_cost_and_leaves_nothing_running(
    zeus_dir: Path, start: str, quiet: str
) -> None:
    """It asks by a variable, or by a call."""
    more = SIMULATED | {"ZEUS_STREAM_START": start, "ZEUS_STREAM_QUIET": quiet}
    script = MEASURES if start else f"import zeus_stream\nassert zeus_stream.start()\n{MEASURES}"
    done = run(zeus_dir, "-c", script, env=more)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 10, done.stdout  # 0.5 s of at least the idle draw of 34 W, less its edges
    line = (
        r"zeus-stream: this run used [\d.]+ J \(95 %: [\d.]+ to [\d.]+ J\), .*More: zeus-stream report \w+\n"
    )
    assert re.fullmatch("" if quiet else line, complaints(done.stderr)), done.stderr
    until(lambda: not held(zeus_dir))


def test_the_line_at_the_end_comes_also_where_services_ran_before(zeus_dir: Path) -> None:
    with (
        running(zeus_dir, *ZEUS_STREAM, "collect", env=SIMULATED),
        running(zeus_dir, *ZEUS_STREAM, "analyze", env=SIMULATED),
    ):
        until(lambda: (zeus_dir / "query").exists() and (zeus_dir / "publish").exists())
        done = run(zeus_dir, "-c", MEASURES, env=SIMULATED | {"ZEUS_STREAM_START": "1"})
        assert "zeus-stream: this run used " in done.stderr
        assert "keeper" not in held(zeus_dir)


def test_services_of_root_serve_a_script_that_asks_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_services, "ROOT_RUN", tmp_path)
    monkeypatch.delenv("ZEUS_STREAM_DIR", raising=False)
    with socket.socket(socket.AF_UNIX) as listens:
        listens.bind(str(tmp_path / "publish"))
        listens.listen()
        assert own_services.start(timeout_s=1)
    assert not (tmp_path / "scripts.lock").exists()


def test_services_outlive_the_first_of_two_scripts_and_end_after_the_last_was_killed(zeus_dir: Path) -> None:
    with (
        running(zeus_dir, "-c", STARTS, env=SIMULATED) as first,
        running(zeus_dir, "-c", STARTS, env=SIMULATED) as last,
    ):
        for script in (first, last):
            assert script.stdout is not None
            assert script.stdout.readline() == "True\n"
        before = holder(zeus_dir / "collector.lock")
        first.kill()
        first.wait()
        again = run(zeus_dir, "-c", "import zeus_stream; print(zeus_stream.start())", env=SIMULATED)
        assert again.stdout == "True\n"
        assert holder(zeus_dir / "collector.lock") == before
        last.kill()
        until(lambda: not held(zeus_dir))


def test_a_service_that_was_killed_is_there_again_for_the_script_and_the_next(zeus_dir: Path) -> None:
    """The next script waited for 60 s, and was not measured."""
    with running(zeus_dir, "-c", STARTS, env=SIMULATED) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "True\n"
        for name in ("analyzer", "collector"):
            killed = holder(zeus_dir / f"{name}.lock")
            assert killed
            os.kill(killed, signal.SIGKILL)
            until(lambda name=name, killed=killed: holder(zeus_dir / f"{name}.lock") not in {None, killed})  # type: ignore[misc]  # mypy cannot type a lambda's default
            again = run(zeus_dir, "-c", "import zeus_stream; print(zeus_stream.start(20))", env=SIMULATED)
            assert again.stdout == "True\n", again.stderr


def test_services_end_with_a_keeper_that_is_killed(zeus_dir: Path) -> None:
    with running(zeus_dir, "-c", STARTS, env=SIMULATED) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "True\n"
        keeper = holder(zeus_dir / "keeper.lock")
        assert keeper
        os.kill(keeper, signal.SIGKILL)
        until(lambda: not held(zeus_dir))


@pytest.mark.parametrize(
    "before", ["", "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"], ids=["", "no children"]
)
def test_what_cannot_be_started_is_said_and_the_script_goes_on(zeus_dir: Path, before: str) -> None:
    (zeus_dir / "energy.duckdb").write_text("not an archive")
    script = f"{before}import zeus_stream; print(zeus_stream.start(timeout_s=200))"
    done = run(zeus_dir, "-c", script, env=SIMULATED)
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert "could not start a collector and an analyzer: they have ended: " in done.stderr
    assert str(zeus_dir / "energy.duckdb") in done.stderr
    until(lambda: not held(zeus_dir))
