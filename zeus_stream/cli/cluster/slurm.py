"""The commands ``slurm ...`` for the prolog and the epilogs of Slurm: report a job of this node.

    prolog  -> begin: RunStarted with the allocation, WindowBegan  -> collector
    epilog  -> end:   the same again, WindowEnded, RunEnded, Ask   -> collector -> analyzer -> joules

What the prolog sent is kept in a file until the epilog: the collector takes from it only what it lacks.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from zeus_stream.cli.options import QUERY, Command, CommandGroup, ask_sql, settings_options
from zeus_stream.cli.running.signals import Signals
from zeus_stream.cli.running.waits import until
from zeus_stream.clock import anchor, boot_id, monotonic_ns
from zeus_stream.errors import RefusedError, StorageError, UnreachableError, explaining
from zeus_stream.own_files import open_own, read_own
from zeus_stream.paths import Places, places
from zeus_stream.protocol import codec
from zeus_stream.protocol.events import Answer, JobAllocation, RunEnded, RunStarted, WindowBegan, WindowEnded
from zeus_stream.settings import Settings
from zeus_stream.training.identity import listed_gpus, named
from zeus_stream.training.outbox import Outbox
from zeus_stream.training.sender import EventSender
from zeus_stream.views.quantity import Quantity, bounds, seconds, watts

LONGEST_S = 3.0
"""Wait for the collector, and again for the energy: Slurm's prolog and epilog wait for both."""
MOST_BYTES = 65_536
_SHOWN = {"name": r"\bJobName=(.+)$", "job": r"\bArrayJobId=(\d+)", "task": r"\bArrayTaskId=(\d+)"}
_JOB = """
SELECT count(*) AS nodes, count(*) FILTER (quality = '') AS open, any_value(nullif(quality, 'ok')) AS reason,
    CASE WHEN count(energy_j) = count(*) THEN sum(energy_j) END AS energy_j
FROM allocations
WHERE job_id = '{job_id}' AND restarts = (SELECT max(restarts) FROM allocations WHERE job_id = '{job_id}')
"""
"""Of the last attempt: Slurm gives the epilog of a job that is requeued the number of the next."""


@click.group(cls=CommandGroup)
def slurm() -> None:
    """Report the jobs of Slurm. Its prolog and epilogs run these commands.

    The jobs with their energy: zeus-stream jobs --slurm.
    """


@slurm.command(cls=Command)
def begin() -> None:
    """Report that a job begins on this node: its GPUs are measured from now on.

    The job is that of the environment of a prolog. Standard input may have what `scontrol show job` says.
    """
    started, where = describe(os.environ, _standard_input()), places(os.environ)
    if started is None:
        return
    _remember(_file(where, started), started)
    outbox, sender = _session(where, started)
    sender.start()
    outbox.close()
    sender.stop()
    _check(outbox, sender)


@slurm.command(cls=Command)
def end() -> None:
    """Report that a job ends on this node, restore its power limits, and print its energy.

    Where standard input has what `scontrol show job` says, a second line has the path of the job's output.
    """
    where, now_ns = places(os.environ), monotonic_ns()
    path = where.run / "allocations" / _job_id(os.environ)
    try:
        started = codec.decode(read_own(path, MOST_BYTES), RunStarted)
    except FileNotFoundError:
        return  # it has no GPUs, or its prolog did not run
    outbox, sender = _session(where, started)
    outbox.put((WindowEnded, now_ns, 0))
    outbox.put((RunEnded, now_ns))
    outbox.batch(now_ns)
    outbox.gather(now_ns)  # all of it together: what the collector has of it is acknowledged at once
    sender.start()
    box = sender.question(0, now_ns + round(LONGEST_S * 1e9))
    until(lambda: sender.absent or not box.empty(), LONGEST_S, Signals())
    outbox.close()
    sender.stop()
    path.unlink()  # the epilog comes once, whatever became of the report
    _check(outbox, sender)
    click.echo(line_of(started, None if box.empty() else box.get_nowait()))
    if output := output_of(started, os.environ, _standard_input()):
        click.echo(output)


@slurm.command(cls=Command)
@click.option("--wait", "wait_s", default=30.0, metavar="S", help="Longest wait for the energy.  [30]")
@settings_options(*QUERY)
def comment(settings: Settings, *, wait_s: float) -> None:
    """Print the energy of a job on all its nodes, as Slurm's accounting takes it for a comment."""
    job_id, nodes = _job_id(os.environ), int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))

    def known() -> bool:
        found.update(ask_sql(settings, _JOB.format(job_id=job_id)).to_pylist()[0])
        return found["nodes"] >= nodes and not found["open"]

    found: dict[str, Any] = {}
    with Signals() as signals:
        measured = until(known, wait_s, signals)
    if not measured:
        raise UnreachableError(
            f"slurm: could not find the energy of job {job_id}: {found['nodes']} of {nodes} nodes have"
            f" reported it, and {found['open']} are not measured. See `zeus-stream jobs --slurm`."
        )
    if found["energy_j"] is None:
        raise UnreachableError(f"slurm: job {job_id} has no energy: {found['reason']}.")
    click.echo(f"zeus-stream: energy_j={found['energy_j']:.1f}")


