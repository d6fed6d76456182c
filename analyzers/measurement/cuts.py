"""Instants at which the kind of what a GPU does changes, by the marks of events. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from analyzers.measurement.knots import Floats, Ints
from analyzers.measurement.power_model import PowerModel, State

EDGE_NS = 2_000_000
"""A change of kind is over."""
TAIL_S = 0.004
"""For so long behind that, power may still be about to move."""
BRIEF_NS = 200_000
"""Briefer states are left out: a step that begins as soon as the last has ended follows it without a gap."""
MAX_CUTS = 4_096
LimitsAt = Callable[[Sequence[int], Sequence[int]], Sequence[int | None]]
"""As `Timeline.limits_mw`."""


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

    def since_first(self, t: Floats, noise: Floats) -> tuple[Floats, Floats]:
        """Return what each part counted from the first instant to the others, and the variance of the noise.

        Shapes (t - 1, c), (t - 1,). ``noise``: within segments, W^2 s, and behind changes, J^2; shape (c,).
        """
        counted, half = self.until(t), len(self.kind) // 2
        behind = np.clip((t[:, None] - self.begin[half:] - EDGE_NS / 1e9) / TAIL_S, 0.0, 1.0)
        wandered = counted[:, :half] @ noise[:half] + behind @ noise[half:]
        return counted[1:] - counted[0], wandered[1:] - wandered[0]

    def with_parts_of(self, steps: npt.NDArray[np.bool_], count: int) -> "Parts":
        """Return ``count`` parts of each of these segments that are over, then all; kinds are numbered so."""
        over = steps & np.isfinite(self.length)
        length = np.repeat(self.length[over] / count, count)
        kind = np.tile(np.arange(count), int(over.sum()))
        return Parts(
            np.concatenate((np.repeat(self.begin[over], count) + kind * length, self.begin)),
            np.concatenate((length, self.length)),
            np.concatenate((np.ones(len(kind)), self.scale)),
            np.concatenate((kind, count + self.kind)),
            np.concatenate((np.zeros(len(kind)), self.spread)),
        )

    def over(self, after: float, until: float) -> npt.NDArray[np.bool_]:
        """Return which parts end after one instant and until another, s; shape (c,)."""
        ends = self.begin + self.length
        ended: npt.NDArray[np.bool_] = (ends > after) & (ends <= until)
        return ended


Mark = tuple[int, str, str | None, int]
"""Instant, who, phase (None: it is over) and uncertainty."""


class Cuts:
    """Instants at which the kind of what a GPU does changes, by the marks of events; oldest first."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []
        self._state: dict[str, str] = {}
        self._limit_mw: int | None = None
        self.begin()

    def begin(self) -> None:
        self.t_ns = np.full(1, -(2**60), np.int64)
        self.kind = np.zeros((2, 1), np.int64)
        """Kind of the segment that begins, and of the change."""
        self._spread_s = np.zeros(1)

    @property
    def none(self) -> bool:
        return len(self.t_ns) == 1 and not self._marks

    @property
    def crowded(self) -> bool:
        """So many marks wait that some will be forgotten."""
        return len(self._marks) > MAX_CUTS // 2

    def mark(self, marks: Sequence[Mark]) -> None:
        """See `analyzers.measurement.energy_fit.EnergyFit.mark_all`."""
        self._marks += marks
        while len(self._marks) > MAX_CUTS:
            del self._marks[: MAX_CUTS // 2]  # nothing was measured for long

    def consume(self, limits_mw: LimitsAt, until_ns: int, kinds: PowerModel) -> None:
        """Turn marks into cuts. ``kinds``: numbers them."""
        due = sorted((mark for mark in self._marks if mark[0] <= until_ns), key=itemgetter(0))
        if not due:
            return
        self._marks = [mark for mark in self._marks if mark[0] > until_ns]
        stamps = [t_ns for t_ns, *_ in due]
        limits = limits_mw(stamps, stamps)
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
