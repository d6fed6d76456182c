"""The check of the site of documentation, and the pages that its navigation has."""

import re
from pathlib import Path

from tests.docs.site_check import wrong_of

ROOT = Path(__file__).parents[2]


def test_links_that_lead_nowhere_and_what_is_fetched_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<script src="https://cdn.example/x.js"></script><img src="b.png">'
        '<a href="b.html#here">b</a><a href="b.html#there">b</a><a href="c.html">c</a>'
        '<a href="https://example.org">e</a>'
    )
    (tmp_path / "b.html").write_text('<h1 id="here">b</h1>')
    (tmp_path / "style.css").write_text("@import 'https://fonts.example/f.css';")
    assert wrong_of(tmp_path) == [
        "a.html: b.html#there leads to no heading",
        "a.html: c.html leads nowhere",
        "a.html: fetches https://cdn.example/x.js",
        "style.css: fetches https://fonts.example/f.css",
    ]


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r'"((?:docs/)?[\w/-]+(?:/\*)?)"', (ROOT / "docs" / "site" / "conf.py").read_text())
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        name = page.relative_to(ROOT).with_suffix("").as_posix()
        assert name in listed or f"{Path(name).parent}/*" in listed, name
