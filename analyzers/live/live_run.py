"""One run of a `Snapshot`: its energy, and what its power limits have saved, from rows. Pure.

Savings are those of the view ``savings``: the energy of the steps at a limit chosen, against what the same
steps would have taken at the limit found, as the decision in force then measured both.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, TypeVar

from analyzers.results.limit_rows import COUNTED
from analyzers.results.rows import DecisionRow, ForecastRow, ProfileRow, RunRow, TrialRow, WindowRow

Key = TypeVar("Key")
RECENT_STEPS = 40
MAX_LIMITS = 64
MAX_VISITS = 256
MAX_STRETCHES = 64
"""Decisions of one run whose steps are kept apart."""
SAME_W = 0.5
"""Limits that differ by less are the same."""
LATE = 256
"""Groups of `COUNTED` steps that may turn out to be of a changed workload."""


@dataclass(slots=True)
class OpenStep:
    """One step of all ranks, as its rows come in."""

    rows: int = 0
    wanted: int = 0
    """Rows that are to come, as of ``changes`` of the run's ranks."""
    changes: int = -1
    energy_j: float | None = 0.0
    duration_s: float = 0.0
    highest_w: float | None = 0.0
    lowest_w: float = inf

    def add(self, row: WindowRow, *, counted: bool) -> None:
        """Take in a row. ``counted``: its energy is not in the row of another rank."""
        if counted:
            known = self.energy_j is not None and row.energy_j is not None
            self.energy_j = self.energy_j + row.energy_j if known else None  # type: ignore[operator]
        self.duration_s = max(self.duration_s, row.duration_s)
        limited = self.highest_w is not None and row.power_limit_w is not None
        self.highest_w = max(self.highest_w, row.power_limit_w) if limited else None  # type: ignore[type-var]
        self.lowest_w = min(self.lowest_w, row.power_limit_w or inf)
        self.rows += 1


class Gained(NamedTuple):
    """The saving of some measured steps at a limit chosen."""

    steps: int = 0
    saved_j: float = 0.0
    usual_j: float = 0.0
    """They would have taken at the limit found."""

    def plus(self, other: "Gained") -> "Gained":
        steps, saved_j, usual_j = other
        return Gained(self.steps + steps, self.saved_j + saved_j, self.usual_j + usual_j)


@dataclass(slots=True)
class DecidedSteps:
    """The measured steps between two decisions, by the power limit in force: number and energy (J)."""

    decision: DecisionRow | None
    """In force. None: there was none yet; the first one counts for it."""
    at_limits: dict[float, tuple[int, float]] = field(default_factory=dict)
    lowered: dict[float, tuple[int, float]] = field(default_factory=dict)
    """Those in which single GPUs were below that limit."""

    def gained(self, decision: DecisionRow) -> Gained:
        """Return what a decision has saved, if it is the one of these steps."""
        chosen_w = decision.power_limit_w
        if chosen_w is None or not decision.applied:
            return Gained()
        if decision.clock_mhz is None:
            at = [each for limit_w, each in self.at_limits.items() if abs(limit_w - chosen_w) < SAME_W]
        else:  # the clock is in force from the decision on
            at = list(self.at_limits.values()) if self.decision is decision else []
        steps, at_j = sum(count for count, _ in at), sum(energy_j for _, energy_j in at)
        found_j, chosen_j = decision.default_energy_per_step_j, decision.energy_per_step_j
        if not found_j or not chosen_j:
            return Gained(steps, 0.0, at_j)
        usual_j = at_j if is_found_limit(decision) else at_j * found_j / chosen_j
        for limit_w, (count, energy_j) in self.lowered.items() if decision.clock_mhz is None else ():
            if abs(limit_w - chosen_w) < SAME_W:
                steps, usual_j, at_j = steps + count, usual_j + count * found_j, at_j + energy_j
        return Gained(steps, usual_j - at_j, usual_j)


def is_found_limit(decision: DecisionRow) -> bool:
    """Tell whether the limit chosen is the one found: nothing is saved then, whatever was measured."""
    if decision.clock_mhz is not None:
        return decision.clock_mhz == decision.default_clock_mhz
    limit_w, found_w = decision.power_limit_w, decision.default_limit_w
    return limit_w is not None and found_w is not None and abs(limit_w - found_w) < SAME_W


