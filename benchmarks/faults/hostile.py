"""Sends what nobody should send to every socket of live processes, and looks at their memory.

    python -m benchmarks.faults.hostile [--messages 200000] [--seed 0]

Of a pool of seeded messages, malformed, cut, bent, oversized or well-formed and absurd, in random order.
Memory is resident memory that is no file's. It is looked at after a tenth of the messages, when queues and
caches have been filled, and at the end, each time after REST_S without a message; the most is of all the time
until then, since the process began.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random
from typing import TypeAlias

from benchmarks import harness
from tests import hostile
from tests.processes.under_fire import Impostor, Sender, Victim, analyzer, collector, train

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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts = {name: round(share * arguments.messages) for name, share in SHARES.items()}
    rng = Random(arguments.seed)
    rows = [*fire_at_servers(rng, counts), fire_at_clients(rng, counts["feed, replies"])]
    head = (
        "socket",
        "messages",
        "a second",
        "refused and counted",
        "crashes",
        "process",
        "MB at 10 %",
        "MB after",
        "MB at most",
    )
    harness.table("Hostile messages", head, rows)
    sys.exit(any(row[4] for row in rows))


if __name__ == "__main__":
    main()
