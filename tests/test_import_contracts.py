"""The import contracts cover every module that they are about."""

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PURE = "The pure modules wait for nothing and touch nothing"


def _contracted() -> set[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (pure,) = (contract for contract in contracts if contract["name"] == PURE)
    return set(pure["source_modules"])


def _modules_that_call_themselves_pure() -> set[str]:
    found = set()
    for package in ("zeus_stream", "collectors", "analyzers"):
        for path in (ROOT / package).rglob("*.py"):
            head = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]
            if head.rstrip().endswith("Pure."):
                parts = path.relative_to(ROOT).with_suffix("").parts
                found.add(".".join(part for part in parts if part != "__init__"))
    return found


def test_a_module_that_calls_itself_pure_is_in_the_contract_that_proves_it() -> None:
    contracted = _contracted()
    uncovered = {
        module
        for module in _modules_that_call_themselves_pure()
        if not any(module == one or module.startswith(f"{one}.") for one in contracted)
    }
    assert uncovered == set()


def test_every_module_in_the_pure_contract_exists() -> None:
    """A contract about a module that was renamed proves nothing."""
    missing = {
        module
        for module in _contracted()
        if not (ROOT / module.replace(".", "/")).with_suffix(".py").exists()
        and not (ROOT / module.replace(".", "/")).is_dir()
    }
    assert missing == set()
