"""The search on a host whose processor is busy: delays of steps are not taken for the cost of a limit."""

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.power_limit.search.host_delays import delay_ns, evenly_delayed
from analyzers.power_limit.search.visit_blocks import Visit
from analyzers.power_limit.selectors import Trial
from tests.analyzers.power_limit.known_curve import KnownCurve, S, goal, published

MS = 1_000_000
STEP_MS, BLOCK_STEPS = 25, 20
IDLE_W = 40


@dataclass
class BusyHost(KnownCurve):
    """Every few steps, other processes delay one; there are phases with few and with many of them."""

    mean_delay_s: float = 0.0

    def block(self, limit_mw: int) -> Trial:
        known, usual_s = [], self.seconds(limit_mw)
        for _ in range(BLOCK_STEPS):
            self.steps += 1
            busy = 2.0 if self.steps // 150 % 2 else 0.5
            late = self.rng.random() < 0.3
            known.append(usual_s + late * self.rng.expovariate(1) * busy * self.mean_delay_s / 0.3)
        seconds, worked_s = sum(known), BLOCK_STEPS * usual_s
        energy_j = worked_s * self.watts(limit_mw) + (seconds - worked_s) * IDLE_W
        energy_j *= self.rng.gauss(1, 0.002)
        self.t_ns += round(seconds * S)
        delay = delay_ns(round(step_s * S) for step_s in known)
        return Trial(limit_mw, round(energy_j * 1000), round(seconds * S), BLOCK_STEPS, delay)


def trained(mean_delay_ms: float, seed: int, text: str = "cost:0.5") -> tuple[float, int]:
    """Return the excess of the choice, and the steps of the search, on a host that delays steps so much."""
    known = published(1, step_s=STEP_MS / 1000)
    curve = BusyHost(known.limits, known.seconds, known.watts, seed=seed, mean_delay_s=mean_delay_ms / 1000)
    return curve.excess(curve.searched(goal(text)).limit_mw, goal(text)), curve.steps


@pytest.mark.parametrize("text", ["energy", "cost:0.5"])
def test_a_busy_host_costs_neither_precision_nor_steps(text: str) -> None:
    quiet = max(trained(0, seed, text)[1] for seed in range(2))
    searches = [trained(5, seed, text) for seed in range(10)]
    assert max(excess for excess, _ in searches) <= 0.005
    assert max(steps for _, steps in searches) <= 1.3 * quiet


def blocks_of(limit_mw: int, delays_ms: list[float], step_mj: float, delay_w: float) -> list[Trial]:
    """Return blocks of ten steps at a limit; in each, a step is delayed, and the GPU draws so much then."""
    return [
        Trial(limit_mw, round(10 * step_mj + late * delay_w), round((250 + late) * MS), 10, round(late * MS))
        for late in delays_ms
    ]


def visits(delay_w: float) -> list[Visit]:
    high = blocks_of(250_000, [10, 0, 60, 20], 5_000, delay_w)
    low = blocks_of(200_000, [90, 120, 0, 150], 4_500, delay_w)
    return [Visit(tuple(high), S), Visit(tuple(low), 3 * S)]


def test_blocks_are_brought_to_the_same_delay() -> None:
    for visit in evenly_delayed(visits(IDLE_W)):
        [(energy_mj, duration_ns)] = {(block.energy_mj, block.duration_ns) for block in visit.blocks}
        assert duration_ns == pytest.approx((250 + 56.25) * MS)  # the mean of all delays
        step_mj = 5_000 if visit.limit_mw == 250_000 else 4_500
        assert energy_mj == pytest.approx(10 * step_mj + 56.25 * IDLE_W, abs=1)


def test_delays_that_come_with_a_limit_are_no_delays() -> None:
    """Of two kinds of step in turn the limit slows one, so long that its GPU draws little."""
    quick, slow = [0.0, 1.0, 0.0, 2.0], [250.0, 120.0, 130.0, 240.0]
    turns = [
        Visit(tuple(blocks_of(limit_mw, late, 5_000, IDLE_W)), number * S)
        for number, (limit_mw, late) in enumerate(
            [(250_000, quick), (100_000, slow)] * 2 + [(250_000, quick)]
        )
    ]
    assert evenly_delayed(turns[:2]) != turns[:2], "of one visit each nobody can tell"
    assert evenly_delayed(turns) == turns


def test_long_steps_in_which_gpus_work_stay_as_they_are() -> None:
    assert evenly_delayed(visits(180)) == visits(180)


def test_batches_of_unlike_lengths_stay_as_they_are() -> None:
    rng, blocks = Random(0), []
    for _ in range(30):
        steps = [round(25 * MS * rng.gauss(1, 0.1)) for _ in range(10)]
        blocks.append(Trial(250_000, sum(steps) // 100_000, sum(steps), 10, delay_ns(steps)))
    assert evenly_delayed([Visit(tuple(blocks), S)]) == [Visit(tuple(blocks), S)]


trial = st.builds(
    Trial,
    st.sampled_from([150_000, 200_000, 250_000]),
    st.integers(10**5, 10**6),
    st.integers(S // 2, S),
    st.integers(4, 20),
    st.integers(0, S // 2),
)


@given(st.lists(trial, min_size=1, max_size=12))
def test_time_and_energy_of_all_blocks_together_stay(some: list[Trial]) -> None:
    given_visits = [Visit((block,), number * S) for number, block in enumerate(some, 1)]
    even = [visit.whole for visit in evenly_delayed(given_visits)]
    assert [(block.limit_mw, block.steps) for block in even] == [(of.limit_mw, of.steps) for of in some]
    assert sum(block.duration_ns for block in even) == pytest.approx(sum(of.duration_ns for of in some))
    if all(block.energy_mj > 1 for block in even):
        assert sum(block.energy_mj for block in even) == pytest.approx(sum(of.energy_mj for of in some))
