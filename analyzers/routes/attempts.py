"""Work that may fail on what another program wrote: that becomes a row in ``gaps``. Pure."""

from collections.abc import Callable

from analyzers.fleet.fleet import Clocks
from analyzers.fleet.session import Session
from analyzers.results.result import NOTHING, Result, rows_only
from analyzers.results.rows import GapRow
from analyzers.routes.open_sessions import OpenSessions
from zeus_stream.protocol.frames import Frame


class Attempts:
    """Attempts to interpret parts of frames."""

    def __init__(self, sessions: OpenSessions) -> None:
        """``sessions``: one that cannot be interpreted is set aside there."""
        self._sessions = sessions

    def make(
        self,
        frame: Frame,
        what: str,
        now: Clocks,
        work: Callable[[], Result],
        *,
        session: Session | None = None,
        otherwise: Result = NOTHING,
    ) -> Result:
        """Return the result of some work.

        If it fails: ``otherwise``, and a gap that says where; the session it is about is set aside.
        """
        try:
            return work()
        except Exception as wrong:  # noqa: BLE001  (no frame ends the process: it becomes a row in ``gaps``)
            who = "it" if session is None else f"session {session.session}"
            reason = (
                f"log {frame.log_id}, offset {frame.offset}: {who} could not be interpreted:"
                f" {repr(wrong)[:500]}. Report this with the log."
            )
            result = otherwise | rows_only([GapRow(frame.host, what, frame.t_ns, 1, reason)])
            return result if session is None else result | self._sessions.set_aside(session, frame.t_ns, now)

    def answer(self, host: str, t_ns: int, work: Callable[[], Result]) -> Result:
        """Return the answer to a question of a script. If it fails: a gap, and no answer."""
        try:
            return work()
        except Exception as wrong:  # noqa: BLE001  (as above)
            reason = f"a question could not be answered: {repr(wrong)[:500]}. Report this with the log."
            return rows_only([GapRow(host, "questions", t_ns, 1, reason)])
