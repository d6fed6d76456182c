"""The scripts for Slurm, with its real daemons: the page is followed word by word."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.docs.test_pages import blocks, commands
from tests.packaging.slurm_site import ROOT, SCRIPTS, UNPACKED, SlurmSite, slurm_site
from tests.waiting import until

PAGE = ROOT / "docs" / "how-to" / "slurm.md"
REAL = pytest.mark.skipif(
    not (UNPACKED / "usr/sbin/slurmd-wlm").exists() or os.geteuid() != 0,
    reason="Slurm is not unpacked: `make test-slurm` does it, as root",
)
ESCAPES = """
import os, sys, time
if os.fork():
    sys.exit()  # its child is init's, and none that Slurm finds at the end of the job
os.setsid()
import zeus_stream
from zeus_stream.simulated_gpu.accelerator import attach
with attach("imagenet") as gpu:
    for _ in zeus_stream.steps(range(1_000_000)):
        gpu.run(0.02)
"""

TRAINING = """
import zeus_stream
with zeus_stream.simulated.attach("imagenet") as gpu:
    for number in zeus_stream.steps(range(1_000_000)):
        gpu.run(0.02)
        if number == 50:
            print("trains", flush=True)
"""
CLOCKS = """#!/bin/bash
for value in 1380 900 unlocked; do
    {} graphics_clock GPU-1 $value
    echo $value $(scontrol show step $SLURM_JOB_ID | grep TresFreq)
done
{} power_limit GPU-1 150 2>&1
"""


@pytest.fixture(scope="module")
def site() -> Iterator[SlurmSite]:
    with slurm_site(blocks(PAGE, "ini")[0]) as running:
        yield running


def shape(text: str) -> str:
    """Return a text with each figure replaced: what a page shows and what a job prints differ in them."""
    return re.sub(r"\d[\d,.]*", "#", text).strip()


Rows: TypeAlias = list[dict[str, Any]]


def allocations(site: SlurmSite, query: str, count: int = 1) -> Rows:
    """Return so many rows of allocations, once they are measured."""

    def measured() -> Rows:
        rows = site.sql(f"FROM allocations WHERE {query} ORDER BY node")
        return rows if len(rows) == count and all(row["quality"] for row in rows) else []

    return until(measured)


@REAL
def test_the_page_gives_a_job_of_two_nodes_its_joules(site: SlurmSite) -> None:
    script = site.output / "job.sh"
    script.write_text(blocks(PAGE, "bash")[0])

    def submit() -> str | None:
        """Return the number of a job whose epilogs had its energy in time: on a busy machine another will."""
        job = site.submit("--output=%j.out", str(script))
        site.wait_for(job)
        output = site.output / f"{job}.out"
        until(lambda: output.read_text().count("\n") == 2)
        return None if "not known yet" in output.read_text() else job

    job = until(submit)
    rows = allocations(site, f"job_id = '{job}'", 2)
    assert [(row["node"], row["host"]) for row in rows] == [("n1", "n1"), ("n2", "n2")]
    assert {(row["user_name"], row["uid"], row["name"], row["quality"]) for row in rows} == {
        ("nobody", 65534, "resnet50", "ok")
    }
    assert [len(row["gpus"]) for row in rows] == [1, 1]
    lines = (site.output / f"{job}.out").read_text().splitlines()
    assert sorted(map(shape, lines)) == list(map(shape, blocks(PAGE, "text")[0].splitlines()))
    assert f"zeus-stream: job {job} on n1" in min(lines)
    energy_j = sum(float(str(row["energy_j"])) for row in rows)
    assert until(lambda: comments(site)[job]) == f"zeus-stream: energy_j={energy_j:.1f}"
    for line in commands(PAGE):
        assert "nobody" in site.zeus(*shlex.split(line)[1:])
    shown = site.zeus("jobs", "--slurm", "--json")
    assert f'"job": "{job}"' in shown
    assert '"nodes": 2' in shown
    assert '"gpus": 2' in shown


def comments(site: SlurmSite) -> dict[str, str]:
    """Return the comments of Slurm's accounting, by job."""
    lines = site.run(
        "sacct", "--allusers", "--allocations", "--noheader", "--parsable2", "--format=JobID,Comment"
    )
    return dict(line.split("|") for line in lines.splitlines())


@REAL
def test_each_task_of_an_array_has_its_gpus_and_its_joules(site: SlurmSite) -> None:
    array = site.submit("--array=1-3", "--nodes=1", "--gpus=1", "--output=%A_%a.out", "--wrap=sleep 1")
    site.wait_for(array)
    rows = allocations(site, f"array_task LIKE '{array}\\_%' ESCAPE '\\'", 3)
    assert sorted(row["array_task"] for row in rows) == [f"{array}_{task}" for task in (1, 2, 3)]
    assert len({row["job_id"] for row in rows}) == 3
    assert {len(row["gpus"]) for row in rows} == {1}
    for task in (1, 2, 3):
        until(lambda task=task: f"job {array}_{task} on" in (site.output / f"{array}_{task}.out").read_text())  # type: ignore[misc]


@REAL
def test_two_jobs_on_a_node_have_each_its_own_gpu(site: SlurmSite) -> None:
    jobs = [
        site.submit("--nodelist=n1", "--gpus=1", "--output=/dev/null", "--wrap=sleep 3") for _ in range(2)
    ]
    for job in jobs:
        site.wait_for(job)
    [first], [second] = (allocations(site, f"job_id = '{job}'") for job in jobs)
    assert first["gpus"] != second["gpus"]


