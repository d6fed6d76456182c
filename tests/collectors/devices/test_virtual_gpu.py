from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.devices.virtual_gpu import Kind, Refreshes, VirtualCounter, VirtualGpu
from zeus_stream.simulated_gpu.shared_memory import LimitChange, Load
from zeus_stream.simulated_gpu.workloads import load

V100 = load()["v100"]
MS = 1_000_000
START_NS = 10**12


@st.composite
def draws(draw: st.DrawFn) -> VirtualGpu:
    """A GPU with a second or so of loads, rests and changes of the limit."""
    made = VirtualGpu(
        V100,
        draw(st.sampled_from([0.0, 0.02, 0.3])),
        draw(st.integers(0, 99)),
        LimitChange(START_NS, 250_000),
    )
    at_ns = START_NS
    for number, (rest, work) in enumerate(
        draw(st.lists(st.tuples(st.integers(0, 40 * MS), st.integers(0, 90 * MS)), max_size=12)), 1
    ):
        made.learn_load(number, Load(at_ns + rest, at_ns + rest + work, "imagenet"))
        at_ns += rest + work
    for at in sorted(draw(st.lists(st.integers(0, 1000 * MS), max_size=4))):
        made.learn_limit(LimitChange(START_NS + at, draw(st.integers(100, 250)) * 1000))
    return made


instants = st.integers(START_NS, START_NS + 1500 * MS)


@pytest.mark.sweep
@given(draws(), st.lists(instants, min_size=2, max_size=6))
def test_energies_of_adjacent_intervals_add_up_to_the_whole_exactly(gpu: VirtualGpu, cuts: list[int]) -> None:
    cuts.sort()
    parts = [gpu.energy_pj(begin, end) for begin, end in pairwise(cuts)]
    assert sum(parts) == gpu.energy_pj(cuts[0], cuts[-1])
    assert min(parts) >= 0


def test_energy_is_the_draw_of_each_stretch_for_as_long_as_it_lasts() -> None:
    gpu = VirtualGpu(V100, 0, 0, LimitChange(START_NS, 250_000))
    gpu.learn_load(1, Load(START_NS + 10 * MS, START_NS + 30 * MS, "squad"))
    gpu.learn_limit(LimitChange(START_NS + 20 * MS, 125_000))
    squad = V100.workloads["squad"]
    by_hand = (
        10 * V100.idle_mw + 10 * squad.power_mw(250_000) + 10 * squad.power_mw(125_000) + 5 * V100.idle_mw
    )
    assert gpu.energy_pj(START_NS, START_NS + 35 * MS) == by_hand * MS
    parts = (gpu.energy_pj(at, at + MS) for at in range(START_NS, START_NS + 35 * MS, MS))
    assert sum(parts) == by_hand * MS
    assert gpu.busy_ns(START_NS, START_NS + 35 * MS) == 20 * MS


def test_noise_has_the_asked_deviation_and_no_bias() -> None:
    gpu = VirtualGpu(V100, 0.1, 3, LimitChange(START_NS, 250_000))
    slots = [
        gpu.energy_pj(at, at + 5 * MS) / 5 / MS for at in range(START_NS, START_NS + 20_000 * MS, 5 * MS)
    ]
    mean = sum(slots) / len(slots)
    deviation = (sum((slot - mean) ** 2 for slot in slots) / len(slots)) ** 0.5
    assert mean == pytest.approx(V100.idle_mw, rel=0.01)
    assert deviation == pytest.approx(0.1 * V100.idle_mw, rel=0.05)


def test_a_load_that_begins_cuts_short_the_one_of_a_killed_process() -> None:
    gpu = VirtualGpu(V100, 0, 0, LimitChange(START_NS, 250_000))
    gpu.learn_load(1, Load(START_NS, START_NS + 200 * MS, "imagenet"))
    gpu.learn_load(2, Load(START_NS + 50 * MS, START_NS + 60 * MS, "movielens-1m"))
    assert gpu.busy_ns(START_NS, START_NS + 300 * MS) == 60 * MS


def test_loads_missing_from_the_numbering_are_counted_and_the_time_before_is_not_known() -> None:
    gpu = VirtualGpu(V100, 0, 0, LimitChange(START_NS, 250_000))
    gpu.learn_load(1, Load(START_NS, START_NS + 10 * MS, "imagenet"))
    gpu.learn_load(5, Load(START_NS + 50 * MS, START_NS + 60 * MS, "imagenet"))
    assert gpu.loads_lost == 3
    assert gpu.known_since_ns == START_NS + 50 * MS


