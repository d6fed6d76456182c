"""Connections without a byte to a collector, by eight processes of another user that were there before it.

python -m benchmarks.faults.connection_flood [--seconds 60] [--files 1024 4096 65536] [--attackers 8]
"""

import argparse
import resource
import sys

from benchmarks import harness
from tests.processes.connection_flood import ATTACKERS, flood, quantile, stand_by_apart
from tests.processes.under_fire import PATIENCE_S, collector


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--files", type=int, nargs="+", default=[1_024, 4_096, 65_536])
    parser.add_argument("--attackers", type=int, default=ATTACKERS)
    given = parser.parse_args()
    rows, died = [], False
    for files in given.files:
        if files > resource.getrlimit(resource.RLIMIT_NOFILE)[1]:
            rows.append((files, "not allowed here", *["-"] * 6))
            continue
        with harness.directory() as where:
            where.chmod(0o755)
            attacked = [where / name for name in ("publish", "position")]
            with flood(*attacked, attackers=given.attackers), collector(where, files=files) as running:
                known_ms, new_ms = stand_by_apart(where / "publish", given.seconds, PATIENCE_S)
                lives = running.alive
                refused = running.rows("collector")["sockets", "connections refused or closed for others"]
            died |= not lives
            shares = [f"{quantile(known_ms, share):.1f}" for share in (0.5, 0.99)]
            new = [f"{quantile(new_ms, share):.0f}" for share in (0.5, 0.99)]
            rows.append((files, "lives" if lives else "died", refused, *shares, f"{max(known_ms):.0f}", *new))
    head = (
        "files", "collector", "refused", "acknowledged: p50 ms", "p99", "most",
        "over a new connection: p50 ms", "p99",
    )  # fmt: skip
    harness.table(
        f"Connections without a byte by {given.attackers} processes, {given.seconds:g} s", head, rows
    )
    sys.exit(died)


if __name__ == "__main__":
    main()
