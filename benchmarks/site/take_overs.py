"""Measure how long nobody decides on a shard after its analyzer was killed.

    PYTHONPATH=. .venv-scale/bin/python -m benchmarks.site.take_overs [--minutes 5]

Two analyzers share two shards; one after the other gets SIGKILL, and is started again when the other has its
shard. `benchmarks.site.faults` measures the same under other faults, with trainings.
"""

import os
from contextlib import ExitStack

import numpy as np

from benchmarks.harness import options, table
from benchmarks.site.fault_site import TakeOvers
from tests.scale.servers import nats, postgres
from tests.scale.test_shards import SHARDS, ShardedSite
from tests.waiting import until
from zeus_stream.clock import monotonic_ns

PATIENCE_S = 300.0


def main() -> None:
    end_ns = monotonic_ns() + round(60e9 * options(__doc__, minutes=5.0).minutes)
    with ExitStack() as running:
        dsn = running.enter_context(postgres()).make("site")
        site = ShardedSite(dsn, running.enter_context(nats()), running)
        take_overs = TakeOvers(dsn)
        running.callback(take_overs.close)

        def each_has_one() -> bool:
            return len({state.holder for state in site.leases.states() if state.left_s > 0}) == SHARDS

        names, killed = ("a", "b"), 0
        for name in names:
            site.analyze(name, SHARDS)
        until(each_has_one, PATIENCE_S)
        while monotonic_ns() < end_ns:
            victim, before = names[killed % 2], len(take_overs.took_s)
            killed += 1
            take_overs.lost(site.running[victim].pid)
            site.kill(victim)
            until(lambda before=before: len(take_overs.took_s) > before, PATIENCE_S)  # type: ignore[misc]
            site.analyze(victim, SHARDS)
            until(each_has_one, PATIENCE_S)
        took_s = ", ".join(f"{each:.1f}" for each in np.quantile(take_overs.took_s, (0.5, 0.99, 1.0)))
    rows = [(killed, took_s, "3, 10, -", f"{os.getloadavg()[0]:.0f}")]
    table(
        "From SIGKILL of an analyzer to the next epoch of its shard",
        "kills | p50, p99, longest, s | goal, s | load",
        rows,
    )


if __name__ == "__main__":
    main()
