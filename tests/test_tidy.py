"""Bounds on modules, functions and folders, with the exceptions that there are."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parents[1]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = ("zeus_stream", "collectors", "analyzers", "examples")
MODULE_LINES = 400
FUNCTION_LINES = 60
FOLDER_MODULES = 12
COMPLEXITY = 15

LONG_MODULES: set[str] = set()
"""Modules that are to be split. Nothing is added here."""
LONG_FUNCTIONS: set[str] = set()
COMPLEX_FUNCTIONS: set[str] = set()
FULL_FOLDERS: set[str] = set()

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def modules() -> dict[str, tuple[int, ast.Module]]:
    """Return lines and tree of each module, by its path from the root."""
    texts = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }
    return {name: (text.count("\n"), ast.parse(text)) for name, text in texts.items()}


def functions() -> Iterator[tuple[str, Function]]:
    """Return each function with its name: ``folder/module.py:Class.function``."""

    def below(node: ast.AST, name: str, joint: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{name}{joint}{child.name}"
                if not isinstance(child, ast.ClassDef):
                    yield inner, child
                yield from below(child, inner, ".")
            else:
                yield from below(child, name, joint)

    for module, (_, tree) in modules().items():
        yield from below(tree, module, ":")


def is_one_match(function: Function) -> bool:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return len(body) == 1 and isinstance(body[0], ast.Match)


def complaint(found: Iterable[str], allowed: set[str], law: str) -> str | None:
    """Return what is wrong, in the words of somebody who has to mend it."""
    found = set(found)
    new = [f"{name}: {law}. Split it." for name in sorted(found - allowed)]
    stale = [f"{name}: no longer an exception. Remove it from the list." for name in sorted(allowed - found)]
    return "\n".join(new + stale) or None


def test_no_module_is_too_long() -> None:
    long = {name for name, (lines, _) in modules().items() if lines > MODULE_LINES}
    assert complaint(long, LONG_MODULES, f"over {MODULE_LINES} lines") is None


def test_no_function_is_too_long() -> None:
    long = {name for name, found in functions() if (found.end_lineno or 0) - found.lineno >= FUNCTION_LINES}
    assert complaint(long, LONG_FUNCTIONS, f"over {FUNCTION_LINES} lines") is None


def test_no_function_is_too_complex_unless_it_is_one_match() -> None:
    limit = f"lint.mccabe.max-complexity={COMPLEXITY}"
    ruff = [sys.executable, "-m", "ruff", "check", "--select", "C901", "--ignore-noqa", "--config", limit]
    done = subprocess.run(
        [*ruff, "--output-format", "json", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    at = {
        (str(Path(found["filename"]).relative_to(ROOT)), found["location"]["row"])
        for found in json.loads(done.stdout)
    }
    complex_ = {
        name
        for name, found in functions()
        if (name.partition(":")[0], found.lineno) in at and not is_one_match(found)
    }
    assert complaint(complex_, COMPLEX_FUNCTIONS, f"complexity above {COMPLEXITY}") is None


def test_no_folder_has_too_many_modules() -> None:
    folders = [str(Path(name).parent) for name in modules() if not name.endswith("__init__.py")]
    full = {folder for folder in set(folders) if folders.count(folder) > FOLDER_MODULES}
    assert complaint(full, FULL_FOLDERS, f"over {FOLDER_MODULES} modules") is None


def test_every_package_is_in_the_table_of_the_architecture() -> None:
    packages = {"/".join(Path(name).parts[:2]) for name in modules() if len(Path(name).parts) > 2}
    assert {package for package in packages if f"`{package}`" not in ARCHITECTURE} == set()


def may_import() -> dict[str, set[str]]:
    """Return what each package of the table in the architecture may import, by the last part of its name."""
    rows = re.findall(r"^\| (`.+?`) \| .+ \| (.+) \|$", ARCHITECTURE, re.MULTILINE)
    return {
        package: set(allowed.split(", "))
        for packages, allowed in rows
        for package in re.findall(r"`(\w+/\w+)`", packages)
    }


def test_packages_import_what_the_table_of_the_architecture_allows_them() -> None:
    table = may_import()
    below: dict[str, set[str]] = {}
    for package, allowed in table.items():
        below.setdefault(package.partition("/")[2], {"protocol"}).update(allowed)
    for _ in table:  # what may be imported may bring with it what it may import
        for name, allowed in below.items():
            below[name] = allowed.union(*(below.get(other, set()) for other in allowed))
    imports = {
        ("/".join(Path(name).parts[:2]), "/".join(node.module.split(".")[:2]))
        for name, (_, tree) in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module is not None
    }
    wrong = [
        f"{package} imports {other}"
        for package, other in imports
        if package in table and other in table and package != other and table[package] != {"everything"}
        if other.partition("/")[2] not in below[package.partition("/")[2]]
    ]
    assert wrong == []


def test_every_file_that_the_architecture_names_is_there() -> None:
    named = re.findall(r"`((?:zeus_stream|collectors|analyzers)(?:/\w+)+(?:\.py)?)`", ARCHITECTURE)
    assert len(named) > 80
    assert [name for name in named if not (ROOT / name).exists()] == []
