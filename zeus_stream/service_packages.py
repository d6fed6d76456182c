"""Finds `collectors` and `analyzers`, which no other program's packages of these names may replace.

The repository keeps both at its top. The wheel keeps them in ``zeus_stream/_services``, which is on the
import path of our own processes only: see docs/decisions/015-services-in-the-wheel.md.
"""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

_PACKAGE = Path(__file__).parent
COLLECTOR = ("anyio", "click", "rich")
"""Packages of the extra `collector`, without which no command works. A training script needs none."""
ANALYZER = ("duckdb", "numpy", "pyarrow")
"""Packages of the extra `services` besides, for commands that read an archive."""
SCREENS = ("starlette", "textual", "uvicorn")
"""Packages of that extra for `zeus-stream web` and `zeus-stream top`."""


def absent_packages(needed: Sequence[str] = (*COLLECTOR, *ANALYZER)) -> list[str]:
    """Return those packages of the services that are not installed here."""
    return [name for name in needed if find_spec(name) is None]


def services_folder() -> Path:
    """Return the folder that holds `collectors` and `analyzers`, in the wheel or in the repository."""
    installed = _PACKAGE / "_services"
    return installed if installed.is_dir() else _PACKAGE.parent


def import_services_first() -> None:
    """Put that folder first on this process's import path. Call it before the first import of either."""
    folder = str(services_folder())
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
