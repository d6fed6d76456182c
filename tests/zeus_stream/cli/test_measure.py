"""Whole GPUs, measured for a while or during a command, by the command line and real processes."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import complaints
from tests.waiting import until
from tests.zeus_stream.cli.test_doctor import A100, Bench
from tests.zeus_stream.conftest import Cli, said
from zeus_stream.cli.measure import device_there
from zeus_stream.errors import RefusedError
from zeus_stream.paths import holder
from zeus_stream.transport.client import Connection, connect

TWO = "simulated:v100x2"
IDLE_W = 34.0
"""Of a simulated V100 on which nothing runs."""


@pytest.fixture(scope="module")
def site() -> Iterator[Cli]:
    """A setup whose collector and analyzer run."""
    directory = Path(tempfile.mkdtemp(prefix="zs-"))
    zeus = Cli(directory)
    with (
        zeus.serving("collect", "--device", TWO, "--observe"),
        zeus.serving("analyze", "--select", "none"),
    ):
        yield zeus
    shutil.rmtree(directory)


@pytest.fixture
def analyzer(site: Cli) -> Connection:
    return connect(site.environment)


def python(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


def measured(completed: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert completed.returncode == 0, completed.stderr
    content: dict[str, Any] = json.loads(completed.stdout)
    return content


def idle_j(gpus: int, found: dict[str, Any]) -> Any:
    """Return what idle GPUs draw meanwhile, to 5 % or, on a machine too busy to look closely, as known."""
    expected_j = gpus * IDLE_W * found["duration_s"]
    width_j = found["energy_p97_5_j"] - found["energy_p2_5_j"]
    return pytest.approx(expected_j, abs=max(0.05 * expected_j, width_j))


def test_measuring_starts_what_is_needed_and_leaves_nothing_running(zeus: Cli) -> None:
    begun_s = time.monotonic()
    found = measured(zeus("measure", "--seconds", "0.5", "--json", "--device", TWO))
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 1]
    assert 0.5 <= found["duration_s"] < time.monotonic() - begun_s
    assert found["energy_j"] == idle_j(2, found)
    assert found["energy_p2_5_j"] <= found["energy_j"] <= found["energy_p97_5_j"]
    assert found["missing"] is None
    for process in ("collector", "analyzer"):
        assert holder(zeus.directory / f"{process}.lock") is None


def test_measuring_uses_what_runs_and_leaves_it_running(site: Cli) -> None:
    collector = holder(site.directory / "collector.lock")
    found = measured(site("measure", "--seconds", "0.3", "--gpus", "1", "--json"))
    assert [gpu["index"] for gpu in found["gpus"]] == [1]
    assert found["energy_j"] == idle_j(1, found)
    assert holder(site.directory / "collector.lock") == collector


def test_a_ctrl_c_ends_the_measuring_early_and_it_still_answers(site: Cli, analyzer: Connection) -> None:
    began = "SELECT count(*) AS n FROM events WHERE kind = 'window_began'"
    before = analyzer.sql(began)["n"][0].as_py()
    with site.start("measure", "--seconds", "3600") as measuring:
        try:
            until(lambda: analyzer.sql(began)["n"][0].as_py() > before)
        finally:  # else it measures for an hour
            measuring.send_signal(signal.SIGINT)
        out, err = measuring.communicate(timeout=300)
    assert (measuring.returncode, complaints(err)) == (0, "")
    for words in ("time", "J (95 %:", "Wh", "W on average", "Tesla V100", "zeus-stream sql"):
        assert words in out, words


def test_any_command_is_measured_and_keeps_its_output_and_its_exit_code(site: Cli) -> None:
    completed = site("run", "--measure-only", "--", "sh", "-c", "sleep 0.3; echo out; echo err >&2; exit 3")
    assert (completed.returncode, completed.stdout) == (3, "out\n")
    assert completed.stderr.startswith("err\n")
    for words in ("sh -c 'sleep 0.3", "time", "J (95 %:", "Wh", "W on average"):
        assert words in completed.stderr, words


def test_a_signal_reaches_the_command_and_what_it_used_until_then_is_said(site: Cli) -> None:
    ready = site.directory / "ready"
    script = f"import pathlib, time; pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"
    with site.start("run", "--measure-only", "--", *python(script)) as ours:
        until(ready.exists)
        ours.send_signal(signal.SIGTERM)
        _, err = ours.communicate(timeout=300)
    assert ours.returncode == 128 + signal.SIGTERM
    assert "W on average" in err


RANK = """
import time, zeus_stream

@zeus_stream.window("eval")
def evaluate():
    time.sleep(0.1)

