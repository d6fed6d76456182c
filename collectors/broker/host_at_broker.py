"""The part of a collector at the broker: its relay, its announcements, and its doors for requests."""

from collections.abc import Callable, Sequence

import anyio

from collectors.broker.announcer import Announcer, EndedSessions, announced_runs
from collectors.broker.relay import Relay
from collectors.ingest.sessions import PublisherSession
from collectors.log.sqlite import SqliteLog
from collectors.log.standing import Standing
from zeus_stream.broker.channels import BrokerDoor
from zeus_stream.broker.exchange import Exchange
from zeus_stream.broker.requests import Announced
from zeus_stream.broker.site_settings import SiteSettings


class HostAtBroker:
    """Everything of one collector that needs the broker. A `collectors.service.SitePart`."""

    def __init__(self, log: SqliteLog, host: str, site: SiteSettings) -> None:
        """Prepare it; `run` connects. Raises SettingsError."""
        self._log = log
        self._host = host
        self._site = site.site
        self._exchange = Exchange(site, "collect")
        self._relay = Relay(log, host, site)
        self.doors = (
            BrokerDoor(self._exchange, site.site, host, "command"),
            BrokerDoor(self._exchange, site.site, host, "follow"),
        )
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
            tasks.start_soon(Announcer(self._exchange, self._site, self._host, announced).run)

    def status(self) -> list[tuple[str, str, str]]:
        """Return what the status shows of it."""
        return [
            *self._relay.status(),
            ("broker", "requests", self._exchange.trouble or "are taken in"),
            ("broker", "requests malformed", str(sum(door.malformed for door in self.doors))),
        ]
