"""GPUs behind the stand-in for NVML whose power follows a training, in real time.

A process wakes at each refresh of a counter and shows the exact energy until then: that of `loads.followed`,
with the instants that the training has marked so far (marks.py). So power rises after a step began and falls
after it ended, as on a real GPU, also where a busy machine runs the training late. A refresh that comes late
shows the energy until it came.
"""

import heapq
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from msgspec import Struct

from benchmarks.windows.loads import Ints, Load, Name, followed
from benchmarks.windows.marks import Marks, wait_until
from tests.gpu.stand_in import Gpu
from zeus_stream.clock import monotonic_ns

FIRST_MJ = 1_000_000
IDLE_MW = 60_000
"""Between two loads."""
JITTER_NS = 200_000
"""Each refresh is up to this much early or late."""
NEXT_NS = 1_000_000
"""More than a refresh takes to be computed."""
AHEAD_NS = 10_000_000_000
"""A step that has not ended yet ends so much later."""
PRIORITY = 10
"""Of the process under SCHED_FIFO, where it may have it: devices do not wait for programs."""


class Wanted(Struct, frozen=True):
    """A load that a training is to follow."""

    name: Name
    step_ms: int
    steps: int
    seed: int

    @property
    def marks(self) -> int:
        """Marks of it: its begin and end, and those of each step."""
        return 2 * self.steps + 2


class Followed(Struct, frozen=True):
    """A load as its training has marked it."""

    load: Load
    begin_ns: int
    """CLOCK_MONOTONIC."""

    def energy_pj(self, begin_ns: Ints, end_ns: Ints) -> Ints:
        """Return the exact energy between instants at which the load is on, pJ."""
        return self.load.energy_pj(begin_ns - self.begin_ns, end_ns - self.begin_ns)

    def above_idle_pj(self, t_ns: Ints) -> Ints:
        """Return what it has used until each instant above what an idle GPU uses, pJ."""
        inside = np.clip(t_ns - self.begin_ns, 0, self.load.end_ns)
        above: Ints = self.load.energy_pj(0, inside) - IDLE_MW * inside
        return above


def follow(wanted: Wanted, marks: Sequence[int], now_ns: int) -> Followed:
    """Return a load until ``now_ns`` from its marks until then."""
    begin_ns, *edges = marks
    ended = len(marks) == wanted.marks
    end_ns = edges.pop() if ended else now_ns + AHEAD_NS
    if len(edges) % 2:
        edges.append(end_ns)
    steps_ns = np.array(edges, np.int64).reshape(-1, 2) - begin_ns
    load = followed(wanted.name, wanted.step_ms, steps_ns, end_ns - begin_ns, wanted.seed)
    return Followed(load, begin_ns)


class FollowingGpu:
    """A GPU that shows the loads of one training, one after the other."""

    def __init__(
        self, gpu: Gpu, marks: Marks, loads: Sequence[Wanted], period_ns: int, window_ns: int | None
    ) -> None:
        """Args: ``window_ns``: the sensor sees this much before each refresh, and takes it for the period."""
        self._gpu, self._marks, self._loads = gpu, marks, list(loads)
        self.period_ns, self._window_ns = period_ns, window_ns
        self._begin_ns = self._shown_ns = monotonic_ns()
        self._over_pj = 0
        """Of loads before this one, above idle."""
        self._first = 0
        """The place of this load's first mark."""
        self._shown_pj = 0.0
        gpu.energy_mj, gpu.power_mw = FIRST_MJ, IDLE_MW

    def refresh(self) -> None:
        """Show energy and power until now.

        The energy is computed on a straight line over the next `NEXT_NS`, so that the computation, which
        takes a part of it, makes nothing late.
        """
        while True:
            asked_ns, known = self._marks.until_now()
            current = self._current(known, asked_ns)
            seen_ns = asked_ns - self._window_ns if self._window_ns else self._shown_ns
            t_ns = np.array([seen_ns, asked_ns, asked_ns + NEXT_NS])
            used_pj = IDLE_MW * (t_ns - self._begin_ns) + (current.above_idle_pj(t_ns) if current else 0)
            now_ns = monotonic_ns()
            if now_ns <= t_ns[-1] and self._marks.unchanged(len(known)):
                break
        now_pj = float(np.interp(now_ns, t_ns, used_pj))
        power_mw = (now_pj - float(used_pj[0])) / (now_ns - seen_ns)
        if self._window_ns:
            self._shown_pj += power_mw * (now_ns - self._shown_ns)
        else:
            self._shown_pj = now_pj + self._over_pj
        self._shown_ns = now_ns
        self._gpu.energy_mj = FIRST_MJ + int(self._shown_pj / 1e9)
        # A sensor is never quite still: tools find its period by that.
        self._gpu.power_mw = round(power_mw) // 2 * 2 + 1 - self._gpu.power_mw % 2

    def _current(self, known: Sequence[int], now_ns: int) -> Followed | None:
        """Return the load that is on, or was last."""
        while self._loads and len(known) > self._first + self._loads[0].marks:  # the next one has begun
            over = follow(self._loads[0], known[self._first :][: self._loads[0].marks], now_ns)
            self._over_pj += int(over.above_idle_pj(np.array([now_ns]))[0])
            self._first += self._loads.pop(0).marks
        marks = known[self._first :]
        return follow(self._loads[0], marks, now_ns) if marks else None


@contextmanager
def following(gpus: Sequence[FollowingGpu]) -> Iterator[bool]:
    """Refresh GPUs in a process of its own. Give whether it runs before all other programs."""
    context = multiprocessing.get_context("fork")  # GPUs and marks lie in memory that it shares
    player = context.Process(target=_play, args=(gpus,), daemon=True)
    player.start()
    assert player.pid is not None
    first = True
    try:
        os.sched_setscheduler(player.pid, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except PermissionError:
        first = False
    try:
        yield first
    finally:
        player.terminate()
        player.join()


def _play(gpus: Sequence[FollowingGpu]) -> None:
    rng = np.random.default_rng(0)
    since_ns = monotonic_ns()
    due = [(since_ns + gpu.period_ns * place // len(gpus), place, 0) for place, gpu in enumerate(gpus)]
    while True:
        due_ns, place, number = heapq.heappop(due)
        wait_until(due_ns)
        gpus[place].refresh()
        number += 1
        nominal_ns = since_ns + gpus[place].period_ns * place // len(gpus) + number * gpus[place].period_ns
        heapq.heappush(due, (nominal_ns + int(rng.uniform(-JITTER_NS, JITTER_NS)), place, number))
