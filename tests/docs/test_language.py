"""Plain English: no word to avoid, no docstring that begins as a question, but in files not yet converted."""

from pathlib import Path

import pytest

from tests.docs.language import counts, exceptions, findings, place, share_of_long, sources


def test_no_folder_or_page_has_more_findings_than_its_exception_allows() -> None:
    allowed = exceptions()
    over = {name for name, count in counts().items() if count > allowed.get(name, 0)}
    wrong = {str(path): found for path in sources() if place(path) in over and (found := findings(path))}
    assert wrong == {}, "Write plain English. Exceptions shrink: python -m tests.docs.language."


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


def test_sentences_above_25_words_are_counted() -> None:
    assert share_of_long(["Short enough by far. " + "word " * 26 + "."]) == (1, 2)
