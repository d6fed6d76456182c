"""The command ``metrics``: what collector and analyzer know, for Prometheus and OpenTelemetry."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from zeus_stream.cli.options import Command, settings_options
from zeus_stream.errors import RefusedError, SettingsError, ZeusStreamError, explaining
from zeus_stream.paths import places
from zeus_stream.service_packages import install_command
from zeus_stream.settings import Settings

if TYPE_CHECKING:
    from zeus_stream.paths import Places
    from zeus_stream.screens.metrics.metrics import Names
    from zeus_stream.screens.metrics.otel import OtelSender
    from zeus_stream.screens.metrics.scrape import Process, Scrape
    from zeus_stream.transport.endpoints import Distant

LISTEN = "127.0.0.1:9464"
LOOK_S = 5.0
"""Between two looks for runs that have ended, whose spans are sent."""


@click.command(cls=Command)
@click.option("--listen", "at", default=LISTEN, metavar="HOST:PORT", help=f"Address of /metrics.  [{LISTEN}]")
@click.option(
    "--of",
    "process",
    type=click.Choice(["collector", "analyzer", "all"]),
    default="collector",
    help="collector: GPUs of this host. analyzer: jobs, runs and hosts of the site.  [collector]",
)
@click.option("--otlp", metavar="URL", help="Also send metrics to an OpenTelemetry receiver over HTTP.")
@click.option("--otlp-traces", is_flag=True, help="Send spans of runs, epochs and named windows, too.")
@click.option(
    "--token-file", type=click.Path(path_type=Path), help="File with the token that /metrics asks for."
)
@click.option(
    "--dcgm-names",
    is_flag=False,
    flag_value="upper",
    default="none",
    type=click.Choice(["none", "upper", "lower"]),
    help="Add dcgm-exporter's names, with the label Hostname; lower: hostname.",
)
@click.option("--once", is_flag=True, help="Print the metrics once, and end.")
@settings_options("analyzer")
def metrics(
    settings: Settings,
    *,
    at: str,
    process: Literal["collector", "analyzer", "all"],
    otlp: str | None,
    otlp_traces: bool,
    token_file: Path | None,
    dcgm_names: "Names",
    once: bool,
) -> None:
    """Serve metrics for Prometheus at /metrics, and send them to OpenTelemetry with --otlp.

    It asks the services that run, and needs the group of their sockets, not root.
    """
    from zeus_stream.screens.metrics.endpoint import Endpoint, address_of
    from zeus_stream.screens.metrics.prometheus import text
    from zeus_stream.screens.metrics.scrape import Scrape
    from zeus_stream.transport.client import analyzer

    if otlp_traces and (otlp is None or process == "collector"):
        raise SettingsError(
            "metrics: could not send spans: they come from the analyzer. Give --otlp URL and --of analyzer."
        )
    where: dict[Process, Places | Distant] = {}
    if process != "analyzer":
        where["collector"] = places(os.environ)
    if process != "collector":
        where["analyzer"] = analyzer(os.environ, settings.analyzer)
    scrape = Scrape(where, dcgm_names, whole=once)
    if once:
        click.echo(text(scrape.families()), nl=False)
        return
    token = _token(token_file)
    address = address_of(at, token)
    with Endpoint(address, lambda: text(scrape.families()), token) as server, _sending(otlp, scrape) as otel:
        host, port = server.server_address[:2]
        click.echo(f"metrics: http://{host!s}:{port}/metrics", err=True)
        _serve(server.serve_forever, server.shutdown, lambda: _send_spans(otel, scrape, where, otlp_traces))


def _token(path: Path | None) -> str | None:
    if path is None:
        return None
    with explaining(SettingsError, f"{path}: could not read the token", "Name a text file."):
        token = path.read_text(encoding="utf-8").strip()
    if not token:
        raise SettingsError(
            f"{path}: could not read the token: the file is empty. Write a random word into it."
        )
    return token


@contextmanager
def _sending(url: str | None, scrape: "Scrape") -> Iterator["OtelSender | None"]:
    if url is None:
        yield None
        return
    if not url.startswith(("http://", "https://")):
        raise SettingsError(
            f"--otlp {url}: could not be used: expected the URL of a receiver, such as http://127.0.0.1:4318."
        )
    try:
        from zeus_stream.screens.metrics.otel import OtelSender
    except ImportError as wrong:
        raise RefusedError(
            f"metrics: could not send to {url}: {wrong.name} is not installed."
            f" Install it: {install_command('otel')}."
        ) from wrong
    with OtelSender(url, scrape.families) as otel:
        yield otel


def _send_spans(
    otel: "OtelSender | None",
    scrape: "Scrape",
    where: "dict[Process, Places | Distant]",
    wanted: bool,  # noqa: FBT001
) -> None:
    """Send the spans of runs that have ended since the last time."""
    if otel is None or not wanted:
        return
    from zeus_stream.quoting import quoted
    from zeus_stream.screens.metrics.otel import MAX_SPANS, RUN_ROWS
    from zeus_stream.transport.client import Connection

    scrape.families()
    for run in scrape.take_ended():
        query = RUN_ROWS.format(run=quoted(run.run), limit=MAX_SPANS)
        try:
            otel.send_run(Connection(where["analyzer"]).sql(query).to_pylist())
        except ZeusStreamError as wrong:
            click.echo(f"metrics: {wrong}", err=True)


def _serve(serve: Callable[[], None], stop: Callable[[], None], look: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM; ``look`` is called in between."""
    ended = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: ended.set())
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    while not ended.wait(LOOK_S):
        look()
    stop()
    thread.join()
