"""The .deb of `make packages`: installed, upgraded and removed below a directory, by dpkg itself."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.directories import short_directory

DIST = Path(os.environ.get("DIST", "none"))
BUILT = sorted(DIST.glob("*.deb"))
pytestmark = pytest.mark.skipif(not BUILT, reason="no .deb: `make packages` builds and tests it")


def dpkg(root: Path, *arguments: str | Path) -> str:
    options = [
        f"--instdir={root}",
        f"--admindir={root}/var/lib/dpkg",
        "--force-script-chrootless",
        "--force-depends",
    ]
    done = subprocess.run(["dpkg", *options, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """A directory with the database of dpkg, users and groups of its own."""
    with short_directory() as directory:
        for each in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "etc"):
            (directory / each).mkdir(parents=True)
        (directory / "var/lib/dpkg/status").touch()
        for each in ("passwd", "group"):
            shutil.copy(f"/etc/{each}", directory / "etc" / each)
        dpkg(directory, "--install", BUILT[0])
        yield directory


def test_it_installs_units_a_user_a_command_and_the_manual(root: Path) -> None:
    assert "zeus-stream:" in (root / "etc/passwd").read_text()
    assert (root / "etc/zeus-stream").is_dir()
    units = {unit.name for unit in (root / "lib/systemd/system").iterdir()}
    assert {
        f"zeus-stream-{name}.service" for name in ("collect", "analyze", "archive", "metrics", "web")
    } == units
    assert (root / "usr/share/man/man1/zeus-stream.1").exists()
    assert str((root / "usr/bin/zeus-stream").readlink()) == "/opt/zeus-stream/bin/zeus-stream"


def test_no_file_of_it_names_the_directory_in_which_it_was_built(root: Path) -> None:
    scripts = [path for path in (root / "opt/zeus-stream/bin").iterdir() if not path.is_symlink()]
    heads = {path.read_bytes().partition(b"\n")[0] for path in scripts if path.read_bytes().startswith(b"#!")}
    assert heads == {b"#!/opt/zeus-stream/bin/python"}


def test_what_is_installed_measures_a_command(root: Path, zeus_dir: Path) -> None:
    (python,) = (root / "opt/zeus-stream/bin").glob("python3")
    environment = {"PATH": os.environ["PATH"], "HOME": str(zeus_dir), "ZEUS_STREAM_DIR": str(zeus_dir)}
    options = ("--measure-only", "--device", "simulated:v100x1", "--", "sleep", "1")
    command = [str(python), "-P", "-m", "zeus_stream", "run", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert " J" in done.stdout + done.stderr


def test_an_upgrade_keeps_settings_and_a_removal_leaves_nothing_but_them(root: Path) -> None:
    settings = root / "etc/zeus-stream/zeus-stream.toml"
    settings.write_text("observe = true\n")
    dpkg(root, "--install", BUILT[0])
    assert settings.read_text() == "observe = true\n"
    dpkg(root, "--remove", "zeus-stream")
    assert not (root / "opt/zeus-stream").exists()
    assert (
        not [*(root / "lib/systemd/system").glob("zeus-stream-*")]
        if (root / "lib/systemd").exists()
        else True
    )
    assert settings.exists()
    dpkg(root, "--purge", "zeus-stream")
    assert not settings.exists()
