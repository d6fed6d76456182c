"""The relay and the archiver with a real broker: killed at any time, nothing is lost or stored twice."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random

import anyio
import psycopg
import pytest

from collectors.broker.relay import Relay
from collectors.log.sqlite import SqliteLog
from tests.scale.running_site import SITE, RunningSite
from tests.scale.servers import Nats, Postgres, nats
from tests.scale.test_lake import ask
from tests.waiting import until
from zeus_stream.broker import batches
from zeus_stream.broker.jetstream import JetstreamClient
from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.clock import boot_id
from zeus_stream.protocol import codec
from zeus_stream.protocol.readings import READING_BYTES, Readings

PATIENCE_S = 240.0
CONNECTIONS = 6
"""Of an archiver of all parts to PostgreSQL, at most."""


def append(log: SqliteLog, count: int) -> None:
    for _ in range(count):
        frames = Readings(("GPU-a",), bytes(READING_BYTES))
        log.append([("readings/alpha", codec.encode(frames))], time.monotonic_ns())


def address(url: str, parts: int = batches.PARTS) -> SiteSettings:
    return SiteSettings(broker=url, site=SITE, broker_parts=parts)


async def relayed(log: SqliteLog, url: str, parts: int = batches.PARTS) -> None:
    """Relay until the broker has the whole log."""
    relay = Relay(log, "alpha", address(url, parts))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(relay.run)
        with anyio.fail_after(PATIENCE_S):
            while relay.trouble is not None or relay.behind:
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()


async def held(url: str, begin: int = 1) -> list[batches.FrameBatch]:
    """Return the batches that the broker has of the host, from a sequence number on."""
    broker = await JetstreamClient.connect(address(url))
    reader = await broker.reader(batches.part_of("alpha"), begin)
    found = []
    while messages := await reader.next(0.5):
        found += [batches.decode(message.data, message.subject, SITE) for message in messages]
    await broker.close()
    return found


def test_a_relay_goes_on_after_the_last_batch_that_the_broker_has(broker: Nats, tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log", "alpha", "boot")
    append(log, 30)
    anyio.run(relayed, log, broker.url)
    append(log, 30)
    anyio.run(relayed, log, broker.url)  # another relay of the same log
    found = anyio.run(held, broker.url)
    offsets = [frame.offset for batch in found for frame in batch.frames]
    assert offsets == list(range(60))
    broker.lose_everything()
    anyio.run(relayed, log, broker.url)
    found = anyio.run(held, broker.url)
    assert [frame.offset for batch in found for frame in batch.frames] == list(range(60))
    log.close()


def test_a_batch_says_what_had_left_the_log(broker: Nats, tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log", "alpha", "boot")
    append(log, 10)
    anyio.run(relayed, log, broker.url)
    append(log, 2_000)
    log.prune(time.monotonic_ns(), 30_000, 10**18)
    anyio.run(relayed, log, broker.url)
    last = anyio.run(held, broker.url)[1]
    assert last.after == 10
    assert last.frames[0].offset == log.extent.first_offset > 10
    log.close()


def test_a_stream_takes_what_the_broker_has_room_for_and_grows_with_its_setting(tmp_path: Path) -> None:
    rules = tmp_path / "rules.conf"
    rules.write_text("jetstream { max_file_store: 100MB }")

    async def make(url: str) -> list[int]:
        streams = await JetstreamClient.connect(address(url))
        made = [
            await streams.make_stream(0, max_bytes=size << 20, max_hours=1, replicas=1)
            for size in (16, 32, 16, 8192)
        ]
        await streams.close()
        return [size >> 20 for size in made]

    with nats(rules) as small:
        assert anyio.run(make, small.url) == [16, 32, 32, 64]


# ---- real processes under fire ------------------------------------------------------------------------


class ArchivedSite(RunningSite):
    """A collector with a relay, and archivers."""

    def readings(self) -> dict[int, int]:
        """Return the number of readings of each frame that has some in the host's log, by offset."""
        logged = self.logged("readings", Readings)
        return {offset: len(each.rows) // READING_BYTES for offset, each in logged if each.rows}

    def connections(self) -> int:
        """Return the number of connections to the database of the lake, but this one."""
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchone()
        return row[0] if row else 0

    def has_stored(self, offset: int) -> bool:
        """Tell whether the lake has frames from an offset on. No process may end by itself."""
        assert all(process.poll() is None for process in self.running.values()), "one has ended by itself"
        return self.stored() > offset

    def stored(self) -> int:
        """Return the offset that comes next in the lake."""
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute("SELECT max(next_offset) FROM zs.logs").fetchone()
        return 0 if row is None or row[0] is None else row[0]


@pytest.mark.sweep
def test_a_small_stream_that_fills_is_purged_up_to_what_is_archived_and_everything_arrives(
    lake: str, broker: Nats, tmp_path: Path
) -> None:
    log, noise = SqliteLog(tmp_path / "log", "alpha", "boot"), Random(1)
    frames, frame_bytes, stream_mb = 400, 90_000, 16

    async def overflow(site: ArchivedSite) -> None:
        relay = Relay(log, "alpha", SiteSettings(broker=broker.url, site=SITE, broker_mb=stream_mb))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(relay.run)
            with anyio.fail_after(PATIENCE_S):
                while "is full: it takes no more until archivers have stored" not in str(relay.trouble):
                    await anyio.sleep(0.05)
                assert "log of this host keeps the rest" in str(relay.trouble)
                assert "raise broker_mb" in str(relay.trouble)
                assert relay.behind > frames / 2, "the log keeps what the broker refuses"
                site.archive()
                while relay.behind or relay.trouble:
                    await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()

    for _ in range(frames):  # twice the stream
        log.append([("readings/alpha", noise.randbytes(frame_bytes))], time.monotonic_ns())
    with ExitStack() as processes:
        site = ArchivedSite(lake, broker, processes)
        anyio.run(overflow, site)
        until(lambda: site.stored() == frames, PATIENCE_S)
        site.stop("archiver")
    found = ask(lake, 'SELECT count(DISTINCT "offset"), sum(octet_length(body)) FROM frames')
    assert found == [(frames, frames * frame_bytes)]
    assert ask(lake, "SELECT count(*) FROM gaps") == [(0,)]
    log.close()


@pytest.mark.sweep
def test_a_site_gets_more_parts_while_it_runs(lake: str, broker: Nats, tmp_path: Path) -> None:
    few, many = 2, 8
    assert batches.part_of("alpha", few) != batches.part_of("alpha", many)
    log = SqliteLog(tmp_path / "log", "alpha", "boot")
    with ExitStack() as processes:
        site = ArchivedSite(lake, broker, processes)
        append(log, 100)
        anyio.run(relayed, log, broker.url, few)
        site.archive("archiver-1", few)
        until(lambda: site.stored() == 100, PATIENCE_S)
        site.archive("archiver-2", many)  # it gets the new parts; the first archiver has the others still
        for count, parts in ((100, few), (100, many), (100, few), (100, many)):
            append(log, count)
            anyio.run(relayed, log, broker.url, parts)
        until(lambda: site.stored() == 500, PATIENCE_S)
        site.kill("archiver-1")
        append(log, 100)
        anyio.run(relayed, log, broker.url, many)
        until(lambda: site.stored() == 600, PATIENCE_S)
        site.stop("archiver-2")
    assert ask(lake, 'SELECT count(*), count(DISTINCT "offset") FROM readings') == [(600, 600)]
    assert ask(lake, "SELECT count(*) FROM gaps") == [(0,)]
    log.close()


@pytest.mark.sweep
def test_a_stream_full_of_what_is_no_batch_is_let_go_of(lake: str, broker: Nats) -> None:
    async def fill() -> int:
        streams = await JetstreamClient.connect(address(broker.url))
        part = batches.part_of("alpha")
        await streams.make_stream(part, max_bytes=16 << 20, max_hours=1, replicas=1)
        for number in range(60):
            last = await streams.publish("alpha", bytes(200_000), f"garbage-{number}", part)
        assert await streams.is_half_full(part)
        await streams.close()
        return last

    async def is_empty() -> bool:
        streams = await JetstreamClient.connect(address(broker.url))
        try:
            return not await streams.is_half_full(batches.part_of("alpha"))
        finally:
            await streams.close()

    last = anyio.run(fill)
    with ExitStack() as processes:
        site = ArchivedSite(lake, broker, processes)
        site.archive()
        until(lambda: anyio.run(is_empty), PATIENCE_S)
        assert site.running["archiver"].poll() is None
        assert "is no batch of that host, and is left out" in site.printed("archiver")
        with psycopg.connect(lake) as connection:
            positions = connection.execute("SELECT max(next) FROM zs.leases").fetchone()
        assert positions == (last + 1,)
        site.stop("archiver")


@pytest.mark.sweep
def test_nothing_is_lost_and_nothing_twice_when_anything_is_killed(
    lake: str, broker: Nats, server: Postgres
) -> None:
    with ExitStack() as processes:
        site = ArchivedSite(lake, broker, processes)
        begin: dict[str, Callable[[], None]] = {
            "collector": partial(site.collect, "simulated:a40x2"),
            **{name: partial(site.archive, name) for name in ("archiver-1", "archiver-2")},
        }
        for start in begin.values():
            start()
        until(lambda: site.stored() > 0, PATIENCE_S)
        assert site.connections() <= 2 * CONNECTIONS
        for victim in ("archiver-2", "archiver-1", "broker", "PostgreSQL", "collector"):
            if victim == "broker":
                broker.kill()
                broker.start()
            elif victim == "PostgreSQL":
                server.kill()
                server.start()
            else:
                site.kill(victim)
                begin[victim]()
            before = site.stored()
            until(partial(site.has_stored, before), PATIENCE_S)
        site.stop("collector")
        log = SqliteLog(site.host / "log.sqlite", "alpha", boot_id())
        anyio.run(relayed, log, broker.url)  # what it had logged at its end
        log.close()
        logged = site.readings()
        until(lambda: site.stored() > max(logged), PATIENCE_S)
        for name in ("archiver-1", "archiver-2"):
            site.stop(name)
    assert dict(ask(lake, 'SELECT "offset", count(*) FROM readings GROUP BY "offset"')) == logged
    assert ask(lake, "SELECT count(*) FROM gaps") == [(0,)]
