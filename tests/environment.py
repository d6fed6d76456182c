"""The environment of a program of ours in the setup of a test."""

import os
import sys
from pathlib import Path

from tests.patience import PATIENT

ROOT = Path(__file__).parents[1]


def environment(directory: Path, **more: str) -> dict[str, str]:
    """Return this process's environment without settings of ours, for a setup. ``more``: beside them."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ZEUS_STREAM_")}
    path = os.pathsep.join((str(ROOT), *filter(None, sys.path)))
    return {**clean, **PATIENT, "ZEUS_STREAM_DIR": str(directory), "PYTHONPATH": path, **more}
