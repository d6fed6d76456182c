"""Serves the web application in an anyio task tree."""

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import uvicorn
from msgspec import Struct

from zeus_stream.errors import SettingsError
from zeus_stream.screens.web.access.security import LOOPBACK, JobKey, WebSecurity
from zeus_stream.screens.web.access.web_connections import WebConnections
from zeus_stream.screens.web.app import build
from zeus_stream.screens.web.routes.site import Site
from zeus_stream.transport.endpoints import host_and_port, is_loopback

UNIX = "unix:"
BACKLOG = 128
STOPS_S = 1
"""Longest wait for answers under way when the server stops."""


class Listening(Struct, frozen=True, kw_only=True):
    """Where and for whom the page is served."""

    address: str
    """HOST:PORT, or ``unix:PATH``."""
    token: str | None
    """None: only for a Unix socket, whose file mode says who may come."""
    host_names: tuple[str, ...] = ()
    """Names that requests may give, beside those of loopback and of ``address``."""
    root_path: str = ""
    """Where a proxy has the site, such as ``/zeus``."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    keys: tuple[JobKey, ...] = ()
    """Of programs that may ask SQL about some jobs."""
    behind_proxy: bool = False
    """A proxy with TLS is in front."""

    def __post_init__(self) -> None:
        """Refuse what would show the page to the network in clear. Raises SettingsError."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SettingsError("web: could not use TLS: it needs both. Give --tls-cert and --tls-key.")
        if self.token is None and not self.is_unix:
            raise SettingsError(
                "web: could not do without a token: every user of this host reaches a port."
                " Leave out --no-token, or give --listen unix:PATH."
            )
        if (
            not self.is_unix
            and not is_loopback(self.host)
            and self.tls_cert is None
            and not self.behind_proxy
        ):
            raise SettingsError(
                f"web: could not listen at {self.address}: the token would cross the network in clear. Give"
                " --tls-cert and --tls-key, or --behind-proxy if a proxy with TLS is in front."
            )

    @property
    def is_unix(self) -> bool:
        """Tell whether it is a Unix socket."""
        return self.address.startswith(UNIX)

    @property
    def host(self) -> str:
        """Return the host of the address."""
        if (found := host_and_port(self.address)) is None:
            raise SettingsError(
                f"--listen: could not use {self.address}: it is no HOST:PORT and no unix:PATH."
            )
        return found[0]

    @property
    def port(self) -> int:
        """Return the port of the address."""
        return int(self.address.rpartition(":")[2])

    def allowed_hosts(self) -> frozenset[str]:
        """Return the names that requests may give. A Unix socket allows all: a proxy checks them."""
        if self.is_unix and not self.host_names:
            return frozenset()
        own = () if self.is_unix else (self.host,)
        return frozenset(name.lower() for name in (*LOOPBACK, *own, *self.host_names))


class _Server(uvicorn.Server):
    """A server that leaves signals to the task tree."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Change no signal handler."""
        yield


async def serve(site: Site, listening: Listening, started: Callable[[str], None]) -> None:
    """Serve until cancelled; open streams are ended first. ``started`` receives the address.

    Raises SettingsError: the address cannot be listened at, or the TLS files are wrong.
    """
    connections = WebConnections()
    app = build(
        site,
        WebSecurity(listening.token, listening.allowed_hosts(), listening.keys),
        secure=listening.tls_cert is not None,
    )
    try:
        config = uvicorn.Config(
            connections.note_granted(app), http="h11", log_config=None, log_level="warning", access_log=False,
            lifespan="off", ws="none", server_header=False, timeout_graceful_shutdown=STOPS_S,
            root_path=listening.root_path, proxy_headers=False, ssl_certfile=listening.tls_cert,
            ssl_keyfile=listening.tls_key,
            limit_concurrency=500, h11_max_incomplete_event_size=200_000,
        )  # fmt: skip
        config.load()
        config.http_protocol_class = connections.bound(config.http_protocol_class)
    except OSError as wrong:
        raise SettingsError(
            f"web: could not use the TLS files: {wrong}. Give PEM files that this user can read."
        ) from wrong
    server = _Server(config)
    with _socket(listening) as opened:
        async with anyio.create_task_group() as tasks:

            async def run_server() -> None:
                with anyio.CancelScope(shield=True):
                    await server.serve(sockets=[opened])

            if site.feed is not None:
                tasks.start_soon(site.feed.run)
            tasks.start_soon(run_server)
            try:
                started(address_of(listening, opened))
                await anyio.sleep_forever()
            finally:
                if site.feed is not None:
                    site.feed.close()
                server.should_exit = True


def address_of(listening: Listening, opened: socket.socket | None = None) -> str:
    """Return the address to open, with the token."""
    if listening.is_unix:
        return listening.address
    port = listening.port if opened is None else opened.getsockname()[1]
    host = {"0.0.0.0": "localhost", "[::]": "localhost"}.get(listening.host, listening.host)  # noqa: S104  (any)
    scheme = "http" if listening.tls_cert is None else "https"
    return f"{scheme}://{host}:{port}/?token={listening.token}"


@contextmanager
def _socket(listening: Listening) -> Iterator[socket.socket]:
    """Open the listening socket. A file of a Unix socket is for this user and its group, and is removed."""
    path = Path(listening.address.removeprefix(UNIX)) if listening.is_unix else None
    family = socket.AF_UNIX if path else socket.AF_INET6 if "[" in listening.address else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        if path is not None:
            _remove_stale(path)
            before = os.umask(0o117)
            try:
                opened.bind(str(path))
            finally:
                os.umask(before)
        else:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind((listening.host.strip("[]"), listening.port))
        opened.listen(BACKLOG)  # from here on a client that was given the address can connect
        opened.setblocking(False)  # noqa: FBT003  (its signature)
    except OSError as wrong:
        opened.close()
        raise SettingsError(
            f"web: could not listen at {listening.address}: {wrong.strerror}."
            " Give a free port or path with --listen."
        ) from wrong
    try:
        yield opened
    finally:
        opened.close()
        if path is not None:
            path.unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    """Remove the socket file of a server that has ended. Raises OSError if one listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
