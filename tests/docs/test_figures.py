"""docs/figures.md: how runs become medians with spread, and that README quotes what the page has."""

import sys
from pathlib import Path

import pytest

from benchmarks.figures.__main__ import QUOTES, run_once
from benchmarks.figures.page import (
    Place,
    Quote,
    Table,
    between,
    merged,
    merged_cell,
    quoted,
    read_tables,
    sections,
    write_tables,
)

ROOT = Path(__file__).parents[2]
PRINTED = """
## A step

a machine

| tool | GPUs | p50 |
|---|---|---|
| zeus-stream | 1 | {} us |
| Zeus | 1 | {} us |
"""
QUOTE = Quote(
    "step_cost",
    "{ours}, {peer}.",
    {
        "ours": Place("A step", {"tool": "zeus-stream"}, "p50"),
        "peer": Place("A step", {"tool": "Zeus"}, "p50"),
    },
)


@pytest.mark.parametrize(
    ("texts", "cell"),
    [
        (["4.1 us"], "4.1 us"),
        (["4.1 us", "4.1 us"], "4.1 us"),
        (["4.1 us", "9.0 us", "3.9 us"], "4.1 us (3.9 to 9.0)"),
        (["1,200 and 7 %", "900 and 7 %"], "900 and 7 % (900 to 1,200; 7)"),
        (["-0.5 %", "+0.5 %", "+1.5 %"], "+0.5 % (-0.5 to +1.5)"),
        (["30 s", "failed"], "30 s"),
        (["", ""], ""),
    ],
)
def test_a_figure_of_several_runs_is_its_median_with_the_least_and_the_most(
    texts: list[str], cell: str
) -> None:
    assert merged_cell(texts) == cell


def test_tables_are_read_merged_written_and_quoted() -> None:
    runs = [read_tables(PRINTED.format(ours, peer)) for ours, peer in ((4.1, 300), (4.3, 310), (4.2, 305))]
    assert runs[0] == [
        Table("A step", ("tool", "GPUs", "p50"), (("zeus-stream", "1", "4.1 us"), ("Zeus", "1", "300 us")))
    ]
    section = write_tables(merged(runs))
    assert "| zeus-stream | 1 | 4.2 us (4.1 to 4.3) |" in section
    page = f"# Figures\n\n## `step_cost`\n\nabout\n\n{section}\n## `web`\n\nother\n"
    assert list(sections(page)) == ["step_cost", "web"]
    assert quoted([QUOTE], sections(page)) == ["4.2 us, 305 us."]
    assert quoted([QUOTE], {}) == []


def test_a_run_that_printed_another_table_does_not_count() -> None:
    first = read_tables(PRINTED.format(4.1, 300))
    assert merged([first, []]) == first
    assert merged([first, [Table("A step", ("tool",), ())]]) == first


def test_a_text_without_its_marks_is_refused() -> None:
    assert between("a<b>c", "<", ">", "x") == "a<x>c"
    with pytest.raises(ValueError, match="could not find <"):
        between("abc", "<", ">", "x")


@pytest.mark.sweep
def test_what_does_not_end_is_ended_with_what_it_has_started() -> None:
    script = (
        "import subprocess, sys, time; print('begun', flush=True);"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); time.sleep(60)"
    )
    printed, why = run_once([sys.executable, "-c", script], 2.0)
    assert (printed, why) == ("begun\n", "it did not end within 2 s")
    _, why = run_once([sys.executable, "-c", "raise SystemExit('no GPU')"], 20.0)
    assert why == "exit code 1: no GPU"


def test_readme_quotes_the_figures_of_the_page() -> None:
    page = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    sentences = quoted(QUOTES, sections(page))
    assert len(sentences) == 3
    for sentence in sentences:
        assert f"- {sentence}" in page
        assert sentence in readme, "make figures writes both"
