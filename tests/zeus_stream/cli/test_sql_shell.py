"""The shell of ``zeus-stream sql``: queries over lines, errors that end nothing, words that are completed."""

import io
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pyarrow as pa

from analyzers.archive.opening import attach_internal
from analyzers.archive.query import read_file
from tests.waiting import until
from tests.zeus_stream.conftest import Ran
from zeus_stream.cli.screens.sql_shell import HELP, completions, run_shell, words_of
from zeus_stream.errors import RefusedError
from zeus_stream.settings import Settings


def answered(*typed: "str | type[BaseException]") -> str:
    """Return what the shell writes for these lines; it answers a query by its text."""
    lines: Iterator[str | type[BaseException]] = iter((*typed, EOFError))

    def read_line(_prompt: str) -> str:
        line = next(lines)
        if isinstance(line, str):
            return line
        raise line

    def ask(query: str) -> pa.Table:
        if "wrong" in query:
            raise RefusedError("query: could not be answered: there is no such table.")
        return pa.table({"asked": [" ".join(query.split())]})

    out = io.StringIO()
    run_shell(ask, lambda name: f"the query {name}", read_line, out)
    return out.getvalue().removeprefix(HELP)


def test_a_query_ends_with_a_semicolon_and_may_take_lines() -> None:
    assert "SELECT 1" in answered("SELECT", "1;")
    assert answered("SELECT") == "\n"


def test_an_error_is_a_sentence_and_the_shell_goes_on() -> None:
    text = answered("FROM wrong;", "FROM epochs;")
    assert text.index("no such table") < text.index("FROM epochs")


def test_a_shipped_query_needs_no_semicolon_and_ctrl_c_drops_a_query() -> None:
    assert "the query savings" in answered("@savings")
    text = answered("FROM", KeyboardInterrupt, "FROM epochs;")
    assert "FROM epochs" in text
    assert "FROM FROM" not in text
    for word in ("quit", "exit;", ".quit"):
        assert answered(word, "FROM epochs;") == ""
    assert answered(".help", "help", "quit") == 2 * HELP


def test_words_are_completed_whatever_their_case() -> None:
    assert completions([["SELECT", "epochs", "@epochs"]], "ep") == ["epochs"]
    assert completions([["SELECT", "epochs"]], "sel") == ["SELECT"]


def test_tables_that_are_not_shown_are_completed_where_none_of_the_shown_fits(ran: Ran) -> None:
    path = ran.zeus.directory / "energy.duckdb"
    kinds = words_of(partial(read_file, path, settings=Settings()), ["epochs"])
    assert {"run", "run_energy", "runs"} <= set(completions(kinds, "r"))
    assert "checkpoints" not in completions(kinds, "c")
    assert completions(kinds, "check") == ["checkpoints"]
    assert completions(kinds, "@") == ["@epochs"]


def test_the_page_shows_the_tables_of_people_and_has_all_in_internal(ran: Ran) -> None:
    path = ran.zeus.directory / "energy.duckdb"
    tables = read_file(path, "SHOW TABLES", Settings())
    every = read_file(path, "SHOW ALL TABLES", Settings())
    with attach_internal(path) as page:
        shown = page.execute("SHOW TABLES").fetchall()
        assert sorted(shown) == sorted((name,) for name in tables["name"].to_pylist())
        for (name,) in shown:
            page.execute(f"FROM {name}")
        internal = page.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_catalog = 'internal'"
        )
        assert len(internal.fetchall()) == every.num_rows > len(shown)
        assert page.execute("FROM internal.readings LIMIT 1").fetchall()


def test_at_a_terminal_the_archive_answers_and_lines_are_kept(ran: Ran) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "zeus_stream", "sql"],
        env={**ran.zeus.environment, "TERM": "dumb"}, stdin=theirs, stdout=theirs, stderr=theirs,
    ) as shell:  # fmt: skip
        os.close(theirs)
        os.write(ours, b"SELECT 40 + 2 AS answer;\nquit\n")
        said = b""

        def ended() -> bool:
            nonlocal said
            try:
                said += os.read(ours, 4096)
            except OSError:
                return True
            return False

        until(ended)
        os.close(ours)
        assert shell.wait(60) == 0, said.decode()
    assert b"42" in said
    assert "40 + 2" in (ran.zeus.directory / "sql_history").read_text()


def test_a_page_that_cannot_be_had_is_refused_in_a_sentence(ran: Ran) -> None:
    nowhere = ran.zeus.directory / "nowhere"
    nowhere.touch()
    with ran.zeus.start("sql", "--ui", HOME=str(nowhere)) as process:  # where its extension would be stored
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.startswith("zeus-stream: sql --ui: could not start DuckDB's page: ")
    assert said.count("\n") == 1
