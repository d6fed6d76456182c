"""The calculator of a site grows with its hosts, and the guide has what it prints."""

from pathlib import Path

import pytest

from analyzers.lake.sizing import SiteSize, rows

PAGE = Path(__file__).parents[3] / "docs/how-to/cluster.md"
HOSTS = (125, 1_250, 12_500)
BEGIN, END = "<!-- sizes -->\n", "<!-- end of sizes -->"


def of(hosts: int, **other: float) -> dict[str, float]:
    site = SiteSize(hosts=hosts, gpus=8, **other)  # type: ignore[arg-type]
    return {f"{what}, {unit}": figure for what, figure, unit in rows(site)}


def test_bytes_grow_with_hosts_and_services_are_never_fewer_than_two() -> None:
    small, large = of(1), of(10_000)
    stored = "lake at the ages that are set, GB"
    assert large[stored] == pytest.approx(10_000 * small[stored])
    assert small["archivers, of two cores each, processes"] == 2
    assert large["archivers, of two cores each, processes"] > 2
    assert small["broker, all servers, cores"] == 2


def test_a_longer_outage_needs_a_larger_stream_and_nothing_else() -> None:
    day, two = of(100, outage_h=24.0), of(100, outage_h=48.0)
    changed = {name for name, figure in day.items() if two[name] != figure}
    assert changed == {"broker, all servers, GB of disk", "broker_mb to set, MB"}


def table() -> str:
    """Return the table of the guide."""
    columns = [rows(SiteSize(hosts=hosts, gpus=8)) for hosts in HOSTS]
    lines = [f"| hosts | {' | '.join(f'{hosts:,}' for hosts in HOSTS)} |", "|---|" + "---|" * len(HOSTS)]
    for each in zip(*columns, strict=True):
        figures = " | ".join(f"{figure:,.1f}" if figure < 10 else f"{figure:,.0f}" for _, figure, _ in each)
        lines.append(f"| {each[0][0]}{', ' if each[0][2] else ''}{each[0][2]} | {figures} |")
    return "\n".join(lines) + "\n"


def test_the_guide_has_the_table_of_three_sizes() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)] == table()
