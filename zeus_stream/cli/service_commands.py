"""Commands for services and their hosts: ``collect``, ``analyze``, ``status``, ``doctor`` and others."""

import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from socket import AF_UNIX, SOCK_DGRAM, socket
from typing import TYPE_CHECKING, TypeVar

import click
from msgspec import to_builtins

from zeus_stream import plugins
from zeus_stream.cli.options import (
    ANALYZER,
    AT_BROKER,
    COLLECTOR,
    Command,
    CommandGroup,
    json_option,
    settings_options,
    without_numpy_threads,
)
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import RefusedError, StorageError, UnreachableError, explaining
from zeus_stream.paths import holder, places, prepare
from zeus_stream.settings import Settings

if TYPE_CHECKING:
    from zeus_stream.broker.site_settings import SiteSettings
    from zeus_stream.protocol.queries import Status
    from zeus_stream.protocol.snapshots import Snapshot

T = TypeVar("T")

PR_SET_PDEATHSIG = 1
PARENT = click.option("--parent-pid", type=int, hidden=True)
"""Process that started a service and whose end ends it."""
READY_S = 2.0
"""Longest wait for the answer of a service to ``status``."""


@click.command(cls=Command)
@PARENT
@settings_options(*COLLECTOR)
def collect(settings: Settings, site: "SiteSettings", *, parent_pid: int | None) -> None:
    """Start the collector: sample the GPUs of this host, log, set and restore power limits.

    One collector runs on each host. It needs root or CAP_SYS_ADMIN to set power limits of real GPUs.
    """
    _end_with(parent_pid)
    _set_niceness(settings.nice, "collector")
    without_numpy_threads()
    from collectors.device import Bus
    from collectors.devices.registry import open_bus
    from collectors.service import collect as service
    from collectors.service import host_name

    bus: Bus = open_bus(
        settings.device,
        places(os.environ).run,
        cpu=settings.cpu,
        host=host_name(settings),
        set_command=settings.set_command,
    )
    if settings.meters:
        from collectors.meters.metered_bus import MeteredBus

        bus = MeteredBus(bus, settings.meters, host_name(settings))
    at_site = None if site.broker is None else partial(plugins.find(plugins.HOST_AT_BROKER), site=site)
    run = partial(service, settings, bus, environ=os.environ, at_site=at_site)
    _serve(lambda started: run(started=started), "collector")


@click.command(cls=Command)
@PARENT
@settings_options(*ANALYZER)
def analyze(settings: Settings, site: "SiteSettings", *, parent_pid: int | None) -> None:
    """Start the analyzer: archive what collectors send, choose power limits, answer SQL."""
    _end_with(parent_pid)
    _set_niceness(settings.nice, "analyzer")
    without_numpy_threads()
    service = _analyzer_of(settings, site)
    _serve(lambda started: service(environ=os.environ, started=started), "analyzer")


def _analyzer_of(settings: Settings, site: "SiteSettings") -> Callable[..., Awaitable[None]]:
    """Return the service that the settings ask for: of some collectors, or of those that a roster finds."""
    from analyzers.archive.process.child_process import start_store
    from analyzers.batch_size import registry
    from analyzers.power_limit import selectors

    selectors.parse(settings.select)  # a wrong option fails before any process is started
    registry.maker_of(settings.policy)
    name = "shards" if site.shards else ",".join(settings.follow)
    if (place := plugins.ROSTERS.get(name)) is not None:
        site.connection("analyze")
    store = start_store()  # it imports DuckDB while this process imports the rest
    if place is not None:
        return partial(plugins.find(place), settings, site, store=store)
    from analyzers.service.analyzer import analyze as service

    return partial(service, settings, store=store)


def _end_with(parent_pid: int | None, number: int = signal.SIGTERM) -> None:
    """Let the kernel send this process a signal when its parent ends, for whatever reason."""
    if parent_pid is None:
        return
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(number))
    if os.getppid() != parent_pid:
        sys.exit(1)  # it has ended already


def _set_niceness(nice: int, name: str) -> None:
    """Give this process its niceness; its threads and children inherit it. Print why it cannot have it."""
    if not nice:
        return
    try:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    except PermissionError:
        own = os.getpriority(os.PRIO_PROCESS, 0)
        _print_line(
            f"{name}: could not set its niceness to {nice}: it takes root or CAP_SYS_NICE. It runs at {own}."
            " Set Nice= in its systemd unit, or grant the capability."
        )


