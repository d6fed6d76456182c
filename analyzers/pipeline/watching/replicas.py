"""The replicas of a pipeline, and one that is slower than the others. Pure.

Replicas wait for each other at the end of an iteration. So how long a replica takes by itself is seen on its
stage 0, which begins first and ends last: from the begin of its first instruction to the end of its last.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from analyzers.pipeline.stage_record import StageRecord

RECENT = 2
"""Iterations in a row that show that a replica is slower, or no longer."""
SLOWER, USUAL = 1.03, 1.015
"""Times the promise that a straggler takes at least, and another replica at most."""
CHANGED = 0.02
"""Of the duration of a straggler's iteration, after which it is answered again."""


class Straggler(Struct, frozen=True):
    """A replica that is slower than its plan."""

    replica: int
    time_s: float
    """Of its iterations."""
    slower: float
    """Times as long as promised."""


def replicas_of(stages: Iterable[StageRecord]) -> dict[int, list[StageRecord]]:
    """Return the stages of each replica: the n-th lowest rank of every stage is of replica n.

    Where t ranks run a stage together (tensor parallel), the n-th lowest t ranks.
    """
    found: dict[int, list[StageRecord]] = {}
    seen: dict[int, int] = {}
    for stage in sorted(stages, key=lambda each: each.session.started.rank):
        place = seen.get(stage.began.stage, 0)
        seen[stage.began.stage] = place + 1
        found.setdefault(place // stage.began.tensor_parallel, []).append(stage)
    return found


def own_times_s(stages: Sequence[StageRecord], after: int) -> list[float]:
    """Return how long the latest iterations of a replica took, at most RECENT. ``after``: later ones only."""
    first = next((stage for stage in stages if stage.began.stage == 0), None)
    ran = [] if first is None else [each for each in first.ran if each.iteration > after]
    return [(each.ended_ns - each.t_ns) / 1e9 for each in ran[-RECENT:]]


def find_straggler(
    replicas: Mapping[int, Sequence[StageRecord]],
    promised_s: Mapping[int, float],
    after: int,
    known: Straggler | None,
) -> Straggler | None:
    """Return the slowest replica, if it is slower than promised and the others are not.

    Another replica than the known one is a straggler only after a return to the usual plan.

    Args:
        replicas: their stages.
        promised_s: duration of an iteration, by replica.
        after: iterations after this one ran under these promises.
        known: the straggler that was answered last. It stays one until it is as fast as promised.
    """
    times_s = {replica: own_times_s(stages, after) for replica, stages in replicas.items()}
    if len(times_s) < 2 or any(len(each) < RECENT for each in times_s.values()):
        return known
    least = {replica: min(each) / promised_s[replica] for replica, each in times_s.items()}
    slowest = max(least, key=lambda replica: least[replica])
    others = [ratio for replica, ratio in least.items() if replica != slowest]
    if least[slowest] < SLOWER or max(others) > USUAL:
        gone = known is not None and max(times_s[known.replica]) < SLOWER * promised_s[known.replica]
        return None if known is None or gone else known
    if known is not None and known.replica != slowest:
        return None  # the slowest one has a plan for the known one's duration: all get the usual plan first
    time_s = sum(times_s[slowest]) / RECENT
    if known is not None and known.replica == slowest and abs(time_s / known.time_s - 1) < CHANGED:
        return known
    return Straggler(slowest, time_s, time_s / promised_s[slowest])
