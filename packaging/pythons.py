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
VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def candidates(version: str) -> Iterator[str]:
    """Yield interpreters that may be of a version: those named, those of pyenv, the one on the path."""
    yield from os.environ.get("PYTHONS", "").split()
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True))
    if (found := shutil.which(f"python{version}")) is not None:
        yield found


def interpreter(version: str) -> str | None:
    """Return an interpreter of a version that runs; None: there is none on this machine."""
    for each in candidates(version):
        done = subprocess.run([each, "-c", VERSION], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:  # a shim of pyenv may have no version
            return each
    return None


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
    lines, failed = [], False
    for version in VERSIONS:
        python = interpreter(version)
        if python is None:
            lines.append(f"Python {version}: not on this machine, so not tried.")
            continue
        passed = run_tests(python, ROOT / ".pythons" / version, sys.argv[1:])
        full = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout
        lines.append(f"{full.strip()}: {'passed' if passed else 'FAILED'}.")
        failed = failed or not passed
    print("\n".join(lines))
    sys.exit(failed)


if __name__ == "__main__":
    main()