for _ in zeus_stream.steps(range(2)):
    evaluate()
"""


def test_a_training_that_is_measured_from_outside_is_measured_as_if_it_were_not(
    site: Cli, analyzer: Connection
) -> None:
    completed = site("run", "--measure-only", "--gpus", "0", "--", *python(RANK), ZEUS_STREAM_RUN="watched")
    assert completed.returncode == 0, completed.stderr
    of_run = "FROM windows WHERE run = 'watched' AND kind = 'run'"
    until(lambda: bool(analyzer.sql(f"SELECT * {of_run}").num_rows))
    assert analyzer.sql(f"SELECT DISTINCT shared {of_run}").to_pylist() == [{"shared": False}]
    kinds = "SELECT DISTINCT kind FROM windows JOIN runs USING (session) WHERE world_size = 0"
    assert analyzer.sql(kinds).to_pylist() == [{"kind": "window"}]


def test_windows_of_one_name_in_two_processes_are_answered_as_one(site: Cli, analyzer: Connection) -> None:
    ranks = [
        site.start(
            "run", "--", *python(RANK),
            ZEUS_STREAM_RUN="pair", RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2",
        )
        for rank in range(2)
    ]  # fmt: skip
    for rank in ranks:
        _, err = rank.communicate(timeout=300)
        assert rank.returncode == 0, err
    until(lambda: analyzer.windows(run="pair")["ranks"].to_pylist() == [2, 2])
    rows = analyzer.windows(run="pair", name="eval").to_pylist()
    assert [(row["name"], row["occurrence"], row["gpus"]) for row in rows] == [("eval", 1, 2), ("eval", 2, 2)]
    assert all(row["energy_low_j"] <= row["energy_j"] <= row["energy_high_j"] for row in rows)
    assert analyzer.windows(run="it's another").num_rows == 0
    assert analyzer.windows(name="eval").num_rows >= 2


def test_what_cannot_be_measured_runs_all_the_same(site: Cli) -> None:
    command = ("sh", "-c", "echo out; exit 3")
    completed = site("run", "--gpus", "7", "--measure-only", "--", *command)
    assert (completed.returncode, completed.stdout) == (3, "out\n")
    assert "the collector has none of the GPUs 7" in completed.stderr
    assert "The command runs unmeasured.\n" in completed.stderr
    assert "Traceback" not in completed.stderr


def test_a_host_without_gpus_says_so_before_anything_starts_and_names_simulated_ones(zeus: Cli) -> None:
    if Path("/dev/nvidiactl").exists() or Path("/sys/class/powercap/intel-rapl:0").exists():
        pytest.skip("this machine has a driver, or CPUs that can be measured")
    sentence = said(zeus.refused("measure", "--seconds", "1"))
    assert "--device simulated:v100x1" in sentence
    assert not (zeus.directory / "log.sqlite").exists()


def test_a_host_without_gpus_measures_its_cpus() -> None:
    absent, there = Bench((), lost=True), Bench((A100,))
    assert device_there(lambda: absent, lambda: there) == "cpu"
    assert device_there(lambda: there, lambda: absent) == "nvml"
    with pytest.raises(RefusedError, match="--device simulated:v100x1"):
        device_there(lambda: absent, lambda: absent)


def test_a_command_that_is_not_there_and_gpus_that_are_not_there_are_one_sentence(site: Cli) -> None:
    assert "after `--`" in said(site("run", "--measure-only", "--", "no-such-command"))
    assert "1 of the GPUs 0, 7" in said(site("measure", "--gpus", "0,7"))


def test_gpus_are_named_for_measuring_only(site: Cli) -> None:
    completed = site("run", "--gpus", "0", "--", "true")
    assert completed.returncode == 2
    assert "--measure-only" in completed.stderr


def test_a_collector_that_is_killed_meanwhile_costs_the_figures_and_nothing_else(zeus: Cli) -> None:
    ready, go = zeus.directory / "ready", zeus.directory / "go"
    script = f"touch {ready}; until [ -e {go} ]; do sleep 0.02; done; echo out; exit 3"
    with (
        zeus.serving("collect", "--device", TWO, "--observe") as collector,
        zeus.start("run", "--measure-only", "--", "sh", "-c", script) as ours,
    ):
        until(ready.exists)
        collector.kill()
        collector.wait()
        go.touch()
        out, err = ours.communicate(timeout=300)
    assert (ours.returncode, out) == (3, "out\n")
    assert "could not get the energy: the analyzer had not measured it" in err
    assert err.count("receives nothing any more") == 1
    assert "Traceback" not in err
