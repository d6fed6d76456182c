"""The sessions of a host as it announces them to analyzers."""

from collections.abc import Iterable

from collectors.ingest.sessions import PublisherSession
from zeus_stream.broker.requests import MAX_ENDED, AnnouncedRun, EarlierJob, EndedRun, pack_earlier
from zeus_stream.protocol.fields import hash_of

LEAD_FRAMES = 150
"""Of a log before a run's first event, about five seconds: for counters before its first window."""


def announced_runs(sessions: Iterable[PublisherSession], oldest: int) -> tuple[AnnouncedRun, ...]:
    """Return the sessions that are open. ``oldest``: offset of the log's oldest frame."""
    return tuple(
        AnnouncedRun(
            session=session.session,
            run=session.run,
            job=session.job,
            first_offset=_lead_in(session, oldest),
        )
        for session in sessions
        if not session.over and session.run
    )


class EndedSessions:
    """The sessions that have ended, as they are announced. Made again only when others have ended."""

    def __init__(self) -> None:
        self._made_of: tuple[int, tuple[PublisherSession, ...]] = (0, ())
        self.last: tuple[EndedRun, ...] = ()
        """Those that ended last."""
        self.earlier = b""
        """The jobs of those that ended before, as `pack_earlier` has them.

        They end LEAD_FRAMES later than their last events: nobody is to know which of the sessions were not
        measured to the end by then.
        """

    def look(self, sessions: Iterable[PublisherSession], oldest: int) -> None:
        """Take in all sessions. ``oldest``: offset of the log's oldest frame."""
        made_of = oldest, tuple(each for each in sessions if each.last_offset > oldest)
        if made_of == self._made_of:
            return
        self._made_of = made_of
        ended = sorted(made_of[1], key=lambda each: each.last_offset)
        self.last = tuple(
            EndedRun(
                session=session.session,
                job=session.job,
                first_offset=_lead_in(session, oldest),
                next_offset=session.last_offset,
            )
            for session in ended[-MAX_ENDED:]
        )
        jobs: dict[int, EarlierJob] = {}
        for session in ended[:-MAX_ENDED]:
            job, first = hash_of(session.job), _lead_in(session, oldest)
            first = min(first, jobs[job].first_offset) if job in jobs else first
            jobs[job] = EarlierJob(job, first, session.last_offset + LEAD_FRAMES)
        self.earlier = pack_earlier(jobs.values())


def _lead_in(session: PublisherSession, oldest: int) -> int:
    return max(session.first_offset - LEAD_FRAMES, oldest, 0)
