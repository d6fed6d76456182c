"""Two of a kind over one directory: one works, the other is refused with a sentence and a name."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.directories import EAGER
from tests.environment import ZEUS_STREAM, run, running
from tests.processes.pipeline import pipeline
from tests.waiting import until

TRAINING = """
import sys, time
from zeus_stream import Publisher
with Publisher(job="job", run=sys.argv[1], gpus=[0]) as publisher:
    for _ in publisher.steps(iter(int, 1)):
        time.sleep(0.02)
"""


@pytest.mark.parametrize(
    ("name", "command"),
    [("collector", ["collect", "--device", "simulated:v100x1"]), ("analyzer", ["analyze"])],
)
def test_a_second_process_of_a_kind_is_refused_with_the_pid_of_the_first(
    zeus_dir: Path, name: str, command: list[str]
) -> None:
    with pipeline(zeus_dir, publishers=0) as setup:
        until(lambda: setup.status(name, name, "archive" if name == "analyzer" else "host"))
        second = run(zeus_dir, *ZEUS_STREAM, *command)
        assert second.returncode == 1
        sentence = f"{name}: could not start: process {setup.pid(name)} already is the {name} of {zeus_dir}."
        assert sentence in second.stderr
        assert "Traceback" not in second.stderr
        until(lambda: setup.status(name, name, "archive" if name == "analyzer" else "host"))


@pytest.mark.parametrize("second_name", ["second", "first"])
def test_of_two_trainings_on_a_gpu_one_sets_its_limit_and_the_other_is_told_who(
    zeus_dir: Path, second_name: str
) -> None:
    with pipeline(zeus_dir, publishers=0, analyze=EAGER) as setup:
        until(setup.welcome)
        with ExitStack() as trainings:
            trainings.enter_context(running(zeus_dir, "-c", TRAINING, "first"))
            until(lambda: setup.sql("SELECT 1 FROM commands WHERE outcome = 'applied'"))
            trainings.enter_context(running(zeus_dir, "-c", TRAINING, second_name))
            refused = "SELECT run, reason FROM decisions WHERE NOT applied AND run <> 'first'"
            [decision, *_] = until(lambda: setup.sql(refused))
            given = "SELECT DISTINCT run, outcome FROM commands WHERE outcome IS NOT NULL"
            commands = until(lambda: setup.sql(given))
            shared = "SELECT DISTINCT run FROM steps WHERE shared AND energy_j > 0"
            until(lambda: {row["run"] for row in setup.sql(shared)} == {"first", decision["run"]})
    assert "first" in decision["reason"], json.dumps(decision)
    assert {command["run"] for command in commands} == {"first"}
