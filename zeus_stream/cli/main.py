"""The command line. The only file that exits; each subcommand imports what it needs."""

import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_type_hints

import click

from zeus_stream.errors import RefusedError, ZeusStreamError
from zeus_stream.paths import holder, places, prepare
from zeus_stream.settings import Settings, load

if TYPE_CHECKING:
    import pyarrow as pa

    from zeus_stream.reports.tables import Form

COLLECTOR = (
    "device", "cpu", "observe", "poll_ms", "heartbeat_ms", "log_mb", "log_hours", "trust_uid", "group",
    "host", "listen",
)  # fmt: skip
ANALYZER = (
    "archive", "select", "policy", "search", "per_gpu", "stride_w", "wait_steps", "warmup_steps",
    "profile_steps", "settle_ms", "refreshes", "profiling_share", "lease_ms", "window_timeout_ms",
    "query_rows", "query_seconds", "memory_mb", "group", "follow", "listen",
)  # fmt: skip


class Sentences(click.Group):
    """Turns our errors, alone or grouped by a task group, into their sentences and exit code 1."""

    def invoke(self, ctx: click.Context) -> object:
        sentences: list[str] = []
        try:
            return super().invoke(ctx)
        except* ZeusStreamError as group:
            # Raised in here, the end of the program would be the end of a group before Python 3.11.4.
            sentences += map(str, _leaves(group))
        return _fail(*sentences)


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    return [
        leaf
        for error in group.exceptions
        for leaf in (_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]


def _fail(*sentences: str) -> NoReturn:
    for sentence in dict.fromkeys(sentences):
        click.echo(f"zeus-stream: {sentence}", err=True)
    sys.exit(1)


def _tell(sentence: str) -> None:
    """Say what a service does. Where nothing can be said, as on a full disk, it does it all the same."""
    with suppress(OSError):
        click.echo(sentence, err=True)


def settings_options(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the flags of these settings; it receives the loaded `Settings` as first argument."""
    known = {field.name: field for field in fields(Settings)}
    hints = get_type_hints(Settings)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        def run(config: Path | None, **given: Any) -> Any:
            flags = {name: given.pop(name) for name in (*names, "dir")}
            settings = load(flags, os.environ, config)
            if settings.dir is not None:
                os.environ["ZEUS_STREAM_DIR"] = str(settings.dir)
            return command(settings, **given)

        run.__doc__ = command.__doc__
        run.__name__ = command.__name__
        run.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
        for name in reversed((*names, "dir")):
            flag = "--" + name.replace("_", "-")
            switch = (
                {"is_flag": True, "flag_value": True}
                if hints[name] is bool
                else {"metavar": _metavar(hints[name])}
            )
            text = known[name].metadata["help"]
            if known[name].default not in (None, False, ()):
                text += f"  [{known[name].default}]"
            click.option(flag, name, default=None, help=text, **switch)(run)
        click.option(
            "--config",
            type=click.Path(path_type=Path),
            help="Settings file.  [zeus-stream.toml if it exists]",
        )(run)
        return run

    return decorate


def _metavar(hint: Any) -> str:
    return {
        int: "N",
        float: "X",
        Path | None: "PATH",
        tuple[int, ...]: "N,N",
        tuple[str, ...]: "TEXT,TEXT",
    }.get(hint, "TEXT")


@click.group(
    cls=Sentences, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(package_name="zeus-stream")
def main() -> None:
    """What a training step costs in joules, and the power limit that makes it cost less."""


@main.command()
@settings_options(*COLLECTOR)
def collect(settings: Settings) -> None:
    """Sample this host's GPUs, log it, obey and guard power limits and clocks."""
    from collectors.devices.registry import open_bus
    from collectors.service import collect as service
    from collectors.service import host_name

    bus = open_bus(settings.device, places(os.environ).run, cpu=settings.cpu, host=host_name(settings))
    _serve(lambda started: service(settings, bus, environ=os.environ, started=started), "collector")


@main.command()
@settings_options(*ANALYZER)
def analyze(settings: Settings) -> None:
    """Archive what comes in, find the power limit, answer SQL."""
    from analyzers.service import analyze as service

    _serve(lambda started: service(settings, environ=os.environ, started=started), "analyzer")


def _serve(service: Callable[[Callable[[str], None]], Awaitable[None]], name: str) -> None:
    """Run a service until SIGTERM or SIGINT cancels it; it puts everything right on its way out."""
    import signal

    import anyio

    async def until_told() -> None:
        # Signals are received until all is put right: a second one cannot break that off.
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with anyio.create_task_group() as tasks:

                async def serve() -> None:
                    await service(lambda text: _tell(f"{name}: {text}"))
                    tasks.cancel_scope.cancel()

                tasks.start_soon(serve)
                async for _ in signals:
                    tasks.cancel_scope.cancel()

    anyio.run(until_told)


@main.command()
@click.argument("query")
@click.option("--format", "form", type=click.Choice(["table", "csv", "json", "arrow"]), default="table")
@settings_options("archive", "query_rows", "query_seconds", "analyzer")
def sql(settings: Settings, query: str, form: "Form") -> None:
    """Answer one SQL QUERY over the archive, analyzer running or not."""
    from zeus_stream.reports.tables import write

    write(_ask(settings, query), form, sys.stdout)


def _ask(settings: Settings, query: str) -> "pa.Table":
    from zeus_stream.transport.client import Connection, analyzer

    where = places(os.environ)
    running = settings.analyzer is not None or holder(where.run / "analyzer.lock") is not None
    if settings.archive is None and running:
        asked = Connection(analyzer(os.environ, settings.analyzer))
        return asked.sql(query, max_rows=settings.query_rows, timeout_s=settings.query_seconds)
    from analyzers.archive.query import read_file

    return read_file(settings.archive or where.archive, query, settings)


@main.command()
@click.argument("run", required=False)
@settings_options("archive", "query_rows", "query_seconds", "analyzer")
def report(settings: Settings, run: str | None) -> None:
    """Say what a RUN cost, what was chosen, and what that saves or would save.  [the last run]"""
    from functools import partial

    from zeus_stream.reports.run_cost import last_run, print_summary, summarize

    ask = partial(_ask, settings)
    name = run or last_run(ask)
    summary = None if name is None else summarize(ask, name)
    if summary is None:
        raise RefusedError(
            f"report: could not find {'a run' if name is None else f'run {name}'} in the archive."
            ' Try: zeus-stream sql "FROM runs".'
        )
    options = "".join(
        f" --{option} {value}"
        for option, value in (("archive", settings.archive), ("analyzer", settings.analyzer))
        if value is not None
    )
    print_summary(summary, settings.archive, f"zeus-stream sql{options}", sys.stdout)


@main.group(invoke_without_command=True)
@click.option("--format", "form", type=click.Choice(["table", "csv", "json", "arrow"]), default="table")
@settings_options("archive", "query_rows", "query_seconds", "analyzer")
@click.pass_context
def jobs(context: click.Context, settings: Settings, *, form: "Form") -> None:
    """Show the jobs that recur: their best batch size, and what it has saved."""
    if context.invoked_subcommand is None:
        from zeus_stream.reports.recurring_jobs import ALL
        from zeus_stream.reports.tables import write

        write(_ask(settings, ALL), form, sys.stdout)


@jobs.command("show")
@click.argument("name")
@click.option("--policy", metavar="TEXT", help="Another policy.  [the one that chooses]")
@settings_options("archive", "query_rows", "query_seconds", "analyzer")
def show_job(settings: Settings, name: str, policy: str | None) -> None:
    """Show the tries of job NAME, what they taught, and what would be tried next."""
    from functools import partial

    from zeus_stream.reports.recurring_jobs import look_up, print_job

    shown = look_up(partial(_ask, settings), name, policy)
    if shown is None:
        raise RefusedError(
            f"job {name}: could not be shown: the archive has none of this name."
            " Those it has: zeus-stream jobs."
        )
    print_job(shown, sys.stdout)


@jobs.command("forget")
@click.argument("name")
@settings_options("analyzer")
def forget_job(settings: Settings, name: str) -> None:
    """Let job NAME begin anew: its tries stay in the archive, and count no more."""
    from zeus_stream.transport.client import analyzer, forget

    tries = forget(analyzer(os.environ, settings.analyzer), name)
    click.echo(f"{name} begins anew: {tries} tries count no more.")


@main.command()
@click.option("--reference", type=click.Path(path_type=Path), help="The meter's record, CSV.")
@click.option("--gpu", help="UUID; not needed where the archive has one GPU of that time.")
@click.option("--remove", is_flag=True, help="Forget the calibration of --gpu.")
@settings_options("archive", "query_rows", "query_seconds")
def calibrate(settings: Settings, reference: Path | None, gpu: str | None, *, remove: bool) -> None:
    """Fit a GPU's gain against a meter; without --reference, show what is fitted.

    The record has the columns t_us (since 1970) and power_mw, or t_s and power_w, and was made while the
    collector and the analyzer ran, best under a load that changes. From then on the gain is taken out of
    the energies of that GPU, and `quality` names it.
    """
    from analyzers.measurement.calibration import read_meter
    from analyzers.state_files import calibrations as file

    path = places(os.environ).gains
    gains = file.load(path)
    if remove:
        if gpu not in gains:
            raise RefusedError(
                f"calibrate: could not remove the calibration of {gpu}: there is none."
                f" Name with --gpu one of: {', '.join(gains) or 'none is calibrated'}."
            )
        del gains[gpu]
        file.store(path, gains)
        click.echo(f"{gpu}: not calibrated any more.")
    elif reference is not None:
        try:
            text = reference.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as wrong:
            raise RefusedError(
                f"{reference}: could not be read: {wrong}. Name the meter's record."
            ) from wrong
        meter = read_meter(text, str(reference))
        found, gain, windows = file.calibrate(lambda query: _ask(settings, query), meter, reference.name, gpu)
        click.echo(f"{reference}: {len(meter.t_ns)} samples, columns {meter.columns}.")
        file.store(path, gains | {found: gain})
        click.echo(f"{found}: {gain.words} (95 %: +-{gain.gain_error:.4f}), from {windows} windows.")
        click.echo("It is taken out of all windows measured from now on.")
    else:
        for name, gain in gains.items():
            click.echo(f"{name}  {gain.words} +-{gain.gain_error:.4f}  {gain.source}  {gain.at}")
        if not gains:
            click.echo("No GPU is calibrated.")


@main.group(invoke_without_command=True)
@click.option("--format", "form", type=click.Choice(["table", "csv", "json", "arrow"]), default="table")
@settings_options("archive", "query_rows", "query_seconds", "analyzer")
@click.pass_context
def profiles(context: click.Context, settings: Settings, *, form: "Form") -> None:
    """Show what later runs of each job start from."""
    if context.invoked_subcommand is None:
        from analyzers.state_files.forgotten_profiles import load as forgotten
        from zeus_stream.reports.run_cost import remembered
        from zeus_stream.reports.tables import write

        write(
            remembered(lambda query: _ask(settings, query), forgotten(places(os.environ).forgotten)),
            form,
            sys.stdout,
        )


@profiles.command()
@click.argument("job")
@settings_options("archive", "query_rows", "query_seconds", "analyzer")
def forget(settings: Settings, job: str) -> None:
    """Let no run of JOB start from what was measured until now."""
    from analyzers.state_files import forgotten_profiles
    from zeus_stream.clock import anchor
    from zeus_stream.reports.run_cost import remembered

    path = places(os.environ).forgotten
    known = forgotten_profiles.load(path)
    jobs = dict.fromkeys(remembered(lambda query: _ask(settings, query), known)["job"].to_pylist())
    if job not in jobs:
        raise RefusedError(
            f"profiles: could not forget {job}: there is no profile of it."
            f" Name one of these jobs: {', '.join(jobs) or 'none has a profile'}."
        )
    forgotten_profiles.store(path, known | {job: anchor().wall_ns})
    click.echo(f"The next run of {job} searches anew.")


@main.command()
@click.option("--watts", type=click.FloatRange(1, 1e9), metavar="X", help="What their limits may add up to.")
@click.option("--group", metavar="NAME", default="all", help="Its name, such as one of budget_groups.  [all]")
@click.option("--gpus", metavar="GPU,GPU", default="", help="UUIDs, or HOST:INDEX.  [every GPU of the site]")
@click.option("--hosts", metavar="HOST,HOST", default="", help="All GPUs of these hosts.")
@click.option("--from", "begin", metavar="TIME", help="18:00, or 2026-05-01T18:00.  [now]")
@click.option("--until", metavar="TIME", help="Likewise.  [it is ended]")
@click.option("--for", "lasts", metavar="TIME", help="30s, 90m, 2h or 1d, in place of --until.")
@click.option("--ramp", type=click.FloatRange(0, 86_400), default=10.0, metavar="S", help="Seconds.  [10]")
@click.option("--end", metavar="NAME", help="End this budget now.")
@settings_options("archive", "query_rows", "query_seconds", "analyzer")
def budget(
    settings: Settings,
    watts: float | None,
    group: str,
    gpus: str,
    hosts: str,
    begin: str | None,
    until: str | None,
    lasts: str | None,
    ramp: float,
    end: str | None,
) -> None:
    """Keep the power limits of a group of GPUs within --watts; without it, show the budgets.

    Limits are shared out by what each run gains from a watt, lowered at once and raised as there is room, and
    given back in the end. No limit is above the one found, or above the one a run's selector chose.
    """
    from datetime import datetime

    from analyzers.state_files import budgets
    from zeus_stream.protocol.notes import Budget
    from zeus_stream.reports.tables import write

    where, now = places(os.environ), datetime.now().astimezone()
    groups = dict(settings.budget_groups)
    listed, now_ns = budgets.load(where.budgets, groups), budgets.nanoseconds(now)
    if end is not None:
        budgets.store(where.budgets, budgets.without(listed, end, now_ns))
        click.echo(f"{end}: ends now. Limits go back to what runs want, or to what was found.")
    elif watts is not None:
        if until is not None and lasts is not None:
            raise click.UsageError("--until and --for exclude each other.")
        words = (*filter(None, gpus.split(",")), *(f"{host}:all" for host in hosts.split(",") if host))
        names = budgets.members(group, words, groups)
        begins = now if begin is None else budgets.moment(begin, now)
        ends_ns = budgets.NEVER_NS if until is None else budgets.nanoseconds(budgets.moment(until, begins))
        if lasts is not None:
            ends_ns = budgets.nanoseconds(begins + budgets.span(lasts))
        new = Budget(
            group, round(watts * 1000), names, now_ns, budgets.nanoseconds(begins), ends_ns, round(ramp * 1e9)
        )
        budgets.store(where.budgets, budgets.with_one(listed, budgets.checked(new, "budget")))
        click.echo(budgets.says(new, now_ns))
    else:
        for each in listed:
            click.echo(budgets.says(each, now_ns))
        if not listed:
            click.echo("No power budget is set.")
        else:
            for sql in (budgets.SUMS, budgets.SHARES):
                write(_ask(settings, sql), "table", sys.stdout)
    if settings.analyzer is None and holder(where.run / "analyzer.lock") is None:
        click.echo("No analyzer runs here: nothing is held, until one is started.", err=True)


@main.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["parquet", "csv"]), default="parquet")
@settings_options("archive")
def export(settings: Settings, directory: Path, form: Literal["parquet", "csv"]) -> None:
    """Write every table of the archive into DIRECTORY."""
    from analyzers.archive.query import export as write

    for path, rows in write(settings.archive or places(os.environ).archive, directory, form, settings):
        click.echo(f"{path}  {rows} rows")


