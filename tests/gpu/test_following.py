"""The GPU of benchmarks/windows/accuracy.py, whose power follows a training."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.windows.following import FIRST_MJ, IDLE_MW, FollowingGpu, Wanted, follow
from benchmarks.windows.loads import EDGES, NAMES, REST_NS, Name, lengths, load
from benchmarks.windows.marks import Marks
from tests.gpu.stand_in import Gpu
from zeus_stream.clock import monotonic_ns

STEPS = 12


@pytest.mark.parametrize("name", [*NAMES, *EDGES])
def test_no_energy_depends_on_a_later_mark(name: Name) -> None:
    wanted = Wanted(name=name, step_ms=20, steps=STEPS, seed=1)
    long_ns, gap_ns = lengths(name, 20, STEPS, 1)
    late_ns = np.random.default_rng(2).integers(0, 3_000_000, STEPS)
    marks = [5]
    for long, gap, late in zip(long_ns.tolist(), gap_ns.tolist(), late_ns.tolist(), strict=True):
        begin_ns = marks[-1] + gap + late
        marks += [begin_ns, begin_ns + long + late]
    marks.append(marks[-1] + REST_NS)
    whole = follow(wanted, marks, marks[-1])
    for known in range(1, len(marks)):
        until_ns = np.arange(marks[known - 1], marks[known], 500_000)
        partial = follow(wanted, marks[:known], int(until_ns[-1]))
        start_ns = np.full_like(until_ns, marks[0])
        assert partial.energy_pj(start_ns, until_ns) == pytest.approx(whole.energy_pj(start_ns, until_ns))


def test_a_training_that_is_never_late_makes_the_load_of_virtual_time() -> None:
    planned = load("noisy", 20, STEPS, 1)
    marks = [0, *planned.steps_ns.ravel().tolist(), planned.end_ns]
    followed = follow(Wanted(name="noisy", step_ms=20, steps=STEPS, seed=1), marks, planned.end_ns)
    begin_ns, end_ns = planned.steps_ns.T
    assert np.array_equal(followed.energy_pj(begin_ns, end_ns), planned.energy_pj(begin_ns, end_ns))


def test_it_shows_the_energy_until_the_refresh(tmp_path: Path) -> None:
    marks, gpu = Marks(tmp_path / "marks"), Gpu()
    loads = [Wanted(name="clean", step_ms=20, steps=steps, seed=1) for steps in (2, 3)]
    before_ns = monotonic_ns()
    following = FollowingGpu(gpu, marks, loads, 100_000_000, None)
    after_ns = monotonic_ns()
    added: list[int] = []
    for _ in range(sum(wanted.marks for wanted in loads)):
        added.append(marks.add())
        from_ns = monotonic_ns()
        following.refresh()
        until_ns = monotonic_ns()
        above_pj, first = np.zeros(2, np.int64), 0
        for wanted in loads:
            if known := added[first : first + wanted.marks]:
                above_pj += follow(wanted, known, until_ns).above_idle_pj(np.array([from_ns, until_ns]))
            first += wanted.marks
        low_pj = above_pj[0] + IDLE_MW * (from_ns - after_ns)
        high_pj = above_pj[1] + IDLE_MW * (until_ns - before_ns)
        assert low_pj / 1e9 - 1 <= gpu.energy_mj - FIRST_MJ <= high_pj / 1e9
