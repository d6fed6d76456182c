import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, assert_type

import pytest

import zeus_stream
from tests.docs.python_page import RETURNED, returned
from zeus_stream import zeus

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
            "transport.client", "integrations.optimizer", "integrations.trackers", "live.archive_file",
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


OURS: dict[str, Any] = {
    **{name: getattr(zeus_stream, name) for name in zeus_stream.__all__ if name != "simulated"},
    "simulated.attach": zeus_stream.simulated.attach,
    **returned(),
    **{f"zeus.{name}": getattr(zeus, name) for name in zeus.__all__},
}
"""Every name of ours that a script can meet, with the classes of what it is given."""
NO_EXAMPLE = {"Statistics"}


def test_dir_shows_every_name_and_the_version_and_nothing_else() -> None:
    shown = [name for name in dir(zeus_stream) if not name.startswith("_")]
    assert shown == zeus_stream.__all__
    assert "__version__" in dir(zeus_stream)
    assert re.match(r"\d+\.\d+\.\d+", zeus_stream.__version__)


@pytest.mark.parametrize("name", OURS)
def test_the_docstring_of_a_name_has_its_arguments_and_an_example(name: str) -> None:
    value = OURS[name]
    text = inspect.getdoc(value) or ""
    assert "Example:" in text or name in NO_EXAMPLE
    if not inspect.isclass(value):
        assert not undescribed(value)
        return
    if name not in RETURNED:
        for argument in inspect.signature(value).parameters:
            assert f"{argument}:" in text, argument
    for each, member in members(value):
        assert inspect.getdoc(member), each
        assert not undescribed(member), each


def members(kind: type) -> list[tuple[str, Any]]:
    """Return the public methods and properties of a class of ours, without those of what it extends."""
    ours = [each for each in kind.__mro__ if each.__module__.startswith("zeus_stream.")]
    found = {name: value for each in reversed(ours) for name, value in vars(each).items()}
    return [
        (name, value)
        for name, value in found.items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    ]


def undescribed(function: Any) -> set[str]:
    """Return the arguments of a function that neither its docstring names nor the one that it refers to."""
    if isinstance(function, property):
        return set()
    text = inspect.getdoc(function) or ""
    if described := re.search(r": see `zeus_stream\.(\w+)`\.$", text):
        text = inspect.getdoc(OURS[described[1]]) or ""
    return {
        name for name in inspect.signature(function).parameters if name != "self" and f"{name}:" not in text
    }


def test_a_script_is_given_types_as_narrow_as_its_values(
    monkeypatch: pytest.MonkeyPatch, zeus_dir: Path
) -> None:
    """mypy checks this test: `assert_type` does nothing when it runs."""
    monkeypatch.setenv("ZEUS_STREAM_OFF", "1")
    monkeypatch.setenv("ZEUS_STREAM_DIR", str(zeus_dir))
    for epoch in zeus_stream.epochs(1):
        assert_type(epoch, int)
        for batch in zeus_stream.steps([b"batch"]):
            assert_type(batch, bytes)
    for name in zeus_stream.Publisher().epochs(["warm-up"]):
        assert_type(name, str)
    with zeus_stream.window("validation") as window:
        pass
    answer = window.energy(0)
    if answer:
        assert_type(answer, zeus_stream.WindowEnergy)
    else:
        assert_type(answer, zeus_stream.Missing)
    assert not answer
    assert (Path(zeus_stream.__file__).parent / "py.typed").exists()


def test_every_object_that_a_script_is_given_shows_what_it_is(
    monkeypatch: pytest.MonkeyPatch, zeus_dir: Path
) -> None:
    for name, kind in OURS.items():
        if inspect.isclass(kind):
            assert kind.__repr__ is not object.__repr__, name
    monkeypatch.setenv("ZEUS_STREAM_OFF", "1")
    monkeypatch.setenv("ZEUS_STREAM_DIR", str(zeus_dir))
    publisher = zeus_stream.Publisher(job="resnet50", run="r1")
    wanted = publisher.recurring("nightly", batch_sizes=[16], default=16, target=0.9, metric="f1")
    shown = {
        repr(publisher): "<Publisher job='resnet50' run='r1' rank=0/1: ZEUS_STREAM_OFF is set>",
        repr(publisher.window("validation")): "<Window 'validation': not begun>",
        repr(publisher.steps(range(3))): "Loop(range(0, 3))",
        repr(wanted): "<Recurring 'nightly', try 1: batch size not asked for yet>",
        repr(zeus_stream.Missing(reason="no GPU")): "Missing(reason='no GPU', name=None)",
        repr(zeus.ZeusCost(0.5)): "ZeusCost(eta_knob=0.5, world_size=1)",
        repr(zeus.Energy()): "Energy()",
    }
    for text, expected in shown.items():
        assert text == expected


def test_importing_loads_nothing_heavy_and_using_loads_nothing_but_zmq_and_msgpack(zeus_dir: Path) -> None:
    text = """
import sys, zeus_stream
heavy = {"zmq", "msgpack", "numpy", "duckdb", "pyarrow", "pynvml", "anyio", "rich", "click", "torch"}
print(*sorted(heavy & set(sys.modules)), "then", end=" ")
list(zeus_stream.steps([1]))
print(*sorted(heavy & set(sys.modules)))
"""
    assert python(text, ZEUS_STREAM_DIR=str(zeus_dir)) == "then msgpack zmq\n"
