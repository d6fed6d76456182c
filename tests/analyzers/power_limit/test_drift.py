"""The watch over a workload, on windows whose truth is known."""

from collections.abc import Callable, Iterable, Iterator
from math import exp, pi, sin, sqrt
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.power_limit.search.drift import FIRST, Watch, begun, changed_steps, seen
from analyzers.power_limit.selectors import Trial

STEPS = 10
"""Of a window."""


def trial(energy: float, time: float, steps: int = STEPS) -> Trial:
    """Return a window in which a step took so many times 50 J and 250 ms."""
    return Trial(150_000, round(50_000 * energy * steps), round(250_000_000 * time * steps), steps)


def windows(seed: str, noise: float = 0.02, correlation: float = 0.3) -> Iterator[tuple[float, float]]:
    """Yield the means of windows of steps whose noise follows itself."""
    rng = Random(seed)
    errors = [rng.gauss(), rng.gauss()]
    while True:
        sums = [0.0, 0.0]
        for _ in range(STEPS):
            for of in (0, 1):
                errors[of] = correlation * errors[of] + sqrt(1 - correlation**2) * rng.gauss()
                sums[of] += max(0.1, 1 + noise * errors[of])
        yield sums[0] / STEPS, sums[1] / STEPS


def watched(seed: str, before: int, noise: float = 0.02) -> tuple[Watch, Iterator[tuple[float, float]]]:
    """Return the watch after a visit of 20 blocks and some windows, and those that follow."""
    come = windows(seed, noise)
    watch = begun(None, [trial(*next(come), 4) for _ in range(20)])
    for _ in range(before):
        watch = seen(watch, trial(*next(come)))
    return watch, come


@pytest.mark.parametrize(("energy", "time"), [(1.1, 1), (0.9, 1), (1, 1.1), (1, 0.9), (1.1, 1.1), (3, 0.2)])
def test_a_shift_of_a_tenth_is_noticed_within_100_steps(energy: float, time: float) -> None:
    after, apart = [], []
    for seed in range(10):
        watch, come = watched(f"{seed} {energy} {time}", FIRST + 9 * seed)
        after.append(0)
        while not watch.alarm:
            e, t = next(come)
            watch = seen(watch, trial(e * energy, t * time))
            after[-1] += STEPS
        apart.append(abs(changed_steps(watch) - after[-1]))
        assert 1 + watch.change[0] == pytest.approx(energy, rel=0.03)
        assert 1 + watch.change[1] == pytest.approx(time, rel=0.03)
    assert min(after) >= 4 * STEPS  # nothing is noticed before
    assert max(after) <= 90  # a window may begin ten steps after the shift
    assert max(apart) <= STEPS, "it is known when the change began"


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
def test_what_stays_as_it_was_and_warms_up_is_no_change(noise: float) -> None:
    come, watch = windows(f"{noise}", noise), Watch()
    for count, (e, t) in zip(range(600), come, strict=False):
        watch = seen(watch, trial(e * (1 - 0.01 * exp(-count / 20)), t))
        assert not watch.alarm


def alarms(factors: Iterable[float]) -> int:
    """Return how often windows of steps that take so many times as long raise an alarm, and begin again."""
    watch, raised = Watch(), 0
    for factor in factors:
        watch = seen(watch, trial(factor, factor))
        if watch.alarm:
            raised, watch = raised + 1, begun(None, before=watch)
    return raised


def test_correlated_noise_of_5_percent_raises_an_alarm_in_10000_steps_at_most() -> None:
    some = windows("1", 0.05, 0.98)
    assert alarms(time for _, (_, time) in zip(range(1_000), some, strict=False)) <= 1


def test_long_steps_that_follow_each_other_by_chance_raise_an_alarm_in_10000_steps_at_most() -> None:
    rng = Random(3)
    assert alarms(1 + rng.gauss(0, 0.01) + 0.2 * (rng.random() < 0.2) for _ in range(1_000)) <= 1


def checkpoint(step: int) -> float:
    return 8.0 if step % 200 == 150 else 1.0


def one_of_47(step: int) -> float:
    return 5.0 if Random(step).random() < 1 / 47 else 1.0


def every_20th(step: int) -> float:
    return 3.0 if step % 20 == 7 else 1.0


def sorted_by_length(step: int) -> float:
    return 0.8 + 0.4 * (step % 73) / 72


def swinging(step: int) -> float:
    return 1 + 0.2 * sin(2 * pi * step / 57)


def two_levels(step: int) -> float:
    return 0.95 if step // 60 % 2 else 1.05


def length_buckets(step: int) -> float:
    return Random(step).choice((0.9, 0.95, 1.0, 1.05, 1.1))


