"""Every error says what to do, and the page of troubleshooting quotes what is really said."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "troubleshooting.md"
SOURCES = [
    path for top in ("zeus_stream", "collectors", "analyzers") for path in sorted((ROOT / top).rglob("*.py"))
]
ERRORS = {"SettingsError", "StorageError", "RefusedError", "UnreachableError", "UsageError", "BadParameter"}
"""What a person can meet. A `MalformedError` is what one of our processes answers to another."""
OPEN = "{}"
"""A part of a sentence that differs."""


def written(node: ast.AST) -> str | None:
    """Return the text of an expression, with `OPEN` for what differs. None: it is no text."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else OPEN for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (written(left) or OPEN) + (written(right) or OPEN)
        case _:
            return None


@cache
def nodes() -> tuple[tuple[Path, ast.AST], ...]:
    """Return every part of the sources that is a call or a text, and its file."""
    kinds = (ast.Call, ast.Constant, ast.JoinedStr, ast.BinOp)
    trees = ((path, ast.parse(path.read_text(encoding="utf-8"))) for path in SOURCES)
    return tuple((path, node) for path, tree in trees for node in ast.walk(tree) if isinstance(node, kinds))


def sentences() -> Iterator[tuple[str, str]]:
    """Yield where an error is made, and its text."""
    for path, node in nodes():
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            text = written(node.args[0])
            if name in ERRORS and text is not None:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def says_what_to_do(text: str) -> bool:
    """Tell whether a text ends with a sentence after the one that says what is wrong, or leaves that open."""
    first, *rest = re.split(r"\. |\{\} (?=[A-Z])", text, maxsplit=1)
    return (
        bool(rest)
        or text.endswith((OPEN, OPEN + "."))
        or first.startswith(("Give ", "--"))
        or ": give " in text
    )


def messages() -> list[str]:
    """Return the messages of the page, as its first column quotes them."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [quoted for row in rows[1:] for quoted in re.findall(r"`([^`]+)`", row.split("|")[1])]


@pytest.mark.sweep
def test_every_error_says_what_to_do() -> None:
    found = list(sentences())
    assert len(found) > 150, "the sentences are found"
    assert [f"{where}: {text}" for where, text in found if not says_what_to_do(text)] == []


def test_the_page_of_troubleshooting_quotes_what_is_said() -> None:
    said = "\n".join({text for _, node in nodes() if (text := written(node))})
    parts = {part.strip() for message in messages() for part in message.split("...") if part.strip()}
    assert len(parts) > 10, "the messages are found"
    assert sorted(part for part in parts if part not in said) == []
