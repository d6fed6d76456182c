"""Budgets that follow a load signal: the target of now, and the limits under which GPUs draw it. Pure.

A signal is a value until its next one. The target goes towards it by at most its ramp, so it is continuous
whatever the signal does. A budget counts limits; a target is power drawn, and GPUs draw less than their
limits. So what the limits may add up to is corrected at each step by what was drawn:

    bound' = bound + (target' - target) + GAIN * (target - drawn)

If nobody gains from more, or all have their least limits, the GPUs cannot draw the target. Then the limits
that were shared out stand for the bound, and what was drawn for the target: so the bound does not run away
(back-calculation: Astrom, Murray, "Feedback Systems", Princeton 2008, 10.4).
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from zeus_stream.protocol.notes import Budget

STEP_NS = 10_000_000_000
"""Between two targets: commands, their outcomes and readings under them take a few seconds."""
GAIN = 0.8
"""Share of an error that the next step corrects. If a change shows a step later, 1.0 would swing for ever."""
RAMP_SHARE = 0.75
"""Of the ramp that is allowed. The rest is left to errors: power moves by itself as jobs begin and end, and
again as that is corrected. `benchmarks.site.load_target`, 1,000 GPUs, two hours with all three calls of the
grid, seed 1: minutes above the ramp of 117, the largest, and the mean error. Gain 0.6 and the whole ramp: 31,
147 %, 0.15 %. 1.0 and the whole: 39, 131 %, 0.10 %. 1.0 and 0.8 of it: 2, 104 %, 0.09 %. These: none, 97 %,
0.11 %.
"""


def target_mw(targets: Sequence[tuple[int, int]], ramp_mw_s: int, now_ns: int) -> int:
    """Return the target at a time (UTC, ns), that moves by RAMP_SHARE of a ramp, mW/s; 0: at once.

    Args:
        targets: at least one; since when (UTC, ns, ascending), and mW. Before the first and after the last of
            them it is theirs.
    """
    at_mw = float(targets[0][1])
    ends = (*(since_ns for since_ns, _ in targets[1:]), now_ns)
    for (since_ns, signal_mw), end_ns in zip(targets, ends, strict=True):
        if since_ns >= now_ns:
            break
        most = RAMP_SHARE * ramp_mw_s * (min(end_ns, now_ns) - since_ns) / 1e9 if ramp_mw_s else float("inf")
        at_mw += max(-most, min(most, signal_mw - at_mw))
    return round(at_mw)


def at(budget: Budget, now_ns: int) -> Budget:
    """Return a budget with the limit of now in place of the signal that it follows, if it does."""
    if not budget.targets:
        return budget
    step_ns = now_ns // STEP_NS * STEP_NS
    return replace(
        budget,
        limit_mw=max(target_mw(budget.targets, budget.ramp_mw_s, step_ns), 1),
        targets=(),
        follows="",
        target_ns=step_ns,
    )


def rank(job: str, first: Iterable[str]) -> int:
    """Return the place of a job among patterns such as ``prod-*``; those that none names come last."""
    names = tuple(first)
    matching = (place for place, name in enumerate(names) if _names(name, job))
    return next(matching, len(names))


def _names(pattern: str, job: str) -> bool:
    return job.startswith(pattern[:-1]) if pattern.endswith("*") else job == pattern


class Followed(Struct):
    """A budget that follows a signal."""

    target_ns: int
    target_mw: int
    bound_mw: int
    """The limits of its GPUs may add up to this."""
    used_mw: int | None = None
    """They were shared out to add up to this, as the bound is beyond what they can be; None: it is not."""


class Following:
    """The budgets that follow a signal, and what is allowed under each."""

    def __init__(self) -> None:
        self.of: dict[str, Followed] = {}
        """By group."""

    def bound_mw(self, group: str) -> int | None:
        """Return what the limits under a budget may add up to. None: it follows no signal."""
        return self.of[group].bound_mw if group in self.of else None

    def used(self, group: str, used_mw: int, *, more: bool) -> None:
        """Note what the limits that were shared out add up to; ``more``: some would gain from more."""
        if (followed := self.of.get(group)) is not None:
            inside = more and used_mw <= followed.bound_mw
            followed.used_mw = None if inside else used_mw

    def follow(self, budgets: Iterable[Budget], drawn_mw: Mapping[str, int]) -> list[tuple[str, Followed]]:
        """Take in budgets of now and what the GPUs of each draw. Return those with a target of a new time."""
        new: list[tuple[str, Followed]] = []
        kept: dict[str, Followed] = {}
        for budget in budgets:
            if budget.target_ns is None:
                continue
            before = self.of.get(budget.group)
            if before is not None and before.target_ns == budget.target_ns:
                kept[budget.group] = before
                continue
            bound_mw = budget.limit_mw
            if before is not None:
                bound_mw = _bound_mw(before, budget.limit_mw, drawn_mw[budget.group])
            followed = Followed(budget.target_ns, budget.limit_mw, max(bound_mw, 1))
            kept[budget.group] = followed
            new.append((budget.group, followed))
        self.of = kept
        return new


def _bound_mw(before: Followed, target_mw: int, drawn_mw: int) -> int:
    if before.used_mw is not None:
        return before.used_mw + target_mw - drawn_mw
    return before.bound_mw + target_mw - before.target_mw + round(GAIN * (before.target_mw - drawn_mw))
