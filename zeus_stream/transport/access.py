"""Lets other hosts in over TCP: by key, each for its roles, until the key is revoked.

    a key that is not on the list, or without a role for the door   refused; named once, with its address
    a key that is revoked, or loses a role                          all TCP connections are cut at once;
                                                                    those still allowed are back at once

The list is `keys`' directory, looked at every LOOK_S. Peers on this host need no key: the modes of the
socket files have let them in.
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeAlias, cast

import anyio
from msgspec import Struct

from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import StorageError
from zeus_stream.transport import keys, sockets
from zeus_stream.transport.curve import Judge, Knock
from zeus_stream.transport.endpoints import PORTS, parse
from zeus_stream.transport.keys import Allowed, Role
from zeus_stream.transport.listening.listener import Listener
from zeus_stream.transport.listening.newcomers import Newcomers
from zeus_stream.transport.listening.tcp_listener import TcpListener

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
    listener: TcpListener


class Gate:
    """The TCP side of a process's sockets. Without an address to listen at, nobody comes in."""

    def __init__(
        self,
        context: sockets.Context,
        listen: str | None,
        directory: Path,
        listeners: Mapping[Door, Listener],
    ) -> None:
        """Listen. Raises SettingsError, StorageError."""
        self.refused = 0
        """Handshakes that failed."""
        self._directory = directory
        self._seen: tuple[tuple[str, int, int], ...] | None = None
        self._unreadable = False
        """The list could not be read, and that was logged."""
        self._allowed: Mapping[str, Allowed] = {}
        self._named: set[tuple[str, str]] = set()
        self._ports: tuple[_Port, ...] = ()
        if listen is None:
            return
        host, port = parse(listen)
        secret = keys.server_pair(directory, make=sockets.new_keys).secret
        self._look()
        self._judge = Judge(context)
        self._ports = tuple(
            _Port(door, address, listener.let_in(address, secret, door))
            for door, listener in listeners.items()
            for address in (f"tcp://{host}:{port + PORTS[door]}",)
        )

    async def run(self) -> None:
        """Let in and shut out until cancelled; without a TCP address there is nothing to do."""
        if not self._ports:
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._answer)
            tasks.start_soon(self._watch)
            for port in self._ports:
                tasks.start_soon(self._count, port)

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
            shut = sum(newcomers.shut for newcomers in self._newcomers())
            rows.append(("other hosts", "refused", str(self.refused)))
            rows.append(("other hosts", "cut before they showed a key", str(shut)))
        return rows

    def _newcomers(self) -> Iterator[Newcomers]:
        for port in self._ports:
            yield port.listener.newcomers

    async def _answer(self) -> None:
        while True:
            for knock in await self._judge.knocks():
                who = self._allowed.get(knock.public)
                welcome = who is not None and not who.roles.isdisjoint(ROLES[cast("Door", knock.door)])
                self._judge.answer(knock, who.name if who is not None and welcome else None)
                if not welcome:
                    self.refused += 1
                    self._name(knock, who)

    def _name(self, knock: Knock, who: Allowed | None) -> None:
        whose = f"its key {knock.public} is not on the list" if who is None else f"key {who.name} has no role"
        if (knock.address, whose) in self._named or len(self._named) >= MAX_NAMED:
            return
        self._named.add((knock.address, whose))
        _log.warning(
            "%s: could not let in %s: %s. If it should be let in, make a key for it with"
            " `zeus-stream keys create NAME --roles %s`. It is named once.",
            knock.door, knock.address, whose, ",".join(sorted(ROLES[cast("Door", knock.door)])),
        )  # fmt: skip

    async def _count(self, port: _Port) -> None:
        """Count those who never got as far as to be judged."""
        told = False
        while True:
            count = await port.listener.count_failures()
            self.refused += count
            if count and not told:
                told = True
                _log.warning(
                    "%s: could not let somebody in at %s: it knows another key of this host, or none."
                    " Give it the file of a key that was made here. This message comes once.",
                    port.door, port.address,
                )  # fmt: skip

    async def _watch(self) -> None:
        """Cut the connections of keys that are allowed less than before."""
        while True:
            await anyio.sleep(LOOK_S)
            for newcomers in self._newcomers():
                newcomers.look(monotonic_ns())
            if not self._look():
                continue
            for port in self._ports:
                await port.listener.cut()

    def _look(self) -> bool:
        """Look at the list. Tell whether a key may do less than before.

        A list that cannot be read, as when no file can be opened, changes nothing: no key was revoked.
        """
        try:
            seen = keys.fingerprint(self._directory)
            if seen == self._seen:
                return False
            allowed, wrong = keys.allowed(self._directory)
        except StorageError as unreadable:
            if not self._unreadable:
                self._unreadable = True
                _log.warning("%s The keys known before are still let in.", unreadable)
            return False
        self._unreadable = False
        for sentence in wrong:
            _log.warning("%s", sentence)
        less = any(allowed.get(public) != who for public, who in self._allowed.items())
        self._seen, self._allowed = seen, allowed
        return less
