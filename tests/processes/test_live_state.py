"""The live state of real services, and the screen in a real terminal: while a training runs, and after the
analyzer was killed.
"""

from pathlib import Path

import pytest

from tests.directories import EAGER
from tests.environment import ZEUS_STREAM
from tests.environment import run as run_command
from tests.processes.pipeline import Setup
from tests.processes.terminal import top
from tests.waiting import until
from zeus_stream.errors import UnreachableError
from zeus_stream.paths import places
from zeus_stream.protocol.snapshots import RunNow, Snapshot
from zeus_stream.transport.client import ask_now


def once(directory: Path) -> str:
    """Return one screen as text."""
    return run_command(directory, *ZEUS_STREAM, "top", "--once").stdout


def test_the_live_state_follows_a_training_and_is_back_after_the_analyzer_was_killed(zeus_dir: Path) -> None:
    where = places({"ZEUS_STREAM_DIR": str(zeus_dir)})

    def now(process: str = "analyzer") -> Snapshot | None:
        try:
            return ask_now(where, process=process)
        except UnreachableError:
            return None

    def chosen() -> RunNow | None:
        runs = [run for state in (now(),) if state for run in state.runs if run.step_j is not None]
        return next((run for run in runs if run.search and run.search.phase == "chosen"), None)

    with Setup(zeus_dir, gpus=2, analyze=(*EAGER, "--select", "energy")) as setup:
        setup.start("collector")
        until(setup.has_found_gpus)
        assert "collector only" in once(zeus_dir)
        alone = until(lambda: now("collector"))
        assert [(gpu.index, gpu.run) for gpu in alone.gpus] == [(0, None), (1, None)]
        with pytest.raises(UnreachableError, match="zeus-stream analyze"):
            ask_now(where, timeout_s=0.2)
        setup.start("analyzer")
        setup.start("publisher 0")
        run = until(chosen)
        assert run.search is not None
        assert (run.run, run.ranks, len(run.gpus)) == ("run-1", 1, 1)
        assert run.search.trials
        assert f"{run.job} " in once(zeus_dir)
        with top(zeus_dir) as screen:
            screen.until("1 open run", "saved", "chosen", "60 s")
            setup.kill("analyzer")
            screen.until("did not answer")
            assert now() is None
            assert until(lambda: now("collector")).runs[0].run == "run-1"
            setup.start("analyzer")
            again = until(chosen)
            assert (again.run, again.gpus) == (run.run, run.gpus)
            state = until(lambda: next((one for one in (now(),) if one and one.totals.gpus_there == 2), None))
            assert state.totals.hosts_connected == 1
            screen.press("\r")
            screen.until("Power limits", "of a step's energy")
            screen.press("q")
            screen.press("q")
            assert screen.ended() == 0
