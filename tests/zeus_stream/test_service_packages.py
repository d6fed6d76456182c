"""The command that messages name to install zeus-stream: from where this installation came."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from zeus_stream import service_packages
from zeus_stream.__main__ import main
from zeus_stream.service_packages import COLLECT_AFTER, install_command, python_child

ROOT = Path(service_packages.__file__).parents[1]


def test_a_checkout_is_installed_from_itself() -> None:
    assert install_command("services", "python3") == f"python3 -m pip install '{ROOT}[services]'"


def test_no_message_names_an_index_that_may_not_have_it() -> None:
    for path in (ROOT / "zeus_stream").rglob("*.py"):
        assert "pip install 'zeus-stream" not in path.read_text(encoding="utf-8"), path


def test_a_child_looks_for_cycles_of_objects_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each object that an analyzer makes counts: to look after 700 of them takes a fifth of its time."""
    (tmp_path / "shown.py").write_text("import gc; print(gc.get_threshold())", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    done = subprocess.run(python_child("shown"), capture_output=True, check=True, text=True)
    assert done.stdout.strip() == str(COLLECT_AFTER)


def test_a_command_looks_for_cycles_of_objects_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    monkeypatch.setattr(sys, "argv", ["zeus-stream", "--version"])
    try:
        with pytest.raises(SystemExit):
            main()
        assert gc.get_threshold() == COLLECT_AFTER
    finally:
        gc.set_threshold(*before)


DROPPED = """
import sys, time, weakref
from zeus_stream import __main__
sys.unraisablehook = __main__.repeat_interrupt
def interrupted(_):
    raise KeyboardInterrupt
class Imported: pass
module = Imported()
callback = weakref.ref(module, interrupted)
try:
    del module
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_ctrl_c_that_python_drops_in_a_callback_of_an_import_comes_again() -> None:
    """`zeus-stream top` went on, and Python printed a traceback."""
    done = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, check=True, text=True)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
