"""Cost of hosts without runs for an analyzer that shares a site: processor time and memory.

    PYTHONPATH=. .venv-scale/bin/python -m benchmarks.site.idle_hosts --hosts 1000 --seconds 120

An analyzer of one shard of two, NATS and PostgreSQL are real processes. The hosts reply to roll calls with
the announcement of a real collector of 8 GPUs, under other names and with 32 ended sessions of the other
shard. They publish two messages of 4 kB a second each where their relays publish. The analyzer is measured
without them and with them, its file process included.
"""

import argparse
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager

import anyio
import anyio.lowlevel
from msgspec.structs import replace

from analyzers.leases.site_leases import SiteLeases
from analyzers.shards.roll_call import RollCall
from benchmarks.harness import cpu_seconds, private_mb, process, table, with_children
from tests.directories import short_directory
from tests.scale.servers import nats, postgres
from zeus_stream.broker import batches, requests
from zeus_stream.broker.exchange import Exchange
from zeus_stream.broker.requests import MAX_ENDED, Announced, EndedRun
from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.protocol import codec
from zeus_stream.protocol.fields import shard_of

SITE = "site"
SHARDS = 2
SHARD = 0
"""The one that is measured."""
HELD_S = 3_600.0
"""The other one is held for so long, by this process."""
MESSAGES_S = 2
"""Of each host: its relay waits 0.5 s for more."""
MESSAGE = bytes(4_000)
WARM_S = 15.0
"""The analyzer has its shard and its spare files by then."""
SPREAD_S = 0.5
GOAL_PERCENT = 1


async def model(exchange: Exchange) -> Announced:
    """Return the announcement of the collector that runs."""
    roll = RollCall(exchange, SITE)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(roll.run)
        while not roll.hosts:
            await roll.wait()
        tasks.cancel_scope.cancel()
    return next(iter(roll.hosts.values()))


def ended() -> tuple[EndedRun, ...]:
    """Return the ended sessions of an idle host: all of the other shard."""
    jobs = [job for job in map("train-{}".format, range(4 * MAX_ENDED)) if shard_of(job, SHARDS) != SHARD]
    return tuple(
        EndedRun(session=f"{at:032x}", job=job, first_offset=1000 * at, next_offset=1000 * at + 900)
        for at, job in enumerate(jobs[:MAX_ENDED])
    )


async def reply(exchange: Exchange, hosts: Sequence[Announced]) -> None:
    """Announce all hosts to each roll call, until cancelled."""
    inbox = exchange.listen(requests.roll_subject(SITE))
    while True:
        for call in await inbox.take():
            for host in hosts:
                exchange.send(call.reply, codec.encode(host))
                await anyio.sleep(SPREAD_S / len(hosts))


async def publish(exchange: Exchange, hosts: Sequence[Announced]) -> None:
    """Publish what relays would, until cancelled."""
    subjects = [batches.subject_of(SITE, host.host, batches.part_of(host.host)) for host in hosts]
    while True:
        began_s = time.monotonic()
        for subject in random.sample(subjects, len(subjects)):
            exchange.send(subject, MESSAGE)
            await anyio.lowlevel.checkpoint()
        await anyio.sleep(max(1 / MESSAGES_S - (time.monotonic() - began_s), 0.0))


@asynccontextmanager
async def idle_hosts(url: str, number: int) -> AsyncIterator[int]:
    """Let hosts be at the broker. Give the bytes of an announcement."""
    exchange = Exchange(SiteSettings(broker=url, site=SITE), "test")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(exchange.run)
        first = await model(exchange)
        first = replace(first, runs=(), ended=ended(), earlier=b"")
        hosts = [replace(first, host=f"idle-{each}", log_id=f"log-{each}") for each in range(number)]
        tasks.start_soon(reply, exchange, hosts)
        tasks.start_soon(publish, exchange, hosts)
        for host in hosts:
            exchange.send(requests.announcement_subject(SITE, host.host), codec.encode(host))
            await anyio.sleep(SPREAD_S / number)
        yield len(codec.encode(first))
        tasks.cancel_scope.cancel()


async def measure(pid: int, seconds: float) -> tuple[float, float]:
    """Return the processor time of the analyzer, in percent of a core, and its memory, MB."""
    pids, began_s = with_children(pid), time.monotonic()
    before_s = sum(map(cpu_seconds, pids))
    await anyio.sleep(seconds)
    used_s = sum(map(cpu_seconds, pids)) - before_s
    return 100 * used_s / (time.monotonic() - began_s), private_mb(*pids)


async def compare(url: str, pid: int, hosts: int, seconds: float) -> None:
    """Measure without and with the hosts, and print the difference."""
    await anyio.sleep(WARM_S)
    alone = await measure(pid, seconds)
    async with idle_hosts(url, hosts) as size:
        await anyio.sleep(SPREAD_S * 4)
        beside = await measure(pid, seconds)
    rows: list[tuple[object, ...]] = [
        ("processor time, of a core", f"{alone[0]:.2f} %", f"{beside[0]:.2f} %",
         f"{(beside[0] - alone[0]) * 1000 / hosts:.2f} %", f"{GOAL_PERCENT} %"),
        ("memory", f"{alone[1]:.1f} MB", f"{beside[1]:.1f} MB",
         f"{(beside[1] - alone[1]) * 1000 / hosts:.1f} MB", ""),
    ]  # fmt: skip
    title = f"An analyzer beside {hosts} idle hosts for {seconds:.0f} s, announcements of {size} bytes"
    table(title, ("what", "without", "with", "for 1,000 hosts", "goal"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument(
        "--seconds", type=float, default=120, help="of each measurement; a roll call takes 30"
    )
    given = parser.parse_args()
    with ExitStack() as running:
        dsn = running.enter_context(postgres()).make("leases")
        url = running.enter_context(nats()).url
        host, analyzer = (running.enter_context(short_directory()) for _ in range(2))
        site = ("--broker", url, "--site", SITE)
        collect = ("collect", "--host", "real", "--device", "simulated:a40x8", "--cpu", "off", *site)
        running.enter_context(process(host, *collect, ready="publish"))
        leases = SiteLeases(dsn, SITE, "the benchmark")
        running.callback(leases.close)
        leases.open_shards(SHARDS)
        leases.renew_shards({}, {}, SHARDS, HELD_S)
        leases.take_shard(1 - SHARD, HELD_S)
        analyze = ("analyze", "--shards", str(SHARDS), "--database", dsn, *site)
        pid = running.enter_context(process(analyzer, *analyze, ready=f"shard-{SHARD}/query"))
        anyio.run(compare, url, pid, given.hosts, given.seconds)
    print(f"load of this machine: {os.getloadavg()[0]:.1f}", file=sys.stderr)


if __name__ == "__main__":
    main()
