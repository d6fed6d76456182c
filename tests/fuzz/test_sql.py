"""A few seconds of the fuzzer for SQL. `python -m tests.fuzz.sql` goes on where this ends."""

from pathlib import Path

from tests.fuzz.sql import fuzz


def test_no_text_that_is_asked_changes_a_file(tmp_path: Path) -> None:
    asked, _ = fuzz(tmp_path, seconds=3, seed=1)
    assert asked > 3
