"""An administrator's command sets limits, and restores them whatever is killed: real processes, SIGKILL."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.processes.setup import OURS_MW, Host, collector, restore, simulated, trainer
from tests.waiting import until
from zeus_stream.protocol.notes import ControlApplied, ControlRefused

COMMAND = """
import sys, time
from pathlib import Path
from collectors.devices.simulated import SimulatedBus
here, control, gpu, value = Path(sys.argv[1]), *sys.argv[2:]
if (here / "refuses").exists():
    sys.exit("sudo: a password is required")
(here / "began").touch()
while (here / "waits").exists():
    time.sleep(0.01)
bus = SimulatedBus.parse("simulated:v100x1", here)
(device,) = [each for each in bus.discover() if each.gpu == gpu]
number = 0 if value == "unlocked" else float(value)
device.set_control(control, round(1000 * number) if control == "power_limit" else int(number))
bus.close()
"""
"""What sudo, a wrapper and the driver do: set a GPU that the collector itself may not set."""


@pytest.fixture
def host(zeus_dir: Path) -> Iterator[Host]:
    script = zeus_dir / "set.py"
    script.write_text(COMMAND, encoding="utf-8")
    words = f"{sys.executable} {script} {zeus_dir} {{control}} {{gpu}} {{value}}"
    with simulated(zeus_dir) as made:
        yield replace(
            made, device=f"{made.device},fault=permission", environment={"ZEUS_STREAM_SET_COMMAND": words}
        )


def test_limit_and_clocks_are_set_by_the_command_and_return_after_sigkill(host: Host, zeus_dir: Path) -> None:
    with collector(host, zeus_dir) as running, trainer(host, zeus_dir):
        running.hold()
        running.kill()
        until(host.as_found)


def test_a_command_that_outlives_its_collector_leaves_nothing(host: Host, zeus_dir: Path) -> None:
    waits = zeus_dir / "waits"
    with collector(host, zeus_dir) as running, trainer(host, zeus_dir):
        until(lambda: isinstance(running.ask(OURS_MW), ControlApplied))
        (zeus_dir / "began").unlink()
        waits.touch()
        assert running.send(OURS_MW - 10_000)
        until((zeus_dir / "began").exists)
        running.kill_with_guard()
    refused = restore(host, zeus_dir)
    assert refused.returncode == 1
    assert "an earlier set_command still runs" in refused.stdout
    waits.unlink()
    until(lambda: restore(host, zeus_dir).returncode == 0)
    assert host.as_found()


def test_a_refusal_of_the_command_is_a_sentence(host: Host, zeus_dir: Path) -> None:
    (zeus_dir / "refuses").touch()
    with collector(host, zeus_dir) as running, trainer(host, zeus_dir):
        until(
            lambda: (
                isinstance(outcome := running.ask(OURS_MW), ControlRefused) and outcome.cause != "ownership"
            )
        )
        outcome = running.ask(OURS_MW)
    assert isinstance(outcome, ControlRefused)
    assert outcome.cause == "permission"
    assert "exit code 1, sudo: a password is required. Run it by hand" in outcome.reason
    assert host.as_found()
