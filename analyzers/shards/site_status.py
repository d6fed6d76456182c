"""The holders of the parts and shards of a site, and how far behind each is."""

from collections.abc import Mapping

import anyio

from analyzers.leases.site_leases import ROWS, SHARD, LeaseState, SiteLeases
from zeus_stream.broker.address import BrokerAddress
from zeus_stream.settings import Settings

Line = dict[str, str | int | float | None]


def site_status(settings: Settings, lake: str | None) -> list[Line]:
    """Return a line for each part of the lake and each shard of the site.

    Args:
        settings: the lease database, and the broker, if there are any.
        lake: PostgreSQL of the lake; None: there is none.

    Raises:
        StorageError, UnreachableError, SettingsError: a server does not answer, or cannot be asked.
    """
    lines = [] if lake is None else parts_status(settings, lake)
    return lines if settings.lease_database is None else lines + _shards(settings, settings.lease_database)


def parts_status(settings: Settings, lake: str) -> list[Line]:
    """Return a line for each part of the lake. Raises as `site_status`."""
    ends: dict[str, int] = {}
    if settings.broker is not None:
        from zeus_stream.broker.jetstream import ends_of_parts  # noqa: PLC0415  (only where a broker is named)

        ends = anyio.run(ends_of_parts, BrokerAddress.of(settings, "status"))
    leases = SiteLeases(lake, settings.site, "status")
    try:
        waiting = leases.outbox_batches()
        return [
            {
                **_holder(state),
                "next": state.next,
                "batches_behind": _behind(state, ends, waiting),
                "behind_s": None,
            }
            for state in leases.states()
            if not state.name.startswith(SHARD)
        ]
    finally:
        leases.close()


def _shards(settings: Settings, database: str) -> list[Line]:
    leases = SiteLeases(database, settings.site, "status")
    try:
        return [
            {
                **_holder(state),
                "next": None,
                "batches_behind": None,
                "behind_s": state.behind_s if state.left_s > 0 else None,
            }
            for state in leases.states()
            if state.name.startswith(SHARD)
        ]
    finally:
        leases.close()


def _holder(state: LeaseState) -> Line:
    return {
        "name": state.name,
        "holder": state.holder,
        "epoch": state.epoch,
        "silent_s": round(state.silent_s, 1),
    }


def _behind(state: LeaseState, ends: Mapping[str, int], waiting: int) -> int | None:
    """Return the number of batches that a part is behind; None: it is not known.

    Args:
        state: of the part.
        ends: by part, the sequence number of the last batch in its stream.
        waiting: batches of rows in the outbox.
    """
    if state.name == ROWS:
        return waiting
    return ends[state.name] - state.next + 1 if state.name in ends else None