@main.command()
@click.argument("archive", type=click.Path(path_type=Path), required=False)
@click.option("--select", metavar="TEXT", help="Another selector.  [the one that decided]")
@click.option("--format", "form", type=click.Choice(["table", "csv", "json", "arrow"]), default="table")
@settings_options("memory_mb")
def replay(settings: Settings, archive: Path | None, select: str | None, *, form: "Form") -> None:
    """Hear an ARCHIVE again: the same decisions? With --select: what would another selector choose?

    The archive is only read, and no analyzer may have it open. Exit code 1: decisions differ.
    """
    from analyzers import replay as again
    from analyzers.state_files import calibrations
    from zeus_stream.reports.tables import write

    where = places(os.environ)
    done = again.replay(archive or where.archive, settings, calibrations.load(where.gains), select)
    if done.anew:
        write(again.compared(done.anew, select or ""), form, sys.stdout)
        click.echo("Chosen from what was measured; what other limits would have cost is not known.", err=True)
    elif not done.differences:
        write(again.decided(done.decisions), form, sys.stdout)
    if done.differences:
        write(again.differing(done.differences), form, sys.stdout)
        _fail(
            f"replay: {done.frames} frames did not give the decisions that are stored: another version of"
            " zeus-stream decided, a GPU was calibrated since, or the settings changed during a run."
            " Replay with what decided then."
        )
    click.echo(f"{done.frames} frames gave the same {len(done.decisions)} decision(s) again.", err=True)


