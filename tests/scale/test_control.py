"""Commands and questions over a real broker: the same rules and refusals as over the control socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest

from analyzers.shards.roll_call import RollCall
from collectors.broker.host_at_broker import HostAtBroker
from tests.collectors.devices.arithmetic import ArithmeticBus
from tests.collectors.test_service import PATIENCE_S, Client, collector
from tests.scale.servers import Nats, nats
from zeus_stream.broker.channels import BrokeredHost
from zeus_stream.broker.exchange import Exchange
from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.clock import monotonic_ns
from zeus_stream.paths import places
from zeus_stream.protocol.events import RunEnded
from zeus_stream.protocol.frames import Frame
from zeus_stream.protocol.notes import ControlApplied, ControlRefused
from zeus_stream.protocol.queries import AskStatus, Status
from zeus_stream.settings import Settings
from zeus_stream.transport import sockets
from zeus_stream.transport.follower import follow

pytestmark = pytest.mark.anyio
SITE, HOST = "north", "alpha.example"


class BrokerClient(Client):
    """A process that commands or follows over the broker, and a training process of the host."""

    def __init__(self, directory: Path, exchange: Exchange) -> None:
        super().__init__(places({"ZEUS_STREAM_DIR": str(directory)}))
        self.control.close()
        self.control = BrokeredHost(exchange, SITE, HOST).control.open()  # type: ignore[assignment]


@asynccontextmanager
async def host(directory: Path, url: str) -> AsyncIterator[Exchange]:
    """Run a collector at the broker; give another process's connection to it."""
    settings = Settings(device="test", host=HOST, trust_uid=(0,))
    site = SiteSettings(broker=url, site=SITE)
    async with collector(
        ArithmeticBus(2), directory, settings=settings, at_site=partial(HostAtBroker, site=site)
    ):
        exchange = Exchange(site, "test")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(exchange.run)
            yield exchange
            tasks.cancel_scope.cancel()


async def test_a_limit_is_commanded_and_refused_by_the_rules_of_the_socket(
    broker: Nats, zeus_dir: Path
) -> None:
    async with host(zeus_dir, broker.url) as exchange:
        far = BrokerClient(zeus_dir, exchange)
        await far.start_run()
        assert isinstance(await far.set("c1", 200), ControlApplied)
        assert await far.set("c1", 200) == await far.set("c1", 200)  # again: the outcome that it had
        refused = await far.set("c2", 10_000)
        assert isinstance(refused, ControlRefused)
        assert refused.cause == "range"
        far._fence = 0
        refused = await far.set("c3", 190)
        assert isinstance(refused, ControlRefused)
        assert refused.cause == "stale"
        near = Client(places({"ZEUS_STREAM_DIR": str(zeus_dir)}))
        near._fence = 100
        assert isinstance(await near.set("c4", 180), ControlApplied)  # one owner, two ways
        near.close()
        status, _ = await far.request(AskStatus())
        assert isinstance(status, Status)
        assert ("broker", "requests", "are taken in") in status.rows
        far.close()


async def test_a_log_is_followed_through_a_broker_that_loses_everything(broker: Nats, zeus_dir: Path) -> None:
    async with host(zeus_dir, broker.url) as exchange:
        found: list[Frame] = []
        context = sockets.context()
        with anyio.fail_after(PATIENCE_S):
            async for part in follow(context, BrokeredHost(exchange, SITE, HOST), host=HOST):
                assert isinstance(part, list)
                if not found:
                    await anyio.to_thread.run_sync(broker.lose_everything)
                    before = len(part)
                found += part
                if len(found) > before + 5:
                    break
        context.destroy(linger=0)
        assert [frame.offset for frame in found] == list(range(len(found)))


async def test_the_runs_of_a_host_are_announced_and_answered_to_a_roll_call(
    broker: Nats, zeus_dir: Path
) -> None:
    async with host(zeus_dir, broker.url) as exchange:
        trainer = Client(places({"ZEUS_STREAM_DIR": str(zeus_dir)}))
        roll = RollCall(exchange, SITE)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(roll.run)
            with anyio.fail_after(PATIENCE_S):
                while HOST not in roll.hosts:
                    await anyio.sleep(0.02)
                assert roll.hosts[HOST].runs == ()
                before_ns = monotonic_ns()
                await trainer.start_run()
                while not roll.hosts[HOST].runs:
                    await anyio.sleep(0.02)
            (run,) = roll.hosts[HOST].runs
            assert (run.session, run.run, run.job) == ("s", "r", "job")
            begun = next(frame for frame in await trainer.frames() if frame.topic.startswith("events/"))
            assert run.first_offset <= begun.offset
            assert begun.t_ns >= before_ns
            await trainer.say("s", 1, RunEnded(monotonic_ns()))
            with anyio.fail_after(PATIENCE_S):
                while roll.hosts[HOST].runs or not roll.hosts[HOST].ended:
                    await anyio.sleep(0.02)
            (ended,) = roll.hosts[HOST].ended
            last = max(frame.offset for frame in await trainer.frames() if frame.topic.startswith("events/"))
            assert (ended.session, ended.job, ended.first_offset) == ("s", "job", run.first_offset)
            assert ended.next_offset > last
            tasks.cancel_scope.cancel()
        trainer.close()


async def test_a_collector_with_the_credential_of_another_site_is_refused_with_the_cure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = tmp_path / "rules.conf"
    rules.write_text(
        'authorization { users = [ { user: "south", password: "s", permissions: {'
        ' publish: ["zs.south.>", "$JS.API.>"], subscribe: ["_INBOX.>", "zs.south.>"] } } ] }'
    )
    with nats(rules) as guarded:
        with_login = guarded.url.replace("//", "//south:s@")
        exchange = Exchange(SiteSettings(broker=with_login, site=SITE), "test")
        assert exchange.servers == guarded.url.replace("//", "//***@"), "its password is not shown"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(exchange.run)
            with anyio.fail_after(PATIENCE_S):
                while not exchange.send("zs.north.hosts.alpha", b"x"):
                    await anyio.sleep(0.02)
                while exchange.trouble is None:
                    await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()
        assert "Give this process the credential of its own host and site" in str(exchange.trouble)
    wrong = Exchange(SiteSettings(broker=guarded.url, site=SITE), "test")
    with anyio.move_on_after(1.0):
        await wrong.run()
    assert "could not be reached" in str(wrong.trouble)
    assert "correct --broker" in caplog.text
