"""The command ``wait``: when it begins a command, and what that saves."""

import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.results.signal_rows import SignalRow
from analyzers.state_files.signal_files import parse
from tests.zeus_stream.conftest import Cli, Ran
from zeus_stream.cli.options import Duration
from zeus_stream.cli.screens.wait_command import PastRun, describe_pauses, describe_plan, plan_wait
from zeus_stream.errors import RefusedError

HOUR_NS = 3_600 * 10**9
NOW_NS = 1_800_000_000 * 10**9


def hourly(*values: float, begin_ns: int = NOW_NS) -> list[SignalRow]:
    return parse(text(values, begin_ns, 3_600), "test", 0)


def text(values: Sequence[float], begin_ns: int, step_s: int) -> str:
    times = (datetime.fromtimestamp(begin_ns / 1e9 + number * step_s, UTC) for number in range(len(values)))
    lines = [
        f"{at.isoformat(timespec='milliseconds')},{value}" for at, value in zip(times, values, strict=True)
    ]
    return "\n".join(['# name=price unit=EUR/kWh source="test"', "at,value", *lines]) + "\n"


RUN = PastRun(3_600, 3.6e6)
"""An hour, 1 kWh."""


def test_the_cheapest_start_within_the_time_is_chosen() -> None:
    rows = hourly(0.4, 0.3, 0.1, 0.3, 0.05)
    plan = plan_wait("price", rows, NOW_NS, 3 * 3_600, [RUN])
    assert plan.start_ns == NOW_NS + 2 * HOUR_NS
    assert plan.saved == pytest.approx(0.3)
    assert plan.saved_percent == pytest.approx(75)
    assert plan_wait("price", rows, NOW_NS, 3_600, [RUN]).start_ns == NOW_NS + HOUR_NS
    longer = plan_wait("price", rows, NOW_NS, 3 * 3_600, [PastRun(7_200, 3.6e6)])
    assert longer.start_ns == NOW_NS + 3 * HOUR_NS  # the mean of 0.3 and 0.05 is the least


def test_a_run_that_ends_with_the_cheap_time_may_begin_within_a_dear_hour() -> None:
    plan = plan_wait("price", hourly(0.4, 0.2, 0.3, 0.1, 0.9), NOW_NS, 4 * 3_600, [PastRun(5_400, 3.6e6)])
    assert plan.start_ns == NOW_NS + 5 * HOUR_NS // 2


def test_the_saving_has_an_interval_from_the_scatter_of_earlier_runs() -> None:
    rows = hourly(0.4, 0.2, 0.2, 0.2)
    runs = [PastRun(3_600, 3.6e6 * factor) for factor in (0.9, 1.0, 1.1)]
    plan = plan_wait("price", rows, NOW_NS, 3_600, runs)
    assert plan.saved == pytest.approx(0.2)
    assert plan.saved_low is not None
    assert plan.saved_high is not None
    assert plan.saved_low < 0.18
    assert plan.saved_high > 0.22
    one = plan_wait("price", rows, NOW_NS, 3_600, runs[:1])
    assert (one.saved_low, one.saved_high) == (None, None)
    unknown = plan_wait("price", rows, NOW_NS, 3_600, (), 3_600)
    assert unknown.saved is None
    assert unknown.saved_percent == pytest.approx(50)
    for each, words in ((plan, "by 3 earlier runs"), (one, "one earlier run"), (unknown, "no earlier run")):
        assert words in describe_plan(each)


@given(
    values=st.lists(st.floats(0.001, 1), min_size=4, max_size=24),
    hours=st.floats(0.1, 3),
    within=st.integers(1, 24),
    pause_s=st.none() | st.floats(1, 3_600),
)
def test_waiting_never_costs_more_and_all_waits_together_are_never_too_long(
    values: list[float], hours: float, within: int, pause_s: float | None
) -> None:
    runs = [PastRun(hours * 3_600, 3.6e6)]
    plan = plan_wait("price", hourly(*values), NOW_NS, within * 3_600, runs, None, pause_s)
    paused_s = sum(end - begin for begin, end in plan.pauses) / 1e9
    assert 0 <= plan.wait_s + paused_s <= within * 3_600
    assert plan.later_s <= plan.wait_s + paused_s + len(plan.pauses) * (pause_s or 0) + 1e-6
    assert plan.pauses == () or pause_s is not None
    assert plan.saved is not None
    assert plan.saved >= 0


