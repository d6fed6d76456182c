"""Lets other hosts in over TCP: by key, each for its roles, until the key is revoked.

    a key that is not on the list, or without a role for the door   refused; named once, with its address
    a key that is revoked, or loses a role                          its connections are ended at once
    a connection that shows no key                                  ended after HANDSHAKE_MS, or for another

The list is `keys`' directory, looked at every LOOK_S. Peers on this host need no key: the modes of the
socket files have let them in.
"""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import anyio
from msgspec import Struct

from zeus_stream.errors import StorageError
from zeus_stream.transport import keys, sockets
from zeus_stream.transport.endpoints import PORTS, parse
from zeus_stream.transport.keys import Allowed, Role
from zeus_stream.transport.listening.listener import Listener

if TYPE_CHECKING:
    from zeus_stream.transport.listening.tcp_port import TcpPort

LOOK_S = 0.25
MAX_NAMED = 1_000
"""Addresses named in the log; those of more are counted only."""
Door: TypeAlias = Literal["feed", "control", "query"]
ROLES: Mapping[Door, frozenset[Role]] = {
    "feed": frozenset({"follow"}),
    "control": frozenset({"follow", "command"}),
    "query": frozenset({"query"}),
}
"""Of which one has to be had, to be let in at a door."""
_log = logging.getLogger(__name__)


class _Port(Struct, frozen=True):
    door: Door
    address: str
    listener: Listener
    port: "TcpPort"


class AccessGate:
    """The TCP side of a process's sockets. Without an address to listen at, nobody comes in."""

    def __init__(self, listen: str | None, directory: Path, listeners: Mapping[Door, Listener]) -> None:
        """Listen. Raises SettingsError, StorageError."""
        self.not_let_in = 0
        """Handshakes with a key that was not let in."""
        self._directory = directory
        self._seen: tuple[tuple[str, int, int], ...] | None = None
        self._unreadable = False
        """The list could not be read, and that was logged."""
        self._allowed: Mapping[str, Allowed] = {}
        self._named: set[tuple[str, str]] = set()
        self._ports: tuple[_Port, ...] = ()
        if listen is None:
            return
        from zeus_stream.transport.listening.tcp_port import TcpPort  # noqa: PLC0415  (it loads libsodium)

        host, port = parse(listen)
        secret = keys.server_pair(directory).secret
        self._look()
        for door, listener in listeners.items():
            address = f"tcp://{host}:{port + PORTS[door]}"
            opened = TcpPort(address, secret, partial(self._admit, door), listener.limits.most)
            listener.let_in(opened)
            self._ports = (*self._ports, _Port(door, address, listener, opened))

    @property
    def refused(self) -> int:
        """Handshakes that failed."""
        return self.not_let_in + sum(each.port.failed for each in self._ports)

    async def run(self) -> None:
        """End connections whose key may do less than before, or whose handshake is late, until cancelled."""
        while self._ports:
            await anyio.sleep(LOOK_S)
            less = self._look()
            for each in self._ports:
                each.listener.end_late_newcomers()
                each.listener.end_keys(less)
            self._name_failures()

    def objection(self, message: sockets.Received, role: Role) -> str | None:
        """Return why a sender may not do what needs a role, or None."""
        if message.uid is not None:
            return None
        if any(who.name == message.key and role in who.roles for who in self._allowed.values()):
            return None
        return (
            f"key {message.key}: has no role {role!r} on this host."
            f" Make one that has it with `zeus-stream keys create NAME --roles {role}`."
        )

    def status(self) -> list[tuple[str, str, str]]:
        rows: list[tuple[str, str, str]] = [("other hosts", port.door, port.address) for port in self._ports]
        rows += [
            ("other hosts", f"key {who.name}", ", ".join(sorted(who.roles)))
            for who in list(self._allowed.values())[:100]
        ]
        if rows:
            shut = sum(each.port.newcomers.refused for each in self._ports)
            rows.append(("other hosts", "refused", str(self.refused)))
            rows.append(("other hosts", "cut before they showed a key", str(shut)))
        return rows

    def _admit(self, door: Door, public: str, address: str) -> str | None:
        """Return the name of a key that is let in at a door."""
        who = self._allowed.get(public)
        if who is not None and not who.roles.isdisjoint(ROLES[door]):
            return who.name
        self.not_let_in += 1
        roles = sorted(ROLES[door])
        whose = f"its key {public} is not on the list"
        if who is not None:
            whose = f"key {who.name} has not the role {' or '.join(roles)}"
        if (address, whose) not in self._named and len(self._named) < MAX_NAMED:
            self._named.add((address, whose))
            _log.warning(
                "%s: could not let in %s: %s. If it should be let in, make a key for it with"
                " `zeus-stream keys create NAME --roles %s`. It is named once.",
                door, address, whose, ",".join(roles),
            )  # fmt: skip
        return None

    def _name_failures(self) -> None:
        """Log once for a port that somebody does not know its key."""
        for each in self._ports:
            if each.port.failed and (each.address, "") not in self._named:
                self._named.add((each.address, ""))
                _log.warning(
                    "%s: could not let somebody in at %s: it knows another key of this host, or none."
                    " Give it the file of a key that was made here. This message comes once.",
                    each.door, each.address,
                )  # fmt: skip

    def _look(self) -> set[str]:
        """Return the keys that may do less than before. A list that cannot be read revokes none."""
        try:
            seen = keys.fingerprint(self._directory)
            if seen == self._seen:
                return set()
            allowed, wrong = keys.allowed(self._directory)
        except StorageError as unreadable:
            if not self._unreadable:
                self._unreadable = True
                _log.warning("%s The keys known before are still let in.", unreadable)
            return set()
        self._unreadable = False
        for sentence in wrong:
            _log.warning("%s", sentence)
        less = {who.name for public, who in self._allowed.items() if allowed.get(public) != who}
        self._seen, self._allowed = seen, allowed
        return less
