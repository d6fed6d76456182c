"""The holders of the parts and shards of a site, and how far behind each is."""

import anyio

from analyzers.leases.site_leases import ROWS, SHARD, SiteLeases
from zeus_stream.broker.jetstream import ends_of_parts
from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.errors import UnreachableError

Line = dict[str, str | int | float | None]


def site_status(site: SiteSettings) -> tuple[list[Line], str]:
    """Return a line for each part and shard of a site, and why the broker named does not answer.

    ``batches_behind`` are known only if it does. Raises StorageError, SettingsError: the database does not
    answer, or a server cannot be asked.
    """
    if site.broker is not None:
        site.connection("status")
    leases = SiteLeases(site.dsn("status"), site.site, "status")
    try:
        states, waiting = leases.states(), leases.outbox_batches()
    finally:
        leases.close()
    ends: dict[str, int] = {}
    trouble = ""
    try:
        ends = {} if site.broker is None else anyio.run(ends_of_parts, site)
    except UnreachableError as wrong:
        trouble = str(wrong)
    lines: list[Line] = []
    for state in states:
        of_shard = state.name.startswith(SHARD)
        behind = ends[state.name] - state.next + 1 if state.name in ends else None
        lines.append(
            {
                "name": state.name,
                "holder": state.holder,
                "epoch": state.epoch,
                "silent_s": round(state.silent_s, 1),
                "next": None if of_shard else state.next,
                "batches_behind": waiting if state.name == ROWS else behind,
                "behind_s": state.behind_s if of_shard and state.left_s > 0 else None,
            }
        )
    return lines, trouble
