"""The route of readings: from a frame to the timelines of GPUs. Pure."""

from itertools import pairwise

import numpy as np

from analyzers.fleet.fleet import Clocks, gpu_row, hangs
from analyzers.measurement.timeline import IDLE_NS, RECENT_NS
from analyzers.results.readings import READING, well_formed
from analyzers.results.result import Result, rows_only
from analyzers.results.rows import GapRow, Row
from analyzers.routes.followed_gpus import FULL, FollowedGpus
from analyzers.routes.open_sessions import OpenSessions
from zeus_stream.protocol.frames import Frame
from zeus_stream.protocol.readings import Readings

AHEAD_NS = 1_000_000_000
"""Readings cannot be later than their frame; so much is forgiven."""
LEARN_NS = 1_000_000_000
"""Between two looks at what is known of a counter: a look works out all readings that lie unread."""


class ReadingRoute:
    """The route of readings."""

    def __init__(self, gpus: FollowedGpus, sessions: OpenSessions) -> None:
        """``sessions``: those that still ask for energy."""
        self._gpus = gpus
        self._sessions = sessions

    def handle(self, frame: Frame, body: Readings, now: Clocks) -> Result:
        """Take in the readings of a frame. Return rows of what was learned of GPUs, and gaps."""
        host = frame.host
        if not well_formed(body):
            return _gap(frame, 1, "a frame of them has figures that cannot be")
        rows = np.frombuffer(body.rows, READING)
        if rows.size and rows["t_hi_ns"].max() > frame.t_ns + AHEAD_NS:
            return _gap(frame, len(rows), "they are later than they were logged")
        if self._gpus.full(body.gpus):
            return _gap(frame, len(rows), FULL)
        owned, gaps = self._gpus.owned(host, body.gpus, "readings", now)
        found: list[Row] = [*gaps]
        rows = rows.take(np.argsort(rows["gpu"], kind="stable"))
        indices, starts = np.unique(rows["gpu"], return_index=True)
        for index, (start, end) in zip(
            indices.tolist(), pairwise([*starts.tolist(), len(rows)]), strict=True
        ):
            uuid = body.gpus[index]
            if uuid in owned:
                found += self._add(frame, uuid, rows[start:end])
        return rows_only(found)

    def _add(self, frame: Frame, uuid: str, rows: np.ndarray) -> list[Row]:
        """Add readings to a GPU's timeline. Return what was learned."""
        host = frame.host
        gpu = self._gpus.get(host, uuid)
        gpu.timeline.add(rows)
        if gpu.sessions and (clock_mhz := int(rows["clock_mhz"][-1])) > 0:
            gpu.clocks_mhz.append(clock_mhz)
        found: list[Row] = [*hangs(host, uuid, gpu.timeline)]
        if gpu.timeline.crowded:
            users = self._sessions.users(uuid)
            gpu.timeline.forget(self._sessions.needed_ns(users), RECENT_NS if users else IDLE_NS)
        if gpu.shaped and gpu.shaped.crowded:
            gpu.shaped.forget(self._sessions.needed_ns(self._sessions.users(uuid)))
        same_gain = gpu.told_gain == gpu.timeline.gain
        if not gpu.found or (gpu.told[0] and same_gain and not gpu.sessions):
            return found  # nothing is learned of a GPU that no run uses, but its period
        if 0 <= frame.t_ns - gpu.learned_ns < LEARN_NS:
            return found
        gpu.learned_ns = frame.t_ns
        learned = gpu.timeline.period_known, gpu.counter_kind, gpu.window_ns
        if learned != gpu.told or not same_gain:
            gpu.told, gpu.told_gain = learned, gpu.timeline.gain
            self._gpus.learn(uuid, gpu)
            found.append(gpu_row(host, gpu, gpu.found))
        return found


def _gap(frame: Frame, count: int, reason: str) -> Result:
    return rows_only([GapRow(frame.host, "readings", frame.t_ns, count, reason)])
