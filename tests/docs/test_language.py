"""Plain English: no word to avoid, no docstring that begins as a question."""

from pathlib import Path

import pytest

from tests.docs.language import findings, sources


def test_no_text_has_a_word_to_avoid_or_begins_as_a_question() -> None:
    assert {str(path): found for path in sources() if (found := findings(path))} == {}, "Write plain English."


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("a.py", '"""Return what was said."""\n', 1),
        ("a.py", '"""Who asks."""\nimport os  # meanwhile\n', 2),
        ("a.py", '"""Return a limit."""\ntold = 1\n', 0),
        ("a.md", "A counter that began anew.\n```\nsaid\n```\n", 1),
    ],
)
def test_words_are_found_in_texts_and_not_in_names(tmp_path: Path, name: str, text: str, count: int) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert len(findings(path)) == count
