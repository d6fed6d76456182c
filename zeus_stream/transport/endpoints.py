"""Where a collector or analyzer is reached: socket files on this host, TCP and a key on another."""

from ipaddress import ip_address
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from zeus_stream.errors import SettingsError
from zeus_stream.paths import Places
from zeus_stream.transport.keys import Ticket, ticket

PORTS = {"feed": 0, "control": 1, "query": 2}
"""Added to the port that is set: three ports in a row, for three doors."""


class Tcp(Struct, frozen=True):
    """A listener on another host, and what opens it."""

    address: str
    """``tcp://HOST:PORT``."""
    ticket: Ticket


Address: TypeAlias = Path | Tcp


class Distant(Struct, frozen=True):
    """A collector or analyzer on another host."""

    host: str
    port: int
    ticket: Ticket

    def _door(self, name: str) -> Tcp:
        return Tcp(f"tcp://{self.host}:{self.port + PORTS[name]}", self.ticket)

    @property
    def feed(self) -> Tcp:
        return self._door("feed")

    @property
    def control(self) -> Tcp:
        return self._door("control")

    @property
    def query(self) -> Tcp:
        return self._door("query")


def host_and_port(text: str) -> tuple[str, int] | None:
    """Return host and port of ``HOST:PORT``; a host may stand in brackets. None: it has another form."""
    host, _, port = text.rpartition(":")
    right = host and port.isascii() and port.isdecimal() and int(port) <= 65_535
    return (host, int(port)) if right else None


def is_loopback(host: str) -> bool:
    """Return whether a host is this one, and nobody else reaches it there."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def parse(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; the host as ZeroMQ wants it. Raises SettingsError."""
    found = host_and_port(text.removeprefix("tcp://"))
    if found is None or not 1 <= found[1] <= 65_535 - max(PORTS.values()):
        raise SettingsError(
            f"{text}: could not be an address: expected HOST:PORT. Two ports after that one are used, too."
        )
    return found


def distant(text: str, keys: Path) -> Distant:
    """Return the endpoint ``HOST:PORT``. Raises SettingsError, StorageError (see `keys.ticket`)."""
    host, port = parse(text)
    return Distant(host, port, ticket(keys, f"{host}:{port}"))


def source(text: str, keys: Path) -> Places | Distant:
    """Return a collector by its directory (with a slash in it) or its ``HOST:PORT``."""
    directory = Path(text)
    return Places(directory, directory) if "/" in text.removeprefix("tcp://") else distant(text, keys)
