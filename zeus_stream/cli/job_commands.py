"""Commands about jobs and groups of GPUs: ``jobs``, ``profiles``, ``budget``, ``simulate``."""

import os
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zeus_stream.cli.options import (
    QUERY,
    Command,
    CommandGroup,
    Duration,
    ask_sql,
    output_options,
    settings_options,
)
from zeus_stream.errors import RefusedError
from zeus_stream.paths import holder, places, prepare
from zeus_stream.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

    from zeus_stream.screens.text.tables import Form


POLICIES = "default,known,reference,zeus,adaptive"
"""Policies that `simulate` compares by default."""


def _write(table: "pa.Table", shown: Mapping[str, str], form: "Form") -> None:
    """Write a table: people get few columns under short names, and days for times; programs get all."""
    import pyarrow as pa

    from zeus_stream.screens.text.tables import write

    if form == "table":
        columns = [table[name] for name in shown]
        days = [
            each.cast(pa.date32(), safe=False) if pa.types.is_timestamp(each.type) else each
            for each in columns
        ]
        table = pa.table(days, names=list(shown.values()))
    write(table, form, sys.stdout)


_ALLOCATED = """
SELECT coalesce(any_value(array_task), job_id) AS job, restarts, any_value(name) AS name,
    any_value(user_name) AS user_name, count(DISTINCT node) AS nodes, sum(len(gpus))::BIGINT AS gpus,
    min(began_at) AS began_at,
    CASE WHEN count(ended_at) = count(*) THEN max(duration_s) END AS duration_s,
    CASE WHEN count(energy_j) = count(*) THEN sum(energy_j) END AS energy_j
FROM allocations GROUP BY job_id, restarts ORDER BY began_at DESC, job_id DESC
"""
_NO_JOB = "No job recurs yet. A script asks for a batch size: see docs/how-to/recurring-jobs.md"


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option("--slurm", is_flag=True, help="Show the jobs of Slurm and the energy of their GPUs.")
@output_options
@settings_options(*QUERY)
@click.pass_context
def jobs(context: click.Context, settings: Settings, *, form: "Form", slurm: bool) -> None:
    """Show recurring jobs: the best batch size of each, and what it has saved."""
    if slurm:
        from zeus_stream.screens.text.tables import write

        write(ask_sql(settings, _ALLOCATED), form, sys.stdout)
    elif context.invoked_subcommand is None:
        from zeus_stream.cli.screens.recurring_jobs import ALL, SHOWN

        found = ask_sql(settings, ALL)
        _write(found, SHOWN, form)
        if not found.num_rows:
            click.echo(_NO_JOB, err=True)


@jobs.command("show")
@click.argument("name")
@click.option("--policy", metavar="TEXT", help="Another policy.  [the one of the analyzer]")
@settings_options(*QUERY)
def show_job(settings: Settings, name: str, policy: str | None) -> None:
    """Show the tries of job NAME, and the batch size of the next try."""
    from zeus_stream.cli.screens.recurring_jobs import look_up, print_job

    shown = look_up(partial(ask_sql, settings), name, policy)
    if shown is None:
        raise RefusedError(
            f"job {name}: could not show it: the archive has no recurring job of this name."
            " List them: zeus-stream jobs."
        )
    print_job(shown, sys.stdout)


@jobs.command("forget")
@click.argument("name")
@settings_options("analyzer")
def forget_job(settings: Settings, name: str) -> None:
    """Start the learning of job NAME again. Its tries stay in the archive and no longer count."""
    from zeus_stream.transport.client import analyzer, forget

    tries = forget(analyzer(os.environ, settings.analyzer), name)
    click.echo(f"{name} starts again: {tries} tries no longer count.")


@click.group(cls=CommandGroup, invoke_without_command=True)
@output_options
@settings_options(*QUERY)
@click.pass_context
def profiles(context: click.Context, settings: Settings, *, form: "Form") -> None:
    """Show the stored profiles: where later runs of each job start their search."""
    if context.invoked_subcommand is None:
        from analyzers.state_files import forgotten_profiles
        from zeus_stream.screens.text.run_cost import PROFILE_COLUMNS, remembered

        forgotten = forgotten_profiles.load(places(os.environ).forgotten)
        _write(remembered(partial(ask_sql, settings), forgotten), PROFILE_COLUMNS, form)


@profiles.command("forget")
@click.argument("job")
@settings_options(*QUERY)
def forget_profiles(settings: Settings, job: str) -> None:
    """Forget the profiles of JOB: its next run searches again."""
    from analyzers.state_files import forgotten_profiles
    from zeus_stream.clock import anchor
    from zeus_stream.screens.text.run_cost import remembered

    path = places(os.environ).forgotten
    known = forgotten_profiles.load(path)
    jobs = dict.fromkeys(remembered(partial(ask_sql, settings), known)["job"].to_pylist())
    if job not in jobs:
        raise RefusedError(
            f"profiles: could not forget {job}: there is no profile of it."
            f" Name one of these jobs: {', '.join(jobs) or 'none has a profile'}."
        )
    forgotten_profiles.store(path, known | {job: anchor().wall_ns})
    click.echo(f"The next run of {job} searches again.")