@dataclass(slots=True, kw_only=True)
class LiveRun:
    run: str
    job: str
    began_wall_ns: int
    ranks: dict[str, RunRow] = field(default_factory=dict)
    """By session."""
    changes: int = 0
    """Of its ranks, and of when they joined."""
    of_lower_ranks: frozenset[tuple[str, str]] = frozenset()
    """Sessions and their GPUs that a lower rank has at the same time: their energy is in its rows."""
    ended_ns: int | None = None
    """On the clock of this process."""
    epoch: int | None = None
    step: int | None = None
    steps: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By session, its first and its last step that began."""
    gpu_steps_j: dict[str, deque[float]] = field(default_factory=dict)
    """By GPU, the energy of its last steps."""
    open_steps: dict[int, OpenStep] = field(default_factory=dict)
    recent: deque[tuple[float | None, float]] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    """Energy (J) and duration (s) of the last closed steps."""
    stretches: list[DecidedSteps] = field(default_factory=lambda: [DecidedSteps(None)])
    earlier: Gained = Gained()
    """Of stretches past the bound."""
    late: dict[tuple[int, float, bool], tuple[int, float]] = field(default_factory=dict)
    """Number and energy (J) of the last steps: by their index // `COUNTED`, power limit, and whether single
    GPUs were below it."""
    visits: dict[int, TrialRow] = field(default_factory=dict)
    """Of the last round, by number."""
    profile: dict[float, ProfileRow] = field(default_factory=dict)
    """By limit: of the last round that has decided, where it measured the limit itself."""
    decision: DecisionRow | None = None
    pipeline: str | None = None
    """How far the plan of its clocks is. None: it is no pipeline."""
    forecast: ForecastRow | None = None
    begin_mj: dict[str, int] = field(default_factory=dict)
    """Energy of its GPUs when it began."""
    end_mj: dict[str, int] = field(default_factory=dict)
    """Energy of the GPUs that no open rank of it uses any more."""
    measured_j: dict[tuple[str, str], float | None] = field(default_factory=dict)
    """Energy of whole sessions, by session and GPU: once they are measured to their end."""
    unmeasured: str = ""
    """Why the energy of a whole session is not known. Empty: it is."""
    before_j: float | None = 0.0
    """Energy of earlier attempts of the same name."""

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(gpu for rank in self.ranks.values() for gpu in rank.gpus))[:256]

    def take_rank(self, row: RunRow) -> None:
        """Take in that a rank has begun, has changed or has ended."""
        self.ranks[row.session] = row
        self.changes += 1
        users: dict[str, list[RunRow]] = {}
        for rank in self.ranks.values():
            for gpu in rank.gpus:
                users.setdefault(gpu, []).append(rank)
        self.of_lower_ranks = frozenset(
            (mine.session, gpu)
            for gpu, ranks in users.items()
            for mine in ranks
            if any(other.rank < mine.rank and _overlap(mine, other) for other in ranks)
        )

    def rows_of(self, step: int) -> int:
        """Return how many rows of a step are to come: a rank may have joined late, or ended early."""
        rows = 0
        for rank in self.ranks.values():
            first, last = self.steps.get(rank.session, (0, -1))
            if first <= step and (rank.ended_ns is None or step <= last):
                rows += len(rank.gpus) or 1
        return rows

    def add(
        self, index: int, energy_j: float, limit_w: float, steps: int = 1, *, lowered: bool = False
    ) -> None:
        """Take in measured steps from ``index`` on, of one group of `COUNTED`, and their energy in all.

        ``limit_w``: their power limit. ``lowered``: single GPUs were below it.
        """
        self._count(index, energy_j, limit_w, steps, lowered=lowered)
        _count(self.late, (index // COUNTED, limit_w, lowered), steps, energy_j, LATE)

    def _count(self, index: int, energy_j: float, limit_w: float, steps: int, *, lowered: bool) -> None:
        place = next(
            (at for at in range(len(self.stretches) - 1, 0, -1) if _first_step(self.stretches[at]) <= index),
            0,
        )
        stretch, before = self.stretches[place], self.stretches[place - 1].decision if place else None
        decision = stretch.decision
        if (
            decision is not None
            and before is not None
            and index < decision.steps
            and not is_found_limit(before)
        ):
            held_w, chosen_w = before.power_limit_w or 0.0, decision.power_limit_w or 0.0
            if abs(limit_w - held_w) < SAME_W <= abs(held_w - chosen_w):
                lowered, limit_w = True, chosen_w  # against what is usual now, as they are
        _count(stretch.lowered if lowered else stretch.at_limits, limit_w, steps, energy_j, MAX_LIMITS)

    def take_visit(self, row: TrialRow) -> None:
        """Take in a visit of a limit, or one that has more steps now."""
        self.visits[row.number] = row
        latest = max(each.round for each in self.visits.values())
        self.visits = {number: each for number, each in self.visits.items() if each.round == latest}
        if len(self.visits) > MAX_VISITS:
            del self.visits[next(iter(self.visits))]

    def take_profile(self, row: ProfileRow) -> None:
        """Take in what a round that has decided knows of a limit."""
        if row.chosen_limit_w is None or (row.measured_run, row.measured_round) != (row.run, row.round):
            return
        self.profile = {limit_w: each for limit_w, each in self.profile.items() if each.round == row.round}
        self.profile[row.power_limit_w] = row

    @property
    def believed(self) -> list[ProfileRow]:
        """Return what is known of the limits of the visits. Empty: their round has not decided."""
        latest = max((each.round for each in self.visits.values()), default=None)
        return [each for each in self.profile.values() if each.round == latest]

    def take_decision(self, row: DecisionRow) -> None:
        if row.power_limit_w is None:
            self.decision = self.decision or row
            return
        self.decision = row
        moved = [
            (group * COUNTED, energy_j, limit_w, steps, lowered)
            for (group, limit_w, lowered), (steps, energy_j) in self.late.items()
            if row.changed_step is not None and group * COUNTED >= row.changed_step
        ]
        for index, energy_j, limit_w, steps, lowered in moved:
            self._count(index, -energy_j, limit_w, -steps, lowered=lowered)
        self.stretches.append(DecidedSteps(row))
        for index, energy_j, limit_w, steps, lowered in moved:
            self._count(index, energy_j, limit_w, steps, lowered=lowered)
        if len(self.stretches) > MAX_STRETCHES:
            first, second = self.stretches[:2]
            decision = first.decision or second.decision
            if decision is not None:
                self.earlier = self.earlier.plus(first.gained(decision))
            del self.stretches[0]

    @property
    def gains(self) -> list[tuple[DecisionRow, Gained]]:
        """Return what each decision has saved so far; empty: no limit was set."""
        decision = self.decision
        if decision is None or decision.power_limit_w is None or not decision.applied:
            return []
        gains: list[tuple[DecisionRow, Gained]] = []
        undecided: DecidedSteps | None = None
        for stretch in self.stretches:
            if stretch.decision is None:
                undecided = stretch
                continue
            gained = stretch.gained(stretch.decision)
            if undecided is not None:
                gained, undecided = gained.plus(undecided.gained(stretch.decision)), None
            gains.append((stretch.decision, gained))
        return gains

    @property
    def saved(self) -> tuple[float, float] | None:
        """Return the joules saved, and those that its steps would have taken at the limit found."""
        gains = self.gains
        if not gains:
            return None
        whole = self.earlier
        for _, gained in gains:
            whole = whole.plus(gained)
        return whole.saved_j, whole.usual_j

    @property
    def energy_j(self) -> float | None:
        """Return the measured energy of all its sessions. None: not all are measured to their end."""
        if not self.is_measured:
            return None
        counted = [
            self.measured_j[rank.session, gpu]
            for rank in self.ranks.values()
            for gpu in rank.gpus
            if not any(_within(rank, other) for other in self.ranks.values() if gpu in other.gpus)
        ]
        return sum_of([self.before_j, *counted]) if counted else None

    @property
    def is_measured(self) -> bool:
        """Tell whether all sessions are measured to their end, or cannot be."""
        return all(
            (rank.session, gpu) in self.measured_j for rank in self.ranks.values() for gpu in rank.gpus
        )


def _within(rank: RunRow, other: RunRow) -> bool:
    """Tell whether the energy of a rank on a GPU is in that of another: see the macro ``counted_wholes``."""
    if rank.session == other.session or rank.ended_ns is None or other.ended_ns is None:
        return False
    if not _overlap(rank, other):
        return False
    if other.rank != rank.rank:
        return other.rank < rank.rank
    longer_ns = (other.ended_ns - other.began_ns) - (rank.ended_ns - rank.began_ns)
    return (longer_ns, other.session) > (0, rank.session)


def _overlap(one: RunRow, other: RunRow) -> bool:
    """Tell whether two ranks go on at the same time."""
    return (one.ended_ns is None or other.began_ns < one.ended_ns) and (
        other.ended_ns is None or one.began_ns < other.ended_ns
    )


def _first_step(stretch: DecidedSteps) -> int:
    """Return the first step that a decision counts for, where it is not the first one."""
    row = stretch.decision
    if row is None:
        return 0
    return row.steps if row.changed_step is None else row.changed_step


def _count(sums: dict[Key, tuple[int, float]], key: Key, steps: int, energy_j: float, most: int) -> None:
    before, before_j = sums.get(key, (0, 0.0))
    sums[key] = before + steps, before_j + energy_j
    if len(sums) > most:
        del sums[next(iter(sums))]


def sum_of(values: Sequence[float | None]) -> float | None:
    """Return the sum. None: a part is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
