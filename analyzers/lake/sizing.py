"""The size of a site, from unit costs that were measured. Pure.

Each unit cost names the command that measured it. Cores are of the machine that it was measured on: two cores
of a shared server. Every service is planned at half load, for the rest is needed to catch up.
"""

from math import ceil

from msgspec import Struct

from zeus_stream.broker.batches import PARTS

READINGS_PER_CORE_S = 250_000
"""Of an archiver: half of the figure of `python -m benchmarks.site.lake`, which leaves out the client of the
broker.
"""
INTERPRETED_PER_CORE_S = 150_000
"""Readings of an analyzer: `python -m benchmarks.load`, half of what two cores interpret."""
MESSAGES_PER_CORE_S = 9_500
"""Of a broker with three replicas: a prototype on two cores."""
IDLE_HOSTS_PER_CORE = 100_000
"""Hosts without a run that an analyzer watches: measured once, 1.05 % for 1,000 (commit a3a9c532)."""
MESSAGES_PER_HOST_S = 2
"""Of a relay: it waits half a second for more frames."""
BROKER_BYTES = 22.0
"""Of a reading in the broker: `python -m benchmarks.site.lake`."""
LAKE_BYTES = 14.2
"""Of a reading in merged files: `python -m benchmarks.site.lake --hosts 4 --seconds 1200`."""
SECOND_BYTES, MINUTE_BYTES = 15.0, 15.9
"""Of a row of `seconds` and of `minutes`: a prototype on 10 million readings."""
ARCHIVER_CONNECTIONS, ANALYZER_CONNECTIONS = 6, 9
"""To PostgreSQL, at most: an analyzer has two, and one for each of its shards, 7 here."""
PLANNED_LOAD = 0.5
PURGE_H = 1 / 6
"""Archived frames stay in the broker for 10 minutes."""
DAY_S = 86_400


class SiteSize(Struct, frozen=True, kw_only=True):
    """A site to be planned."""

    hosts: int
    gpus: int
    """Of each host."""
    readings: float = 10.0
    """A second and GPU: as often as the energy counter changes."""
    running: float = 0.5
    """Share of GPUs that have a run."""
    outage_h: float = 24.0
    """Time without an archiver that the broker is to outlast."""
    replicas: int = 3
    """Copies of each message in the broker."""


def rows(site: SiteSize, days: tuple[float, float, float] = (7, 14, 400)) -> list[tuple[str, float, str]]:
    """Return name, figure, unit of what a site takes; ``days``: of readings, seconds and minutes."""
    gpus = site.hosts * site.gpus
    readings_s = gpus * site.readings
    messages_s = site.hosts * MESSAGES_PER_HOST_S
    interpreting = readings_s * site.running / INTERPRETED_PER_CORE_S
    archivers = _processes(readings_s / READINGS_PER_CORE_S)
    analyzers = _processes(interpreting + site.hosts / IDLE_HOSTS_PER_CORE)
    kept_bytes = (
        readings_s * LAKE_BYTES * days[0] + gpus * SECOND_BYTES * days[1] + gpus / 60 * MINUTE_BYTES * days[2]
    ) * DAY_S
    outage_bytes = readings_s * BROKER_BYTES * (site.outage_h + PURGE_H) * 3600
    return [
        ("GPUs", gpus, ""),
        ("readings", readings_s, "a second"),
        ("messages at the broker", messages_s, "a second"),
        ("into the broker", readings_s * BROKER_BYTES / 1e6, "MB a second"),
        ("broker, all servers", _cores(messages_s * site.replicas / MESSAGES_PER_CORE_S), "cores"),
        ("broker, all servers", outage_bytes * site.replicas / 1e9, "GB of disk"),
        ("broker_mb to set", ceil(outage_bytes / PARTS / 2**20), "MB"),
        ("archivers, of two cores each", archivers, "processes"),
        ("analyzers, of two cores each", analyzers, "processes"),
        (
            "PostgreSQL",
            archivers * ARCHIVER_CONNECTIONS + analyzers * ANALYZER_CONNECTIONS,
            "connections",
        ),
        ("lake at the ages that are set", kept_bytes / 1e9, "GB"),
    ]


def _processes(busy: float) -> int:
    """Return the processes of two cores for work that keeps so many cores busy: two at least."""
    return max(2, ceil(_cores(busy) / 2))


def _cores(busy: float) -> int:
    """Return the cores to plan for work that keeps so many busy; one of two machines may be away."""
    return max(2, ceil(busy / PLANNED_LOAD))
