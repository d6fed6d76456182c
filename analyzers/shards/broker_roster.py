"""One analyzer for all hosts at a broker: whichever host announces itself is followed and commanded."""

from collections.abc import Callable, Mapping

import anyio

from analyzers.archive.process.child_process import ChildProcess
from analyzers.service.analyzer import Analyzer, analyze
from analyzers.shards.brokered_collector import BrokeredCollector
from analyzers.shards.roll_call import RollCall
from zeus_stream.broker.channels import BrokeredHost
from zeus_stream.broker.exchange import Exchange
from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.settings import Settings
from zeus_stream.transport import sockets


async def analyze_at_broker(
    settings: Settings,
    site: SiteSettings,
    *,
    environ: Mapping[str, str],
    started: Callable[[str], None],
    store: ChildProcess | None = None,
) -> None:
    """Run the analyzer of all hosts at a broker until cancelled. Raises as `analyze` does."""
    exchange = Exchange(site, "analyze")
    context = sockets.context()

    async def roster(analyzer: Analyzer) -> None:
        roll = RollCall(exchange, site.site)
        followed: set[str] = set()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(exchange.run)
            tasks.start_soon(roll.run)
            while True:
                for host in roll.hosts.keys() - followed:
                    followed.add(host)
                    where = BrokeredHost(exchange, site.site, host)
                    analyzer.join(BrokeredCollector(context, where, analyzer.archive, settings))
                await roll.wait()

    try:
        await analyze(settings, environ=environ, started=started, roster=roster, store=store)
    finally:
        context.destroy(linger=0)
