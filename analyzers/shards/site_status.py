"""The holders of the parts and shards of a site, and how far behind each is."""

from collections.abc import Mapping

import anyio

from analyzers.lake.holders import ROWS, Holders, Part
from analyzers.shards.shard_leases import ShardLeases
from zeus_stream.settings import Settings

Line = dict[str, str | int | float | None]


def site_status(settings: Settings, lake: str | None) -> list[Line]:
    """Return a line for each part of the lake and each shard of the site.

    Args:
        settings: the lease database, and the broker, if there are any.
        lake: PostgreSQL of the lake; None: there is none.

    Raises:
        StorageError, UnreachableError: a server does not answer.
    """
    lines = [] if lake is None else _parts(settings, lake)
    return lines if settings.lease_database is None else lines + _shards(settings, settings.lease_database)


def behind(part: Part, ends: Mapping[str, int], waiting: int) -> int | None:
    """Return the number of batches that a part is behind; None: it is not known.

    Args:
        part: of the lake.
        ends: by part, the sequence number of the last batch in its stream.
        waiting: batches of rows in the outbox.
    """
    if part.name == ROWS:
        return waiting
    return ends[part.name] - part.next + 1 if part.name in ends else None


def _parts(settings: Settings, lake: str) -> list[Line]:
    ends: dict[str, int] = {}
    if settings.broker is not None:
        from zeus_stream.broker.jetstream import ends_of_parts  # noqa: PLC0415  (only where a broker is named)

        ends = anyio.run(ends_of_parts, settings.broker, settings.site)
    holders = Holders(lake)
    try:
        waiting = holders.outbox_batches()
        return [
            {
                "name": part.name,
                "holder": part.holder,
                "epoch": part.epoch,
                "silent_s": round(part.silent_s, 1),
                "batches_behind": behind(part, ends, waiting),
                "behind_s": None,
            }
            for part in holders.parts()
        ]
    finally:
        holders.close()


def _shards(settings: Settings, database: str) -> list[Line]:
    leases = ShardLeases(database, settings.site, "status", 3.0)
    try:
        return [
            {
                "name": f"shard-{shard.shard}",
                "holder": shard.holder if shard.left_s > 0 else "none",
                "epoch": shard.epoch,
                "silent_s": round(max(3.0 - shard.left_s, 0.0), 1),
                "batches_behind": None,
                "behind_s": shard.behind_s if shard.left_s > 0 else None,
            }
            for shard in leases.shards()
        ]
    finally:
        leases.close()
