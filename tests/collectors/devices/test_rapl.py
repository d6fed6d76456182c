"""CPUs over a tree of files of our own, in the place of /sys/class/powercap."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.devices.rapl import MOST_W, REFRESH_NS, SLACK_NS, RaplBus, RaplDevice, growth_uj
from tests.gpu.powercap import RANGE_UJ, Powercap
from zeus_stream.errors import LostError, PermissionMissingError, RetryError

S = 1_000_000_000
NOBODY = 65534
WRAP_NS = RANGE_UJ * 1000 // MOST_W - SLACK_NS
"""Reads so far apart can no longer be told from one more turn of the counter."""


@pytest.fixture
def powercap(tmp_path: Path) -> Powercap:
    return Powercap(tmp_path)


@pytest.fixture
def package(powercap: Powercap) -> Path:
    return powercap.package(0)


@pytest.fixture
def device(powercap: Powercap, package: Path) -> RaplDevice:
    (found,) = RaplBus("node1", package.parent, powercap.now).discover()
    found.describe()
    return found


def energy_mj(device: RaplDevice) -> int:
    counted = device.sample().energy_mj
    assert counted is not None
    return counted


# ---- the counter that starts over ----------------------------------------------------------------------


@given(last_uj=st.integers(0, RANGE_UJ - 1), elapsed_ns=st.integers(0, WRAP_NS - 1), part=st.floats(0.0, 1.0))
def test_what_was_drawn_is_what_it_grew_by_however_it_started_over(
    last_uj: int, elapsed_ns: int, part: float
) -> None:
    drawn_uj = int(part * MOST_W * elapsed_ns / 1000)
    assert growth_uj(last_uj, (last_uj + drawn_uj) % RANGE_UJ, elapsed_ns, RANGE_UJ) == drawn_uj


@given(last_uj=st.integers(0, RANGE_UJ), now_uj=st.integers(0, RANGE_UJ), elapsed_ns=st.integers(0, 10**13))
def test_growth_is_never_guessed(last_uj: int, now_uj: int, elapsed_ns: int) -> None:
    grown_uj = growth_uj(last_uj, now_uj, elapsed_ns, RANGE_UJ)
    if elapsed_ns >= WRAP_NS:
        assert grown_uj is None
    elif grown_uj is not None:
        assert 0 <= grown_uj <= MOST_W * (elapsed_ns + SLACK_NS) / 1000


def test_the_counter_grows_through_the_end_of_its_range(powercap: Powercap, device: RaplDevice) -> None:
    first_mj = energy_mj(device)
    for minute in range(1, 31):  # 200 W: it starts over every 22 minutes
        powercap.draw(200, 60)
        assert energy_mj(device) == pytest.approx(first_mj + minute * 12_000_000, abs=2)


def test_after_too_long_without_a_read_it_is_counted_anew(powercap: Powercap, device: RaplDevice) -> None:
    energy_mj(device)
    powercap.draw(200, 300)
    with pytest.raises(LostError, match=r"^CPU-node1-package-0: could not count on: 300.0 s .* from zero\.$"):
        device.sample()
    device.describe()
    first_mj = energy_mj(device)
    powercap.draw(200, 1)
    assert energy_mj(device) == first_mj + 200_000


def test_a_counter_that_was_set_back_is_no_turn_of_it(
    powercap: Powercap, device: RaplDevice, package: Path
) -> None:
    powercap.draw(200, 60)
    energy_mj(device)
    (package / "energy_uj").write_text("0\n")  # as after a suspend
    powercap.draw(200, 1)
    with pytest.raises(LostError, match="from zero"):
        device.sample()


def test_it_is_read_twenty_times_a_second_and_says_the_same_between(
    powercap: Powercap, device: RaplDevice
) -> None:
    first_mj = energy_mj(device)
    powercap.draw(200, (REFRESH_NS - 1_000_000) / S)
    assert energy_mj(device) == first_mj
    powercap.draw(200, 0.001)
    assert energy_mj(device) == first_mj + 10_000


# ---- which devices there are ---------------------------------------------------------------------------


def test_packages_and_memory_are_devices_cores_and_the_board_are_not(
    powercap: Powercap, tmp_path: Path
) -> None:
    for number in (10, 0):
        powercap.package(number)
        powercap.memory(number)
    powercap.board(1)
    (tmp_path / "intel-rapl-mmio:0").mkdir()
    found = [device.describe() for device in RaplBus("node1", tmp_path).discover()]
    assert [(one.index, one.gpu, one.name) for one in found] == [
        (0, "CPU-node1-package-0", "CPU package 0"),
        (1, "DRAM-node1-package-0", "memory of CPU package 0"),
        (2, "CPU-node1-package-10", "CPU package 10"),
        (3, "DRAM-node1-package-10", "memory of CPU package 10"),
    ]


@pytest.mark.parametrize("there", [True, False])
def test_a_host_without_counters_says_what_may_be_done(tmp_path: Path, *, there: bool) -> None:
    root = tmp_path if there else tmp_path / "powercap"
    with pytest.raises(LostError, match=r"there is none\. Load intel_rapl_msr.*--cpu off"):
        RaplBus("node1", root).discover()


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """A directory that everybody may read, and no privilege to read anything else."""
    directory = Path(tempfile.mkdtemp(prefix="zs-powercap-"))
    directory.chmod(0o755)
    root = os.geteuid() == 0
    yield directory
    if root:
        os.seteuid(0)
    shutil.rmtree(directory)


def test_a_counter_for_root_only_is_a_sentence_with_its_cure(as_nobody: Path) -> None:
    powercap = Powercap(as_nobody)
    zones = [powercap.package(0), powercap.memory(0)]
    bus = RaplBus("node1", as_nobody, powercap.now)
    package, memory = bus.discover()
    for device in (package, memory):
        device.describe()
    (zones[0] / "energy_uj").chmod(0 if os.geteuid() else 0o400)
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
    assert bus.discover() == (memory,)
    with pytest.raises(
        PermissionMissingError, match=r"^CPU-node1-package-0: .*energy_uj is for root only.*Run"
    ):
        package.sample()
    if os.geteuid() == NOBODY:
        os.seteuid(0)
    (zones[1] / "energy_uj").chmod(0 if os.geteuid() else 0o400)
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
    with pytest.raises(PermissionMissingError, match=r"docs/explanation/measurement\.md"):
        bus.discover()


def test_nonsense_in_the_file_is_asked_again(package: Path, device: RaplDevice) -> None:
    (package / "energy_uj").write_text("")
    with pytest.raises(RetryError, match="next turn"):
        device.sample()