def test_a_run_that_can_pause_computes_in_the_cheap_hours_alone() -> None:
    rows = hourly(0.1, 0.5, 0.1, 0.4, 0.3)
    plan = plan_wait("price", rows, NOW_NS, 3_600, [PastRun(5_400, 3.6e6)], None, 360)
    assert (plan.wait_s, plan.pauses) == (0, ((NOW_NS + HOUR_NS, NOW_NS + 2 * HOUR_NS),))
    assert plan.later_s == pytest.approx(3_600 + 360)
    assert plan.saved == pytest.approx((1 * 0.1 + 0.5 * 0.5) / 1.5 - 0.1 * 1.6 / 1.5)
    assert "pauses 1 time while the price is above 0.1, ends 66.0 min later: saves" in describe_plan(plan)
    assert plan_wait("price", rows, NOW_NS, 3_600, [PastRun(5_400, 3.6e6)], None, 3_600).pauses == ()


def test_no_pause_comes_before_the_last_minutes_of_a_run_when_the_time_is_dear_again_after_it() -> None:
    rows = hourly(0.5, 0.1, 0.6, 0.1, 0.5, 0.5, 0.5, 0.5)
    plan = plan_wait("price", rows, NOW_NS, 3 * 3_600, [PastRun(2 * 3_600, 7.2e6)], None, 1_200)
    assert plan.pauses == ((NOW_NS + 2 * HOUR_NS, NOW_NS + 3 * HOUR_NS),)
    assert plan.saved == pytest.approx(0.5 + 0.1 - (0.1 + 0.1 + 0.5 / 3))


def test_a_price_below_nothing_is_saved_in_money_alone_and_no_wait_is_not_the_lowest_price() -> None:
    rows = hourly(-0.1, -0.3, 0.4, 0.4)
    plan = plan_wait("price", rows, NOW_NS, 3_600, (), 3_600)
    assert plan.saved_percent is None
    assert ": saves 0.2 EUR a kWh; a run now costs nothing or less; no interval" in describe_plan(plan)
    longer = plan_wait("price", hourly(0.2, 0.1, 0.5, 0.5), NOW_NS, 3_600, (), 7_200)
    assert describe_plan(longer) == "begins now: no wait saves anything, by the price that is known."


def test_runs_of_one_length_have_no_interval_of_no_width() -> None:
    runs = [PastRun(3_600, 3.6e6 * factor) for factor in (0.9, 1.0, 1.1)]
    said = describe_plan(plan_wait("price", hourly(0.4, 0.2, 0.2), NOW_NS, 3_600, runs))
    assert "saves 50.0 % of the price, 0.2 (0.10 to 0.30) EUR; by 3 earlier runs." in said


def test_a_year_of_prices_costs_no_more_than_the_hours_that_matter() -> None:
    class Counted(list[SignalRow]):
        reads = 0

        def __iter__(self) -> Iterator[SignalRow]:
            for row in super().__iter__():
                self.reads += 1
                yield row

    year = Counted(
        hourly(*(0.1 + number % 7 / 100 for number in range(9_000)), begin_ns=NOW_NS - 4_000 * HOUR_NS)
    )
    plan_wait("price", year, NOW_NS, 12 * 3_600, [RUN], None, 300)
    assert year.reads <= 2 * len(year)


def test_what_pauses_have_saved_is_said_against_running_on() -> None:
    rows = hourly(0.1, 0.5, 0.1, 0.4)
    parts = [(NOW_NS, NOW_NS + HOUR_NS), (NOW_NS + 2 * HOUR_NS, NOW_NS + 3 * HOUR_NS)]
    said = describe_pauses("price", rows, parts)
    assert said == "paused 1 time, 60.0 min in all: the mean price was 0.1 EUR/kWh, without a pause 0.3."
    assert "does not cover it" in describe_pauses("price", rows, [*parts, (NOW_NS + 9 * HOUR_NS,) * 2])


def test_a_run_that_the_signal_does_not_cover_is_refused() -> None:
    for rows in ([], hourly(0.1, 0.2)[:1], hourly(0.1, 0.2, begin_ns=NOW_NS + HOUR_NS)):
        with pytest.raises(RefusedError, match="does not cover a run that begins now"):
            plan_wait("price", rows, NOW_NS, 3_600, [PastRun(7_300, 1.0)])


def soon(zeus: Cli, cheap_in_s: int) -> Path:
    """Write a price that falls after some seconds, and rises again a minute later."""
    path = zeus.directory / "price.csv"
    begin_ns = time.time_ns() - 10 * 10**9
    rows = {0: 0.4, 10 + cheap_in_s: 0.1, 70 + cheap_in_s: 0.5, 200: 0.5}
    lines = [
        f"{datetime.fromtimestamp(begin_ns / 1e9 + after, UTC).isoformat(timespec='milliseconds')},{value}"
        for after, value in rows.items()
    ]
    path.write_text("\n".join(['# name=price unit=EUR/kWh source="test"', "at,value", *lines]) + "\n")
    return path


