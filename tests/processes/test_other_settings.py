"""An analyzer that is killed in the middle of a run and started with other settings."""

import re
from pathlib import Path

import pytest

from tests.directories import EAGER
from tests.processes.pipeline import Setup
from tests.waiting import until

DECIDED = "SELECT run, number, selector FROM decisions WHERE power_limit_w IS NOT NULL ORDER BY run, number"
BEGAN = "SELECT run, start FROM runs ORDER BY run"
GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-selector.md"


def install_guide_selector(packages: Path) -> None:
    """Install the selector of the guide as pip would: its module, and the metadata with its entry point."""
    text = GUIDE.read_text(encoding="utf-8")
    [source] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    [(name, target)] = re.findall(r"^(\w+) = \"(.*)\"", text, re.MULTILINE)
    info = packages / "price_selector-1.0.dist-info"
    info.mkdir(parents=True)
    (packages / "price_selector.py").write_text(source, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: price-selector\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[zeus_stream.selectors]\n{name} = {target}\n")


@pytest.mark.sweep
def test_an_open_run_keeps_its_selector_and_the_next_one_has_the_new(
    zeus_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The selector is of another distribution: the analyzer that starts again finds it by its name."""
    selector = "price:0.3"
    install_guide_selector(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with Setup(zeus_dir, analyze=("--select", selector, *EAGER)) as setup:
        setup.start("collector")
        setup.start("analyzer")
        setup.start("publisher 0")
        until(lambda: setup.sql("FROM trials"))
        setup.kill("analyzer")
        setup.analyze = ("--select", "time", *EAGER)
        setup.start("analyzer")
        kept = f"run run-1 keeps to what it began with, select = {selector}"
        until(lambda: kept in setup.output("analyzer"))
        until(lambda: setup.sql(DECIDED))
        setup.kill("publisher 0")
        setup.start("publisher 0")
        until(lambda: len({row["run"] for row in setup.sql(DECIDED)}) == 2)
        assert {(row["run"], row["selector"]) for row in setup.sql(DECIDED)} == {
            ("run-1", selector),
            ("run-2", "time"),
        }
        assert setup.sql(BEGAN) == [{"run": "run-1", "start": 1}, {"run": "run-2", "start": 2}]
