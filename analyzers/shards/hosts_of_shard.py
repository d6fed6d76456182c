"""Which part of a host's log a shard has still to interpret, by the announcement of the host. Pure."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from zeus_stream.broker.requests import Announced, unpack_earlier
from zeus_stream.protocol.fields import shard_of


class LogSpan(NamedTuple):
    """The frames of a host's log between which a run of the shard is, or some runs of one job are."""

    first_offset: int
    next_offset: int | None = None
    """None: the run is open."""
    session: str = ""
    """Of a run that has ended; empty if its job alone is known."""


def spans_of(announced: Announced, shard: int, shards: int) -> tuple[LogSpan, ...]:
    """Return where in a host's log the runs of a shard are, of so many shards."""
    earlier = unpack_earlier(announced.earlier)
    return (
        *(LogSpan(run.first_offset) for run in announced.runs if shard_of(run.job, shards) == shard),
        *(
            LogSpan(run.first_offset, run.next_offset, run.session)
            for run in announced.ended
            if shard_of(run.job, shards) == shard
        ),
        *(LogSpan(job.first_offset, job.next_offset) for job in earlier if job.job_hash % shards == shard),
    )


class InterpretedShard:
    """The frames that a shard has interpreted, under this holder and the ones before."""

    def __init__(self, interpreted: Mapping[str, int], unfinished: Collection[str]) -> None:
        """Begin with a checkpoint.

        Args:
            interpreted: by log, the offset that is to be interpreted next.
            unfinished: sessions that are not measured to their end there.
        """
        self._next = dict(interpreted)
        self._unfinished = set(unfinished)

    def follow(self, spans: Iterable[LogSpan]) -> None:
        """A host is followed from now on, so its sessions are measured to their end."""
        self._unfinished -= {span.session for span in spans}

    def reach(self, log_id: str, next_offset: int) -> None:
        """Take in how far a log is interpreted."""
        self._next[log_id] = max(next_offset, self._next.get(log_id, 0))

    def first_offset(self, log_id: str, spans: Iterable[LogSpan]) -> int | None:
        """Return where the first span of a log begins that is not interpreted to its end. None: all are."""
        known, unfinished = self._next.get(log_id, 0), self._unfinished
        return min(
            (
                span.first_offset
                for span in spans
                if span.next_offset is None or span.next_offset > known or span.session in unfinished
            ),
            default=None,
        )