def _serve(service: Callable[[Callable[[str], None]], Awaitable[None]], name: str) -> None:
    """Run a service until SIGTERM or SIGINT cancels it. It restores everything before it ends."""
    import anyio

    from zeus_stream.transport.listening.connection_limits import raise_file_limit

    raise_file_limit()  # the event loop needs the first of them

    async def serve_until_signal() -> None:
        # Signals are received until the service has ended: a second signal cannot interrupt its clean-up.
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with anyio.create_task_group() as tasks:

                def started(text: str) -> None:
                    _print_line(f"{name}: {text}")
                    notify("READY=1")

                async def serve() -> None:
                    await service(started)
                    tasks.cancel_scope.cancel()

                tasks.start_soon(serve)
                tasks.start_soon(keep_alive)
                async for _ in signals:
                    notify("STOPPING=1")
                    tasks.cancel_scope.cancel()

    anyio.run(serve_until_signal)


def _print_line(sentence: str) -> None:
    """Print a line of a service to stderr. The service works on if that fails, as on a full disk."""
    with suppress(OSError):
        click.echo(sentence, err=True)


@click.command(cls=Command)
@click.option("-v", "--verbose", is_flag=True, help="Print the internal state of collector and analyzer.")
@json_option
@click.option("--whole-site", is_flag=True, help="Show who archives each part and decides on each shard.")
@settings_options("analyzer", "database", *AT_BROKER)
def status(
    settings: Settings, site: "SiteSettings", *, verbose: bool, as_json: bool, whole_site: bool
) -> None:
    """Show GPUs, runs and services on one screen; with --whole-site, of a site."""
    if whole_site:
        _print_site(site, as_json=as_json)
        return
    from zeus_stream.transport.client import analyzer, ask_now
    from zeus_stream.transport.client import status as ask_status

    where = analyzer(os.environ, settings.analyzer)
    processes = _processes_here() if settings.analyzer is None else ("analyzer",)
    if verbose:
        states, silent = _ask_each(processes, lambda process: ask_status(where, process, READY_S))
        _print_internals(states, as_json=as_json)
    else:
        answers, silent = _ask_each(
            processes, lambda process: ask_now(where, process=process, timeout_s=READY_S)
        )
        _print_now(answers, silent, as_json=as_json)
    for sentence in silent.values():
        click.echo(f"zeus-stream: {sentence}", err=True)
    if silent:
        sys.exit(1)


def _processes_here() -> tuple[str, ...]:
    """Return the services to ask: both, unless only one of them was ever started here."""
    run, both = places(os.environ).run, ("collector", "analyzer")
    here = tuple(process for process in both if (run / f"{process}.lock").exists())
    if len(here) != 1:
        return both
    (absent,) = set(both) - set(here)
    says = f"No {absent} was started in {run}. One elsewhere is asked on its host, with its ZEUS_STREAM_DIR."
    click.echo(says, err=True)
    return here


def _ask_each(processes: Sequence[str], ask: Callable[[str], T]) -> tuple[dict[str, T], dict[str, str]]:
    """Return the answers of services, and the error of each that does not answer."""
    answers: dict[str, T] = {}
    silent = {}
    for process in processes:
        try:
            answers[process] = ask(process)
        except UnreachableError as wrong:
            silent[process] = str(wrong)
    return answers, silent


def _print_internals(states: "Mapping[str, Status]", *, as_json: bool) -> None:
    """Print the internal state of services."""
    from zeus_stream.screens.text.tables import print_status

    if as_json:
        click.echo(json.dumps({process: state.rows for process, state in states.items()}, indent=2))
        return
    for process, state in states.items():
        print_status(process, state, sys.stdout)


def _print_now(answers: "dict[str, Snapshot]", silent: dict[str, str], *, as_json: bool) -> None:
    """Print the screen of ``top --once``, and the services below it."""
    from zeus_stream.screens.terminal.once import print_once, print_services
    from zeus_stream.views.site_view import services_of

    now = answers.get("analyzer") or answers.get("collector")
    services = services_of(answers, silent)
    if as_json:
        lines = [{"name": each.name, "state": each.state, "behind_s": each.behind.known} for each in services]
        click.echo(json.dumps({"services": lines, **(to_builtins(now) if now is not None else {})}, indent=2))
        return
    if now is not None:
        print_once(now, sys.stdout)
    print_services(services, sys.stdout)


