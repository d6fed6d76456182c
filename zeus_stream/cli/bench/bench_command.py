"""The command ``bench``: the energy of one call of a function, and of others beside it."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from traceback import print_exception
from typing import TYPE_CHECKING, Any

import click
from msgspec.json import encode

from zeus_stream.cli.bench.bench_report import (
    BenchReport,
    BenchSession,
    annotation,
    describe_function,
    describe_report,
    make_report,
    read_sessions,
)
from zeus_stream.cli.options import Command, given_settings, json_option, settings_options
from zeus_stream.errors import RefusedError, SettingsError, UnreachableError, ZeusStreamError
from zeus_stream.settings import Settings

if TYPE_CHECKING:
    from zeus_stream.bench.energy_bench import BenchPlan

REPEAT_S, IDLE_S = 1.0, 60.0
"""Length of a repeat, of a function and of idle power."""
ARCHIVED_S = 30.0
"""Longest wait for the rows of this session."""
OURS = (__name__.partition(".")[0], "contextlib", "importlib")
"""Modules between the command and a function."""


class _Percent(click.ParamType[float]):
    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(str(value).removesuffix("%"))
        except ValueError:
            number = -1.0
        if not 0 <= number < 10_000:
            self.fail(f"{value!r} is no percentage: give one such as 5%.", param, ctx)
        return number


@click.command(cls=Command)
@click.argument("functions", nargs=-1, metavar="[MODULE:FUNCTION...]")
@click.option(
    "--rounds", type=click.IntRange(6, 1_000), default=20, metavar="N",
    help="Rounds; in each, every function is measured once.  [20]",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(0.1, 600), metavar="X",
    help="Length of a repeat, at least: a function is called as often as it takes.  [1; with --idle 60]",
)  # fmt: skip
@click.option(
    "--warmup-s", type=click.FloatRange(0, 3_600), default=60.0, metavar="X",
    help="Longest warm-up: it ends once the temperature is stable under load.  [60]",
)  # fmt: skip
@click.option(
    "--cool-down-s", type=click.FloatRange(0, 3_600), default=120.0, metavar="X",
    help="Longest wait for a stable temperature before; 0: none.  [120]",
)  # fmt: skip
@click.option(
    "--fail-above", type=_Percent(), metavar="N%",
    help="Exit with 1 if a function needs more energy than the first, or than in its history, by more than"
    " this, and it is proven.",
)  # fmt: skip
@click.option("--gpus", metavar="N,N", help="GPUs to measure, by index or UUID.  [those that CUDA shows]")
@click.option("--idle", is_flag=True, help="Measure what a collector itself costs on this idle host.")
@json_option
@settings_options("device", "cpu", "archive")
def bench(
    settings: Settings,
    functions: tuple[str, ...],
    *,
    rounds: int,
    seconds: float | None,
    warmup_s: float,
    cool_down_s: float,
    fail_above: float | None,
    gpus: str | None,
    idle: bool,
    as_json: bool,
) -> None:
    """Measure the energy of one call of a function, and compare functions.

    The functions are called in turns in this process, so that a GPU that warms up changes no comparison. All
    repeats are in the archive: it is the history of the benchmark. The first function is the baseline.

    With --idle no function is called: idle power with and without a collector is measured in turns.

    \b
    zeus-stream bench kernels:attention
    zeus-stream bench kernels:attention kernels:attention_fused --fail-above 5%
    zeus-stream bench kernels:attention --archive history.duckdb --fail-above 5% --json
    zeus-stream bench --idle --rounds 10
    """
    if idle == bool(functions):
        raise click.UsageError("Give MODULE:FUNCTION, or --idle without one.")
    rounds += rounds % 2
    if idle:
        _measure_idle(settings, rounds, seconds or IDLE_S, as_json=as_json)
        return
    from zeus_stream.bench.energy_bench import BenchPlan

    plan = BenchPlan(rounds=rounds, seconds=seconds or REPEAT_S, warmup_s=warmup_s, cool_down_s=cool_down_s)
    report = _measure(settings, functions, plan, gpus.split(",") if gpus else None, fail_above)
    sys.stdout.write(encode(report).decode() + "\n" if as_json else describe_report(report))
    for sentence in report.regressions or [describe_function(each) for each in report.functions]:
        line = annotation(os.environ, sentence, failed=bool(report.regressions))
        if line is not None:
            click.echo(line, err=as_json)
    if report.regressions:
        sys.exit(1)


def _measure_idle(settings: Settings, rounds: int, seconds: float, *, as_json: bool) -> None:
    """Measure and print what a collector costs."""
    from zeus_stream.cli.bench.idle_cost import describe_cost, measure_idle_cost
    from zeus_stream.cli.running.signals import Signals
    from zeus_stream.own_services import say
    from zeus_stream.paths import holder, places

    if (pid := holder(places(os.environ).run / "collector.lock")) is not None:
        raise RefusedError(
            f"bench --idle: could not measure: collector {pid} runs, so no interval is without one. Stop it."
        )
    say(f"measuring {rounds} rounds of 2 x {seconds:g} s: leave the host idle")
    with Signals() as signals:
        cost = measure_idle_cost(settings, rounds, seconds, signals)
    sys.stdout.write(encode(cost).decode() + "\n" if as_json else describe_cost(cost))


def _measure(
    settings: Settings,
    specs: Sequence[str],
    plan: "BenchPlan",
    gpus: Sequence[str] | None,
    fail_above: float | None,
) -> BenchReport:
    """Measure functions with the services of this setup, or with others that are started for it."""
    from zeus_stream.bench.energy_bench import EnergyBench, gpu_temperatures
    from zeus_stream.cli.measure import only_measuring
    from zeus_stream.cli.run_training import as_environment
    from zeus_stream.cli.running.checks import check, say_ignored
    from zeus_stream.cli.running.child_services import services
    from zeus_stream.cli.running.signals import Signals
    from zeus_stream.cli.running.waits import until
    from zeus_stream.own_services import say
    from zeus_stream.paths import places
    from zeus_stream.training.publisher import Publisher
    from zeus_stream.transport.client import Connection

    where = places(os.environ)
    check(settings, (), where)
    settings = only_measuring(settings, where)
    with Signals() as signals, services(where, {**os.environ, **as_environment(settings)}, signals) as own:
        say_ignored(given_settings(), own.absent, where)
        os.environ["ZEUS_STREAM_DIR"] = str(where.run)  # a script looks for the collector of root first
        with _own_errors():
            functions = load_functions(specs)
        connection = Connection(where)
        with Publisher(job=f"bench {specs[0]}", gpus=gpus) as publisher:
            run = publisher.started.run
            temperatures = gpu_temperatures(connection)
            session = EnergyBench(publisher, plan, temperatures, lambda: signals.told is not None, say)
            with _own_errors():
                variants = session.run(functions)
        history: dict[str, list[BenchSession]] = {}

        def archived() -> bool:
            for name in functions.keys() - history.keys():
                known = read_sessions(connection.sql, name)
                measured = sum(each is not None for each in variant_of[name].energies_j)
                if any(each.run == run and each.repeats >= measured for each in known):
                    history[name] = known
            return len(history) == len(functions)

        variant_of = {variant.name: variant for variant in variants}
        if not until(archived, ARCHIVED_S, signals, "the rows of this session"):
            raise UnreachableError(
                f"bench: could not read the session {run} back within {ARCHIVED_S:g} s."
                " `zeus-stream status` says how far the analyzer is."
            )
    return make_report(run, variants, history, fail_above)


@contextmanager
def _own_errors() -> Iterator[None]:
    """Print an error of a function that is measured, from its own frames on. Raises SettingsError then."""
    try:
        yield
    except ZeusStreamError:
        raise
    except Exception as wrong:
        own = wrong.__traceback__
        while own and own.tb_frame.f_globals.get("__name__", "").startswith(OURS):
            own = own.tb_next
        print_exception(wrong.with_traceback(own or wrong.__traceback__))
        raise SettingsError("bench: could not measure: see the error above. Correct the function.") from wrong


def load_functions(specs: Sequence[str]) -> dict[str, Callable[[], object]]:
    """Import functions by name, from the working directory too; a second of one name gets `` (2)``.

    Raises SettingsError: there is no such function.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found: dict[str, Callable[[], object]] = {}
    for spec in specs:
        function = _load_function(spec)
        name, number = spec, 1
        while name in found:
            number += 1
            name = f"{spec} ({number})"
        found[name] = function
    return found


def _load_function(spec: str) -> Callable[[], object]:
    module, colon, path = spec.partition(":")
    if not (module and colon and path):
        raise SettingsError(
            f"bench: could not load {spec}: it has no MODULE:FUNCTION. Name one, such as kernels:attention."
        )
    try:
        value: Any = import_module(module)
        for part in path.split("."):
            value = getattr(value, part)
    except ModuleNotFoundError as wrong:
        raise SettingsError(
            f"bench: could not load {spec}: there is no module {wrong.name}. Run it in the directory that has"
            " it, or install it."
        ) from wrong
    except AttributeError as wrong:
        raise SettingsError(f"bench: could not load {spec}: {wrong}. Name a function of {module}.") from wrong
    if not callable(value):
        raise SettingsError(
            f"bench: could not load {spec}: it cannot be called. Name a function of {module}."
        )
    function: Callable[[], object] = value
    return function
