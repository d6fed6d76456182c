"""The part of a collector at the broker: its relay, its announcements, and its door for requests.

Runs are announced when they change, and to each roll call. An announcement that is lost is repeated at the
next roll call: the host's log is the truth.
"""

import random
from collections.abc import Callable, Sequence

import anyio

from collectors.broker.announced_sessions import EndedSessions, announced_runs
from collectors.broker.relay import Relay
from collectors.ingest.sessions import PublisherSession
from collectors.log.sqlite import SqliteLog
from collectors.log.standing import Standing
from zeus_stream.broker import requests
from zeus_stream.broker.channels import BrokerDoor
from zeus_stream.broker.exchange import Exchange
from zeus_stream.broker.requests import Announced
from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.protocol import codec

LOOK_S = 0.1
"""Between two looks at whether the runs have changed."""
SPREAD_S = 0.5
"""Replies to a roll call come within so long: not all hosts' at once."""


class HostAtBroker:
    """Everything of one collector that needs the broker. A `collectors.service.SitePart`."""

    def __init__(self, log: SqliteLog, host: str, site: SiteSettings) -> None:
        """Prepare it; `run` connects. Raises SettingsError."""
        self._log = log
        self._host = host
        self._exchange = Exchange(site, "collect")
        self._relay = Relay(log, host, site)
        self._subject = requests.announcement_subject(site.site, host)
        self._roll = self._exchange.listen(requests.roll_subject(site.site))
        self._door = BrokerDoor(self._exchange, site.site, host)
        self.doors = (self._door,)
        """The ways by which requests come in."""

    async def run(
        self, incarnation: str, standing: Standing, sessions: Callable[[], Sequence[PublisherSession]]
    ) -> None:
        """Relay, announce and take in requests until cancelled."""
        ended = EndedSessions()

        def announced() -> Announced:
            extent, known = self._log.extent, sessions()
            ended.look(known, extent.first_offset)
            return Announced(
                host=self._host,
                log_id=extent.log_id,
                incarnation=incarnation,
                standing=standing.notes(),
                runs=announced_runs(known, extent.first_offset),
                ended=ended.last,
                earlier=ended.earlier,
            )

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._exchange.run)
            tasks.start_soon(self._relay.run)
            tasks.start_soon(self._answer, announced)
            sent: tuple[int, Announced] | None = None
            while True:
                now = self._exchange.connections, announced()
                if now != sent and self._exchange.send(self._subject, codec.encode(now[1])):
                    sent = now
                await anyio.sleep(LOOK_S)

    async def _answer(self, announced: Callable[[], Announced]) -> None:
        """Reply to roll calls."""
        while True:
            calls = {call.reply for call in await self._roll.take() if call.reply}
            await anyio.sleep(random.random() * SPREAD_S)  # noqa: S311  (it spreads load)
            for reply in calls:
                self._exchange.send(reply, codec.encode(announced()))

    def status(self) -> list[tuple[str, str, str]]:
        """Return what the status shows of it."""
        return [
            *self._relay.status(),
            ("broker", "requests", self._exchange.trouble or "are taken in"),
            ("broker", "requests malformed", str(self._door.channel.malformed)),
        ]
