"""Print what the wheel needs with the extras of its services, as it is locked: NAME==VERSION, a line each.

python packaging/wheel_requirements.py [--extra services --extra otel ...]

It reads the metadata of what is installed, and requirements.lock. `make audit` and `make sbom` use it.
"""

import argparse
import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK = Path(__file__).parents[1] / "requirements.lock"
EXTRAS = ("services", "otel", "pipeline", "png")
"""Extras whose packages are locked; those of `scale` are in requirements-scale.lock."""
_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)


def needed(name: str, extras: Iterable[str]) -> set[str]:
    """Return the packages that a package with these extras needs, and all that they need."""
    found: set[str] = set()
    waiting = [(name, frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        if (each := waiting.pop()) in seen:
            continue
        seen.add(each)
        try:
            wanted = requires(each[0]) or []
        except PackageNotFoundError:
            continue  # for another platform
        for text in wanted:
            requirement = Requirement(text)
            if requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in (*each[1], "")
            ):
                found.add(canonicalize_name(requirement.name))
                waiting.append((requirement.name, frozenset(requirement.extras)))
    return found - {canonicalize_name(name)}


def locked(lock: str) -> dict[str, str]:
    """Return the newest locked version of each package."""
    versions: dict[str, str] = {}
    for name, version in _LOCKED.findall(lock):
        versions[canonicalize_name(name)] = version  # sorted: of several, the last is of the newest Python
    return versions


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--extra", action="append", choices=EXTRAS)
    extras = parser.parse_args().extra or EXTRAS
    versions = locked(LOCK.read_text(encoding="utf-8"))
    for name in sorted(needed("zeus-stream", extras)):
        print(f"{name}=={versions[name]}")


if __name__ == "__main__":
    main()