def _texts(_context: click.Context, _option: click.Parameter, given: str) -> tuple[str, ...]:
    return tuple(given.split(",")) if given else ()


@click.command(cls=Command)
@click.option("--watts", type=click.FloatRange(1, 1e9), metavar="X", help="Largest sum of the limits, W.")
@click.option("--follow", metavar="FILE", help="CSV of watts to draw, or load: that signal.")
@click.option(
    "--ramp-rate",
    type=click.FloatRange(1, 1e9),
    metavar="X",
    help="Largest change of the target, W a minute.",
)
@click.option("--first", metavar="JOB,JOB", default="", callback=_texts,
              help="Jobs that get watts first, in order, such as prod-*,eval.")  # fmt: skip
@click.option("--group", metavar="NAME", default="all", help="Name, such as one of budget_groups.  [all]")
@click.option("--gpus", metavar="GPU,GPU", default="", help="UUIDs, HOST:INDEX, or INDEX here.  [every GPU]")
@click.option("--hosts", metavar="HOST,HOST", default="", help="All GPUs of these hosts.")
@click.option("--from", "begin", metavar="TIME", help="Start: 18:00, or 2026-05-01T18:00.  [now]")
@click.option("--until", metavar="TIME", help="End, in the same form.  [none]")
@click.option(
    "--for",
    "lasts_s",
    type=Duration(),
    metavar="TIME",
    help="Duration instead of --until: 30s, 90m, 2h or 1d.",
)
@click.option(
    "--ramp", type=click.FloatRange(0, 86_400), default=10.0, metavar="S", help="Time to reach it, s.  [10]"
)
@click.option("--end", metavar="NAME", help="End this budget now.")
@settings_options(*QUERY)
def budget(
    settings: Settings, *, watts: float | None, follow: str | None, end: str | None, **given: Any
) -> None:
    """Keep the power limits of a group of GPUs within --watts, or have them draw what --follow says.

    Without these: show the budgets, and how well they follow.

    The watts go to the runs that gain most speed from them. Limits fall at once, rise as others fall, and
    return at the end. No limit exceeds the one found, or the one that the selector of a run chose.
    """
    from analyzers.state_files import budgets
    from zeus_stream.screens.text.tables import write

    where, now = places(os.environ), datetime.now().astimezone()
    groups = dict(settings.budget_groups)
    listed, now_ns = budgets.load(where.budgets, groups), budgets.nanoseconds(now)
    if end is not None:
        budgets.store(where.budgets, budgets.without(listed, end, now_ns))
        click.echo(f"{end}: ends now. Limits return to what runs want, or to what was found.")
    elif watts is not None or follow is not None:
        new = _new_budget(watts, follow, settings, now, **given)
        budgets.store(where.budgets, budgets.with_one(listed, budgets.checked(new, "budget")))
        click.echo(budgets.says(new, now_ns))
    else:
        of_site = _budgets_of_site(settings)
        known = [budgets.says(each, now_ns) for each in listed] if of_site is None else of_site
        click.echo("\n".join(known) or "No power budget is set.")
        if known and of_site is None:
            for query in (budgets.SUMS, budgets.TRACKING, budgets.SHARES):
                if (table := ask_sql(settings, query)).num_rows:
                    write(table, "table", sys.stdout)
    if settings.analyzer is None and holder(where.run / "analyzer.lock") is None:
        click.echo("No analyzer runs here. The budget takes effect once one is started.", err=True)


def _budgets_of_site(settings: Settings) -> list[str] | None:
    """Return a line for each budget of the site that the analyzer here shares; None: it shares none."""
    from zeus_stream.transport.client import analyzer, status

    if settings.analyzer is not None or holder(places(os.environ).run / "analyzer.lock") is None:
        return None
    rows = status(analyzer(os.environ, None), "analyzer").rows
    if not any((section, name) == ("analyzer", "site") for section, name, _ in rows):
        return None
    return [says for section, _, says in rows if section == "budgets"]