@pytest.mark.parametrize(
    "kind", [checkpoint, one_of_47, every_20th, length_buckets, sorted_by_length, swinging, two_levels]
)
def test_rare_long_steps_buckets_and_swings_hide_no_change(kind: Callable[[int], float]) -> None:
    """A tenth more for good is noticed within 300 steps; nothing is noticed in the 2,000 before."""
    come, watch = windows("", 0.02), Watch()
    for count, (e, t) in zip(range(230), come, strict=False):
        factor = sum(kind(STEPS * count + step) for step in range(STEPS)) / STEPS
        more = 1.1 if count >= 200 else 1.0
        watch = seen(watch, trial(e * factor * more, t * factor * more))
        assert count >= 200 or not watch.alarm
        if watch.alarm:
            return
    raise AssertionError(watch)


@pytest.mark.parametrize("factor", [1.05, 1 / 1.05])
def test_a_shift_of_a_twentieth_is_none(factor: float) -> None:
    watch, _ = watched("", FIRST, noise=0)
    for _ in range(500):
        watch = seen(watch, trial(factor, factor))
    assert not watch.alarm


@pytest.mark.parametrize("factor", [0.01, 0.5, 1.3, 100.0])
def test_a_disturbance_of_three_windows_is_none(factor: float) -> None:
    watch, come = watched("", FIRST + 10)
    for _ in range(10):
        for _ in range(3):
            watch = seen(watch, trial(factor, factor))
            assert not watch.alarm
        for _ in range(4):
            watch = seen(watch, trial(*next(come)))


@pytest.mark.parametrize("factor", [0.8, 1.2])
def test_a_change_right_after_the_choice_is_noticed_by_what_was_measured_then(factor: float) -> None:
    for seed in range(30):
        come, watch = windows(f"{seed}"), begun(trial(1, 1, 12))
        for _ in range(FIRST):
            e, t = next(come)
            watch = seen(watch, trial(e * factor, t))
        for _ in range(4):
            e, t = next(come)
            watch = seen(watch, trial(e * factor, t))
        assert watch.alarm


@pytest.mark.parametrize("noise", [0.02, 0.2])
def test_noise_in_what_was_measured_then_is_no_change(noise: float) -> None:
    for seed in range(30):
        come = windows(f"{seed}", noise)
        searched = [trial(*next(come), 4) for _ in range(20)]
        watch = begun(trial(*next(come)), searched)
        for _ in range(30):
            watch = seen(watch, trial(*next(come)))
            assert not watch.alarm


def test_an_odd_window_at_the_beginning_does_not_matter() -> None:
    for odd in range(FIRST):
        come, watch = windows("", 0.02), Watch()
        for count, (e, t) in zip(range(40), come, strict=False):
            watch = seen(watch, trial(e, t * (5 if count == odd else 1)))
            assert not watch.alarm


def test_what_grows_slowly_is_noticed_by_the_time_it_has_grown_by_a_tenth() -> None:
    watch, come = watched("", FIRST)
    grown = 1.0
    while not watch.alarm:
        grown *= 1.001
        e, t = next(come)
        watch = seen(watch, trial(e * grown, t * grown))
    assert 1.05 < grown < 1.13


def test_when_all_is_as_it_was_again_there_is_no_alarm_any_longer() -> None:
    watch, come = watched("", FIRST)
    for _ in range(1_000):
        watch = seen(watch, trial(2, 2))
    assert watch.alarm
    for _ in range(10):
        watch = seen(watch, trial(*next(come)))
    assert not watch.alarm


def test_a_false_alarm_hides_no_change() -> None:
    """A load that comes and goes raises one alarm; then a tenth more is noticed within 300 steps."""
    watch, come = watched("", 100)
    load, raised = [1.2] * 12 + [1.0] * 60, []
    for count, factor in enumerate((*load, *[1.1] * 30)):
        e, t = next(come)
        watch = seen(watch, trial(e * factor, t * factor))
        if watch.alarm:
            raised.append(count)
            watch = begun(None, before=watch)
    assert len(raised) == 2
    assert raised[0] < len(load) <= raised[1]


figures = st.integers(0, 10**15)
trials = st.builds(Trial, st.just(150_000), figures, figures, st.integers(0, 10_000))


@given(st.lists(trials, max_size=40))
def test_no_three_windows_are_an_alarm_whatever_they_say(told: list[Trial]) -> None:
    watch, calm = Watch(), Watch()
    for window in told:
        watch = seen(watch, window)
        if not watch.alarm:
            calm = watch
    usable = [t for t in told if min(t.energy_mj, t.duration_ns, t.steps) > 0]
    if len(usable) < FIRST + 4:
        assert not watch.alarm
        assert calm == watch


@given(
    st.lists(st.tuples(st.floats(0.2, 5), st.floats(0.2, 5)), max_size=30),
    st.floats(0.1, 10),
    st.floats(0.1, 10),
)
def test_only_shares_matter(told: list[tuple[float, float]], energy: float, time: float) -> None:
    here, there, swapped = Watch(), Watch(), Watch()
    for e, t in told:
        here = seen(here, trial(e, t))
        there = seen(there, trial(e * energy, t * time))
        swapped = seen(swapped, trial(t, e))
    assert there.alarm == here.alarm == swapped.alarm
    assert there.change == pytest.approx(here.change, abs=0.001)
    assert swapped.change == pytest.approx(here.change[::-1], abs=0.001)
