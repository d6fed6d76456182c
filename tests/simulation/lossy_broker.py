"""The broker as one more lossy link of the troubled world: what is relayed reaches the lake once.

    Collector's log -- relay, one batch in flight --> Broker (loses, repeats, delays, restarts without
                                                      its end, or empty)
    lake (fenced) <-- commits -- two archivers (killed, stopped and continued) <-- stream --'

Real are the log, the batches, the rule by which a relay resumes, and what an archiver makes of a stream
(`BatchIntake`). The fence of the lake's commits is played: `analyzers/lake/fencing.sql` in Python.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from analyzers.lake.archiver import BatchesMissingError, BatchIntake
from collectors.broker.relay import Relay
from tests.simulation.archives_of_worlds import Archive
from tests.simulation.processes import MS, S
from tests.simulation.troubled_world import TROUBLE_NS, Report, TroubledWorld
from tests.simulation.virtual_time import VirtualTime
from zeus_stream.broker import batches
from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.protocol.frames import Break, Frame

SITE = "site"
ACK_NS = 500 * MS
"""A batch is acknowledged within this time, or the relay connects again."""
TTL_NS = 1_000 * MS
COMMIT_NS = 300 * MS


class Broker:
    """A stream of messages by number. What it acknowledged may be gone after a restart."""

    def __init__(self, time: VirtualTime, rng: Random) -> None:
        self._time, self._rng = time, rng
        self.messages: list[tuple[int, bytes]] = []
        self._known: set[str] = set()
        self.up = True
        self.healed = False
        self.starts = 1
        self.lost = self.repeated = 0

    @property
    def last(self) -> int:
        return self.messages[-1][0] if self.messages else 0

    def publish(self, connection: int, name: str, message: bytes, acknowledge: Callable[[], None]) -> None:
        """Carry a batch to the stream: perhaps late, perhaps never, perhaps twice; so its acknowledgement.

        ``connection``: `starts` as it was made. A restart ends it.
        """
        copies = 1 if self.healed else self._rng.choices([0, 1, 2], [0.1, 0.8, 0.1])[0]
        self.lost += copies == 0
        for _ in range(copies):
            delay_ns = self._rng.expovariate(1 / ((5 if self.healed else 150) * MS))
            self._later(delay_ns, lambda: self._take(connection, name, message, acknowledge))

    def _take(self, connection: int, name: str, message: bytes, acknowledge: Callable[[], None]) -> None:
        if not self.up or connection != self.starts:
            return
        if name in self._known:
            self.repeated += 1
        else:
            self._known.add(name)
            self.messages.append((self.last + 1, message))
        if self.healed or self._rng.random() < 0.9:
            self._later(self._rng.expovariate(1 / (20 * MS)), acknowledge)

    def restart(self, kept: int) -> None:
        """Be killed, and start with the first ``kept`` of its messages."""
        self.up = False
        self._later(self._rng.uniform(50, 1_000) * MS, lambda: self._start(kept))

    def _start(self, kept: int) -> None:
        del self.messages[kept:]
        self._known.clear()
        self.up = True
        self.starts += 1

    def _later(self, wait_ns: float, action: Callable[[], None]) -> None:
        self._time.at(self._time.now_ns + round(wait_ns), action)


@dataclass
class Lake:
    """The rows that are committed, and the fence: who holds the part, and where stream and logs go on."""

    archive: Archive = field(default_factory=Archive)
    holder: int = 0
    epoch: int = 0
    until_ns: int = 0
    next: int = 1
    refused: int = 0
    commits: int = 0

    def commit(self, epoch: int, begin: int, until: int, parts: list[Any]) -> bool:
        """Store all of it, or nothing."""
        firsts: dict[str, int] = {}
        for part in parts:
            log_id, first = (
                (part.log_id, part.first_offset)
                if isinstance(part, Break)
                else (part[0][0].log_id, part[0][0].offset)
            )
            firsts.setdefault(log_id, first)
        if (epoch, begin) != (self.epoch, self.next) or any(
            self.archive.logs.get(log_id, first) != first for log_id, first in firsts.items()
        ):
            self.refused += 1
            return False
        for part in parts:
            self.archive.put([part] if isinstance(part, Break) else [frame for frame, _ in part])
        self.next = until
        self.commits += 1
        return True


class PlayedRelay:
    """The relay of one collector."""

    def __init__(self, world: "BrokeredWorld") -> None:
        self._world = world
        self.collector = world.collector
        self._relay = Relay(self.collector.log, world.host.name, SiteSettings(broker="", site=SITE))
        self._numbers = count()
        self._connect()

    def _connect(self) -> None:
        world = self._world
        if not self.collector.alive:
            return
        if not world.broker.up:
            self.collector.after(100 * MS, self._connect)
            return
        self._connection = world.broker.starts
        last = world.broker.messages[-1][1] if world.broker.messages else None
        self._next = self._after = self._relay._resume(last)
        self._send()

    def _send(self) -> None:
        frames = self.collector.log.fetch(self._next, batches.MAX_FRAMES, 20_000)
        if not frames:
            self.collector.after(50 * MS, self._send)
            return
        number = next(self._numbers)
        self._in_flight: int | None = number

        def acknowledged() -> None:
            if self.collector.alive and self._in_flight == number:
                self._in_flight = None
                self._next = self._after = frames[-1].offset + 1
                self._send()

        def waited() -> None:
            if self._in_flight == number:
                self._in_flight = None
                self._connect()

        data = batches.encode(self._after, frames)
        self._world.broker.publish(self._connection, batches.message_id(frames), data, acknowledged)
        self.collector.after(ACK_NS, waited)


class PlayedArchiver:
    """One of two archivers of the part: it may be killed, or stopped and continued."""

    def __init__(self, world: "BrokeredWorld", number: int) -> None:
        self._world, self._number = world, number
        self._life = 0
        self._stopped = False
        self._again = False
        self._turn(0)

    def _after(self, wait_ns: float, action: Callable[[], None]) -> None:
        """Do something later, unless it was killed; if it is stopped, as soon as it goes on."""
        life = self._life

        def due() -> None:
            if self._stopped:
                self._world.at(self._world.now_ns + 20 * MS, due)
            elif life == self._life:
                action()

        self._world.at(self._world.now_ns + round(wait_ns), due)

    def kill(self) -> None:
        self._life += 1
        self._after(self._world.faults.uniform(10, 2_000) * MS, self._begin)

    def stop(self) -> None:
        self._stopped = True

        def go_on() -> None:
            self._stopped = False

        self._world.at(self._world.now_ns + round(self._world.faults.uniform(0.2, 4) * S), go_on)

    def _begin(self) -> None:
        """Take the part if it is free, and read on where the last commit ended."""
        world, lake = self._world, self._world.lake
        if not world.broker.up or (lake.until_ns > world.now_ns and lake.holder != self._number):
            self._turn(TTL_NS / 4)
            return
        lake.epoch += 1
        lake.holder, lake.until_ns = self._number, world.now_ns + TTL_NS
        self._epoch, self._starts = lake.epoch, world.broker.starts
        if world.broker.last + 1 < lake.next:
            lake.next = 1
        self._from = self._until = lake.next
        self._last = world.broker.last
        self._intake = BatchIntake(dict(lake.archive.logs), again=self._again)
        self._again = False
        self._read()

    def _read(self) -> None:
        world, lake = self._world, self._world.lake
        if not world.broker.up or world.broker.starts != self._starts:
            self._turn(100 * MS)
            return
        subject = batches.subject_of(SITE, world.host.name, 0)
        try:
            for sequence, message in world.broker.messages:
                if sequence >= self._until:
                    self._intake.take(message, subject, SITE)
                    self._until = sequence + 1
                    self._intake.again = self._intake.again and self._until <= self._last
        except BatchesMissingError:
            self._again = True
            if lake.epoch == self._epoch:
                lake.next = 1
            self._turn(100 * MS)
            return
        self._after(world.faults.uniform(0.2, 1) * COMMIT_NS, self._commit)

    def _commit(self) -> None:
        world, lake = self._world, self._world.lake
        if self._intake.parts:
            parts = [part if isinstance(part, Break) else list(part) for part in self._intake.taken()]
            if not lake.commit(self._epoch, self._from, self._until, parts):
                self._turn(100 * MS)
                return
            self._from = self._until
            if not world.healed and world.faults.random() < 0.05:
                self._turn(100 * MS)  # the answer of the commit was lost
                return
        if lake.epoch == self._epoch:
            lake.until_ns = world.now_ns + TTL_NS
        self._read()

    def _turn(self, wait_ns: float) -> None:
        self._after(wait_ns, self._begin)


class BrokeredWorld(TroubledWorld):
    """The troubled world, with a relay, a broker and two archivers beside its analyzer."""

    def __init__(self, seed: int, path: Path) -> None:
        super().__init__(seed, path)
        self.faults = Random(-seed - 1)
        self.broker = Broker(self, self.faults)
        self.lake = Lake()
        self._relay = PlayedRelay(self)
        self.archivers = [PlayedArchiver(self, number) for number in (1, 2)]
        self.happened: list[str] = []

    @property
    def healed(self) -> bool:
        return self.broker.healed

    def _start_collector(self) -> None:
        super()._start_collector()
        if self._relay.collector is not self.collector:
            self._relay = PlayedRelay(self)

    def _plan_trouble(self) -> None:
        super()._plan_trouble()
        for _ in range(self.faults.randrange(4, 14)):
            at_ns = self.now_ns + round(self.faults.uniform(0.2, TROUBLE_NS / S - 1) * S)
            self.at(at_ns, self._break_something)

    def _break_something(self) -> None:
        archiver = self.faults.choice(self.archivers)
        kept = len(self.broker.messages)
        match self.faults.choice(("kill", "stop", "restart", "lose the end", "lose everything")):
            case "kill":
                archiver.kill()
            case "stop":
                archiver.stop()
            case "restart" if self.broker.up:
                self.broker.restart(kept)
            case "lose the end" if self.broker.up:
                self.broker.restart(max(0, kept - self.faults.randrange(1, 6)))
            case "lose everything" if self.broker.up:
                self.broker.restart(0)
            case _:
                return
        self.happened.append("fault")

    def _heal(self) -> None:
        super()._heal()
        self.broker.healed = True

    def _compare(self) -> None:
        logged = self.collector.log.extent
        self._until(self.now_ns + 6 * S)
        super()._compare()
        stored = self.lake.archive
        assert stored.logs.get(logged.log_id, 0) >= logged.next_offset, "the lake is behind"
        assert self.logs_lost or not stored.breaks, "a gap in the lake, though the log has all of it"
        by_log: dict[str, list[Frame]] = {}
        for frame, _ in stored.frames:
            by_log.setdefault(frame.log_id, []).append(frame)
        for log_id, frames in by_log.items():
            offsets = [frame.offset for frame in frames]
            gone = {
                gap.first_offset + n
                for gap in stored.breaks
                if gap.log_id == log_id
                for n in range(gap.count)
            }
            assert offsets == sorted(set(offsets)), "a frame is in the lake twice"
            assert set(offsets) == set(range(offsets[-1] + 1)) - gone, "a hole without a gap"
            theirs = {frame.offset: frame for frame, _ in self.archive.frames if frame.log_id == log_id}
            assert all(theirs.get(frame.offset, frame) == frame for frame in frames), "another frame"


@dataclass(frozen=True)
class Played:
    """The counts of a world with a broker."""

    report: Report
    faults: int
    commits: int
    refused: int
    lost: int
    repeated: int


def run(seed: int) -> Played:
    """Run the world of one seed. Raises AssertionError."""
    with tempfile.TemporaryDirectory() as made:
        world = BrokeredWorld(seed, Path(made) / "log.sqlite")
        report = world.run()
        broker, lake = world.broker, world.lake
        return Played(report, len(world.happened), lake.commits, lake.refused, broker.lost, broker.repeated)
