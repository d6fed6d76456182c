"""The status of the analyzer, as rows of section, name and value."""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import Struct

from analyzers.dispatch.collector_link import Link
from analyzers.measurement.sensors import Gain
from analyzers.measurement.timeline import AGREES
from zeus_stream.protocol.frames import Frame

Rows = list[tuple[str, str, str]]
FORGOTTEN_SHOWN = 20
"""Jobs in the status whose profiles were forgotten last."""
MAX_SECTION = 2_000


class Insight(Struct, frozen=True):
    """The interpreter's knowledge of GPUs and jobs, a short time ago."""

    cross_checks: Mapping[str, float]
    """By GPU: the energy of its counter over that of its power readings."""
    gains: Mapping[str, Gain]
    """By GPU: its calibration."""
    forgotten_wall_ns: Mapping[str, int]
    """By job: profiles measured until then are not used (UTC, ns)."""


def insight_rows(insight: Insight) -> Rows:
    rows = []
    for gpu, ratio in insight.cross_checks.items():
        says = "agrees" if AGREES[0] <= ratio <= AGREES[1] else "DOUBTFUL: its joules cannot be believed"
        rows.append((f"gpu {gpu}"[:MAX_SECTION], "counter over power", f"{ratio:.2f}, {says}"))
    for gpu, gain in insight.gains.items():
        rows.append((f"gpu {gpu}"[:MAX_SECTION], "calibration", f"{gain.words}, from {gain.source}"))
    forgotten = sorted(insight.forgotten_wall_ns.items(), key=lambda item: -item[1])[:FORGOTTEN_SHOWN]
    for job, wall_ns in forgotten:
        until = f"{datetime.fromtimestamp(wall_ns // 10**9, UTC):%F %T} UTC"
        rows.append(("profiles", "forgotten", f"{job}, up to {until}"))
    return rows


def collector_rows(
    name: str, link: Link, hosts: Mapping[str, tuple[Frame, int]], counters: Counter[str]
) -> Rows:
    """Return the rows about one collector; ``hosts``: last frame interpreted, and commands that wait."""
    section = f"collector {name}"[:MAX_SECTION]
    rows = [
        (section, "connected", "yes" if link.connected else "no"),
        (section, "trouble", link.trouble or "none"),
        (section, "lease", f"{link.lease_ms} ms"),
    ]
    for host, (last, waiting) in hosts.items():
        behind = link.behind(last)
        rows += [
            (section, "host", host),
            (section, "last frame", f"{last.offset} of log {last.log_id}"),
            (section, "behind", "not known" if behind is None else f"{behind} frames"),
            (section, "commands waiting", str(waiting)),
        ]
    return [
        *rows,
        (section, "commands dropped", str(link.dropped)),
        (section, "messages not understood", str(link.malformed)),
        *((section, counter, str(count)) for counter, count in sorted(counters.items())),
    ]