def _texts(_context: click.Context, _option: click.Parameter, given: str) -> tuple[str, ...]:
    return tuple(given.split(",")) if given else ()


def _numbers(context: click.Context, option: click.Parameter, given: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, _texts(context, option, given)))
    except ValueError as wrong:
        raise click.BadParameter(f"{given!r}: expected numbers, separated by commas.") from wrong


@main.command()
@click.option("--traces", type=click.Path(path_type=Path),
              help="Directory of summary_*.csv.  [recorded trainings of the Zeus paper]")  # fmt: skip
@click.option("--policy", metavar="TEXT,TEXT", default="default,known,reference,zeus,adaptive",
              show_default=True, callback=_texts, help="Who plays.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(1), default=10, show_default=True, help="Games of each.")
@click.option("--gpu", metavar="TEXT,TEXT", default="", callback=_texts,
              help="GPU models of the traces; v100+a40 is a pool of two models.  [each]")  # fmt: skip
@click.option("--workload", metavar="TEXT,TEXT", default="", callback=_texts,
              help="Workloads of the traces.  [each]")  # fmt: skip
@click.option("--eta", metavar="X,X", default="0.5", show_default=True, callback=_numbers,
              help="0: only time counts; 1: only energy.")  # fmt: skip
@click.option("--beta", metavar="X,X", default="2", show_default=True, callback=_numbers,
              help="A try ends at so many times the least cost.")  # fmt: skip
@click.option("--window", type=click.IntRange(0), default=0, help="Latest costs that count.  [all]")
@click.option("--drift", metavar="TEXT,TEXT", default="none", show_default=True, callback=_texts,
              help="none, abrupt, slow (the best size moves by four), harder 1.4, harder 2.2.")  # fmt: skip
@click.option("--overlap", type=click.FloatRange(0), default=0.0, show_default=True,
              help="Trainings that run at a time, on average; submitted at random.")  # fmt: skip
@click.option("--cluster", type=click.Path(path_type=Path), is_flag=False, flag_value="synthetic",
              help="Play a cluster of overlapping job groups as well: CSV of group, gpu, dataset,"
              " recurrences, overlap.  [a synthetic one]")  # fmt: skip
@click.option("--processes", type=click.IntRange(1), help="That play.  [one for each core]")
@click.option("--report", type=click.Path(path_type=Path), help="HTML page to write, with charts.")
@click.option("--format", "form", type=click.Choice(["table", "csv", "json", "arrow"]), default="table")
@settings_options("archive")
def simulate(
    settings: Settings,
    *,
    traces: Path | None,
    policy: tuple[str, ...],
    seeds: int,
    gpu: tuple[str, ...],
    workload: tuple[str, ...],
    eta: tuple[float, ...],
    beta: tuple[float, ...],
    window: int,
    drift: tuple[str, ...],
    overlap: float,
    cluster: Path | None,
    processes: int | None,
    report: Path | None,
    form: "Form",
) -> None:
    """Let policies choose batch sizes for recorded trainings, over and over.

    Games that are in the archive already are not played again: what was broken off goes on where it was.
    """
    from rich.console import Console

    from zeus_stream.cli.simulate import Wanted
    from zeus_stream.cli.simulate import simulate as play
    from zeus_stream.reports.tables import write

    wanted = Wanted(traces, policy, seeds, gpu, workload, eta, beta, window, drift, overlap, cluster)
    path = settings.archive
    if path is None:
        where = places(os.environ)
        prepare(where)
        path = where.archive
    console = Console(stderr=True)
    results = play(path, settings, wanted, processes=processes, report=report, console=console)
    write(results, form, sys.stdout)
    if report is not None:
        click.echo(f"{report}: charts, with the data behind each.", err=True)


@main.command()
@settings_options("analyzer")
def status(settings: Settings) -> None:
    """Show who is connected, limits in force, lag, gaps, drops."""
    from zeus_stream.errors import UnreachableError
    from zeus_stream.reports.tables import print_status
    from zeus_stream.transport.client import analyzer
    from zeus_stream.transport.client import status as ask

    where = analyzer(os.environ, settings.analyzer)
    silent = []
    for process in ("collector", "analyzer") if settings.analyzer is None else ("analyzer",):
        try:
            print_status(process, ask(where, process), sys.stdout)
        except UnreachableError as wrong:
            silent.append(str(wrong))
    if silent:
        _fail(*silent)


@main.group()
def keys() -> None:
    """Let other hosts in, and no more."""


@keys.command()
@click.argument("name")
@click.option(
    "--roles", default="follow,command", help="What it may: follow, command, query.  [follow,command]"
)
@settings_options("host")
def create(settings: Settings, name: str, roles: str) -> None:
    """Make a key for NAME, and let it in.

    follow: receive what the collector of this host logs. command: set power limits here, answer scripts.
    query: ask the analyzer of this host SQL.
    """
    from collectors.service import host_name
    from zeus_stream.transport import keys as ring
    from zeus_stream.transport import sockets

    where = places(os.environ)
    prepare(where)
    server = ring.server_pair(where.keys, make=sockets.new_keys)
    host = host_name(settings)
    file = ring.create(where.keys, name, ring.parse_roles(roles), host, make=sockets.new_keys, server=server)
    click.echo(file)
    click.echo(
        "Move this secret to the host that is let in: keys/servers/ADDRESS:PORT.key in its state directory."
        f" ADDRESS is where it reaches {host}, PORT the one of --listen.",
        err=True,
    )


@keys.command("list")
@settings_options()
def list_keys(settings: Settings) -> None:  # noqa: ARG001  (--dir has done its work)
    """Name the keys that are let in, with their roles."""
    from zeus_stream.transport.keys import allowed

    listed, wrong = allowed(places(os.environ).keys)
    for who in listed.values():
        click.echo(f"{who.name}  {','.join(sorted(who.roles))}  {who.public}")
    if wrong:
        _fail(*wrong)


@keys.command()
@click.argument("name")
@settings_options()
def revoke(settings: Settings, name: str) -> None:  # noqa: ARG001  (--dir has done its work)
    """Let NAME in no more; its connections are cut within a second."""
    from zeus_stream.transport.keys import revoke as shut_out

    shut_out(places(os.environ).keys, name)
    click.echo(f"{name} is let in no more.")


@main.command(short_help="Put back the power limits that a killed collector left.")
@click.option("--dry-run", is_flag=True, help="Only say what would be restored.")
@settings_options("device", "observe")
def restore(settings: Settings, *, dry_run: bool) -> None:
    """Put back the limits and clocks that a killed collector left; exit code 1 if one is left in force.

    With --observe, as with --dry-run, nothing is changed.
    """
    from contextlib import closing

    from collectors.controls.restore import restore as put_back
    from collectors.devices.registry import open_bus

    where = places(os.environ)
    if (collector := holder(where.run / "collector.lock")) is not None:
        raise RefusedError(
            f"restore: could not begin: the collector runs, process {collector}, and guards what it changed."
            " Stop it: it restores everything as it stops."
        )
    with closing(open_bus(settings.device, where.run)) as bus:
        outcomes = put_back(bus, where.records, by="zeus-stream restore", dry_run=dry_run or settings.observe)
    for outcome in outcomes:
        click.echo(outcome.says)
    if not outcomes:
        click.echo("Nothing was left in force.")
    if any(outcome.left for outcome in outcomes):
        sys.exit(1)


@main.command()
@settings_options("device", "cpu", "archive", "listen", "follow")
def doctor(settings: Settings) -> None:
    """Check driver, permissions, GPUs, places, versions; name the cure."""
    from collectors.devices.registry import open_bus
    from zeus_stream.cli.doctor import examine
    from zeus_stream.reports.tables import print_checks

    where = places(os.environ)
    checks = examine(settings, where, lambda: open_bus(settings.device, where.run))
    print_checks(checks, sys.stdout)
    if any(check.verdict == "fails" for check in checks):
        sys.exit(1)


@main.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--measure-only",
    is_flag=True,
    help="Any COMMAND, as it is: measure the GPUs while it runs, set no limit.",
)
@click.option("--gpus", metavar="N,N", help="With --measure-only: those to measure.  [all]")
@settings_options(*dict.fromkeys(COLLECTOR + ANALYZER))
def run(settings: Settings, command: tuple[str, ...], *, measure_only: bool, gpus: str | None) -> None:
    """Start collector and analyzer, run COMMAND, say what it cost.

    \b
    zeus-stream run -- python train.py
    zeus-stream run --measure-only -- ./anything --that runs
    """
    if measure_only:
        from zeus_stream.cli.measure import measure_command

        sys.exit(measure_command(settings, command, _gpus(gpus), os.environ))
    if gpus is not None:
        raise click.UsageError(
            "--gpus goes with --measure-only. A training uses those that CUDA shows it, or ZEUS_STREAM_GPUS."
        )
    from zeus_stream.cli.run_training import run as run_all

    sys.exit(run_all(settings, command, os.environ))


@main.command()
@click.option(
    "--seconds",
    type=click.FloatRange(0, 86_400, min_open=True),
    default=10.0,
    metavar="X",
    help="How long.  [10]",
)
@click.option("--gpus", metavar="N,N", help="Those to measure, by index or UUID.  [all]")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object.")
@settings_options("device", "archive")
def measure(settings: Settings, *, seconds: float, gpus: str | None, as_json: bool) -> None:
    """Measure what the GPUs use from now on, whoever uses them. Ctrl-C ends it early.

    Collector and analyzer that run are asked; otherwise they are started for the time being.
    """
    from zeus_stream.cli.measure import measure_for

    sys.exit(measure_for(seconds, settings, _gpus(gpus), os.environ, as_json=as_json))


def _gpus(text: str | None) -> tuple[str, ...]:
    return tuple((text or os.environ.get("ZEUS_STREAM_GPUS") or "all").split(","))


if __name__ == "__main__":
    main()
