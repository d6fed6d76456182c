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
    ("sql", "kinds"),
    [
        pytest.param("SELECT 1", ["SELECT"], id="one"),
        pytest.param("FROM runs; DROP TABLE runs; FROM gpus", ["SELECT", "DROP"], id="several"),
        pytest.param(" ", [], id="none"),
        pytest.param("SELECT '\0\ud7ff\U0010ffff\n'", ["SELECT"], id="strange characters"),
        pytest.param("SELECT " + ",".join(f"f{i}(({i}))" for i in range(4000)), ["SELECT"], id="long"),
    ],
)
def test_a_text_is_told_by_the_kinds_of_its_statements(parser: Parser, sql: str, kinds: list[str]) -> None:
    assert parser.kinds(sql) == kinds
    assert parser.lost == 0


def test_what_is_no_sql_is_refused_in_duckdbs_words_and_not_too_many_of_them(parser: Parser) -> None:
    with pytest.raises(RefusedError, match="syntax error") as refused:
        parser.kinds("SELECT FROM WHERE " + "x" * 90_000)
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
        parser.kinds(sql)
    assert time.monotonic() - began < 10
    assert parser.lost == 1
    assert parser.kinds("SELECT 1") == ["SELECT"]