def _new_budget(
    watts: float | None,
    follow: str | None,
    settings: Settings,
    now: datetime,
    *,
    group: str,
    gpus: str,
    hosts: str,
    begin: str | None,
    until: str | None,
    lasts_s: float | None,
    ramp: float,
    ramp_rate: float | None,
    first: tuple[str, ...],
) -> Any:
    """Return the budget that these options describe. Raises SettingsError: they contradict each other."""
    from analyzers.state_files import budgets
    from collectors.service import host_name
    from zeus_stream.protocol.notes import Budget

    if until is not None and lasts_s is not None:
        raise click.UsageError("--until and --for exclude each other.")
    if watts is not None and follow is not None:
        raise click.UsageError("--watts and --follow exclude each other.")
    file = places(os.environ).signals / "load.csv" if follow == "load" else Path(follow or "").absolute()
    targets = () if watts is not None else budgets.load_targets(file)
    here = host_name(settings)
    listed = [f"{here}:{gpu}" if gpu.isdecimal() else gpu for gpu in gpus.split(",") if gpu]
    words = (*listed, *(f"{host}:all" for host in hosts.split(",") if host))
    names = budgets.members(group, words, dict(settings.budget_groups))
    begins = now if begin is None else budgets.moment(begin, now)
    ends_ns = budgets.NEVER_NS if until is None else budgets.nanoseconds(budgets.moment(until, begins))
    if lasts_s is not None:
        ends_ns = budgets.nanoseconds(begins + timedelta(seconds=lasts_s))
    begins_ns, now_ns = budgets.nanoseconds(begins), budgets.nanoseconds(now)
    return Budget(
        group=group,
        limit_mw=max(targets[0][1], 1) if watts is None else round(watts * 1000),
        targets=targets,
        follows=str(file) if targets else "",
        ramp_mw_s=round((ramp_rate or 0) * 1000 / 60),
        first=first,
        gpus=names,
        set_ns=now_ns,
        begin_ns=begins_ns,
        end_ns=ends_ns,
        ramp_ns=round(ramp * 1e9),
    )


def _numbers(least: float, most: float) -> Callable[[click.Context, click.Parameter, str], tuple[float, ...]]:
    """Return a callback that reads numbers of this range, separated by commas."""

    def read(context: click.Context, option: click.Parameter, given: str) -> tuple[float, ...]:
        try:
            found = tuple(map(float, _texts(context, option, given)))
        except ValueError as wrong:
            raise click.BadParameter(
                f"{given!r}: could not be read: it is no number. Give numbers, separated by commas."
            ) from wrong
        if not all(least <= each <= most for each in found):
            raise click.BadParameter(f"{given} is not in the range {least:g}<=x<={most:g}.")
        return found

    return read


@click.command(cls=Command)
@click.option("--traces", type=click.Path(path_type=Path),
              help="Directory of summary_*.csv.  [trainings recorded by the authors of Zeus]")  # fmt: skip
@click.option("--policy", "players", metavar="TEXT,TEXT", default=POLICIES, callback=_texts,
              help=f"Policies to compare.  [{POLICIES}]")  # fmt: skip
@click.option("--seeds", type=click.IntRange(1), default=10, help="Repetitions of each.  [10]")
@click.option("--gpu", "gpus", metavar="TEXT,TEXT", default="", callback=_texts,
              help="GPU models of the traces. v100+a40 is a pool of two models.  [each]")  # fmt: skip
@click.option("--workload", "workloads", metavar="TEXT,TEXT", default="", callback=_texts,
              help="Workloads of the traces.  [each]")  # fmt: skip
@click.option("--eta", "etas", metavar="X,X", default="0.5", callback=_numbers(0, 1),
              help="Weight of energy in the cost: 0 only time, 1 only energy.  [0.5]")  # fmt: skip
@click.option("--beta", "betas", metavar="X,X", default="2", callback=_numbers(1, 1e6),
              help="A try stops at this multiple of the least cost.  [2]")  # fmt: skip
@click.option("--window", type=click.IntRange(0), default=0, help="Latest costs that count.  [all]")
@click.option("--drift", "drifts", metavar="TEXT,TEXT", default="none", callback=_texts,
              help="none, abrupt, slow, harder 1.4, harder 2.2.  [none]")  # fmt: skip
@click.option("--overlap", type=click.FloatRange(0), default=0.0,
              help="Trainings that run at a time, on average.  [0]")  # fmt: skip
@click.option("--cluster", type=click.Path(path_type=Path), is_flag=False, flag_value="synthetic",
              help="CSV of submissions to play as well: group, submitted_s, runtime_s."
              "  [without a file: synthetic]")  # fmt: skip
@click.option("--report", type=click.Path(path_type=Path), help="HTML page with charts, to write.")
@output_options
@settings_options("archive")
def simulate(settings: Settings, *, report: Path | None, form: "Form", **given: Any) -> None:
    """Compare batch-size policies on recorded trainings.

    Results that are in the archive already are not computed again: an interrupted command continues.
    """
    from rich.console import Console

    from zeus_stream.cli import simulate as simulation
    from zeus_stream.screens.text.tables import write

    wanted = simulation.Wanted(**given)
    path = settings.archive
    if path is None:
        where = places(os.environ)
        prepare(where)
        path = where.archive
    console = Console(stderr=True)
    results = simulation.simulate(path, settings, wanted, report=report, console=console)
    write(results, form, sys.stdout)
    if report is not None:
        click.echo(f"{report}: written.", err=True)
