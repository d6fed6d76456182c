#!/usr/bin/env python3
"""Install this checkout with its services into an environment: ``install.py /opt/zeus-stream [--lake]``.

The packages are those of the bill of materials and the clients of broker and kubelet, with the versions and
hashes of requirements.lock; for a lake also those of the extra ``scale``, with its version of DuckDB.
"""

import argparse
import json
import re
import subprocess
import tempfile
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLUSTER = {"nats-py", "grpcio"}
LAKE = {"psycopg", "psycopg-binary"}
_STANZA = re.compile(r"^([A-Za-z0-9._-]+)==[^\\\n]*(?:\\\n[^\\\n]*)*", re.MULTILINE)


def requirements(*, lake: bool) -> str:
    """Return the part of the locks that is installed, with hashes."""
    components = json.loads((ROOT / "packaging" / "sbom.cdx.json").read_text(encoding="utf-8"))["components"]
    names = {component["name"].lower() for component in components} | CLUSTER
    stanzas = [*_stanzas("requirements.lock", lambda name: name in names)]
    if lake:  # its DuckDB in place of ours
        stanzas = [
            *_stanzas("requirements.lock", lambda name: name in (names | LAKE) - {"duckdb"}),
            *_stanzas("requirements-scale.lock", lambda name: name.startswith("duckdb")),
        ]
    return "\n".join(stanzas)


def _stanzas(lock: str, wanted: Callable[[str], bool]) -> Iterator[str]:
    text = (ROOT / lock).read_text(encoding="utf-8")
    return (found[0] for found in _STANZA.finditer(text) if wanted(found[1].lower()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prefix", type=Path)
    parser.add_argument("--lake", action="store_true")
    asked = parser.parse_args()
    venv.create(asked.prefix, symlinks=True, with_pip=True)
    pip = [asked.prefix / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(requirements(lake=asked.lake))
        file.flush()
        install = [*pip, "install", "--no-cache-dir", "--require-hashes", "--requirement", file.name]
        subprocess.run(install, check=True)
    subprocess.run([*pip, "install", "--no-cache-dir", "--no-deps", ROOT], check=True)
    subprocess.run([*pip, "uninstall", "--yes", "pip", "setuptools"], check=True)


if __name__ == "__main__":
    main()
