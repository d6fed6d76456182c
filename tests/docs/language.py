"""Check the language of code and pages.

``python -m tests.docs.language [ROOT]`` prints the share of sentences above 25 words.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
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
LONG = 25
"""Words of a sentence, at most."""
FOLDERS = ("zeus_stream", "collectors", "analyzers", "examples", "benchmarks")
RECORDS = ("docs/decisions/", "docs/measurements/", "CHANGELOG.md")
"""Pages that record the past: their words are checked, but their sentences are not measured."""


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


def share_of_long(texts: Iterable[str]) -> tuple[int, int]:
    """Return the number of sentences above LONG words, and of all sentences."""
    lengths = [len(part.split()) for text in texts for part in re.split(r"(?<=[.!?])\s+|\n\s*\n", text)]
    counted = [length for length in lengths if length > 2]
    return sum(length > LONG for length in counted), len(counted)


def _measure(root: Path) -> None:
    pages = [path for path in sources(root) if path.suffix == ".md"]
    pages = [path for path in pages if not str(path.relative_to(root)).startswith(RECORDS)]
    code = [path for path in sources(root) if path.suffix == ".py"]
    groups = {
        "README": [_plain(root / "README.md")],
        "pages": [_plain(path) for path in pages],
        "docstrings": [text for path in code for text in _docstrings(path.read_text(encoding="utf-8"))],
    }
    for name, texts in groups.items():
        long, total = share_of_long(texts)
        print(f"{name}: {long} of {total} sentences above {LONG} words, {100 * long / max(total, 1):.1f} %")


def _plain(path: Path) -> str:
    """Return the sentences of a page: no code, no headings, no tables, one paragraph per list item."""
    text = _prose(path.read_text(encoding="utf-8"))
    text = re.sub(r"^(#|\||<!--).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"^\s*([-*]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)


if __name__ == "__main__":
    _measure(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
