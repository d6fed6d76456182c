"""Which hosts are at the broker, and which runs are on them: their announcements, for one process.

An announcement may be lost. So the roll is called again every CALL_S: each collector replies.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable

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
        self._heard_ns: dict[str, int] = {}
        self._doubled: set[str] = set()
        self.malformed = 0
        self._changed = anyio.Event()

    async def wait(self) -> None:
        """Wait for an announcement."""
        await self._changed.wait()

    async def changes(self) -> AsyncIterator[None]:
        """Yield at once, and whenever an announcement has come."""
        while True:
            changed = self._changed
            yield
            await changed.wait()

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
                for host in [host for host, ns in self._heard_ns.items() if now_ns - ns > ABSENT_NS]:
                    del self.hosts[host], self._heard_ns[host]
            await anyio.sleep(LOOK_S)

    async def _take(self, take: Callable[[], Awaitable[list[Delivered]]]) -> None:
        while True:
            for message in await take():
                self.take(message)
            self._changed.set()
            self._changed = anyio.Event()

    def take(self, message: Delivered) -> None:
        """Take in one announcement."""
        try:
            announced: Announced = codec.decode(message.data, Announced)
        except MalformedError:
            self.malformed += 1
            return
        own = requests.announcement_subject(self._site, announced.host)
        if message.subject.startswith("zs.") and message.subject != own:
            self.malformed += 1  # its credential is that of another host
            return
        if announced.host not in self.hosts and len(self.hosts) >= MAX_HOSTS:
            return
        self._name_double(announced)
        self.hosts[announced.host] = announced
        self._heard_ns[announced.host] = monotonic_ns()

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
