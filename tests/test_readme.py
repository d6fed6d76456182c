import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
QUERIES = sorted((ROOT / "analyzers" / "archive" / "queries").glob("*.sql"))


def test_the_readme_shows_the_queries_that_are_tested() -> None:
    """tests/analyzers/archive/test_queries.py runs each file against an archive with known figures."""
    shown = re.findall(r"```sql\n(.*?)\n```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert sorted(shown) == sorted(path.read_text().strip() for path in QUERIES)


def test_every_file_the_guides_link_to_is_there() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        links = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
        assert [link for link in links if not (page.parent / link).exists()] == []
