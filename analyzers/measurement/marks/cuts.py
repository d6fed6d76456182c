"""Instants at which the kind of what a GPU does changes, by the marks of events. Pure.

Nearly all marks are those of steps in a row of one session. They are kept as columns, and cut time at once;
all others do so one by one, with the same result.
"""

from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from analyzers.measurement.knots import Floats, Ints
from analyzers.measurement.power_model import Kinds, State
from analyzers.measurement.timeline import Timeline

EDGE_NS = 2_000_000
"""A change of kind is over."""
BRIEF_NS = 200_000
"""Briefer states are left out: a step that begins as soon as the last has ended follows it without a gap."""
MAX_CUTS = 4_096


@dataclass(slots=True)
class Parts:
    """Segments and changes of kind within a stretch; shape (c,) each. Seconds from its beginning."""

    begin: Floats
    length: Floats
    scale: Floats
    """Units that x counts: 1 for segments (J per W), 1/length for changes (J per J)."""
    kind: Ints
    spread: Floats
    """Variance, beside that of the kind."""

    def until(self, t: Floats) -> Floats:
        """Return what each part had counted by instants, equation (3); shape (t, c)."""
        shares: Floats = np.minimum(np.maximum(t[:, None] - self.begin, 0.0), self.length) * self.scale
        return shares

    def over(self, after: float, until: float) -> npt.NDArray[np.bool_]:
        """Return which parts end after one instant and until another, s; shape (c,)."""
        ends = self.begin + self.length
        ended: npt.NDArray[np.bool_] = (ends > after) & (ends <= until)
        return ended


_Mark = tuple[int, str, str | None, int]
"""Instant, who, phase and uncertainty."""


@dataclass(slots=True, kw_only=True)
class StepMarks:
    """Marks of steps in a row of one session, by turns the end of a step and the begin of the next."""

    who: str
    phases: tuple[str, str]
    """Of the gap and of the step that follow them."""
    t_ns: list[int]
    uncertainty_ns: list[int]
    """Of each mark."""
    first: int = 0
    """1: the first mark is the begin of a step."""

    def each(self) -> list[_Mark]:
        """Return the marks one by one."""
        return [
            (t_ns, self.who, self.phases[place % 2], uncertainty_ns)
            for place, (t_ns, uncertainty_ns) in enumerate(
                zip(self.t_ns, self.uncertainty_ns, strict=True), start=self.first
            )
        ]

    def goes_on_with(self, later: "StepMarks") -> bool:
        """Return whether later marks of the same session go on where these end."""
        ended = (self.first + len(self.t_ns)) % 2 == later.first
        return ended and (self.who, self.phases) == (later.who, later.phases)

    def let_go(self, count: int) -> None:
        """Forget the first marks."""
        self.first = (self.first + count) % 2
        del self.t_ns[:count], self.uncertainty_ns[:count]


