"""A shell for SQL: lines of a terminal, with history and completion of tables, columns and queries."""

import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TextIO

from zeus_stream.errors import ZeusStreamError
from zeus_stream.own_files import open_own
from zeus_stream.own_services import say
from zeus_stream.screens.text.tables import write

if TYPE_CHECKING:
    import pyarrow as pa

PROMPT, MORE = "sql> ", "...> "
HISTORY = 1_000
"""Lines that are kept."""
HELP = (
    "A query ends with ; and may take several lines. SHOW TABLES; lists tables, @NAME asks a shipped query."
    " Ctrl-D leaves.\n"
)
_COLUMNS = "SELECT table_name, column_name FROM information_schema.columns"
_KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "JOIN", "USING", "DESCRIBE", "SHOW TABLES",
)  # fmt: skip


def run_shell(
    ask: Callable[[str], "pa.Table"],
    shipped: Callable[[str], str],
    read_line: Callable[[str], str],
    out: TextIO,
) -> None:
    """Answer queries until the end of the input. An error is printed, and the shell goes on.

    ``shipped``: the text of a shipped query. ``read_line``: the next line, for a prompt; EOFError: the end;
    KeyboardInterrupt: this query is dropped.
    """
    out.write(HELP)
    lines: list[str] = []
    while True:
        try:
            lines.append(read_line(MORE if lines else PROMPT).strip())
        except EOFError:
            out.write("\n")
            return
        except KeyboardInterrupt:
            out.write("\n")
            lines.clear()
            continue
        text = "\n".join(lines).strip()
        if text.rstrip(";").lstrip(".") in {"exit", "quit"}:
            return
        if text.rstrip(";").lstrip(".") == "help":
            out.write(HELP)
            lines.clear()
            continue
        if not text or text.endswith(";") or text.startswith("@"):
            lines.clear()
            if text:
                _answer(ask, shipped, text.rstrip(";"), out)


def _answer(ask: Callable[[str], "pa.Table"], shipped: Callable[[str], str], text: str, out: TextIO) -> None:
    try:
        write(ask(shipped(text[1:]) if text.startswith("@") else text), "table", out)
    except ZeusStreamError as wrong:
        out.write(f"{wrong}\n")
    except KeyboardInterrupt:
        out.write("\n")


def completions(kinds: Sequence[Sequence[str]], begun: str) -> list[str]:
    """Return the words that begin so, whatever their case, of the first kind that has any."""
    found = ([word for word in words if word.lower().startswith(begun.lower())] for words in kinds)
    return next(filter(None, found), [])


def words_of(ask: Callable[[str], "pa.Table"], queries: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what is completed first, and what is if none of that fits. ``queries``: names of shipped ones.

    First come keywords, queries, the tables of ``SHOW TABLES`` and their columns, then the other tables.
    """
    shown, others = set[str](), set[str]()
    with suppress(ZeusStreamError):
        tables = set(ask("SHOW TABLES")["name"].to_pylist())
        for row in ask(_COLUMNS).to_pylist():
            (shown if row["table_name"] in tables else others).update(row.values())
    return [*_KEYWORDS, *sorted(shown), *(f"@{name}" for name in queries)], sorted(others)


def prepare_terminal(
    ask: Callable[[str], "pa.Table"], queries: Sequence[str], history: Path
) -> Callable[[], None]:
    """Give ``input`` a history and completion, of tables, columns and queries. Return what stores it."""
    import readline

    kinds = words_of(ask, queries)
    readline.set_completer(lambda begun, n: next(iter(completions(kinds, begun)[n:]), None))
    readline.set_completer_delims(re.sub("@", "", readline.get_completer_delims()))
    readline.parse_and_bind("tab: complete")
    readline.set_history_length(HISTORY)
    with suppress(OSError):
        readline.read_history_file(history)

    def store() -> None:
        with suppress(OSError):
            history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(open_own(history, os.O_WRONLY | os.O_CREAT))  # for this user alone
            readline.write_history_file(history)

    return store


def open_shell(
    ask: Callable[[str], "pa.Table"], shipped: Callable[[str], str], queries: Sequence[str], history: Path
) -> None:
    """Answer what is typed at the terminal, and keep its history."""
    store = prepare_terminal(ask, queries, history)
    try:
        run_shell(ask, shipped, input, sys.stdout)
    finally:
        store()


def serve_page(archive: Path) -> None:
    """Serve DuckDB's page over a copy of the archive until Ctrl-C. Raises RefusedError, StorageError."""
    from analyzers.archive.open_file import copy_whole
    from analyzers.archive.opening import serve_ui

    with TemporaryDirectory(prefix="zeus-stream-") as directory:
        copy = Path(directory) / archive.name
        copy_whole(archive, copy)
        connection, address = serve_ui(copy)
        say(f"{address} shows a copy of {archive}, as it is now. `internal` has all tables. Ctrl-C ends it.")
        with connection, suppress(KeyboardInterrupt):
            signal.pause()
