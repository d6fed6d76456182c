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
from tests.processes.connection_flood import ATTACKERS, described, flood, stand_by_apart
from tests.processes.under_fire import PATIENCE_S, Impostor, Sender, Victim, analyzer, collector, train

POOL = 3_000
HEAVY_BYTES = 50_000
"""Larger messages, and those of many parts, are one in a hundred."""
REST_S = 8.0
Figures: TypeAlias = tuple[object, ...]
SHARES = {"publish": 0.5, "control": 0.25, "feed, replies": 0.2, "query": 0.05}


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


def fire_at_servers(rng: Random, counts: dict[str, int]) -> Iterator[Figures]:
    with harness.directory() as where, collector(where) as collects, analyzer(where) as analyzes:
        victims = {"collector": collects, "analyzer": analyzes}
        train(where, "before", 20)
        for name, make in hostile.SENT.items():
            warm = {}
            sender = Sender(where / name)
            begin = time.monotonic()
            for number, message in enumerate(shuffled(rng, make, counts[name])):
                if number == counts[name] // 10:
                    time.sleep(REST_S)
                    warm = {of: victim.memory_mb for of, victim in victims.items()}
                sender.send(message)
            seconds = time.monotonic() - begin
            sender.close()
            of = "analyzer" if name == "query" else "collector"
            rows = victims[of].rows(of)
            refused = {
                "publish": rows.get(("publish", "messages refused")),
                "control": rows.get(("control", "messages refused")),
                "query": rows.get(("counters", "malformed requests")),
            }[name]
            yield figures(name, sender.sent, seconds, refused, of, victims[of], warm[of])
        after = train(where, "after", 20)
        complaint = after.stderr.strip() or "no complaint"
        print(f"\nA training afterwards: exit code {after.returncode}, {complaint}.")


def fire_at_clients(rng: Random, count: int) -> Figures:
    with harness.directory() as where, ExitStack() as ends:
        impostor = Impostor(where, rng.randrange(2**32))
        ends.callback(impostor.close)
        analyzes = ends.enter_context(analyzer(where))
        warm = 0
        begin = time.monotonic()
        while impostor.sent < count:
            impostor.turn()
            if not warm and impostor.sent > count / 10:
                time.sleep(REST_S)
                warm = analyzes.memory_mb
        seconds = time.monotonic() - begin
        rows = analyzes.rows("analyzer")
        counted = sum(
            int(value)
            for (_, name), value in rows.items()
            if value.isdigit() and any(word in name for word in ("malformed", "understood", "put off"))
        )
        return figures("feed, replies", impostor.sent, seconds, str(counted), "analyzer", analyzes, warm)


def figures(
    name: str, sent: int, seconds: float, refused: str | None, of: str, victim: Victim, warm_mb: int
) -> Figures:
    crashes = 0 if victim.alive else 1
    time.sleep(REST_S)
    memory_mb = warm_mb, victim.memory_mb, victim.most_mb
    return name, sent, f"{sent / seconds:.0f}", refused, crashes, of, *memory_mb


def messages(count: int, rng: Random) -> Found:
    """Send so many messages over all sockets."""
    counts = {name: round(share * count) for name, share in SHARES.items()}
    rows, crashes = Rows(), 0
    for fired in (*fire_at_servers(rng, counts), fire_at_clients(rng, counts["feed, replies"])):
        socket, sent, a_second, refused, crashed, process, warm_mb, after_mb, most_mb = fired
        crashes += int(str(crashed))
        memory = f"{process}: {warm_mb} MB after a tenth, {after_mb} MB after all, {most_mb} MB at most"
        rows.append((f"on {socket}", f"{sent}, {a_second}/s ({refused} refused and counted); {memory}"))
    return [*rows, ("crashes", str(crashes))], [f"{crashes} processes crashed."] if crashes else []


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
