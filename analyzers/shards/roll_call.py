"""Which hosts are at the broker, and which runs are on them: their announcements, for one process.

An announcement may be lost. So the roll is called again every CALL_S: each collector replies. Nearly all
replies repeat what is known; of these the time alone is kept.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile

import anyio

from zeus_stream.broker import requests
from zeus_stream.broker.exchange import Delivered, Exchange
from zeus_stream.broker.requests import Announced
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import MalformedError
from zeus_stream.protocol import codec

CALL_S = 30.0
"""Between two roll calls while the connection holds."""
LOOK_S = 0.25
"""Between two looks at whether the connection is another one."""
ABSENT_NS = 100_000_000_000
"""A host that has not announced itself for so long, three roll calls, is counted no more."""
MAX_HOSTS = 20_000

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Last:
    """The last announcement of a host."""

    digest: bytes
    change: int
    """Its number."""
    received_ns: int


class RollCall:
    """The hosts of a site, as they announced themselves last."""

    def __init__(self, exchange: Exchange, site: str) -> None:
        """Listen; `run` has to run."""
        self._exchange = exchange
        self._subject = requests.roll_subject(site)
        self._site = site
        self._announcements = exchange.listen(requests.announcement_subject(site))
        self._replies = exchange.new_inbox()
        self.hosts: dict[str, Announced] = {}
        self._last: dict[str, _Last] = {}
        """In the order of their changes."""
        self._known: dict[bytes, str] = {}
        """By digest of its last announcement: the host."""
        self.changed = 0
        """The number of the last change of an announcement."""
        self._doubled: set[str] = set()
        self.malformed = 0
        self._changed = anyio.Event()

    async def wait(self) -> None:
        """Wait for an announcement that is new or has changed."""
        await self._changed.wait()

    def changed_since(self, number: int) -> Iterator[str]:
        """Return the hosts whose announcements have changed since that change, the last one first."""
        return takewhile(lambda host: self._last[host].change > number, reversed(self._last))

    async def run(self) -> None:
        """Call the roll and take in announcements until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._call)
            tasks.start_soon(self._take, self._announcements.take)
            await self._take(self._replies.take)

    async def _call(self) -> None:
        connection, called_ns = 0, 0
        while True:
            now_ns = monotonic_ns()
            due = self._exchange.connections != connection or now_ns - called_ns > CALL_S * 1e9
            if due and self._exchange.send(self._subject, b"", self._replies.subject):
                connection, called_ns = self._exchange.connections, now_ns
                self.forget_absent(now_ns)
            await anyio.sleep(LOOK_S)

    async def _take(self, take: Callable[[], Awaitable[list[Delivered]]]) -> None:
        while True:
            messages, before = await take(), self.changed
            now_ns = monotonic_ns()
            for message in messages:
                self.take(message, now_ns)
            if self.changed != before:
                self._changed.set()
                self._changed = anyio.Event()

    def forget_absent(self, now_ns: int) -> None:
        """Forget the hosts that have not announced themselves for long."""
        for host in [host for host, last in self._last.items() if now_ns - last.received_ns > ABSENT_NS]:
            self._forget(host)

    def take(self, message: Delivered, now_ns: int) -> None:
        """Take in one announcement."""
        digest = blake2b(message.data, digest_size=16).digest()
        known = self._known.get(digest)
        if known is not None and self._own(message, known):
            self._last[known].received_ns = now_ns
            return
        try:
            announced: Announced = codec.decode(message.data, Announced)
        except MalformedError:
            self.malformed += 1
            return
        if not self._own(message, announced.host):
            self.malformed += 1  # its credential is that of another host
            return
        if announced.host not in self.hosts and len(self.hosts) >= MAX_HOSTS:
            return
        self._name_double(announced)
        self._forget(announced.host)
        self.changed += 1
        self.hosts[announced.host] = announced
        self._last[announced.host] = _Last(digest, self.changed, now_ns)
        self._known[digest] = announced.host

    def _own(self, message: Delivered, host: str) -> bool:
        """Return whether a host may send that message: permissions say who may send on which subject."""
        own = requests.announcement_subject(self._site, host)
        return not message.subject.startswith("zs.") or message.subject == own

    def _forget(self, host: str) -> None:
        """Forget the last announcement of a host, if there is one."""
        if self.hosts.pop(host, None) is not None:
            del self._known[self._last.pop(host).digest]

    def _name_double(self, announced: Announced) -> None:
        """Say once when two collectors announce themselves under one name, as those of two sites do."""
        before = self.hosts.get(announced.host)
        if before is None or before.log_id == announced.log_id:
            return
        pair = f"{announced.host} {sorted((before.log_id, announced.log_id))}"
        if pair in self._doubled:
            _log.warning(
                "host %s of site %s: two collectors announce themselves under this name. Give one of them"
                " another name with --host, or its site another name with --site.",
                announced.host, self._site,
            )  # fmt: skip
        self._doubled ^= {pair}
