"""The replicas of a pipeline, and one that is slower than the others. Pure.

Replicas wait for each other at the end of an iteration. So how long a replica takes by itself is seen on its
stage 0, which begins first and ends last: from the begin of its first instruction to the end of its last.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from analyzers.pipeline.stage_record import StageRecord

RECENT = 2
"""Iterations in a row that show that a replica is slower, or no longer."""
SLOWER = 1.03
"""Times as long that a straggler takes, beside its promise, and beside what the next slowest one takes."""
CHANGED = 0.02
"""Of the duration of a straggler's iteration, after which it is answered again."""


class Straggler(Struct, frozen=True):
    """A replica that is slower than its plan."""

    replica: int
    time_s: float
    """Of its iterations."""
    slower: float
    """Times as long as promised, and as the next slowest replica."""


def replicas_of(stages: Iterable[StageRecord]) -> dict[int, list[StageRecord]]:
    """Return the stages of each replica: the n-th lowest rank (or t tensor-parallel) of each stage."""
    found: dict[int, list[StageRecord]] = {}
    seen: dict[int, int] = {}
    for stage in sorted(stages, key=lambda each: each.session.started.rank):
        place = seen.get(stage.began.stage, 0)
        seen[stage.began.stage] = place + 1
        found.setdefault(place // stage.began.tensor_parallel, []).append(stage)
    return found


def own_times_s(replicas: Mapping[int, Sequence[StageRecord]], after: int) -> dict[int, list[float]]:
    """Return how long the latest iterations after this one that all replicas ran took, at most RECENT."""
    firsts = {at: next(each for each in stages if each.began.stage == 0) for at, stages in replicas.items()}
    until = min((stage.iteration for stage in firsts.values()), default=-1)
    ran = {at: [e for e in stage.ran if after < e.iteration <= until] for at, stage in firsts.items()}
    return {at: [(e.ended_ns - e.t_ns) / 1e9 for e in of[-RECENT:]] for at, of in ran.items()}


def find_straggler(
    replicas: Mapping[int, Sequence[StageRecord]],
    promised_s: Mapping[int, float],
    after: int,
    known: Straggler | None,
) -> Straggler | None:
    """Return the slowest replica, if it is slower than promised and than the others, beside their promises.

    A busy host makes all replicas slower: what the next slowest one is slower by does not count. Another
    replica than the known one is a straggler only after a return to the usual plan.
    """
    if len(replicas) < 2 or any(all(each.began.stage for each in of) for of in replicas.values()):
        return known
    times_s = own_times_s(replicas, after)
    if any(len(each) < RECENT for each in times_s.values()):
        return known
    least = {replica: min(each) / promised_s[replica] for replica, each in times_s.items()}
    slowest = max(least, key=lambda replica: least[replica])
    common = max(1.0, *(ratio for replica, ratio in least.items() if replica != slowest))
    if least[slowest] < SLOWER * common:
        gone = known is not None and max(times_s[known.replica]) < SLOWER * common * promised_s[known.replica]
        return None if known is None or gone else known
    if known is not None and known.replica != slowest:
        return None  # the slowest one has a plan for the known one's duration: all get the usual plan first
    time_s = sum(times_s[slowest]) / RECENT / common
    if known is not None and known.replica == slowest and abs(time_s / known.time_s - 1) < CHANGED:
        return known
    return Straggler(slowest, time_s, time_s / promised_s[slowest])
