"""Check the language of code and pages."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
AVOID = re.compile(
    r"(?<![\"`])\b(anew|meanwhile|whoever|likewise|in vain|of late|so likely|strangers?|heard|told|said)"
    r"\b(?![\"`])",
    re.IGNORECASE,
)
"""A word between quotes or back-ticks is a stored value or a name: those do not change."""
SQL = re.compile(r"\b(SELECT|DELETE FROM|ORDER BY|INTEGER NOT NULL)\b")
"""Names in statements are those of columns."""
QUESTION = re.compile(r"(What|Who|Whether|How)\b")
MAYBE_QUESTION = re.compile(r'"""\s*(What|Who|Whether|How)\b')
"""Only sources with one are parsed, which takes ten times as long."""
FOLDERS = ("zeus_stream", "collectors", "analyzers", "examples", "benchmarks")


def sources(root: Path = ROOT) -> list[Path]:
    """Return the Python files and pages whose language is checked."""
    code = (path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    pages = (root / "docs").rglob("*.md")
    return sorted([*code, *pages, root / "README.md", root / "CHANGELOG.md", root / "CONTRIBUTING.md"])


def findings(path: Path) -> list[str]:
    """Return what is wrong in a file: a word to avoid, or a docstring that begins as a question."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return [match[0] for match in AVOID.finditer(_prose(text))]
    parts = _texts(text) if AVOID.search(text) else ()
    found = [match[0] for part in parts for match in AVOID.finditer(part)]
    docstrings = _docstrings(text) if MAYBE_QUESTION.search(text) else ()
    return found + [f"docstring: {first}" for first in docstrings if QUESTION.match(first)]


def _prose(text: str) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def _texts(source: str) -> Iterator[str]:
    """Return the comments and strings of Python code."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) and not SQL.search(token.string):
            yield token.string


def _docstrings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text
