"""A job that recurs, through real processes: trainings overlap, some are killed, and so is the analyzer."""

import subprocess
from pathlib import Path

import pytest

from tests.environment import PATIENCE_S, ROOT, running, start
from tests.processes.pipeline import UNMEASURED, pipeline
from tests.waiting import until
from zeus_stream.errors import RefusedError
from zeus_stream.paths import places
from zeus_stream.simulated_gpu.accelerator import attach
from zeus_stream.training.publisher import Publisher
from zeus_stream.transport.client import forget

RECURRENCES = 6
KILLS = 1
CONVERGED = "SELECT count(*) AS n FROM tries WHERE ended = 'converged'"
RUNNING = "SELECT count(*) AS n FROM tries WHERE ended = 'running'"
MEASURED = """
SELECT run, count(*) AS epochs, sum(energy_j) AS energy_j, sum(duration_s) AS duration_s
FROM epochs GROUP BY run
"""
HIGHEST_W = 250
ETA = 0.5
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


RANK = """
import sys
import zeus_stream
from zeus_stream.simulated_gpu.accelerator import attach

gpu = sys.argv[1]
job = zeus_stream.recurring(
    "ranks", batch_sizes=[8, 16], default=8, target=1.0, metric="score", max_epochs=2, timeout_s=60
)
with attach("imagenet", [gpu]) as works:
    for epoch in job.epochs():
        for _ in zeus_stream.steps(range(4)):
            works.run(0.02)
        job.report(float(epoch))
print(job.reason)
"""


def in_ranks(directory: Path, gpus: list[str]) -> set[str]:
    """Train with a rank on each GPU; return what they said in the end."""
    shared = {"WORLD_SIZE": str(len(gpus)), "ZEUS_STREAM_RUN": "ranks", "ZEUS_STREAM_GPUS": ",".join(gpus)}
    ranks = [
        start(
            directory,
            "-c",
            RANK,
            gpu,
            stdout=subprocess.PIPE,
            env={**shared, "RANK": rank, "LOCAL_RANK": rank},
        )
        for rank, gpu in zip("01", gpus, strict=True)
    ]
    return {rank.communicate(timeout=300)[0].strip() for rank in ranks}


def stopped_and_tried_again(gpu: str) -> list[tuple[int, str]]:
    """Train twice a job whose other size misses the target, and return each try's size and end."""
    tries = []
    with attach("imagenet", [gpu]) as works:
        for _ in range(2):
            with Publisher(job="tight", gpus=[gpu]) as publisher:
                job = publisher.recurring(
                    "tight", batch_sizes=[16, 32], default=32, target=1, metric="reached", max_epochs=200,
                    timeout_s=60,
                )  # fmt: skip
                while not job.over:
                    size = job.batch_size
                    for epoch in job.epochs():
                        works.run(0.15)
                        job.report(size == 32 and epoch == 1)
                    tries.append((size, job.reason.split(":")[0]))
    return tries


def test_every_recurrence_reaches_the_target_whoever_is_killed(zeus_dir: Path) -> None:
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn, of the demo's dependencies")
    with pipeline(zeus_dir, 0, gpus=2) as setup:
        until(setup.welcome)
        until(lambda: setup.sql("SELECT count(*) AS n FROM gpus") == [{"n": 2}])
        options = ("--recurrences", RECURRENCES, "--kills", KILLS, "--step-ms", 1)
        with running(zeus_dir, ROOT / "examples" / "recurring.py", *options, env=ONE_THREAD) as trainings:
            until(lambda: setup.sql(CONVERGED) not in ([], [{"n": 0}]))
            setup.kill("analyzer")
            setup.start("analyzer")
            said, _ = trainings.communicate(timeout=PATIENCE_S)
        assert trainings.returncode == 0, said
        assert said.count("converged: reached accuracy 0.92") == RECURRENCES
        until(lambda: setup.sql(UNMEASURED) == [{"n": 0}])
        until(lambda: setup.sql(RUNNING) == [{"n": 0}])
        tries = setup.sql("FROM tries ORDER BY number")
        of_run = {row["run"]: row for row in setup.sql(MEASURED)}
        (saved,) = setup.sql("FROM job_savings")
        gpus = [row["gpu"] for row in setup.sql("SELECT gpu FROM gpus ORDER BY index")]
        assert stopped_and_tried_again(gpus[0]) == [(32, "converged"), (16, "stopped"), (32, "converged")]
        assert in_ranks(zeus_dir, gpus) == {"converged: reached score 1 with batch size 8."}
        until(lambda: setup.sql(RUNNING) == [{"n": 0}])
        (ranks,) = setup.sql("FROM tries WHERE job = 'ranks'")
        (epochs,) = setup.sql(f"FROM ({MEASURED}) WHERE run = 'ranks'")
        where = places({"ZEUS_STREAM_DIR": str(zeus_dir)})
        assert forget(where, "digits") == len(tries)
        assert setup.sql("FROM job_savings WHERE job = 'digits'") == []
        assert setup.sql("FROM tries WHERE job = 'digits' ORDER BY number") == tries
        with pytest.raises(RefusedError, match="none of this name is known"):
            forget(where, "unheard of")
        assert setup.stop("analyzer") == 0, setup.output("analyzer")
        assert setup.stop("collector") == 0, setup.output("collector")

    assert (ranks["setup"], ranks["epochs"], ranks["metrics"]) == ("Tesla V100-PCIE-16GB x2", 2, [0.0, 1.0])
    for name in ("epochs", "energy_j", "duration_s"):
        assert ranks[name] == pytest.approx(epochs[name])
    assert [row["number"] for row in tries] == list(range(1, len(tries) + 1))
    assert len({row["session"] for row in tries}) == RECURRENCES + KILLS
    converged = [row for row in tries if row["ended"] == "converged"]
    assert len({row["recurrence"] for row in converged}) == len(converged) == RECURRENCES
    lost = [row for row in tries if row["ended"] == "lost"]
    assert len(lost) == KILLS
    assert all("has ended" in row["ended_why"] for row in lost)
    assert len(converged) + len(lost) + sum(row["ended"] == "stopped" for row in tries) == len(tries)
    for row in converged:
        assert row["metrics"][-1] >= 0.92 > max(row["metrics"][:-1], default=0)
        assert row["epochs"] == len(row["metrics"])
        cost_j = ETA * row["energy_j"] + (1 - ETA) * HIGHEST_W * row["duration_s"]
        assert row["cost_j"] == pytest.approx(cost_j)
    for run in {row["run"] for row in converged}:
        whole = [row for row in tries if row["run"] == run]
        for name in ("epochs", "energy_j", "duration_s"):
            assert sum(row[name] for row in whole) == pytest.approx(of_run[run][name])
    assert (saved["recurrences"], saved["lost"], saved["running"]) == (RECURRENCES, KILLS, 0)
    paid_j = sum(row["energy_j"] for row in tries if row["ended"] != "lost")
    assert saved["energy_j"] == pytest.approx(paid_j)
    usual = [row["energy_j"] for row in converged if row["batch_size"] == 32]
    assert saved["saved_j"] == pytest.approx(RECURRENCES * sum(usual) / len(usual) - paid_j)
