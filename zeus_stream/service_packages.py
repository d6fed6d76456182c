"""Starts our own child processes in Python, and finds `collectors` and `analyzers` for them and for commands.

The repository keeps both packages at its top. The wheel keeps them in ``zeus_stream/_services``, which is on
the import path of our own processes only: see docs/decisions/01-packages-and-installation.md.

A child starts isolated (``python -I``): neither its working directory nor an entry of ``PYTHONPATH`` comes
before the standard library. What this process can import besides comes last, for packages that lie elsewhere.
Root's children import only what no other user can write.

    python -I service_packages.py FOLDERS MODULE [ARGUMENT ...]
"""

import gc
import json
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

_PACKAGE = Path(__file__).parent
COLLECTOR = ("anyio", "click", "rich")
"""Packages of the extra `collector`, without which no command works. A training script needs none."""
ANALYZER = ("duckdb", "numpy", "pyarrow")
"""Packages of the extra `services` besides, for commands that read an archive."""
SCREENS = ("starlette", "textual", "uvicorn")
"""Packages of that extra for `zeus-stream web` and `zeus-stream top`."""
COLLECT_AFTER = 50_000, 20, 20
"""New objects between two looks for cycles of them, and looks between two that are wider."""


def absent_packages(needed: Sequence[str] = (*COLLECTOR, *ANALYZER)) -> list[str]:
    """Return those packages of the services that are not installed here."""
    return [name for name in needed if find_spec(name) is None]


def install_command(extra: str = "", python: str = sys.executable) -> str:
    """Return the command that installs zeus-stream, with an extra, from where this installation came from."""
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415  (of errors only)

    brackets = f"[{extra}]" if extra else ""
    try:
        text = distribution("zeus-stream").read_text("direct_url.json")
    except PackageNotFoundError:
        text = None
    origin = json.loads(text) if text else {}
    url = origin.get("url", "")
    if (_PACKAGE.parent / "pyproject.toml").is_file():
        what = f"{_PACKAGE.parent}{brackets}"
    elif "dir_info" in origin:
        what = f"{url.removeprefix('file://')}{brackets}"
    elif "vcs_info" in origin:
        vcs = origin["vcs_info"]
        what = f"zeus-stream{brackets} @ {vcs['vcs']}+{url}@{vcs['commit_id']}"
    else:
        what = f"zeus-stream{brackets} @ {url}" if url else f"zeus-stream{brackets}"
    return f"{python} -m pip install '{what}'"


def services_folder() -> Path:
    """Return the folder that holds `collectors` and `analyzers`, in the wheel or in the repository."""
    installed = _PACKAGE / "_services"
    return installed if installed.is_dir() else _PACKAGE.parent


def import_services_first() -> None:
    """Put that folder first on this process's import path. Call it before the first import of either."""
    folder = str(services_folder())
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)


def python_child(module: str, *arguments: str) -> list[str]:
    """Return the command of a child that runs a module of ours, whatever its working directory holds."""
    folders = [str(_PACKAGE.parent), *filter(_may_import, sys.path)]
    return [sys.executable, "-I", str(Path(__file__)), os.pathsep.join(folders), module, *arguments]


@contextmanager
def silent_stdout() -> Iterator[None]:
    """Drop what a package prints to stdout from C, past `sys.stdout`; what other threads print, too."""
    import ctypes  # noqa: PLC0415  (only the analyzer's solver needs it)

    flush, usual = ctypes.CDLL(None).fflush, os.dup(1)
    flush(None)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        yield
    finally:
        flush(None)  # C has a buffer of its own
        os.dup2(usual, 1)
        os.close(usual)


def collect_seldom() -> None:
    """Have Python look for cycles of objects less often: events, rows and modules are in none.

    It looks after 700 new objects, which took a fifth of the processor time of a busy analyzer, and a seventh
    of that of the imports of its store.
    """
    gc.set_threshold(*COLLECT_AFTER)


def _may_import(folder: str) -> bool:
    """Tell whether a child may import from a folder: root's only if nobody else can write there."""
    if not Path(folder).is_absolute() or os.pathsep in folder:
        return False
    if os.geteuid() != 0:
        return True
    try:
        state = Path(folder).stat()
    except OSError:
        return False
    return state.st_uid == 0 and not state.st_mode & 0o022


def _run_child(folders: str, module: str, *arguments: str) -> None:
    sys.path.extend(folder for folder in folders.split(os.pathsep) if folder not in sys.path)
    import_services_first()
    collect_seldom()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run_child(*sys.argv[1:])
