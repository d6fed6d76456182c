"""Check that dist/ is a release of this checkout, and write SHA256SUMS into it: all but the upload.

See ``make release``.
"""

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from zeus_stream.package_version import VERSION

ROOT = Path(__file__).resolve().parents[1]


def faults(dist: Path) -> Iterator[str]:
    """Yield what speaks against a release, a sentence with its cure each."""
    if changed := _git("status", "--porcelain"):
        yield f"the checkout has changes: commit or remove {changed.split()[1]}."
    if f"v{VERSION}" not in _git("tag", "--points-at", "HEAD").split():
        yield f"the commit has no tag of its version: `git tag --sign v{VERSION}`."
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(VERSION)} \(\d{{4}}-\d\d-\d\d\)$", log, re.MULTILINE):
        yield f"CHANGELOG.md has no section `## {VERSION} (DATE)`: write it."
    wheels = [*dist.glob("*.whl")]
    if [wheel.name.split("-")[1] for wheel in wheels] != [VERSION]:
        yield f"dist/ has not one wheel of {VERSION}: `make packages`."
        return
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", directory]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (again,) = Path(directory).glob("*.whl")
        if _digest(again) != _digest(wheels[0]):  # that of dist/ was built from the sdist
            yield "the wheel of the sdist and that of the checkout differ: compare their contents."


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path)
    parser.add_argument("--key", type=Path, help="private SSH key that signs SHA256SUMS")
    asked = parser.parse_args()
    found = [*faults(asked.dist)]
    for fault in found:
        print(f"release: {fault}", file=sys.stderr)
    if found:
        sys.exit(1)
    (asked.dist / "sbom.cdx.json").write_bytes((ROOT / "packaging" / "sbom.cdx.json").read_bytes())
    sums = asked.dist / "SHA256SUMS"
    files = sorted(path for path in asked.dist.iterdir() if not path.name.startswith("SHA256SUMS"))
    sums.write_text("".join(f"{_digest(path)}  {path.name}\n" for path in files), encoding="utf-8")
    if asked.key is None:
        print(f"{sums} is not signed: `make release KEY=...`.")
        return
    subprocess.run(["ssh-keygen", "-Y", "sign", "-n", "file", "-f", asked.key, sums], check=True)


if __name__ == "__main__":
    main()