def _print_site(site: "SiteSettings", *, as_json: bool) -> None:
    """Print who holds each part and each shard of a site."""
    import pyarrow as pa

    from zeus_stream.screens.text.tables import write

    lines, trouble = plugins.find(plugins.SITE_STATUS)(site)
    if as_json:
        click.echo(json.dumps(lines, indent=2))
    elif lines:
        write(pa.Table.from_pylist(lines), "table", sys.stdout)
    else:
        click.echo("No process has held a part or a shard yet.", err=True)
    if trouble:
        click.echo(f"zeus-stream: {trouble}", err=True)
        sys.exit(1)


@click.command(cls=Command)
@json_option
@click.option(
    "--sensor", metavar="GPU", is_flag=False, flag_value="", help="Measure a GPU's sensor: its card."
)
@click.option("--set", "sets", is_flag=True, help="With --sensor: try limits and clocks, and restore them.")
@click.option("--seconds", default=20.0, help="With --sensor: the time to read the GPU closely.")
@settings_options("device", "cpu", "archive", "listen", "follow")
def doctor(settings: Settings, *, as_json: bool, sensor: str | None, sets: bool, seconds: float) -> None:
    """Check the driver, permissions, GPUs, directories and versions. Name the cure of each fault.

    With --sensor, read a GPU as closely as its driver lets it be, best while it works, and print its sensor
    card: what calls cost, how often counter and power are refreshed, and with --set what the driver makes of
    limits and locked clocks, and how soon the GPU follows. Where torch sees the GPU, a square load shows
    window and lag. The card is kept, and the collector begins with it. --json prints it as
    `--device simulated:CARD.json` takes it.
    """
    from collectors.devices.registry import open_bus
    from zeus_stream.cli.doctor import examine
    from zeus_stream.cli.sensor_doctor import sensor_card
    from zeus_stream.screens.text.tables import print_checks

    where = places(os.environ)
    if sensor is not None:
        with closing(open_bus(settings.device, where.run)) as bus:
            card, path = sensor_card(bus, sensor, seconds, where, sets=sets)
        click.echo(json.dumps(to_builtins(card), indent=2) if as_json else "\n".join(card.lines()))
        click.echo(f"Kept as {path}: the collector begins with it.", err=True)
        return
    checks = examine(
        settings,
        where,
        lambda: open_bus(settings.device, where.run, set_command=settings.set_command),
    )
    if as_json:
        click.echo(json.dumps(to_builtins(checks), indent=2))
    else:
        print_checks(checks, sys.stdout)
    if any(check.verdict == "fails" for check in checks):
        sys.exit(1)


@click.command(cls=Command, short_help="Record what the driver answers, to be played again.")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--seconds", default=60.0, help="The length of the recording.")
@settings_options("device")
def record(settings: Settings, *, directory: Path, seconds: float) -> None:
    """Record what the driver answers about each GPU, with times and errors, into a new DIRECTORY.

    `--device recorded:DIRECTORY` plays it again through the whole pipeline. Nothing is set.
    """
    from collectors.devices.recorded import record as write_recording
    from collectors.devices.registry import open_bus

    with closing(open_bus(settings.device, places(os.environ).run)) as bus:
        until_ns = monotonic_ns() + round(seconds * 1e9)
        with explaining(StorageError, f"{directory}: could not be written", "Name a new directory."):
            lines = write_recording(bus.discover(), directory, until_ns, time.sleep)
    click.echo(f"{directory}: {lines} answers. Play them: zeus-stream collect --device recorded:{directory}")