@REAL
def test_a_limit_returns_at_the_end_of_a_job_whose_training_lives_on(site: SlurmSite) -> None:
    script = site.output / "escapes.py"
    script.write_text(ESCAPES)
    own = f"ZEUS_STREAM_DIR={site.directory}/n1 PYTHONPATH={ROOT}"
    python = f"unset LD_LIBRARY_PATH; {own} {sys.executable} {script}"
    limits = """
        SELECT arg_max(limit_mw, t_hi_ns) AS now_mw, max(limit_mw) AS found_mw
        FROM readings WHERE gpu IN (SELECT unnest(gpus) FROM allocations WHERE job_id = '{job}')
    """
    job = site.submit(
        "--nodelist=n1", "--gpus=1", "--output=%j.out", f"--wrap={python}; sleep 1000", user=None
    )

    def limit() -> tuple[int, int]:
        [row] = site.sql(limits.format(job=job))
        return row["now_mw"] or 0, row["found_mw"] or 0

    until(lambda: 0 < limit()[0] < limit()[1])
    site.run("scancel", job)
    until(lambda: limit()[0] == limit()[1])
    [row] = allocations(site, f"job_id = '{job}'")
    ended = site.sql("SELECT ended_how FROM sessions WHERE job = 'escapes'")
    assert [each["ended_how"] for each in ended] == [f"the job of slurm-{job}.0@n1 has ended"]
    alive = subprocess.run(
        ["pgrep", "-f", str(script)], capture_output=True, text=True, check=False
    ).stdout.split()
    assert alive, "the training should have outlived its job"
    for pid in alive:
        os.kill(int(pid), 9)
    assert row["user_name"] == "root"


@REAL
def test_services_of_a_job_end_its_script_and_report_at_a_sigterm_to_the_job(site: SlurmSite) -> None:
    """Slurm sends it by `--signal=B:TERM@60`; so does scancel, at once."""
    (site.output / "train.py").write_text(TRAINING)
    own = f"unset LD_LIBRARY_PATH; export PATH={site.directory}:$PATH ZEUS_STREAM_DEVICE=simulated:v100x1"
    text = blocks(PAGE, "bash")[1].replace("export", f"{own} PYTHONPATH={ROOT}\nexport")
    script = site.output / "services.sh"
    script.write_text(text.replace("torchrun --nproc-per-node 4", sys.executable))
    job = site.submit("--gpus-per-node=1", "--output=%j.out", str(script), user=None)
    output = site.output / f"{job}.out"
    until(lambda: output.exists() and "trains\n" in output.read_text())
    site.run("scancel", "--batch", "--signal=TERM", job)
    site.wait_for(job)
    assert "has ended: the command goes on" not in output.read_text()
    steps = "SELECT count(*) > 40 AS so FROM steps WHERE energy_j > 0"
    assert "true" in site.zeus("sql", "--archive", f"{site.output}/{job}.duckdb", steps, "--json")


@REAL
def test_a_step_of_the_job_holds_a_clock_until_it_is_unlocked(site: SlurmSite) -> None:
    script, program = site.output / "clocks.sh", site.output / "zeus-stream-set-srun"
    shutil.copy(ROOT / "packaging" / "unprivileged" / program.name, program)
    script.write_text(CLOCKS.format(program, program))
    job = site.submit("--nodes=1", "--gpus-per-node=1", "--output=%j.out", str(script))
    site.wait_for(job)
    assert (site.output / f"{job}.out").read_text().splitlines()[:4] == [
        "1380 TresFreq=gpu:1380",
        "900 TresFreq=gpu:900",
        "unlocked",
        "control power_limit: --gpu-freq has the graphics clock only",
    ]


@REAL
def test_without_a_collector_a_job_runs_and_its_node_stays(site: SlurmSite) -> None:
    publish = site.directory / "n2" / "publish"
    hidden = publish.rename(publish.with_name("hidden"))
    try:
        job = site.submit("--nodelist=n2", "--gpus=1", "--output=%j.out", "--wrap=echo trained")
        site.wait_for(job)
        assert (site.output / f"{job}.out").read_text() == "trained\n"
        assert "drain" not in site.run("sinfo", "--noheader", "--Node", "--format=%T")
    finally:
        hidden.rename(publish)


@pytest.mark.parametrize("script", ["prolog", "epilog", "task-prolog", "epilog-slurmctld"])
@pytest.mark.parametrize("command", ["exit 1", "sleep 1000", "kill -9 $$"])
def test_a_script_exits_with_0_whatever_the_command_does(tmp_path: Path, script: str, command: str) -> None:
    """Nothing of Slurm is needed for it."""
    (tmp_path / "zeus-stream").write_text(f"#!/bin/sh\n{command}\n")
    (tmp_path / "zeus-stream").chmod(0o755)
    for each in SCRIPTS.iterdir():
        (tmp_path / each.name).write_text(each.read_text())
        (tmp_path / each.name).chmod(0o755)
    with (tmp_path / "site").open("a") as settings:
        settings.write(f"ZEUS_STREAM={tmp_path}/zeus-stream\nSCONTROL={tmp_path}/zeus-stream\n")
    done = subprocess.run(
        [tmp_path / script], env={"SLURM_JOB_ID": "1"}, capture_output=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, b"")


def test_the_name_of_a_job_is_passed_on_as_it_is() -> None:
    """The shell made a tab of the second letter of `lr\\test`."""
    done = subprocess.run(
        [SCRIPTS / "task-prolog"], env={"SLURM_JOB_NAME": r"lr\test a"}, capture_output=True, check=True
    )
    assert done.stdout == b"export ZEUS_STREAM_JOB=lr\\test a\n"
