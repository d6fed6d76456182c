"""The commands of docs/how-to/costs-and-carbon.md."""

import shutil
from pathlib import Path

import duckdb
import pytest

from tests.waiting import until
from tests.zeus_stream.conftest import Cli, Ran


@pytest.mark.sweep
def test_the_commands_of_the_guide_run(ran: Ran, tmp_path: Path) -> None:
    """In a setup where no analyzer runs any more."""
    file = tmp_path / "price.csv"
    file.write_text('# name=price unit=EUR/kWh source="a tariff"\nat,value\n2020-01-01T00:00+00:00,0.3\n')
    flat = ran.zeus("report", "--price", "0.30EUR")
    assert "EUR at 0.3 EUR/kWh, GPUs only; source: --price" in flat.stdout, flat.stderr
    page = tmp_path / "report.html"
    ran.zeus("report", "--price", "0.30EUR", "--html", str(page))
    assert "at 0.3 EUR/kWh, GPUs only; source: --price" in page.read_text()
    assert (
        "--price is of one run" in ran.zeus("report", "--since", "1d", "--json", "--price", "0.30EUR").stderr
    )
    for arguments in (("--country", "DEU"), (str(file),)):
        done = ran.zeus("signals", "import", *arguments)
        assert done.returncode == 0, done.stderr
    listed = ran.zeus("signals", "list").stdout
    assert "Germany" in listed
    assert "a tariff" in listed
    load = tmp_path / "load.csv"
    days = ("2020-01-01T00:00+00:00,100", "2020-01-03T00:00+00:00,400", "2020-01-04T00:00+00:00,400")
    load.write_text("\n".join(['# name=load unit=W source="a contract"', "at,value", *days]) + "\n")
    assert "3 value(s), 250 W on average" in ran.zeus("signals", "import", str(load)).stdout
    assert "250" in ran.zeus("signals", "list").stdout
    shown = ran.zeus("report").stdout
    assert "gCO2e/kWh (Germany 2024), GPUs only; source: Ember" in shown
    assert "EUR at 0.3 EUR/kWh, GPUs only; source: a tariff" in shown
    other = tmp_path / "of-another-machine.duckdb"
    shutil.copy(ran.zeus.directory / "energy.duckdb", other)
    with duckdb.connect(other) as archive:
        archive.execute("DELETE FROM signals")
    for form in ((), ("--html", str(page))):
        shown = ran.zeus("report", "--archive", str(other), *form).stdout
        shown = page.read_text() if form else shown
        assert "at 0.3 EUR/kWh, GPUs only; source: a tariff" in shown, "signals are of the reader's machine"
    priced = "SELECT DISTINCT source FROM costs WHERE name = 'price'"
    assert "a tariff" in ran.zeus("sql", priced, "--archive", str(other)).stdout
    assert "Give one of FILE and --country" in ran.zeus("signals", "import").stderr


@pytest.mark.sweep
def test_a_running_analyzer_takes_a_signal_that_is_imported(zeus: Cli) -> None:
    analyzer = zeus.start("analyze")
    try:
        until((zeus.directory / "query").exists)
        assert "France 2024" in zeus("signals", "import", "--country", "FRA").stdout
        assert "France" in zeus("signals", "list").stdout
    finally:
        analyzer.terminate()
        analyzer.communicate(timeout=60)
