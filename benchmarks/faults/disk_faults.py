"""Disks that become read-only or fail (EIO) under a running setup: what it does then, and after the repair.

Needs root: makes an ext4 file system in a file, mounts it, and breaks it as a failing disk does.
``read-only`` has the kernel find an error (``trigger_fs_error``), which makes the file system read-only;
``EIO`` shuts it down (``EXT4_IOC_SHUTDOWN``), so what was not written yet is lost, as at a loss of power.
The log's directory and the archive's are broken in turn. The repair is that of an administrator: end the
processes, ``fsck``, mount, start again.
"""

import fcntl
import os
import random
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

from benchmarks.harness import Found, Rows, sentences
from collectors.devices.simulated import SimulatedBus
from tests.directories import EAGER, short_directory
from tests.processes.pipeline import Account, Setup, pipeline
from tests.waiting import until

Fault = Literal["read-only", "EIO"]
Target = Literal["log", "archive"]
FOUND_MW = 220_000
DISK_MB = 200
SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2
"""``EXT4_IOC_SHUTDOWN``, and that its journal is not written either."""
FSCK_MENDED = 1
PATIENCE_S = 60.0


class Disk:
    """An ext4 file system in a file, that can be broken and repaired."""

    def __init__(self, image: Path, where: Path) -> None:
        self._image, self.where = image, where
        with image.open("wb") as file:
            file.truncate(DISK_MB << 20)
        subprocess.run(["mkfs.ext4", "-q", image], check=True)
        where.mkdir(exist_ok=True)
        self.mount()

    def mount(self) -> None:
        subprocess.run(["mount", "-o", "loop,errors=remount-ro", self._image, self.where], check=True)
        device = self.where.stat().st_dev
        self._name = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve().name

    def unmount(self) -> None:
        """Detach it once no process uses it."""
        until(lambda: not subprocess.run(["umount", self.where], capture_output=True, check=False).returncode)

    def fail(self, fault: Fault) -> None:
        if not self._name.startswith("loop"):
            raise RuntimeError(f"{self._name} is no loop device")
        if fault == "read-only":
            Path(f"/sys/fs/ext4/{self._name}/trigger_fs_error").write_text("exercise", encoding="ascii")
            return
        descriptor = os.open(self.where, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def repair(self) -> None:
        self.unmount()
        checked = subprocess.run(["fsck.ext4", "-fy", self._image], capture_output=True, check=False)
        if checked.returncode > FSCK_MENDED:
            raise RuntimeError("the file system could not be repaired")
        self.mount()


@contextmanager
def disk(where: Path) -> Iterator[Disk]:
    """Mount a disk at a directory until the end of the block."""
    with tempfile.TemporaryDirectory() as made:
        mounted = Disk(Path(made) / "image", where)
        try:
            yield mounted
        finally:
            subprocess.run(["umount", "--lazy", where], check=False)


def fault(target: Target, how: Fault, rng: random.Random) -> tuple[str, list[str]]:
    """Break one disk under a pipeline, repair it, and return what came of it, and what is wrong with it."""
    with short_directory() as base:
        where, elsewhere = base / "s", base / "e"
        where.mkdir()
        elsewhere.mkdir()
        archive = elsewhere / "energy.duckdb"
        with disk(where if target == "log" else elsewhere) as broken:
            for name in ("simulated", "told", "collector.err", "analyzer.err", "publisher 0.err"):
                (where / name).symlink_to(base / name)  # what the exercise itself needs is not on the disk
                if not name.endswith(".err"):
                    (base / name).mkdir()
            bus = SimulatedBus.parse("simulated:v100x1", where)
            (device,) = bus.discover()
            device.set_control("power_limit", FOUND_MW)
            try:
                with pipeline(where, 1, (*EAGER, "--archive", str(archive))) as setup:
                    until(lambda: setup.told("run-1")[1] > 200)
                    until(lambda: setup.sql("SELECT 1 FROM commands LIMIT 1"))
                    time.sleep(rng.uniform(0.0, 2.0))
                    broken.fail(how)
                    sentence = _when_broken(setup, target)
                    for name in ("analyzer", "collector"):
                        setup.stop(name)
                        if name == "analyzer":
                            returned = _returns(lambda: device.read_control("power_limit"))
                    with _paused(setup.pid("publisher 0")):  # it notes into a directory of the disk
                        broken.repair()
                    for name in ("collector", "analyzer"):
                        setup.start(name)
                    account = setup.finish(archive)
            finally:
                bus.close()
    return _judged(target, how, sentence, returned, account)


@contextmanager
def _paused(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _when_broken(setup: Setup, target: Target) -> str:
    """Return the words of the process that lost its disk, once it has any."""
    name = "collector" if target == "log" else "analyzer"

    def words() -> str:
        lines = [line for line in setup.output(name).splitlines() if "could not be" in line]
        return lines[-1] if lines else ""

    return until(words, PATIENCE_S)


def _returns(read_mw: Callable[[], int | None]) -> float | None:
    """Return after how long the limit found is back, s; None: it is not."""
    began = time.monotonic()
    try:
        until(lambda: read_mw() == FOUND_MW, PATIENCE_S)
    except TimeoutError:
        return None
    return time.monotonic() - began


def _judged(
    target: Target, how: Fault, sentence: str, returned: float | None, account: Account
) -> tuple[str, list[str]]:
    wrong = sentences(
        (f"{target}, {how}: the limit did not return.", returned is None),
        (f"{target}, {how}: {account.twice} items are stored twice.", account.twice),
        (
            f"{target}, {how}: {account.lost} items were lost and no gap says so.",
            account.lost and not account.gaps,
        ),
        (  # a step that the end of a log cut has no begin in the next
            f"{target}, {how}: {account.unmeasured} steps have no measurement.",
            account.unmeasured > bool(account.gaps),
        ),
    )
    gaps = f"; gaps: {'; '.join(account.gaps)}" if account.gaps else ""
    back = "never" if returned is None else f"after {returned:.1f} s"
    events = f"{account.archived} of {account.emitted} events archived, {account.lost} lost{gaps}"
    return f'"{sentence[-160:]}"; limit back {back}; {events}', wrong


def disks(rng: random.Random) -> Found:
    """Break each disk in each way."""
    figures, wrong = Rows(), list[str]()
    for target in get_args(Target):
        for how in get_args(Fault):
            figure, found = fault(target, how, rng)
            figures.append((f"{target}, {how}", figure))
            wrong += found
    return figures, wrong
