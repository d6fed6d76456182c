"""The commands that Slurm's scripts run, with real services and without Slurm."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.environment import ZEUS_STREAM, run
from tests.processes.pipeline import pipeline
from tests.waiting import until
from zeus_stream.cli.cluster.slurm import describe, line_of, output_of
from zeus_stream.errors import RefusedError
from zeus_stream.protocol.events import Answer, GpuEnergy, JobAllocation

PROLOG = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_GPUS": "0,2",
    "SLURM_JOB_UID": "65534",
    "SLURM_JOB_USER": "nobody",
    "SLURMD_NODENAME": "n1",
    "SLURM_JOB_RESTART_COUNT": "1",
}
SHOWN = """JobId=12 ArrayJobId=11 ArrayTaskId=3 JobName=my net
   UserId=nobody(65534) GroupId=nogroup(65534)
   StdOut=/home/a b/%x-%A_%a.%N.out
"""
STARTED = describe(PROLOG, SHOWN)
assert STARTED is not None


def slurm(directory: Path, command: str, shown: str = "") -> "subprocess.CompletedProcess[str]":
    """Run a command of a script of Slurm, of a job that has the first GPU."""
    return run(directory, *ZEUS_STREAM, "slurm", command, given=shown, env=PROLOG | {"SLURM_JOB_GPUS": "0"})


def test_a_job_is_what_the_prolog_and_slurm_say_of_it() -> None:
    assert STARTED is not None
    assert STARTED.run == "slurm-12.1@n1"
    assert STARTED.gpus == ("index:0", "index:2")
    assert (STARTED.world_size, STARTED.pid) == (0, 0)
    assert STARTED.allocation == JobAllocation(
        job_id="12", uid=65534, user_name="nobody", node="n1", name="my net", array_task="11_3", restarts=1
    )
    bare = describe(PROLOG, "")
    assert bare is not None
    assert bare.allocation == replace(STARTED.allocation, name=None, array_task=None)


def test_a_job_without_gpus_is_not_reported_and_one_without_a_number_is_refused() -> None:
    assert describe({"SLURM_JOB_ID": "12"}, SHOWN) is None
    for wrong in ("", "../12", "12.batch"):
        with pytest.raises(RefusedError, match="SLURM_JOB_ID"):
            describe({**PROLOG, "SLURM_JOB_ID": wrong}, "")


@pytest.mark.parametrize(
    ("shown", "path"),
    [
        (SHOWN, "/home/a b/my net-11_3.n1.out"),
        ("   StdOut=/home/50%%.%j\n", "/home/50%.12"),
        ("   StdOut=/home/%4j\n", ""),
        ("", ""),
    ],
)
def test_the_output_of_a_job_is_named_without_patterns(shown: str, path: str) -> None:
    assert STARTED is not None
    assert output_of(STARTED, {}, shown) == path


def test_the_line_in_the_output_has_the_energy_or_why_there_is_none() -> None:
    assert STARTED is not None
    energy = tuple(GpuEnergy(gpu, 500.0, 495.0, 505.0) for gpu in ("a", "b"))
    begin = "zeus-stream: job 11_3 on n1, 2 GPUs: "
    known = line_of(STARTED, Answer("", 10.0, energy, None))
    assert known == f"{begin}1,000 J (surely 990 to 1,010 J) in 10.0 s, 100 W on average"
    exact = line_of(STARTED, Answer("", 10.0, (GpuEnergy("a", 1000.0, 1000.0, 1000.0),), None))
    assert exact == f"{begin}1,000 J in 10.0 s, 100 W on average"
    assert line_of(STARTED, None).startswith(f"{begin}the energy is not known yet. Later: ")
    missing = Answer("", None, (), "its GPU was lost")
    assert line_of(STARTED, missing) == f"{begin}the energy is not known: its GPU was lost"


def test_a_job_is_measured_from_prolog_to_epilog_and_its_energy_is_a_comment(tmp_path: Path) -> None:
    """It was requeued: its first attempt is a row of its own, and not in the comment of the second."""
    with pipeline(tmp_path, publishers=0, gpus=2) as setup:
        until(setup.has_found_gpus)
        for command in ("begin", "end"):
            earlier = PROLOG | {"SLURM_JOB_GPUS": "0", "SLURM_JOB_RESTART_COUNT": "0"}
            assert run(tmp_path, *ZEUS_STREAM, "slurm", command, given=SHOWN, env=earlier).returncode == 0
        assert (begun := slurm(tmp_path, "begin", SHOWN)).returncode == 0, begun.stderr
        seen = """
            SELECT count(*) > 10 AS so FROM readings
            WHERE seen = 'changed' AND t_lo_ns > (SELECT max(began_ns) FROM sessions)
        """
        until(lambda: setup.sql(seen) == [{"so": True}])
        ended = slurm(tmp_path, "end", SHOWN)
        assert ended.returncode == 0, ended.stderr
        line, output = ended.stdout.splitlines()
        assert output == "/home/a b/my net-11_3.n1.out"
        assert line.startswith("zeus-stream: job 11_3 on n1, 1 GPU: ")
        [row] = until(lambda: setup.sql("FROM allocations WHERE quality <> '' AND restarts = 1"))
        assert (row["job_id"], row["user_name"], row["uid"], row["restarts"]) == ("12", "nobody", 65534, 1)
        assert row["energy_p2_5_j"] < row["energy_j"] < row["energy_p97_5_j"]
        [session] = setup.sql(
            "SELECT uid, gpus, may_command, ended_how FROM sessions WHERE run LIKE '%.1@n1'"
        )
        assert session == {"uid": 65534, "gpus": setup.gpus[:1], "may_command": False, "ended_how": "ended"}
        comment = slurm(tmp_path, "comment")
        assert comment.stdout == f"zeus-stream: energy_j={row['energy_j']:.1f}\n", comment.stderr
        shown = run(tmp_path, *ZEUS_STREAM, "jobs", "--slurm", "--json").stdout
        assert sorted((each["restarts"], each["gpus"]) for each in json.loads(shown)) == [(0, 1), (1, 1)]
        assert slurm(tmp_path, "end").stdout == "", "the epilog of a job that is over says nothing"
        assert list((tmp_path / "allocations").iterdir()) == []


def test_without_a_collector_a_job_begins_and_ends_all_the_same(tmp_path: Path) -> None:
    for command in ("begin", "end"):
        done = slurm(tmp_path, command)
        assert done.returncode == 1
        assert f"slurm: could not report the job: no collector at {tmp_path}/publish" in done.stderr
    assert os.stat(tmp_path / "allocations").st_mode & 0o077 == 0  # noqa: PTH116
    assert list((tmp_path / "allocations").iterdir()) == []


def test_a_job_that_a_full_disk_kept_from_being_reported_ends_without_an_error(tmp_path: Path) -> None:
    full = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, -1));"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    begun = run(tmp_path, "-c", full, *ZEUS_STREAM, "slurm", "begin", env=PROLOG)
    assert begun.returncode == 1
    assert "allocations/12: could not be written: File too large. Make room" in begun.stderr
    ended = slurm(tmp_path, "end")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
