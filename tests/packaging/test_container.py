"""The steps of the container file, in a bare root file system of this machine: no engine is needed."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "packaging" / "container" / "Dockerfile"
HOST = (
    "usr",
    "bin",
    "lib",
    "lib64",
    "etc",
    "dev",
    "proc",
    *(f"opt/{each.name}" for each in Path("/opt").iterdir()),
)
"""Folders of a base image, bound from this machine, and of what else its programs may need."""


def steps() -> list[tuple[str, str]]:
    """Return the instructions with their arguments, lines joined."""
    text = re.sub(r"\\\n\s*", " ", DOCKERFILE.read_text(encoding="utf-8"))
    return re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE)


def test_what_is_copied_is_what_an_image_needs() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {"zeus_stream", "collectors", "analyzers", "packaging", "requirements.lock"} <= allowed
    assert all((ROOT / each).exists() for each in allowed)
    assert not {"tests", ".git", "docs"} & allowed


def test_it_ends_as_a_user_without_privilege_and_starts_the_command() -> None:
    last = dict(steps())
    assert last["USER"] == "65532:65532"
    assert last["ENTRYPOINT"] == '["zeus-stream"]'


@pytest.mark.skipif("DIST" not in os.environ, reason="it installs all packages: `make packages` runs it")
@pytest.mark.skipif(os.geteuid() != 0, reason="a root file system of its own takes root here")
def test_its_steps_install_a_command_that_runs(tmp_path: Path) -> None:
    binds = [each for each in HOST if Path("/", each).exists()]
    for each in (*binds, "source", "opt", "tmp", "var/lib", "root"):
        (tmp_path / each).mkdir(parents=True, exist_ok=True)
    runs = [text.replace("${LAKE}", "") for name, text in steps() if name == "RUN"]
    mounts = [f"mount --rbind /{each} {tmp_path}/{each}" for each in binds]
    inside = " && ".join([*runs, "/opt/zeus-stream/bin/zeus-stream --version"])
    lines = [*mounts, f"mount --bind {ROOT} {tmp_path}/source", f"exec chroot {tmp_path} sh -ec '{inside}'"]
    environment = {**os.environ, "PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root"}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", "\n".join(lines)],
        env=environment, capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "zeus-stream, version" in done.stdout
    assert (tmp_path / "var/lib/zeus-stream-analyzer").stat().st_uid == 65532