@click.command(cls=Command, short_help="Restore the power limits that a killed collector left.")
@click.option("--dry-run", is_flag=True, help="Only print what would be restored.")
@click.option("--default", is_flag=True, help="Set the driver's default limit where a record is damaged.")
@settings_options("device", "observe")
def restore(settings: Settings, *, dry_run: bool, default: bool) -> None:
    """Restore the power limits and clocks that a killed collector left.

    With --observe or --dry-run nothing is changed. The exit code is 1 if a limit or a clock of ours is left.
    """
    from collectors.controls.restore import Restorer
    from collectors.devices.registry import open_bus

    where = places(os.environ)
    if (collector := holder(where.run / "collector.lock")) is not None:
        raise RefusedError(
            f"restore: could not begin: the collector runs as process {collector} and restores what it"
            " changed. Stop it."
        )
    with closing(open_bus(settings.device, where.run, set_command=settings.set_command)) as bus:
        dry = dry_run or settings.observe
        restorer = Restorer(bus, where.records, by="zeus-stream restore", dry_run=dry, default=default)
        outcomes = restorer.restore()
        for outcome in outcomes:  # before the bus is closed, which a driver that hangs does not let it be
            click.echo(outcome.says)
    if not outcomes:
        click.echo("Nothing was left in force.")
    if any(outcome.left for outcome in outcomes):
        sys.exit(1)


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completions(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    zeus-stream completions bash >> ~/.bashrc
    zeus-stream completions zsh >> ~/.zshrc
    zeus-stream completions fish > ~/.config/fish/completions/zeus-stream.fish
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    click.echo(
        made(
            click.get_current_context().find_root().command, {}, "zeus-stream", "_ZEUS_STREAM_COMPLETE"
        ).source()
    )


@click.group(cls=CommandGroup)
def keys() -> None:
    """Manage the access keys of other hosts."""


@keys.command()
@click.argument("name")
@click.option("--roles", default="follow,command", help="Roles: follow, command, query.  [follow,command]")
@settings_options("host")
def create(settings: Settings, name: str, roles: str) -> None:
    """Create an access key called NAME, and allow it here.

    \b
    follow   receive what the collector of this host logs
    command  set power limits here, and answer training scripts
    query    send SQL to the analyzer of this host
    """
    from collectors.service import host_name
    from zeus_stream.transport import keys as ring

    where = places(os.environ)
    prepare(where)
    server = ring.server_pair(where.keys)
    host = host_name(settings)
    file = ring.create(where.keys, name, ring.parse_roles(roles), host, server)
    click.echo(file)
    click.echo(
        f"Move this secret to the other host, to keys/servers/ADDRESS:PORT.key in its state directory."
        f" ADDRESS is the address of {host} as seen from there, PORT the one of --listen.",
        err=True,
    )


@keys.command("list")
@settings_options()
def list_keys(settings: Settings) -> None:  # noqa: ARG001  (--dir has taken effect)
    """List the allowed keys with their roles."""
    from zeus_stream.transport.keys import allowed

    listed, wrong = allowed(places(os.environ).keys)
    for who in listed.values():
        click.echo(f"{who.name}  {','.join(sorted(who.roles))}  {who.public}")
    for sentence in wrong:
        click.echo(f"zeus-stream: {sentence}", err=True)
    if wrong:
        sys.exit(1)
    if not listed:
        click.echo(
            "No key is allowed: no other host may come in. Make one: zeus-stream keys create", err=True
        )


@keys.command()
@click.argument("name")
@settings_options()
def revoke(settings: Settings, name: str) -> None:  # noqa: ARG001  (--dir has taken effect)
    """Revoke the key NAME. Its connections are cut within a second."""
    from zeus_stream.transport.keys import revoke as revoke_key

    revoke_key(places(os.environ).keys, name)
    click.echo(f"{name} is revoked.")


def notify(state: str) -> None:
    """Send a state such as ``READY=1`` to systemd, if it started this process; it notices a lost one."""
    if not (address := os.environ.get("NOTIFY_SOCKET")):
        return
    with suppress(OSError), socket(AF_UNIX, SOCK_DGRAM) as door:
        door.sendto(state.encode(), address.replace("@", "\0", 1) if address.startswith("@") else address)


def watchdog_s(environ: Mapping[str, str]) -> float | None:
    """Return the time within which systemd expects a notice of this process, in s. None: it expects none."""
    wanted = environ.get("WATCHDOG_USEC", "")
    if not wanted.isdecimal() or environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(wanted) / 1e6


async def keep_alive() -> None:
    """Send notices for as long as the event loop runs: systemd ends one that hangs, and starts it again."""
    import anyio

    if (within_s := watchdog_s(os.environ)) is None:
        return
    while True:
        notify("WATCHDOG=1")
        await anyio.sleep(within_s / 3)
