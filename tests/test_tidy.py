"""Bounds on modules, functions, names and imports, with the exceptions that there are."""

import ast
import re
from pathlib import Path

import pytest

from tests import house

ROOT = house.ROOT
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("rule", house.RULES)
def test_the_rules_of_the_house_hold(rule: str) -> None:
    found, remedy = house.RULES[rule]
    now = found()
    excepted = {subject for other, subject in house.exceptions() if other == rule}
    new = [f"{rule}: {subject} {remedy}." for subject in sorted(now - excepted)]
    stale = [
        f"{rule}: {subject} is no exception any more: python -m tests.house --prune"
        for subject in sorted(excepted - now)
    ]
    assert "\n".join(new + stale) == ""


def test_the_table_of_exceptions_is_sorted_and_names_rules_that_there_are() -> None:
    lines = house.EXCEPTIONS.read_text(encoding="utf-8").splitlines()
    assert lines == sorted(set(lines))
    assert {rule for rule, _ in house.exceptions()} <= set(house.RULES)


def test_every_package_is_in_the_table_of_the_architecture() -> None:
    packages = {"/".join(Path(name).parts[:2]) for name in house.trees() if len(Path(name).parts) > 2}
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
    assert len(table) > 35, "the third column of the table has what each package may import"
    below: dict[str, set[str]] = {}
    for package, allowed in table.items():
        below.setdefault(package.partition("/")[2], {"protocol"}).update(allowed)
    for _ in table:  # what may be imported may bring with it what it may import
        for name, allowed in below.items():
            below[name] = allowed.union(*(below.get(other, set()) for other in allowed))
    imports = {
        ("/".join(Path(name).parts[:2]), "/".join(node.module.split(".")[:2]))
        for name, tree in house.trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module is not None
    }
    wrong = [
        f"{package} imports {other}"
        for package, other in imports
        if package in table and other in table and package != other and table[package] != {"everything"}
        if other.partition("/")[2] not in below[package.partition("/")[2]]
    ]
    assert sorted(set(wrong)) == []


def test_every_file_that_the_architecture_names_is_there() -> None:
    named = re.findall(r"`((?:zeus_stream|collectors|analyzers)(?:/\w+)+(?:\.py)?)`", ARCHITECTURE)
    assert len(named) > 80
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_one_function_starts_every_child_in_python() -> None:
    """``python -m`` puts the working directory first on the import path: `python_child` does not."""
    named = {
        name
        for name, tree in house.product().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.List | ast.Tuple)
        if any(ast.unparse(part) == "sys.executable" for part in node.elts)
    }
    assert named == {"zeus_stream/service_packages.py"}


OPENS = {
    "zeus_stream/own_files.py": "the helper itself",
    "zeus_stream/settings.py": "the working directory: root's are read too, and links followed",
    "zeus_stream/own_cost.py": "/proc",
    "zeus_stream/transport/listening/socket_file.py": "/dev/null",
    "collectors/controls/watchdog.py": "/dev/null",
    "collectors/controls/restore_record.py": "in the directory of state, which is this user's alone",
    "collectors/log/sqlite.py": "beside the log, which is this user's alone",
    "analyzers/archive/process/command_file.py": "beside the archive",
    "analyzers/archive/sandbox/confinement.py": "a directory, and what this process holds already",
    "zeus_stream/simulated_gpu/shared_memory.py": "of simulated GPUs, which users share on purpose",
}


def test_one_helper_opens_files_where_others_may_write() -> None:
    opened = {
        name
        for name, tree in house.product().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "os.open"
    }
    assert opened == set(OPENS)
