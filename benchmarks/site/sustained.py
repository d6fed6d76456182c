"""Readings a second that one machine carries for minutes, from the broker into the lake.

    PYTHONPATH=. .venv-scale/bin/python -m benchmarks.site.sustained [--rate 110000] [--minutes 10]

Hosts with 8 GPUs, each read 10 times a second, send a message every two seconds, as relays do: one in flight.
This process sends for all of them; beside it run NATS, PostgreSQL and an archiver of all parts. The exit code
is 1 if readings are lost, or fewer were stored a second than `GOAL`.
"""

import sys
import time
from contextlib import ExitStack
from pathlib import Path

import anyio
import psycopg

from analyzers.lake import catalog
from benchmarks.harness import cpu_seconds, directory, judged, options, sentences, wait_for, with_children
from benchmarks.load.retention import A_SECOND, FRAME_S, GPUS, Load
from benchmarks.site.lake import of_host
from tests.analyzers.archives import SECOND, frame, frames
from tests.scale.servers import nats, postgres, spawn
from zeus_stream.broker import batches
from zeus_stream.broker.jetstream import JetstreamClient
from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.settings import Settings

GOAL = 100_000
"""Readings a second."""
IN_FLIGHT = 256
"""Messages that wait for the broker at a time."""
SEEDS = 8
"""Loads, of which each is that of many hosts."""
STREAM_BYTES = 1 << 30
LOOK_S = 30.0
PATIENCE_S = 120.0
"""For what was sent last."""
IN_FRAME = FRAME_S * A_SECOND * len(GPUS)
"""Readings in a message."""


class Sending:
    """The relays of all hosts."""

    def __init__(self, broker: JetstreamClient, hosts: int, until_s: float) -> None:
        self._broker, self._hosts, self._until_s = broker, hosts, until_s
        self._begin_s = time.monotonic()
        self._loads = [Load(seed) for seed in range(SEEDS)]
        self.sent = 0
        """Messages with readings."""

    async def run(self) -> None:
        for part in range(batches.PARTS):
            await self._broker.make_stream(part, max_bytes=STREAM_BYTES, max_hours=1, replicas=1)
        async with anyio.create_task_group() as tasks:
            for number in range(IN_FLIGHT):
                tasks.start_soon(self._relay, range(number, self._hosts, IN_FLIGHT))

    async def _relay(self, hosts: range) -> None:
        offset = 0
        while time.monotonic() < self._until_s:
            for place, number in enumerate(hosts):
                due_s = self._begin_s + FRAME_S * (offset + place / len(hosts))
                await anyio.sleep(max(due_s - time.monotonic(), 0))
                await self._send(number, offset)
            offset += 1

    async def _send(self, number: int, offset: int) -> None:
        host, second = f"host-{number:06}", FRAME_S * (offset + 1)
        mine = [next(frames())] if offset == 0 else []
        log = [*mine, frame(offset + 1, self._loads[number % SEEDS].readings(second),
                            t_ns=(second + FRAME_S) * SECOND)]  # fmt: skip
        batch = [of_host(host, *each) for each in log]
        after, part = (0 if offset == 0 else offset + 1), batches.part_of(host)
        await self._broker.publish(host, batches.encode(after, batch), batches.message_id(batch), part)
        self.sent += 1


def stored(dsn: str) -> int:
    """Return how many messages with readings are in the lake."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT coalesce(sum(next_offset - 1), 0) FROM zs.logs").fetchone()
    return int(row[0]) if row else 0


async def carry(dsn: str, url: str, rate: int, minutes: float) -> tuple[int, float, float]:
    """Send readings. Return how many, the time until the last was stored, and the longest lag, s."""
    broker = await JetstreamClient.connect(SiteSettings(broker=url, site="site"))
    begin_s, most_s = time.monotonic(), 0.0
    sending = Sending(broker, rate // (A_SECOND * len(GPUS)), begin_s + 60 * minutes)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sending.run)
        while (passed_s := time.monotonic() + LOOK_S - begin_s) <= 60 * minutes:
            await anyio.sleep(LOOK_S)
            behind = sending.sent - await anyio.to_thread.run_sync(stored, dsn)
            lag_s = behind * IN_FRAME / rate
            most_s = max(most_s, lag_s)
            sent_s = sending.sent * IN_FRAME / passed_s
            print(
                f"{passed_s:.0f} s: {sent_s:,.0f} were sent a second, {lag_s:.1f} s behind", file=sys.stderr
            )
    await broker.close()
    wait_for(lambda: stored(dsn) >= sending.sent, PATIENCE_S)
    return sending.sent * IN_FRAME, time.monotonic() - begin_s, most_s


def main() -> int:
    given = options(__doc__, rate=110_000, minutes=10.0)
    with ExitStack() as running:
        database, broker = running.enter_context(postgres()), running.enter_context(nats())
        where, dsn = running.enter_context(directory()), database.make("lake")
        catalog.create(dsn, str(where / "files"), Settings())
        archiver = spawn(running, where / "archiver.txt", where, "-m", "zeus_stream", "archive",
                         "--database", dsn, "--broker", broker.url, "--site", "site")  # fmt: skip
        sent, took_s, most_s = anyio.run(carry, dsn, broker.url, given.rate, given.minutes)
        pids = {"archiver": archiver.pid, "broker": broker.process.pid, "PostgreSQL": database.process.pid}
        used_s = {name: sum(map(cpu_seconds, with_children(pid))) for name, pid in pids.items()}
        used_s["senders"] = time.process_time()
        connection = catalog.attach(dsn, Settings(), read_only=True)
        [(found,)] = connection.execute("SELECT count(*) FROM readings").fetchall()
        connection.close()
        load = Path("/proc/loadavg").read_text().split()
    rate = found / took_s
    return judged(
        f"{given.rate:,} readings a second for {given.minutes:g} minutes",
        "quantity | figure | goal",
        [
            ("readings stored a second", f"{rate:,.0f}", f"{GOAL:,}"),
            ("readings sent, and missing in the lake", f"{sent:,}, {sent - found:,}", "-, 0"),
            ("longest lag of the lake, s", f"{most_s:.1f}", ""),
            *((f"cores: {name}", f"{each / took_s:.2f}", "") for name, each in used_s.items()),
            ("readings a processor second of the archiver", f"{found / used_s['archiver']:,.0f}", ""),
            ("load of the machine, 1 and 15 minutes", f"{load[0]}, {load[2]}", ""),
        ],
        sentences(("Readings are missing.", sent != found), ("It was too slow.", rate < GOAL)),
    )


if __name__ == "__main__":
    sys.exit(main())
