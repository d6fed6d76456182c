"""Run tests with each Python from 3.11 to 3.14 that this machine has: ``make test-pythons``.

    pythons.py tests/packaging/test_wheel.py

Each has an environment of its own, `.pythons/VERSION`, with what requirements.lock names. A version without
an interpreter here is named, and is no failure. PYTHONS adds interpreters: paths, with spaces between them.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
"""pyproject.toml has a classifier of each that has passed: 3.14 was on no machine of ours yet."""


def candidates() -> Iterator[str]:
    """Yield interpreters that may be here: those named, those of pyenv, those on the path, Debian's."""
    yield from os.environ.get("PYTHONS", "").split()
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for version in VERSIONS:
        yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True))
        if (found := shutil.which(f"python{version}")) is not None:
            yield found
    yield "/usr/bin/python3"


def interpreters() -> dict[str, str]:
    """Return interpreters that run, one of each version, such as 3.11.2: releases differ as well."""
    found: dict[str, str] = {}
    for each in candidates():
        command = [each, "-c", "import platform; print(platform.python_version())"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        version = done.stdout.strip()
        if done.returncode == 0 and version.startswith(tuple(f"{each}." for each in VERSIONS)):
            found.setdefault(version, each)  # a shim of pyenv may have no version
    return found


def run_tests(python: str, folder: Path, tests: list[str]) -> bool:
    """Run tests in an environment of an interpreter. Return whether all passed."""
    own, marker = folder / "bin" / "python", folder / ".installed"
    lock = ROOT / "requirements.lock"
    if not marker.exists() or marker.stat().st_mtime < lock.stat().st_mtime:
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        pip = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--require-hashes", "--requirement", lock], cwd=ROOT, check=True)
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--editable", ROOT], cwd=ROOT, check=True)
        marker.touch()
    command = [own, "-m", "pytest", "-q", "--override-ini", f"cache_dir={folder}/.pytest_cache", *tests]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def main() -> None:
    found = interpreters()
    passed = {
        version: run_tests(found[version], ROOT / ".pythons" / version, sys.argv[1:]) for version in found
    }
    for version in VERSIONS:
        if not any(each.startswith(f"{version}.") for each in found):
            print(f"Python {version}: not on this machine, so not tried.")
    for version, good in passed.items():
        print(f"Python {version}: {'passed' if good else 'FAILED'}.")
    sys.exit(not all(passed.values()))


if __name__ == "__main__":
    main()
