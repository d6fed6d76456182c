"""The live state of the site: frames and rows in, a `Snapshot` out. Pure."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from msgspec.structs import replace

from analyzers.live.live_runs import LiveRuns
from analyzers.results.result import NOTHING, Result, rows_only
from analyzers.results.rows import GapRow
from zeus_stream.live.latest import Latest
from zeus_stream.package_version import VERSION
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import Lost, Notes
from zeus_stream.protocol.readings import Readings
from zeus_stream.protocol.snapshots import MAX_JOB_ROWS, HostNow, SearchNow, Snapshot


class LiveLink(Protocol):
    """The connection to one collector."""

    @property
    def connected(self) -> bool: ...
    @property
    def trouble(self) -> str | None: ...


def site_head(
    links: Mapping[str, LiveLink],
    archive_id: str | None,
    wall_ns: int,
    behind_ns: int,
    counters: Mapping[str, int],
) -> Snapshot:
    """Return an analyzer's own figures and its hosts'. ``behind_ns``: age of the oldest frame that waits."""
    hosts = tuple(
        HostNow(
            host=name,
            state="connected" if link.connected else "silent",
            trouble=link.trouble or "",
        )
        for name, link in sorted(links.items())
    )
    return Snapshot(
        process="analyzer",
        version=VERSION,
        wall_ns=wall_ns,
        hosts=hosts,
        archive_id=archive_id,
        lag_ms=behind_ns // 1_000_000,
        counters=tuple(sorted(counters.items())),
    )


class LiveSite:
    """The state of GPUs and runs, as the interpreted stream tells it."""

    NOT_STATE: ClassVar = frozenset[str]()
    """See `analyzers.checkpoints.machine_state`."""

    def __init__(self) -> None:
        self._latest = Latest()
        self._runs = LiveRuns(self._energy_mj)

    def _energy_mj(self, gpu: str) -> int | None:
        device = self._latest.devices.get(gpu)
        return None if device is None or device.last_mj is None else device.energy_mj

    def follow(
        self, frames: Sequence[tuple[Frame, Body]], rows: Sequence[object], now_ns: int, *, live: bool
    ) -> Result:
        """Take in frames as `take` does. Return a gap if that fails: no frame ends the process."""
        try:
            self.take(frames, rows, now_ns, live=live)
        except Exception as wrong:  # noqa: BLE001  (as in `Attempts`: it becomes a row in ``gaps``)
            frame, _ = frames[-1]
            where = f"log {frame.log_id}, until offset {frame.offset}"
            reason = f"{where}: the live state could not follow: {repr(wrong)[:500]}. Report it."
            return rows_only([GapRow(frame.host, "live state", frame.t_ns, len(frames), reason)])
        return NOTHING

    def take(
        self, frames: Sequence[tuple[Frame, Body]], rows: Sequence[object], now_ns: int, *, live: bool
    ) -> None:
        """Take in frames and their rows. ``live``: False: from the archive, so nobody knows their age."""
        for frame, body in frames:
            if isinstance(body, Readings):
                self._latest.take_readings(frame.host, frame.t_ns, body, now_ns if live else None)
            elif isinstance(body, Notes):
                for note in body.notes:
                    if not isinstance(note, Lost):  # it is a row as well
                        self._latest.take_note(frame.host, note)
        for row in rows:
            if live and isinstance(row, GapRow):
                self._latest.add_gap(row.host or "analyzer", row.what, row.count, row.reason)
        self._runs.take_rows(rows, now_ns, live=live)
        for _, body in frames:
            if isinstance(body, Events):
                self._runs.take_events(body)

    def restart(self, now_ns: int) -> None:
        """Take in that all this is from before a restart: nobody knows how old it is."""
        self._latest.restart()
        self._runs.restart(now_ns)

    def snapshot(
        self, base: Snapshot, searches: Mapping[str, SearchNow], now_ns: int, host: str | None
    ) -> Snapshot:
        """Return the state now, of all or of one host. ``base``: what the service knows of itself."""
        return _snapshot(base, self._latest, [self._runs], searches, now_ns, host)

    @staticmethod
    def joined(
        base: Snapshot,
        parts: Sequence["LiveSite"],
        searches: Mapping[str, SearchNow],
        now_ns: int,
        host: str | None,
    ) -> Snapshot:
        """Return the state now of several parts of one site. No job is in two of them; a host may be."""
        latest = Latest.joined(part._latest for part in parts)  # noqa: SLF001  (of this class)
        runs = [part._runs for part in parts]  # noqa: SLF001
        return _snapshot(base, latest, runs, searches, now_ns, host)


def _snapshot(
    base: Snapshot,
    latest: Latest,
    parts: Sequence[LiveRuns],
    searches: Mapping[str, SearchNow],
    now_ns: int,
    host: str | None,
) -> Snapshot:
    runs = [run for part in parts for run in part.now(searches, now_ns, base.wall_ns)]
    runs.sort(key=lambda run: (run.ended_wall_ns is not None, -(run.began_wall_ns or 0)))
    jobs = {job.job: job for part in parts for job in part.steps_by_job.rows()}
    saved_j, usual_j = (sum(each) for each in zip((0.0, 0.0), *(part.saved() for part in parts), strict=True))
    base = replace(
        base, jobs=tuple(jobs.values())[:MAX_JOB_ROWS], counters=(*base.counters, *latest.counts())[:200]
    )
    return latest.snapshot(
        base, runs, now_ns, host=host,
        saved=(saved_j, 100 * saved_j / usual_j) if usual_j > 0 else (None, None),
        steps_j={gpu: joules for part in parts for gpu, joules in part.steps_j().items()},
    )  # fmt: skip
