import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import zeus_stream

ROOT = Path(__file__).parents[2]


def python(text: str, **environ: str) -> str:
    """Return what a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", text],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environ,
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout


def test_the_face_is_what_it_says_and_nothing_else() -> None:
    assert sorted(zeus_stream.__all__) == zeus_stream.__all__
    for name in set(zeus_stream.__all__) - {"simulated"}:
        home = getattr(zeus_stream, name).__module__.removeprefix("zeus_stream.")
        assert home in {
            "training.publisher", "training.default", "training.answers", "own_services",
            "transport.client", "integrations.optimizer", "integrations.trackers", "reports.archive_file",
            "integrations.run_budget",
        }  # fmt: skip
    public = {
        name
        for name, value in vars(zeus_stream).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public - {"TYPE_CHECKING", "Any"} <= set(zeus_stream.__all__)
    with pytest.raises(AttributeError, match="no attribute 'stepz'"):
        zeus_stream.stepz  # noqa: B018  (it raises)


def test_a_reader_in_a_shell_finds_every_name_its_arguments_and_the_version() -> None:
    assert {*zeus_stream.__all__, "__version__"} <= set(dir(zeus_stream))
    assert re.match(r"\d+\.\d+\.\d+", zeus_stream.__version__)
    for name in set(zeus_stream.__all__) - {"simulated"}:
        value = getattr(zeus_stream, name)
        text = inspect.getdoc(value) or ""
        assert "Example:" in text, name
        for argument in inspect.signature(value).parameters:
            if not inspect.isclass(value):
                assert f"{argument}:" in text, (name, argument)


def test_importing_loads_nothing_heavy_and_using_loads_nothing_but_zmq_and_msgpack(zeus_dir: Path) -> None:
    text = """
import sys, zeus_stream
heavy = {"zmq", "msgpack", "numpy", "duckdb", "pyarrow", "pynvml", "anyio", "rich", "click", "torch"}
print(*sorted(heavy & set(sys.modules)), "then", end=" ")
list(zeus_stream.steps([1]))
print(*sorted(heavy & set(sys.modules)))
"""
    assert python(text, ZEUS_STREAM_DIR=str(zeus_dir)) == "then msgpack zmq\n"


def test_what_importing_costs_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Figures to look at, not to pass. The goal: 100 ms and 15 MB, first use included."""
    text = """
import time
def pages(): return int(open("/proc/self/statm").read().split()[1])
begin, before = time.perf_counter(), pages()
import zeus_stream
imported, at_import = time.perf_counter(), pages()
zeus_stream.steps
print((imported - begin) * 1e3, (at_import - before) / 256)
print((time.perf_counter() - begin) * 1e3, (pages() - before) / 256)
"""
    lines = [tuple(map(float, line.split())) for line in python(text).splitlines()]
    with capsys.disabled():
        for what, (cost_ms, memory_mb) in zip(("import", "with first use"), lines, strict=True):
            print(f"\n  zeus_stream {what}: {cost_ms:.0f} ms, {memory_mb:.1f} MB", end="")
    assert lines[0] <= lines[1]
