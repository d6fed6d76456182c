"""Texts that no process survives parsing, and what the analyzer's parser makes of them."""

import time
from collections.abc import Iterator

import pytest

from analyzers.archive.sql_parser import Parser
from zeus_stream.errors import RefusedError


@pytest.fixture
def parser() -> Iterator[Parser]:
    parser = Parser()
    yield parser
    parser.close()


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param("SELECT 1", id="one"),
        pytest.param("SELECT '\0\ud7ff\U0010ffff\n'", id="strange characters"),
        pytest.param("SELECT " + ",".join(f"f{i}(({i}))" for i in range(4000)), id="long"),
    ],
)
def test_a_text_that_only_reads_is_run_as_it_is(parser: Parser, sql: str) -> None:
    assert parser.checked(sql) == sql
    assert parser.lost == 0


def test_what_is_no_sql_is_refused_in_duckdbs_words_and_not_too_many_of_them(parser: Parser) -> None:
    with pytest.raises(RefusedError, match="syntax error") as refused:
        parser.checked("SELECT FROM WHERE " + "x" * 90_000)
    assert len(str(refused.value)) < 2_000


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param("WITH a AS (" * 10, id="takes all memory"),
        pytest.param("SELECT " + "(" * 90_000, id="takes hours"),
    ],
)
def test_a_text_that_would_stop_the_analyzer_ends_a_parser_and_the_next_is_parsed(
    parser: Parser, sql: str
) -> None:
    began = time.monotonic()
    with pytest.raises(RefusedError, match="Nest it less deeply"):
        parser.checked(sql)
    assert time.monotonic() - began < 10
    assert parser.lost == 1
    assert parser.checked("SELECT 1") == "SELECT 1"
