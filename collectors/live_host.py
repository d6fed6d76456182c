"""The live state of one host, for screens and exporters that ask its collector. Pure."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from collectors.ingest.sessions import PublisherSession
from zeus_stream.live.latest import Latest
from zeus_stream.protocol.snapshots import HostNow, RunNow, Snapshot


def host_snapshot(
    latest: Latest,
    sessions: Sequence[PublisherSession],
    name: str,
    now_ns: int,
    *,
    version: str,
    wall_ns: int,
    trouble: str,
    counters: Sequence[tuple[str, int]],
    leased_mw: Mapping[str, int],
    host: str | None,
) -> Snapshot:
    """Return the state of a host.

    ``now_ns``: CLOCK_MONOTONIC. ``leased_mw``: limits that leases hold, by GPU. ``host``: its rows
    alone; None: those of this one.
    """
    here = HostNow(host=name, state="connected", trouble=trouble)
    base = Snapshot(
        process="collector",
        version=version,
        wall_ns=wall_ns,
        hosts=(here,),
        counters=(*counters, *latest.counts()),
    )
    snapshot = latest.snapshot(base, _runs(sessions, name), now_ns, host=host)
    pods = {gpu: session.pod for session in sessions if not session.over for gpu in session.gpus}
    gpus = tuple(
        replace(each, pod=pods.get(each.gpu), leased_mw=leased_mw.get(each.gpu)) for each in snapshot.gpus
    )
    return replace(snapshot, gpus=gpus)


def _runs(sessions: Sequence[PublisherSession], host: str) -> list[RunNow]:
    """Return the open runs of a host. Where they are in their loop, the collector does not look at."""
    ranks: dict[str, list[PublisherSession]] = {}
    for session in sessions:
        if not session.over and session.run:
            ranks.setdefault(session.run, []).append(session)
    return [
        RunNow(
            run=run,
            job=of_run[0].job or run,
            ranks=len(of_run),
            hosts=(host,),
            gpus=tuple(dict.fromkeys(gpu for session in of_run for gpu in session.gpus))[:256],
            pods=tuple(dict.fromkeys(session.pod for session in of_run if session.pod))[:256],
        )
        for run, of_run in ranks.items()
    ]
