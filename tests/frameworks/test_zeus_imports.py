"""Zeus's own tests, and the imports of its examples: its distribution with only the imports changed."""

import ast
import importlib
import os
import re
import subprocess
import sys
from importlib.metadata import files
from pathlib import Path

import pytest

from tests.environment import ROOT
from tests.frameworks.told import need

need("zeus", "pandas", "transformers")

RUN = {
    "utils/test_env.py": "",
    "device/cpu/test_socket_detection.py": "::test_get_current_cpu_index_linux",
    "optimizer/test_power_limit_optimizer.py": "::test_HFGPLO_signature_equivalence",
}
"""The tests that ask for what both packages have; the other ones of these files replace a part of Zeus."""
NOT_RUN = {
    "device/cpu/test_rapl.py": "replaces the files and processes of Zeus's RAPL classes",
    "device/gpu/test_amd.py": "replaces the AMD library within Zeus's module",
    "device/soc/apple/test_apple.py": "of a class that reads Apple's processors: not supported here",
    "device/test_deprecated_alias.py": "of a decorator that renames Zeus's own methods",
    "monitor/test_carbon.py": "replaces the monitor within Zeus's module; `signals` is our form",
    "monitor/test_energy.py": "replaces the pynvml of Zeus's module; test_against_zeus compares both",
    "monitor/test_power_streaming.py": "sets private attributes of the client; the analyzer is our form",
    "monitor/test_price.py": "replaces the monitor within Zeus's module; `signals` is our form",
    "optimizer/batch_size/test_client.py": "needs Zeus's batch size server",
    "optimizer/batch_size/test_explorer.py": "needs Zeus's batch size server",
    "optimizer/batch_size/test_server.py": "needs Zeus's batch size server",
    "optimizer/batch_size/test_simulator.py": "needs Zeus's batch size server",
    "test_metric.py": "replaces the monitor within Zeus's module; `zeus-stream metrics` is our form",
    "utils/test_multiprocessing.py": "of a warning about processes that our monitors do not start",
    "utils/test_zeusd.py": "of a client of Zeus's daemon: the collector takes its place",
}


def of_zeus(folder: str) -> dict[str, Path]:
    """Return the files that Zeus installs in a folder beside its package."""
    installed = files("zeus") or []
    return {
        each.as_posix().removeprefix(f"{folder}/"): Path(str(each.locate()))
        for each in installed
        if each.parts[0] == folder and each.suffix == ".py"
    }


def imports(script: Path) -> set[tuple[str, str]]:
    """Return what a script imports from Zeus: module and name."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    found = [each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom) and each.module]
    return {
        (each.module, name.name)
        for each in found
        if each.module and each.module.split(".")[0] == "zeus"
        for name in each.names
    }


def test_every_test_of_zeus_is_run_or_has_a_reason() -> None:
    tests = {name for name in of_zeus("tests") if Path(name).name.startswith("test_")}
    assert tests == {*RUN, *NOT_RUN}


@pytest.mark.parametrize("name", RUN)
def test_a_test_of_zeus_passes(tmp_path: Path, name: str) -> None:
    text = re.sub(
        r"^from zeus\.", "from zeus_stream.zeus.", of_zeus("tests")[name].read_text(), flags=re.MULTILINE
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "tests" / "profile_data").mkdir(parents=True)  # one of them lists it when it is imported
    (tmp_path / "test_it.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", f"test_it.py{RUN[name]}"]
    ours = {**os.environ, "PYTHONPATH": str(ROOT)}  # `make test-zeus-examples` installs only what this needs
    done = subprocess.run(
        command, cwd=tmp_path, env=ours, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout


def test_every_import_of_zeus_examples_is_there() -> None:
    found = {each for script in of_zeus("examples").values() for each in imports(script)}
    assert len(found) > 20
    for module, name in sorted(found):
        assert hasattr(importlib.import_module(f"zeus_stream.{module}"), name), f"{module}.{name}"
