"""Reasons against a release, and the signed checksums of one: a checkout of its own, with a tag."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from zeus_stream.package_version import VERSION

ROOT = Path(__file__).parents[2]
AUTHOR = ("-c", "user.name=tests", "-c", "user.email=tests@localhost", "-c", "commit.gpgsign=false")


def run(folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def release(checkout: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return run(checkout, sys.executable, "packaging/release.py", "dist", *options)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit of the files that are here, and an empty folder for a release."""
    folder = tmp_path / "checkout"
    listed = run(ROOT, "git", "ls-files", "-z").stdout.split("\0")
    for name in filter(None, listed):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for command in (("init", "--quiet"), ("add", "."), (*AUTHOR, "commit", "--quiet", "--message=a release")):
        assert run(folder, "git", *command).returncode == 0
    (folder / "dist").mkdir()
    return folder


def test_a_release_has_a_tag_a_section_and_a_wheel_that_is_built_alike_again(
    checkout: Path, tmp_path: Path
) -> None:
    log = checkout / "CHANGELOG.md"
    text = log.read_text(encoding="utf-8")
    log.write_text(text.replace(f"## {VERSION} (", f"## after {VERSION} ("), encoding="utf-8")
    done = release(checkout)
    assert done.returncode == 1
    assert [line.split(":")[1] for line in done.stderr.splitlines()] == [
        " the checkout has changes",
        " the commit has no tag of its version",
        f" CHANGELOG.md has no section `## {VERSION} (DATE)`",
        f" dist/ has not one wheel of {VERSION}",
    ]
    log.write_text(text, encoding="utf-8")
    run(checkout, "git", "tag", f"v{VERSION}")
    run(checkout, sys.executable, "-m", "hatchling", "build", "--directory", "dist")
    key = tmp_path / "key"
    run(checkout, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tests", "-f", str(key))
    done = release(checkout, "--key", str(key))
    assert done.returncode == 0, done.stderr
    assert run(checkout / "dist", "sha256sum", "--check", "--quiet", "SHA256SUMS").returncode == 0
    (tmp_path / "signers").write_text(f"tests {key.with_suffix('.pub').read_text()}")
    verify = ("-Y", "verify", "-f", str(tmp_path / "signers"), "-I", "tests", "-n", "file")
    with (checkout / "dist" / "SHA256SUMS").open() as sums:
        signed = ("ssh-keygen", *verify, "-s", "dist/SHA256SUMS.sig")
        assert subprocess.run(signed, cwd=checkout, stdin=sums, check=False).returncode == 0
    (wheel,) = (checkout / "dist").glob("*.whl")
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    assert "differ: compare their contents" in release(checkout).stderr
