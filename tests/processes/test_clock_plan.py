"""A plan of clocks on a real collector: the script's instructions set them, and every end of it unlocks."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.environment import running
from tests.processes.setup import Collector, Host, collector, simulated
from tests.waiting import until
from zeus_stream.protocol.fields import UNLOCKED
from zeus_stream.protocol.notes import ControlApplied, ControlRefused
from zeus_stream.protocol.pipelines import SetPlan, encode_instruction

TRAINER = """
import sys
import zeus_stream
from zeus_stream.training.publisher import Publisher, publishers
publishers.default = Publisher(job="guarded", run="r", gpus=[sys.argv[1]])
pipe = zeus_stream.pipeline(stage=0, stages=1, micro_batches=2, schedule="gpipe")
print("runs", flush=True)
for line in sys.stdin:
    kind, micro_batch = line.split()
    with pipe.instruction(kind, int(micro_batch)):
        print("runs", flush=True)
        sys.stdin.readline()
    print("ran", flush=True)
"""
ORDER = (("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1))
CLOCKS_MHZ = (600, 600, 1380, 900)
PLAN = SetPlan(
    command="", owner="test", incarnation="", fence=0, run="r", gpu="", lease_ms=600_000, plan="p",
    first_iteration=1, iteration_ms=60_000, codes=tuple(encode_instruction(*each) for each in ORDER),
    clocks_mhz=CLOCKS_MHZ, raise_after_us=(0, 0, 0, 0),
)  # fmt: skip


class Stage:
    """A training process that runs the instructions it is given."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def run(self, kind: str, micro_batch: int) -> None:
        self.begin(kind, micro_batch)
        self.end()

    def begin(self, kind: str, micro_batch: int) -> None:
        self._ask(f"{kind} {micro_batch}", "runs")

    def end(self) -> None:
        self._ask("", "ran")

    def _ask(self, line: str, answer: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"{answer}\n"


@contextmanager
def stage(host: Host, directory: Path) -> Iterator[Stage]:
    arguments = ("-c", TRAINER, host.gpu)
    with running(directory, *arguments, stdin=subprocess.PIPE, stderr=None, env=host.environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        yield Stage(process)


def locked(host: Host, clock_mhz: int) -> Callable[[], bool]:
    return lambda: host.read_locked_mhz("graphics_clock") == clock_mhz


def follow_first_instruction(host: Host, collects: Collector, script: Stage) -> None:
    """Authorize the plan, and run up to where it locks the clock below the highest."""
    until(lambda: isinstance(collects.plan(PLAN), ControlApplied))
    assert locked(host, max(CLOCKS_MHZ))()
    for each in ORDER:  # iteration 0, before the plan's first
        script.run(*each)
    script.run(*ORDER[0])
    until(locked(host, 600))


def test_clocks_follow_the_script_and_are_highest_after_a_wrong_instruction(tmp_path: Path) -> None:
    with (
        simulated(tmp_path) as host,
        collector(host, tmp_path) as collects,
        stage(host, tmp_path) as script,
    ):
        follow_first_instruction(host, collects, script)
        for each, next_mhz in zip(ORDER[1:], (*CLOCKS_MHZ[2:], CLOCKS_MHZ[0]), strict=True):
            script.run(*each)
            until(locked(host, next_mhz))
        assert collects.rows()["plans followed"] == "1"
        script.run(*ORDER[0])
        script.run(*ORDER[3])
        until(locked(host, max(CLOCKS_MHZ)))
        for each in ORDER:
            script.run(*each)
        until(locked(host, CLOCKS_MHZ[0]))
        assert collects.rows()["plans followed"] == "1"
        refused = collects.plan(replace(PLAN, clocks_mhz=(601, 600, 600, 600)))
        assert isinstance(refused, ControlRefused)
        assert "601 MHz is none of the GPU's" in refused.reason
        refused = collects.plan(replace(PLAN, clocks_mhz=(600,)))
        assert isinstance(refused, ControlRefused)
        assert "lists of instructions, clocks and times differ in length" in refused.reason


def test_a_plan_whose_command_comes_again_is_followed_from_where_it_is(tmp_path: Path) -> None:
    with (
        simulated(tmp_path) as host,
        collector(host, tmp_path) as collects,
        stage(host, tmp_path) as script,
    ):
        follow_first_instruction(host, collects, script)
        script.begin(*ORDER[1])
        assert isinstance(collects.repeat(), ControlApplied)
        script.end()
        until(locked(host, CLOCKS_MHZ[2]))


@pytest.mark.parametrize("how", ["script killed", "collector killed", "lease lapsed"])
def test_every_end_of_a_plan_unlocks_the_clock(tmp_path: Path, how: str) -> None:
    with (
        simulated(tmp_path) as host,
        collector(host, tmp_path) as collects,
        stage(host, tmp_path) as script,
    ):
        follow_first_instruction(host, collects, script)
        match how:
            case "script killed":
                script.process.kill()
            case "collector killed":
                collects.kill()
            case _:
                collects.lapse()
        until(locked(host, UNLOCKED))