def describe(environ: Mapping[str, str], shown: str) -> RunStarted | None:
    """Return the event by which the job of a prolog begins here. None: it has no GPU of this node.

    ``shown``: what ``scontrol show job`` says, for what the environment lacks; or nothing.
    """
    job_id, gpus = _job_id(environ), environ.get("SLURM_JOB_GPUS", "")
    if not gpus:
        return None
    found = {key: match[1] for key, form in _SHOWN.items() if (match := re.search(form, shown, re.MULTILINE))}
    array = environ.get("SLURM_ARRAY_JOB_ID", found.get("job"))
    task = environ.get("SLURM_ARRAY_TASK_ID", found.get("task"))
    name = environ.get("SLURM_JOB_NAME", found.get("name"))
    uid, now = environ.get("SLURM_JOB_UID", "0"), anchor()
    restarts, node = environ.get("SLURM_JOB_RESTART_COUNT", "0"), environ.get("SLURMD_NODENAME", "?")
    return RunStarted(
        t_ns=now.monotonic_ns,
        job="slurm",
        run=named(f"slurm-{job_id}.{restarts}@{node}"),
        rank=0,
        world_size=0,
        gpus=listed_gpus(gpus.split(",")),
        pid=0,
        boot_id=boot_id(),
        wall_ns=now.wall_ns,
        wall_error_ns=now.error_ns,
        allocation=JobAllocation(
            job_id=job_id,
            uid=int(uid),
            user_name=named(environ.get("SLURM_JOB_USER", uid)),
            node=named(node),
            name=name and named(name),
            array_task=named(f"{array}_{task}") if array and task else None,
            partition=environ.get("SLURM_JOB_PARTITION"),
            restarts=int(restarts),
        ),
    )


def line_of(started: RunStarted, answer: Answer | None) -> str:
    """Return the line for the output of a job."""
    allocation = started.allocation
    assert allocation is not None
    gpus = f"{len(started.gpus)} GPU{'s' if len(started.gpus) > 1 else ''}"
    where = f"zeus-stream: job {allocation.array_task or allocation.job_id} on {allocation.node}, {gpus}:"
    if answer is None:
        return f"{where} the energy is not known yet. Later: zeus-stream jobs --slurm"
    if answer.missing is not None or answer.duration_s is None:
        return f"{where} the energy is not known: {answer.missing}"
    energy_j, low_j, high_j = (
        sum(getattr(gpu, name) for gpu in answer.gpus)
        for name in ("energy_j", "energy_low_j", "energy_high_j")
    )
    energy = Quantity(energy_j, "J", low_j, high_j)
    power = watts(energy_j / answer.duration_s)
    between = f" (surely {sure})" if (sure := bounds(energy)) else ""
    return f"{where} {energy}{between} in {seconds(answer.duration_s)}, {power} on average"


def output_of(started: RunStarted, environ: Mapping[str, str], shown: str) -> str:
    """Return the path of a job's output, without Slurm's patterns, such as ``%j``; empty: it is not known."""
    allocation, found = started.allocation, re.search(r"^ *StdOut=(.+)$", shown, re.MULTILINE)
    assert allocation is not None
    array, _, task = (allocation.array_task or allocation.job_id).partition("_")
    values = {
        "%": "%",
        "j": allocation.job_id,
        "J": allocation.job_id,
        "A": array,
        "a": task,
        "s": "batch",
        "u": allocation.user_name,
        "x": allocation.name or "",
        "N": allocation.node,
        "n": "0",
        "t": "0",
    }
    path = environ.get("SLURM_JOB_STDOUT") or (found[1] if found else "")
    if any(letter not in values for letter in re.findall(r"%(.?)", path)):
        return ""
    return re.sub(r"%(.)", lambda pattern: values[pattern[1]], path)


def _standard_input() -> str:
    return "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read(MOST_BYTES)


def _job_id(environ: Mapping[str, str]) -> str:
    job_id = environ.get("SLURM_JOB_ID", "")
    if not (job_id.isascii() and job_id.isdecimal()):
        raise RefusedError(
            f"slurm: could not find the job: SLURM_JOB_ID is {job_id[:40]!r}, and no number."
            " Let a prolog or an epilog of Slurm run the command."
        )
    return job_id


def _file(where: Places, started: RunStarted) -> Path:
    assert started.allocation is not None
    return where.run / "allocations" / started.allocation.job_id


def _remember(path: Path, started: RunStarted) -> None:
    """Keep what the session begins with until the job ends: all of it, or nothing."""
    partial = path.with_suffix(".new")
    with explaining(StorageError, f"{path}: could not be written", "Make room, and run it as root."):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(open_own(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:  # noqa: PTH123
            file.write(codec.encode(started))
        partial.replace(path)


def _session(where: Places, started: RunStarted) -> tuple[Outbox, EventSender]:
    """Return the session of an allocation, with its begin in it, and what takes it to the collector."""
    said: set[str] = set()

    def say(cause: str, sentence: str) -> None:
        if cause not in said:
            said.add(cause)
            click.echo(f"zeus-stream: slurm: {sentence}", err=True)

    def fail(wrong: Exception) -> None:
        say("failure", f"could not go on: {wrong!r}.")

    outbox = Outbox(started, lambda: started.run)
    outbox.put((WindowBegan, started.t_ns, 0, "allocation"))
    return outbox, EventSender(outbox, (where.publish,), say, fail, LONGEST_S)


def _check(outbox: Outbox, sender: EventSender) -> None:
    """Raise UnreachableError if the collector has not logged everything."""
    if outbox.waiting:
        raise UnreachableError(
            f"slurm: could not report the job: {sender.silence()} within {LONGEST_S:g} s."
            " Start the collector: systemctl start zeus-stream-collect."
        )
