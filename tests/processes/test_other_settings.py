"""An analyzer that is killed in the middle of a run and started with other settings."""

from pathlib import Path

from tests.processes.pipeline import Setup, until

QUICK = (
    "--search", "exhaustive", "--stride-w", "75", "--warmup-steps", "1", "--profile-steps", "5",
    "--settle-ms", "0", "--refreshes", "2",
)  # fmt: skip
DECIDED = "SELECT run, number, selector FROM decisions WHERE power_limit_w IS NOT NULL ORDER BY run, number"
BEGAN = "SELECT run, start FROM runs ORDER BY run"


def test_an_open_run_keeps_its_selector_and_the_next_one_has_the_new(zeus_dir: Path) -> None:
    setup = Setup(zeus_dir, analyze=("--select", "energy", *QUICK))
    try:
        setup.start("collector")
        setup.start("analyzer")
        setup.start("publisher 0")
        until(lambda: setup.sql("FROM trials"))
        setup.kill("analyzer")
        setup._analyze = ("--select", "time", *QUICK)
        setup.start("analyzer")
        until(lambda: "run run-1 keeps to what it began with, select = energy" in setup.said("analyzer"))
        until(lambda: setup.sql(DECIDED))
        setup.kill("publisher 0")
        setup.start("publisher 0")
        until(lambda: len({row["run"] for row in setup.sql(DECIDED)}) == 2)
        assert {(row["run"], row["selector"]) for row in setup.sql(DECIDED)} == {
            ("run-1", "energy"),
            ("run-2", "time"),
        }
        assert setup.sql(BEGAN) == [{"run": "run-1", "start": 1}, {"run": "run-2", "start": 2}]
    finally:
        setup.close()
