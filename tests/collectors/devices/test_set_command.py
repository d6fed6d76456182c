"""A device that a command sets: what is passed to it, what it may not, and what becomes of one that hangs."""

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from collectors.devices.registry import open_bus
from collectors.devices.set_command import SetCommandDevice, parse_command
from collectors.devices.simulated import SimulatedBus
from zeus_stream.errors import (
    PermissionMissingError,
    RefusedError,
    RetryError,
    SettingsError,
    UnsupportedError,
)
from zeus_stream.protocol.fields import UNLOCKED

WRITES = "import sys; open(sys.argv[1], 'a').write(' '.join(sys.argv[2:]) + '\\n')"
Make = Callable[..., SetCommandDevice]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def device(*words: str, seconds: float = 30.0) -> SetCommandDevice:
        (gpu,) = SimulatedBus.parse("simulated:v100x1", tmp_path).discover()
        return SetCommandDevice(gpu, words, tmp_path, seconds)

    return device


def test_the_command_gets_control_gpu_and_value_in_watts_and_mhz(make: Make, tmp_path: Path) -> None:
    told = tmp_path / "told"
    device = make(sys.executable, "-c", WRITES, str(told), "{control}", "--of={gpu}", "{value}")
    gpu = device.describe().gpu
    device.set_control("power_limit", 187_500)
    device.set_control("graphics_clock", 1380)
    device.set_control("memory_clock", UNLOCKED)
    assert told.read_text().splitlines() == [
        f"power_limit --of={gpu} 187.5",
        f"graphics_clock --of={gpu} 1380",
        f"memory_clock --of={gpu} unlocked",
    ]


def test_what_the_device_does_not_take_is_not_asked_of_the_command(make: Make, tmp_path: Path) -> None:
    told = tmp_path / "told"
    device = make(sys.executable, "-c", WRITES, str(told), "{control}", "{gpu}", "{value}")
    with pytest.raises(RefusedError, match="out of range"):
        device.set_control("power_limit", 1_000_000)
    with pytest.raises(RefusedError, match="out of range"):
        device.set_control("graphics_clock", 1)
    assert not told.exists()


def test_a_command_without_the_name_of_a_control_sets_limits_alone(make: Make) -> None:
    device = make("true", "{gpu}", "{value}")
    found = device.describe()
    assert [found.has(each) for each in ("power_limit", "graphics_clock", "memory_clock")] == [
        True,
        False,
        False,
    ]
    with pytest.raises(UnsupportedError, match="set_command does not"):
        device.set_control("graphics_clock", 1380)


def test_a_command_that_hangs_is_given_up_and_nothing_is_read_until_it_has_ended(make: Make) -> None:
    device = make("sh", "-c", "sleep 0.5; true", seconds=0.1)  # its child lives, as one of root would
    limit_mw = device.read_control("power_limit")
    with pytest.raises(RetryError, match=r"set the power limit to 150 W: sh: it did not end within 0.1 s"):
        device.set_control("power_limit", 150_000)
    with pytest.raises(RetryError, match="an earlier set_command still runs"):
        device.read_control("power_limit")
    while True:
        try:
            assert device.read_control("power_limit") == limit_mw
        except RetryError:
            continue
        break


def test_a_lock_that_cannot_be_opened_says_so(make: Make, tmp_path: Path) -> None:
    device = make("true", "{gpu}", "{value}")
    lock = tmp_path / f"{device.describe().gpu}.set"
    lock.mkdir()
    with pytest.raises(PermissionMissingError, match=f"user write {lock}, or remove it"):
        device.read_control("power_limit")


def test_a_command_that_is_not_there_says_so(make: Make) -> None:
    with pytest.raises(
        PermissionMissingError, match=r"/none: No such file or directory\. Correct set_command"
    ):
        make("/none", "{gpu}", "{value}").set_control("power_limit", 150_000)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("sudo nvidia-smi", r"has no \{gpu\} and no \{value\}"), ("'{gpu} {value}", "could not be split")],
)
def test_a_setting_that_cannot_work_is_refused(text: str, wrong: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=wrong):
        open_bus("simulated:v100x1", tmp_path, set_command=text)


def test_devices_stay_the_same_objects(tmp_path: Path) -> None:
    assert parse_command("sudo -n 'a b' {gpu} {value}") == ("sudo", "-n", "a b", "{gpu}", "{value}")
    with closing(open_bus("simulated:v100x1", tmp_path, set_command="true {gpu} {value}")) as bus:
        assert bus.discover()[0] is bus.discover()[0]
