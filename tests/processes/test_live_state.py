"""The live state of real services: while a training runs, and after the analyzer was killed."""

from pathlib import Path

import pytest

from tests.processes.pipeline import Setup, until
from zeus_stream.errors import UnreachableError
from zeus_stream.paths import places
from zeus_stream.protocol.snapshots import RunNow, Snapshot
from zeus_stream.transport.client import ask_now

QUICK = (
    "--search", "exhaustive", "--stride-w", "75", "--warmup-steps", "1", "--profile-steps", "5",
    "--settle-ms", "0", "--refreshes", "2", "--select", "energy",
)  # fmt: skip


def test_the_live_state_follows_a_training_and_is_back_after_the_analyzer_was_killed(zeus_dir: Path) -> None:
    where = places({"ZEUS_STREAM_DIR": str(zeus_dir)})
    setup = Setup(zeus_dir, gpus=2, analyze=QUICK)

    def now(process: str = "analyzer") -> Snapshot | None:
        try:
            return ask_now(where, process=process)
        except UnreachableError:
            return None

    def chosen() -> RunNow | None:
        runs = [run for state in (now(),) if state for run in state.runs if run.step_j is not None]
        return next((run for run in runs if run.search and run.search.phase == "chosen"), None)

    try:
        setup.start("collector")
        until(setup.has_found_gpus)
        alone = until(lambda: now("collector"))
        assert [(gpu.index, gpu.run) for gpu in alone.gpus] == [(0, None), (1, None)]
        with pytest.raises(UnreachableError, match="zeus-stream analyze"):
            ask_now(where, timeout_s=0.2)
        setup.start("analyzer")
        setup.start("publisher 0")
        run = until(chosen)
        assert run.search is not None
        assert (run.run, run.ranks, len(run.gpus)) == ("run-1", 1, 1)
        assert len(run.search.trials) >= 3
        setup.kill("analyzer")
        assert now() is None
        assert until(lambda: now("collector")).runs[0].run == "run-1"
        setup.start("analyzer")
        again = until(chosen)
        assert (again.run, again.gpus) == (run.run, run.gpus)
        state = until(now)
        assert {gpu.state for gpu in state.gpus} == {"there"}
        assert state.totals.hosts_connected == 1
    finally:
        setup.close()
