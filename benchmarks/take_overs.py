"""Time of a take-over: from the end of the analyzer that decides to the command of the one that follows.

    PYTHONPATH=. .venv-scale/bin/python -m benchmarks.take_overs --times 3

A host with one simulated GPU and a training that is searched for a limit, two analyzers that share the
site, PostgreSQL and NATS. The analyzer of the training's shard is killed, stopped cleanly (SIGTERM), or
suspended (SIGSTOP). The clock ends when the collector knows the next epoch: it obeys nobody else from then.
A new analyzer is there and idle before the next time.
"""

import argparse
import signal
import statistics
import time
from contextlib import ExitStack

import psycopg

from benchmarks.common import table
from tests.scale.servers import nats, postgres
from tests.scale.test_shards import SITE, Site, wait_for

WAYS = {"kill": signal.SIGKILL, "clean stop": signal.SIGTERM, "suspended": signal.SIGSTOP}
GOAL_S = 4
READY_S = 8.0
"""An analyzer has its share and a spare file by then."""


def alive(dsn: str) -> int:
    """Return the number of analyzers that share the site."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT count(*) FROM zs.analyzers WHERE site = %s AND until >= now()", (SITE,)
        ).fetchone()
    return int(row[0]) if row else 0


def take_over(site: Site, dsn: str, way: str, name: str) -> float:
    """End the analyzer that decides; return the seconds until another does."""
    wait_for(lambda: alive(dsn) == 2, "two analyzers")
    time.sleep(READY_S)
    before = wait_for_holder(site)
    process = site.running[before[0]]
    process.send_signal(WAYS[way])
    took_s = wait_for(lambda: site.epoch_known() > before[1], "the other takes over")
    process.kill()
    process.wait()
    site.analyze(name)
    return took_s


def wait_for_holder(site: Site) -> tuple[str, int]:
    """Return the analyzer that decides on the job, and its epoch."""
    wait_for(site.holder, "the shard is held")
    holder = site.holder()
    return wait_for_holder(site) if holder is None else holder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    rows: list[tuple[object, ...]] = []
    with ExitStack() as running:
        dsn = running.enter_context(postgres()).make("leases")
        site = Site(dsn, running.enter_context(nats()), running)
        site.collect()
        for name in ("first", "second"):
            site.analyze(name)
        wait_for(site.holder, "shards are held")
        site.train()
        wait_for(site.applied, "the search has begun")
        for way in WAYS:
            took = [take_over(site, dsn, way, f"{way}-{number}") for number in range(given.times)]
            rows.append(
                (way, f"{statistics.median(took):.1f}", f"{min(took):.1f}", f"{max(took):.1f}", GOAL_S)
            )
    table("Take-over, in seconds", ("way", "median", "least", "most", "goal"), rows)


if __name__ == "__main__":
    main()
