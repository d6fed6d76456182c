"""A TCP port for other hosts: accepted by us, with a key of theirs or ended soon."""

import socket
from collections.abc import Callable, Iterator
from functools import partial

from zeus_stream.errors import SettingsError, explaining
from zeus_stream.transport.channel import HEARTBEAT_MS, SILENCE_MS
from zeus_stream.transport.keys import raw_key, text_key
from zeus_stream.transport.listening.connection_limits import ConnectionLimits
from zeus_stream.transport.listening.curve_server import CurveServer
from zeus_stream.transport.listening.socket_file import BACKLOG, ListeningSocket

NEWCOMERS = 64
"""Connections of one port that have shown no key yet, at most one in `NEWCOMERS_SHARE` of all."""
NEWCOMERS_SHARE = 4
Admit = Callable[[str, str], str | None]
"""Returns the name of a public key, from an address; None: it is not let in."""


class TcpPort(ListeningSocket):
    """A port. A connection is a newcomer until its key is let in, for as long as a handshake may last."""

    def __init__(self, address: str, secret: str, admit: Admit, most: int) -> None:
        """Listen at ``tcp://HOST:PORT``. ``most``: connections of this process. Raises SettingsError."""
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        host = host.strip("[]")
        cure = "Give a free port and an address of this host with --listen."
        with explaining(SettingsError, f"{address}: could not be listened at", cure):
            found = socket.getaddrinfo(
                None if host == "*" else host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, _, _, _, at = found[0]
            opened = socket.create_server(at, family=family, backlog=BACKLOG)
        opened.setblocking(False)  # noqa: FBT003  (the socket's own signature)
        super().__init__(opened)
        self.failed = 0
        """Handshakes that were no such, or for another key of ours."""
        self.newcomers = ConnectionLimits(
            max(1, min(NEWCOMERS, most // NEWCOMERS_SHARE)), silent_ns=0
        )  # many hosts may have one address, and who has a key shows it at once
        self._secret, self._admit = raw_key(secret), admit

    def accept_all(self) -> Iterator[tuple[socket.socket, str, CurveServer]]:
        """Yield the connections that wait, each with its address and its handshake, for ACCEPT_NS at most."""
        for opened in self.take_all():
            try:
                address = str(opened.getpeername()[0])
            except OSError:  # it is gone already
                opened.close()
                continue
            for level, option, value in (
                (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
                (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
                (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, HEARTBEAT_MS // 1000),
                (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, HEARTBEAT_MS // 1000),
                (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS),
            ):
                opened.setsockopt(level, option, value)
            yield opened, address, CurveServer(self._secret, partial(self._let_in, address))

    def _let_in(self, address: str, public: bytes) -> str | None:
        return self._admit(text_key(public), address)
