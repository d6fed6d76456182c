"""A host of one test that boots under its own systemd: an overlay over this machine's root file system.

systemd-nspawn is Debian's, unpacked by `make packages`. The host has no network.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from tests.directories import short_directory
from tests.waiting import until

UNPACKED = Path(__file__).parents[2] / ".packages" / "nspawn"
LIBRARIES = UNPACKED / "usr" / "lib" / "x86_64-linux-gnu" / "systemd"
NSPAWN = UNPACKED / "usr" / "bin" / "systemd-nspawn"
BOOT = """
mount -t overlay overlay -o lowerdir=/,upperdir={0}/upper,workdir={0}/work {0}/root
exec {1} --quiet --directory={0}/root --boot --register=no --keep-unit --private-network \
    --resolv-conf=off --timezone=off --console=pipe systemd.unit=basic.target
"""
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class BootedHost(Struct, frozen=True):
    """A host that runs."""

    init: int
    """Process id of its systemd, as this machine sees it."""

    def run(self, *command: str | Path) -> str:
        """Run a command there as root, and return what it prints."""
        done = self.ask(*command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def ask(self, *command: str | Path) -> "subprocess.CompletedProcess[str]":
        """Run a command there as root, whatever its exit code."""
        inside = ("nsenter", f"--target={self.init}", "--all", "--root", "--wd", "--", *command)
        clean = {"PATH": PATH, "LANG": "C.UTF-8"}
        return subprocess.run(inside, env=clean, capture_output=True, text=True, timeout=180, check=False)

    def path(self, path: str) -> Path:
        """Return a path of it, as this machine sees it."""
        return Path(f"/proc/{self.init}/root", path.lstrip("/"))


@contextmanager
def booted_host() -> Iterator[BootedHost]:
    """Boot a host until the end of the block."""
    with short_directory() as directory, (directory / "console.log").open("wb") as console:
        for each in ("upper", "work", "root"):
            (directory / each).mkdir()
        libraries = {"LD_LIBRARY_PATH": str(LIBRARIES)}
        nspawn = subprocess.Popen(
            ["unshare", "--mount", "sh", "-ec", BOOT.format(directory, NSPAWN)],
            env={"PATH": PATH, **libraries, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "0"},
            stdin=subprocess.DEVNULL, stdout=console, stderr=console,
        )  # fmt: skip
        try:
            host = BootedHost(until(lambda: _init_of(nspawn)))
            until(lambda: host.ask("systemctl", "is-active", "basic.target").returncode == 0)
            yield host
        finally:
            nspawn.terminate()  # an orderly shutdown of it
            nspawn.wait(60)


def _init_of(nspawn: "subprocess.Popen[bytes]") -> int | None:
    """Return the process id of the host's systemd. None: it has not begun."""
    assert nspawn.poll() is None, "the host did not boot"
    for pid in Path(f"/proc/{nspawn.pid}/task/{nspawn.pid}/children").read_text(encoding="ascii").split():
        if Path(f"/proc/{pid}/comm").read_text(encoding="ascii") == "systemd\n":
            return int(pid)
    return None
