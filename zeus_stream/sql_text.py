"""Texts as SQL has them. Pure."""

from collections.abc import Iterable


def quoted(text: object) -> str:
    """Return a text, or a path, in single quotes."""
    return "'" + str(text).replace("'", "''") + "'"


def quoted_list(texts: Iterable[str]) -> str:
    """Return texts as a list, without brackets."""
    return ", ".join(map(quoted, texts)) or "NULL"
