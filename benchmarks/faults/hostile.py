"""Sends what nobody should send to every socket of live processes, and looks at their memory.

Of a pool of seeded messages, malformed, cut, bent, oversized or well-formed and absurd, in random order.
Memory is resident memory that is no file's. It is looked at after a tenth of the messages, when queues and
caches have been filled, and at the end, each time after REST_S without a message; the most is of all the time
until then, since the process began. Connections without a byte come from processes of another user that
were there before the collector.
"""

import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from random import Random
from typing import TypeAlias

from benchmarks import harness
from benchmarks.harness import Found, Rows
from tests import hostile
from tests.environment import PATIENCE_S
from tests.processes.connection_flood import ATTACKERS, described, flood, stand_by_apart
from tests.processes.under_fire import Impostor, Sender, Victim, analyzer, collector, train

POOL = 3_000
HEAVY_BYTES = 50_000
"""Larger messages, and those of many parts, are one in a hundred."""
REST_S = 8.0
Figures: TypeAlias = tuple[object, ...]
SHARES = {"publish": 0.5, "control": 0.25, "feed, replies": 0.2, "query": 0.05}


class Fired:
    """The messages that one process got over one socket, and its figures."""

    def __init__(self, socket: str, of: str, victim: Victim) -> None:
        self.socket, self.of, self.victim = socket, of, victim
        self.warm_mb = 0
        self.figure = ""
        self._began_s = time.monotonic()

    def rest(self) -> None:
        """Look at the memory once queues and caches are full."""
        time.sleep(REST_S)
        self.warm_mb = self.victim.memory_mb

    def end(self, sent: int, refused: str | None) -> None:
        """Note what was sent and refused, and the memory after all."""
        a_second = sent / (time.monotonic() - self._began_s)
        time.sleep(REST_S)
        self.figure = (
            f"{sent}, {a_second:.0f}/s ({refused} refused and counted); {self.of}: {self.warm_mb} MB after a"
            f" tenth, {self.victim.memory_mb} MB after all, {self.victim.most_mb} MB at most"
        )


def shuffled(rng: Random, make: Callable[[Random], list[bytes]], count: int) -> Iterator[list[bytes]]:
    """Yield so many messages of a pool."""
    light: list[list[bytes]] = []
    heavy: list[list[bytes]] = []
    for _ in range(POOL):
        message = make(rng)
        of = heavy if len(message) > 10 or sum(map(len, message)) > HEAVY_BYTES else light
        of.append(message)
    for number in range(count):
        yield rng.choice(heavy if number % 100 == 0 else light)


def fire_at_servers(rng: Random, counts: dict[str, int]) -> Iterator[Fired]:
    with harness.directory() as where, collector(where) as collects, analyzer(where) as analyzes:
        train(where, "before", 20)
        for name, make in hostile.SENT.items():
            of, victim = ("analyzer", analyzes) if name == "query" else ("collector", collects)
            sender = Sender(where / name)
            fired = Fired(name, of, victim)
            for number, message in enumerate(shuffled(rng, make, counts[name])):
                if number == counts[name] // 10:
                    fired.rest()
                sender.send(message)
            sender.close()
            refused = ("counters", "malformed requests") if name == "query" else (name, "messages refused")
            fired.end(sender.sent, victim.rows(of).get(refused))
            yield fired
        after = train(where, "after", 20)
        print(f"\nA training afterwards: exit code {after.returncode}, {after.stderr or 'no complaint'}.")


def fire_at_clients(rng: Random, count: int) -> Fired:
    with harness.directory() as where, ExitStack() as ends:
        impostor = Impostor(where, rng.randrange(2**32))
        ends.callback(impostor.close)
        fired = Fired("feed, replies", "analyzer", ends.enter_context(analyzer(where)))
        while impostor.sent < count:
            impostor.turn()
            if not fired.warm_mb and impostor.sent > count / 10:
                fired.rest()
        counted = sum(
            int(value)
            for (_, name), value in fired.victim.rows("analyzer").items()
            if value.isdigit() and any(word in name for word in ("malformed", "understood", "put off"))
        )
        fired.end(impostor.sent, str(counted))
        return fired


def messages(count: int, rng: Random) -> Found:
    """Send so many messages over all sockets."""
    counts = {name: round(share * count) for name, share in SHARES.items()}
    rows, wrong = Rows(), list[str]()
    for fired in (*fire_at_servers(rng, counts), fire_at_clients(rng, counts["feed, replies"])):
        rows.append((f"on {fired.socket}", fired.figure))
    return rows, wrong


def connections(files: int, seconds: float) -> Found:
    """Connect to a collector that may open so many files, for a time, beside a bystander."""
    if files > resource.getrlimit(resource.RLIMIT_NOFILE)[1]:
        return [(f"{files} files", "not allowed here")], []
    with harness.directory() as where:
        where.chmod(0o755)
        with flood(where / "publish", where / "position"), collector(where, files=files) as running:
            known_ms, new_ms = stand_by_apart(where / "publish", seconds, PATIENCE_S)
            lives = running.alive
            refused = running.rows("collector")["sockets", "connections refused or closed for others"]
    rows = [
        (f"{files} files, {ATTACKERS} processes, {seconds:g} s: refused", refused),
        (f"{files} files: acknowledged", described(known_ms)),
        (f"{files} files: over a new connection", described(new_ms)),
    ]
    return rows, [] if lives else [f"a collector of {files} files has died."]


def floods(files: Sequence[int], seconds: float) -> Found:
    """Flood a collector for each number of files."""
    found = [connections(each, seconds) for each in files]
    return [row for rows, _ in found for row in rows], [each for _, wrong in found for each in wrong]