@st.composite
def refreshes(draw: st.DrawFn) -> Refreshes:
    period = draw(st.sampled_from([10 * MS, 20 * MS, 100 * MS]))
    jitter = draw(st.integers(0, period // 2 - 1))
    return Refreshes(period, draw(st.integers(0, period)), jitter, draw(st.integers(0, 99)))


@given(refreshes(), instants)
def test_the_last_refresh_is_past_and_the_next_is_not(clockwork: Refreshes, now_ns: int) -> None:
    index = clockwork.last(now_ns)
    assert clockwork.at_ns(index) <= now_ns < clockwork.at_ns(index + 1)


def counter(
    gpu: VirtualGpu, clockwork: Refreshes, kind: Kind = Kind.INTEGRATING, window_ns: int = 5 * MS
) -> VirtualCounter:
    return VirtualCounter(gpu, clockwork, kind, window_ns, (clockwork.last(START_NS), 0))


@pytest.mark.sweep
@given(draws(), refreshes(), st.lists(instants, max_size=20))
def test_the_truth_lies_between_the_counters_refreshes(
    gpu: VirtualGpu, clockwork: Refreshes, reads: list[int]
) -> None:
    shown = counter(gpu, clockwork)
    origin_ns = clockwork.at_ns(clockwork.last(START_NS))
    for now_ns in sorted(reads):
        index, energy_pj = shown.read_pj(now_ns)
        low_pj = gpu.energy_pj(origin_ns, clockwork.at_ns(index))
        high_pj = gpu.energy_pj(origin_ns, clockwork.at_ns(index + 1))
        assert low_pj == energy_pj <= gpu.energy_pj(origin_ns, now_ns) <= high_pj


@pytest.mark.sweep
@given(st.data(), st.sampled_from(Kind), refreshes())
def test_a_counter_never_falls_even_when_loads_arrive_late_or_end_early(
    data: st.DataObject, kind: Kind, clockwork: Refreshes
) -> None:
    gpu = VirtualGpu(V100, 0.02, 1, LimitChange(START_NS, 250_000))
    shown, now_ns, number, seen_pj = counter(gpu, clockwork, kind), START_NS, 0, 0
    for _ in range(data.draw(st.integers(1, 15))):
        now_ns += data.draw(st.integers(0, 60 * MS))
        number += data.draw(st.sampled_from([0, 1])) if number else 1
        begin_ns = now_ns - data.draw(st.integers(0, 50 * MS))
        until_ns = begin_ns + data.draw(st.integers(0, 200 * MS))
        shown.rewind(gpu.learn_load(number, Load(begin_ns, until_ns, "imagenet")))
        _, energy_pj = shown.read_pj(now_ns)
        assert energy_pj >= seen_pj
        seen_pj = energy_pj


@pytest.mark.sweep
@given(refreshes(), st.integers(0, 300 * MS), st.integers(1, 400 * MS), st.integers(0, 500 * MS))
def test_a_load_told_of_late_is_counted_as_if_it_had_been_told_in_time(
    clockwork: Refreshes, begin: int, duration: int, late: int
) -> None:
    work = Load(START_NS + begin, START_NS + begin + duration, "squad")
    punctual, tardy = (VirtualGpu(V100, 0, 0, LimitChange(START_NS, 250_000)) for _ in range(2))
    in_time, too_late = counter(punctual, clockwork), counter(tardy, clockwork)
    punctual.learn_load(1, work)
    too_late.read_pj(work.begin_ns + late)
    too_late.rewind(tardy.learn_load(1, work))
    end_ns = START_NS + 2000 * MS
    assert too_late.read_pj(end_ns) == in_time.read_pj(end_ns)


def test_a_boxcar_counter_multiplies_what_it_sees_and_misses_the_rest() -> None:
    clockwork = Refreshes(100 * MS, 0, 0, 0)
    gpu = VirtualGpu(V100, 0, 0, LimitChange(START_NS, 250_000))
    for number in range(1, 11):  # works in the first half of every period; the window is the last quarter
        at_ns = START_NS + (number - 1) * 100 * MS
        gpu.learn_load(number, Load(at_ns, at_ns + 50 * MS, "imagenet"))
    end_ns = START_NS + 1000 * MS
    _, boxcar_pj = counter(gpu, clockwork, Kind.BOXCAR, 25 * MS).read_pj(end_ns)
    _, whole_pj = counter(gpu, clockwork, Kind.INTEGRATING).read_pj(end_ns)
    assert boxcar_pj == V100.idle_mw * 1000 * MS
    assert whole_pj == gpu.energy_pj(START_NS, end_ns) > 3 * boxcar_pj


def test_only_a_reset_makes_a_counter_start_over() -> None:
    clockwork = Refreshes(20 * MS, 0, 0, 0)
    gpu = VirtualGpu(V100, 0, 0, LimitChange(START_NS, 250_000))
    shown = counter(gpu, clockwork)
    shown.read_pj(START_NS + 1000 * MS)
    shown.reset(START_NS + 1010 * MS)
    _, energy_pj = shown.read_pj(START_NS + 1100 * MS)
    assert energy_pj == gpu.energy_pj(START_NS + 1000 * MS, START_NS + 1100 * MS)
