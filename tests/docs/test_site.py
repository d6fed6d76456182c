"""The check of the site of documentation, and the pages that its navigation has."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_links_to_pages_lead_to_pages_of_the_site() -> None:
    """What `make docs` would refuse: a page that the site does not have."""
    pages = {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md"}
    elsewhere = [
        (page.name, link)
        for page in pages
        for link in re.findall(r"\]\((?!https?://)([^)#\s]+\.md)", page.read_text(encoding="utf-8"))
        if (page.parent / link).resolve() not in pages
    ]
    assert elsewhere == []


@pytest.mark.sweep
def test_the_demo_page_is_files_that_need_no_service_and_nothing_from_elsewhere(tmp_path: Path) -> None:
    page = tmp_path / "page"
    program = (sys.executable, str(ROOT / "docs" / "site" / "demo_page.py"), str(page), "60")
    subprocess.run(program, check=True, cwd=ROOT, timeout=600, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert wrong_of(page) == []
    overview = (page / "index.html").read_text("utf-8")
    found = re.search(r"<script>const recorded = (.*?);</script>", overview)
    assert found is not None
    states = [text for _, text in json.loads(found[1])["states"]]
    assert any("imagenet" in text for text in states)
    runs = list((page / "runs").iterdir())
    assert len(runs) == 2
    assert all('{"powers": {"GPU-' in run.read_text("utf-8") for run in runs)
    asked = {
        name for file in page.rglob("*.js") for name in re.findall(r"/api/(\w+)", file.read_text("utf-8"))
    }
    assert asked <= {"power", "steps"}, "what replay.js answers"
