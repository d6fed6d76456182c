"""Commands that run or measure something: ``run``, ``measure``."""

import os
import sys
from contextlib import nullcontext, redirect_stderr
from pathlib import Path

import click
from msgspec import Struct

from zeus_stream.cli.options import ANALYZER, COLLECTOR, Command, given_settings, settings_options
from zeus_stream.settings import Settings


@click.command(cls=Command, context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--measure-only",
    is_flag=True,
    help="Measure the GPUs while COMMAND runs; set no limit. COMMAND may be any program.",
)
@click.option("--gpus", metavar="N,N", help="With --measure-only: the GPUs to measure.  [all]")
@click.option("--web", is_flag=True, help="Show the training live in a browser: print an address to open.")
@click.option(
    "--stop-at",
    metavar="ENERGY",
    help="Energy budget, such as 500Wh or 2MJ: warn, then end the training at its next checkpoint. The"
    " callbacks of frameworks do that; other scripts ask zeus_stream.over_budget().",
)
@click.option("-q", "--quiet", is_flag=True, help="Print no report and no line of ours but errors.")
@settings_options(*dict.fromkeys(COLLECTOR + ANALYZER), sections=("common",))
def run(
    settings: Settings,
    site: Struct,
    command: tuple[str, ...],
    *,
    measure_only: bool,
    gpus: str | None,
    web: bool,
    stop_at: str | None,
    quiet: bool,
) -> None:
    """Run COMMAND with a collector and an analyzer, and print what it cost.

    A collector and an analyzer that run already are used. Others are started, and stopped at the end. The
    exit code is that of COMMAND. A wrong option stops before COMMAND starts. A missing GPU, a full disk or a
    broken service never stops COMMAND.

    \b
    zeus-stream run -- python train.py
    zeus-stream run --device simulated:v100x1 -- python train.py
    zeus-stream run --web -- python train.py
    zeus-stream run --stop-at 500Wh -- python train.py
    zeus-stream run --measure-only -- ./program --any options

    All options of `zeus-stream collect` and `zeus-stream analyze` are options of this command as well.
    """
    if measure_only and (web or stop_at is not None):
        raise click.UsageError("--web and --stop-at are for trainings; they do not go with --measure-only.")
    if gpus is not None and not measure_only:
        raise click.UsageError(
            "--gpus needs --measure-only. A training uses the GPUs of CUDA_VISIBLE_DEVICES or"
            " ZEUS_STREAM_GPUS."
        )
    from zeus_stream.cli.run_training import as_environment

    budget = {} if stop_at is None else {"ZEUS_STREAM_STOP_AT": stop_at}
    environ = {**os.environ, **as_environment(site), **budget}
    with Path(os.devnull).open("w") as nothing, redirect_stderr(nothing) if quiet else nullcontext():
        if measure_only:
            from zeus_stream.cli.measure import measure_command

            code = measure_command(settings, command, _gpus(gpus), environ, given_settings())
        else:
            from zeus_stream.cli.run_training import run as run_training

            code = run_training(settings, command, environ, web=web, given=given_settings())
    sys.exit(code)


@click.command(cls=Command)
@click.option(
    "--seconds",
    type=click.FloatRange(0, 86_400, min_open=True),
    default=10.0,
    metavar="X",
    help="Time to measure, s.  [10]",
)
@click.option("--gpus", metavar="N,N", help="GPUs to measure, by index or UUID.  [all]")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object.")
@settings_options("device", "archive")
def measure(settings: Settings, *, seconds: float, gpus: str | None, as_json: bool) -> None:
    """Measure what the GPUs use from now on. Ctrl-C ends the measurement early.

    A collector and an analyzer that run already are asked. Others are started, and stopped at the end.

    \b
    zeus-stream measure --seconds 30
    """
    from zeus_stream.cli.measure import measure_for

    given = given_settings()
    sys.exit(measure_for(seconds, settings, _gpus(gpus), os.environ, as_json=as_json, given=given))


def _gpus(text: str | None) -> tuple[str, ...]:
    return tuple((text or os.environ.get("ZEUS_STREAM_GPUS") or "all").split(","))