class Cuts:
    """Instants at which the kind of what a GPU does changes, by the marks of events; oldest first."""

    def __init__(self) -> None:
        self._marks: list[_Mark] = []
        self._steps: StepMarks | None = None
        """Marks that came after these."""
        self._state: dict[str, str] = {}
        self._limit_mw: int | None = None
        self.begin()

    def begin(self) -> None:
        """Forget all cuts, but not the marks that are to come nor the state."""
        self.t_ns = np.full(1, -(2**60), np.int64)
        self.kind = np.zeros((2, 1), np.int64)
        """Kind of the segment that begins, and of the change."""
        self._spread_s = np.zeros(1)

    @property
    def _waiting(self) -> int:
        """Marks that wait."""
        return len(self._marks) + (0 if self._steps is None else len(self._steps.t_ns))

    @property
    def none(self) -> bool:
        """There was no mark."""
        return len(self.t_ns) == 1 and not self._waiting

    @property
    def crowded(self) -> bool:
        """So many marks wait that some will be forgotten."""
        return self._waiting > MAX_CUTS // 2

    def mark(self, who: str, t_ns: int, phase: str | None, uncertainty_ns: int) -> None:
        """See `analyzers.measurement.energy_fit.Shape.mark`."""
        self._line_up()
        self._marks.append((t_ns, who, phase, uncertainty_ns))
        self._forget()

    def mark_steps(self, marks: StepMarks) -> None:
        """See `analyzers.measurement.energy_fit.Shape.mark_steps`."""
        if self._steps is not None and self._steps.goes_on_with(marks):
            self._steps.t_ns += marks.t_ns
            self._steps.uncertainty_ns += marks.uncertainty_ns
        else:
            self._line_up()
            self._steps = StepMarks(
                who=marks.who,
                phases=marks.phases,
                t_ns=[*marks.t_ns],
                uncertainty_ns=[*marks.uncertainty_ns],
                first=marks.first,
            )
        if self._waiting > MAX_CUTS:
            self._line_up()
            self._forget()

    def _line_up(self) -> None:
        """Put the marks of steps among the others."""
        if self._steps is not None:
            self._marks += self._steps.each()
            self._steps = None

    def _forget(self) -> None:
        while len(self._marks) > MAX_CUTS:
            del self._marks[: MAX_CUTS // 2]  # nothing was measured for long

    def consume(self, timeline: Timeline, until_ns: int, kinds: Kinds) -> None:
        """Turn marks into cuts. ``kinds``: numbers them."""
        steps = self._steps
        if self._marks and steps is not None:
            last_ns = max([t_ns for t_ns, *_ in self._marks])
            if steps.t_ns and steps.t_ns[0] - last_ns >= BRIEF_NS:  # they do not mix
                self._consume_each(timeline, until_ns, kinds)
            else:
                self._line_up()
        if self._marks or steps is None or not self._consume_steps(timeline, until_ns, kinds):
            self._line_up()
            self._consume_each(timeline, until_ns, kinds)

    def _consume_steps(self, timeline: Timeline, until_ns: int, kinds: Kinds) -> bool:
        """Turn the marks of steps into cuts, as `_consume_each` does. Return False if that cannot be done."""
        steps = self._steps
        assert steps is not None
        stamps = np.array(steps.t_ns, np.int64)
        count = int(stamps.searchsorted(until_ns, side="right"))
        if not count:
            return True
        if not self._state.keys() <= {steps.who} or (stamps[1:] < stamps[:-1]).any():
            return False
        (limit_mw,) = timeline.limits_mw(stamps[:1].tolist(), stamps[count - 1 : count].tolist())
        if limit_mw is None:
            return False
        state, self._limit_mw = self._now(), limit_mw
        became: list[State] = [(str(limit_mw), phase) for phase in steps.phases]
        # They come by turns, so each cuts, unless it is brief, or the first and nothing new.
        cuts = np.append(stamps[1:count] - stamps[: count - 1] >= BRIEF_NS, True)
        cuts[0] &= became[steps.first] != state
        at = cuts.nonzero()[0]
        if len(at):
            t_ns = np.maximum(np.maximum.accumulate(stamps[at]), self.t_ns[-1])
            phase = (at + steps.first) % 2
            before = np.append(2, phase[:-1])
            number = np.zeros((2, 6), np.int64)
            changes = (2 * before + phase).tolist()
            for change in dict.fromkeys(changes):  # in the order in which they come
                to = (became[change % 2],)
                edge = ((*became, state)[change // 2], *to)
                first_ns, last_ns = (
                    int(t_ns[changes.index(change)]),
                    int(t_ns[::-1][changes[::-1].index(change)]),
                )
                for row, kind in enumerate((to, edge)):
                    kinds.number(kind, first_ns)
                    number[row, change] = kinds.number(kind, last_ns)
            self._add(t_ns, number[:, changes], np.array(steps.uncertainty_ns, np.int64)[at])
        self._state[steps.who] = steps.phases[(steps.first + count - 1) % 2]
        steps.let_go(count)
        return True

    def _consume_each(self, timeline: Timeline, until_ns: int, kinds: Kinds) -> None:
        """Turn marks into cuts, one by one."""
        due = sorted((mark for mark in self._marks if mark[0] <= until_ns), key=itemgetter(0))
        if not due:
            return
        self._marks = [mark for mark in self._marks if mark[0] > until_ns]
        stamps = [t_ns for t_ns, *_ in due]
        limits = timeline.limits_mw(stamps, stamps)
        newest_ns = int(self.t_ns[-1])
        fresh: list[tuple[int, int, int, int]] = []
        state, brief, limit = self._now(), False, str(self._limit_mw)
        following_ns = [*stamps[1:], stamps[-1] + BRIEF_NS]
        for (marked_ns, who, phase, uncertainty_ns), limit_mw, next_ns in zip(
            due, limits, following_ns, strict=True
        ):
            if phase is None:
                self._state.pop(who, None)
            else:
                self._state[who] = phase
            if limit_mw is not None and limit_mw != self._limit_mw:
                self._limit_mw = limit_mw
                limit = str(limit_mw)
            became = (limit, phase) if phase is not None and len(self._state) == 1 else self._now()
            if became == state and not brief:
                continue
            brief = next_ns - marked_ns < BRIEF_NS
            if brief:
                continue
            t_ns = max(marked_ns, newest_ns)
            kind, edge = kinds.number((became,), t_ns), kinds.number((state, became), t_ns)
            fresh.append((t_ns, kind, edge, uncertainty_ns))
            state, newest_ns = became, t_ns
        if fresh:
            t, kind_of, edge_of, spread = np.array(fresh, np.int64).T
            self._add(t, np.stack((kind_of, edge_of)), spread)

    def _add(self, t_ns: Ints, kind: Ints, uncertainty_ns: Ints) -> None:
        """Add cuts; of too many, the oldest go."""
        keep = slice(-MAX_CUTS, None)
        self.t_ns = np.concatenate((self.t_ns, t_ns))[keep]
        self.kind = np.concatenate((self.kind, kind), axis=1)[:, keep]
        self._spread_s = np.concatenate((self._spread_s, uncertainty_ns / 1e9))[keep]

    def _now(self) -> State:
        states = self._state.values()
        return (str(self._limit_mw), *(sorted(states) if len(states) > 1 else states))

    def parts(self, begin_ns: int, end_ns: int, mean_w: float) -> Parts:
        """Return the parts of a stretch. ``mean_w``: the mean power, recently."""
        first = max(int(self.t_ns.searchsorted(begin_ns, side="right")) - 1, 0)
        count = max(int(self.t_ns.searchsorted(end_ns)) - first, 1)
        t = np.maximum((self.t_ns[first : first + count + 1] - begin_ns) / 1e9, -10.0)
        length = np.full(2 * count, EDGE_NS / 1e9)
        length[:count] = np.inf
        length[: len(t) - 1] = t[1:] - t[:-1]
        scale = np.ones(2 * count)
        scale[count:] = 1e9 / EDGE_NS
        spread = np.zeros(2 * count)
        spread[count:] = (self._spread_s[first : first + count] * mean_w) ** 2
        t = t[:count]
        return Parts(
            np.concatenate((t, t)),
            length,
            scale,
            self.kind[:, first : first + count].ravel(),
            spread,
        )