CHECKPOINTED = """
import os, pathlib, signal, sys, time
saved = pathlib.Path(sys.argv[1])
if saved.exists():
    sys.exit(3 if saved.read_text() == os.environ["ZEUS_STREAM_RUN"] else "another run")
def save(*_):
    saved.write_text(os.environ["ZEUS_STREAM_RUN"])
    sys.exit()
signal.signal(signal.SIGTERM, save)
time.sleep(600)
"""


@pytest.mark.sweep
def test_a_job_with_checkpoints_pauses_in_dear_time_and_goes_on_as_the_same_run(zeus: Cli) -> None:
    begin_ns, path = time.time_ns() - 5 * 10**9, zeus.directory / "price.csv"  # times are whole seconds
    path.write_text(text([0.1, 0.1, 0.5, *[0.1] * 40], begin_ns, 10))
    options = ("--price", "--within", "14s", "--pause", "1s", "--lasts", "60s", "--file", str(path))
    command = (sys.executable, "-c", CHECKPOINTED, str(zeus.directory / "saved"))
    done = zeus("wait", *options, "--", *command)
    assert done.returncode == 3, done.stderr
    assert time.time_ns() >= begin_ns + 29 * 10**9
    planned, paused, ended = done.stderr.splitlines()
    assert "pauses 1 time while the price is above 0.1, ends 11" in planned
    assert "wait: paused until" in paused
    assert "wait: paused 1 time, " in ended
    assert "the mean price was 0.1" in ended


STAMP = "import sys, time, pathlib; pathlib.Path(sys.argv[1]).write_text(str(time.time_ns())); sys.exit(3)"


def test_the_command_begins_when_it_is_cheap_and_keeps_its_exit_code(zeus: Cli) -> None:
    stamp = zeus.directory / "began"
    options = ("--price", "--within", "60s", "--lasts", "40s", "--file", str(soon(zeus, 15)))
    plan = json.loads(zeus("wait", *options, "--dry-run", "--", "true").stdout)
    done = zeus("wait", *options, "--", sys.executable, "-c", STAMP, str(stamp))
    assert done.returncode == 3, done.stderr
    assert "of the price; no interval: no earlier run is known." in done.stderr
    assert int(stamp.read_text()) >= plan["start_ns"]
    assert 0 < plan["saved_percent"] < 75


def test_a_signal_ends_the_wait_without_the_command(zeus: Cli) -> None:
    stamp = zeus.directory / "began"
    options = ("--price", "--within", "90s", "--lasts", "20s", "--file", str(soon(zeus, 60)))
    with zeus.start("wait", *options, "--", sys.executable, "-c", STAMP, str(stamp)) as waiting:
        assert waiting.stderr is not None
        assert "begins at" in waiting.stderr.readline()
        waiting.send_signal(signal.SIGTERM)
        waiting.communicate(timeout=60)
    assert waiting.returncode == 128 + signal.SIGTERM
    assert not stamp.exists()


def test_earlier_runs_of_a_job_say_how_long_it_takes(ran: Ran) -> None:
    begin_ns = time.time_ns() - 10**9
    (ran.zeus.directory / "price.csv").write_text(text([0.4, 0.1, 0.1], begin_ns, 3_600))
    assert ran.zeus("signals", "import", "price.csv").returncode == 0
    (job,) = json.loads(ran.zeus("sql", "SELECT DISTINCT job FROM run_energy", "--format", "json").stdout)
    done = ran.zeus("wait", "--price", "--within", "2h", "--job", job["job"], "--dry-run", "--", "true")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert (plan["runs"], plan["unit"]) == (1, "EUR")
    assert plan["saved"] > 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--within", "1h", "--lasts", "1h"), "Give --price or --carbon"),
        (("--price", "--within", "1h"), "Give --lasts TIME, or --job NAME"),
        (("--price", "--within", "1h", "--lasts", "1h", "--file", "absent.csv"), "Name a CSV file"),
        (("--price", "--within", "1h", "--job", "absent"), "no ended run of the job absent"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_a_cure(
    ran: Ran, options: tuple[str, ...], sentence: str
) -> None:
    done = ran.zeus("wait", *options, "--", "true")
    assert done.returncode != 0
    assert sentence in done.stderr


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("90m", 5400), ("2h", 7200), ("1.5h", 5400), ("1d", 86_400)]
)
def test_a_length_of_time_has_a_unit(text: str, seconds: int) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["2", "h", "-1h", "0s", "2 weeks", "400d"])
def test_what_is_no_length_of_time_is_named(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no length of time: give one such as 90s"):
        Duration().convert(text, None, None)
