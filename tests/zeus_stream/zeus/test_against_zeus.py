"""Zeus 0.16 and our classes of the same names, on the same stand-in NVML: same fields, same choices."""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.environment import ROOT, run
from tests.gpu import stand_in
from tests.zeus_stream.zeus.both import PLAYED, shows

TORCH = """
class cuda:
    is_available = staticmethod(lambda: True)
    is_initialized = staticmethod(lambda: False)
    synchronize = staticmethod(lambda index: None)
class distributed:
    is_available = staticmethod(lambda: False)
"""
"""What Zeus asks of torch. It refuses one without CUDA, and this machine has none."""
needs_compiler = pytest.mark.skipif(
    stand_in.compiler() is None, reason="no C compiler for the stand-in of NVML"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stand_in.build(tmp_path_factory.mktemp("nvml"))


def results(package: str, library: Path, zeus_dir: Path, path: str) -> dict[str, Any]:
    """Return what the script finds with a package, on new GPUs."""
    file = zeus_dir / f"{package}.gpus"
    gpus = stand_in.StandIn(file, count=2)
    gpus.record(PLAYED, shows())
    ours = {"PYTHONPATH": path, "ZEUS_STREAM_DEVICE": "nvml", "ZEUS_STREAM_TRUST_UID": str(os.getuid())}
    arguments = ("-m", "tests.zeus_stream.zeus.both", package, file, zeus_dir / f"{package}.json")
    done = run(zeus_dir, *arguments, cwd=ROOT, env={**gpus.environment(library), **ours})
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@needs_compiler
@pytest.mark.skipif(find_spec("zeus") is None, reason="zeus 0.16 is not installed here")
def test_fields_and_choices_are_those_of_zeus_and_our_joules_are_closer(
    library: Path, zeus_dir: Path
) -> None:
    (zeus_dir / "torch").mkdir()
    (zeus_dir / "torch" / "__init__.py").write_text(TORCH, encoding="utf-8")
    (zeus_dir / "transformers.py").write_text("raise ModuleNotFoundError\n", encoding="utf-8")
    theirs = results("zeus", library, zeus_dir, f"{zeus_dir}:{ROOT}")
    ours = results("zeus_stream.zeus", library, zeus_dir, str(ROOT))
    sys.stderr.write(f"zeus {theirs}\nours {ours}\n")
    assert ours["mean_error_j"] < theirs["mean_error_j"] / 2
    for figures in (theirs, ours):
        del figures["mean_error_j"]
    assert ours == theirs
