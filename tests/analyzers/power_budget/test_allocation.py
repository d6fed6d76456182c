from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from analyzers.power_budget.allocation import Bound, Unit, in_force, least, most_mw, over, share_out, speeds
from analyzers.power_limit.selectors import Trial
from zeus_stream.protocol.notes import Budget

S = 1_000_000_000
W = 1000
STRIDE = 25 * W
RACK = Budget(
    group="rack1", limit_mw=300 * W, gpus=(), set_ns=0, begin_ns=100 * S, end_ns=200 * S, ramp_ns=10 * S
)


# ---- time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("set_s", "now_s", "most_w"),
    [
        pytest.param(0, 87, None, id="before its ramp it does not bind"),
        pytest.param(0, 93, 400, id="half of the ramp, half of the way"),
        pytest.param(0, 98, 300, id="shortly before its beginning it holds"),
        pytest.param(0, 199, 300, id="until its end"),
        pytest.param(0, 205, 400, id="then it goes back as it came"),
        pytest.param(0, 210, None, id="and is over"),
        pytest.param(150, 155, 400, id="set late, it has its ramp all the same"),
        pytest.param(150, 170, 300, id="and holds after it"),
    ],
)
def test_a_budget_comes_and_goes_by_its_ramp(set_s: int, now_s: int, most_w: int | None) -> None:
    binding = in_force([replace(RACK, set_ns=set_s * S)], now_s * S)
    assert [most_mw(budget, 500 * W) for budget in binding] == (
        [] if most_w is None else [pytest.approx(most_w * W, abs=1)]
    )
    assert over(RACK, now_s * S) == (now_s >= 210)


def test_a_budget_in_the_place_of_another_comes_from_there() -> None:
    (half,) = in_force([replace(RACK, before_mw=200 * W)], 93 * S)
    assert most_mw(half, 500 * W) == pytest.approx(250 * W, abs=1)
    assert most_mw(half, 220 * W) == 220 * W, "no budget is above what was found"


def test_without_a_ramp_it_holds_at_once() -> None:
    sudden = replace(RACK, ramp_ns=0)
    assert not in_force([sudden], 98 * S - 1)
    assert [budget.way for budget in in_force([sudden], 100 * S)] == [1.0]
    assert not in_force([sudden], 200 * S)


# ---- sharing out -----------------------------------------------------------------------------------------


def unit(name: str, gains: list[int], gpus: int = 1, least: int = 4) -> Unit:
    """One whose speed grows by these, stride by stride."""
    total = max(sum(gains), 1)
    speed = [1 - sum(gains[i:]) / (2 * total) for i in range(len(gains) + 1)]
    limits = tuple((least + i) * STRIDE for i in range(len(gains) + 1))
    return Unit(name, tuple(f"{name}{i}" for i in range(gpus)), limits, tuple(speed))


def watts(units: list[Unit], limits: dict[str, int], gpus: frozenset[str] | None = None) -> int:
    return sum(
        limits[each.name] * len([gpu for gpu in each.gpus if gpus is None or gpu in gpus]) for each in units
    )


def value(units: list[Unit], limits: dict[str, int]) -> float:
    return sum(len(u.gpus) * u.speed[u.limits_mw.index(limits[u.name])] for u in units)


def best(units: list[Unit], bounds: list[Bound]) -> float:
    """Return the largest sum of speeds of all that keep to the bounds, by trying all."""
    names = [each.name for each in units]
    tried = (dict(zip(names, chosen, strict=True)) for chosen in product(*(u.limits_mw for u in units)))
    return max(
        (value(units, t) for t in tried if all(watts(units, t, b.gpus) <= b.most_mw for b in bounds)),
        default=value(units, {u.name: u.limits_mw[0] for u in units}),
    )


def everything(units: list[Unit]) -> frozenset[str]:
    return frozenset(gpu for each in units for gpu in each.gpus)


gains = st.lists(st.integers(0, 20), min_size=1, max_size=4)
alone = st.lists(gains.map(lambda g: sorted(g, reverse=True)), min_size=1, max_size=4).map(
    lambda all_gains: [unit(name, g) for name, g in zip("abcd", all_gains, strict=False)]
)
any_units = st.lists(st.tuples(gains, st.integers(1, 3), st.integers(3, 5)), min_size=1, max_size=4).map(
    lambda drawn: [unit(name, *each) for name, each in zip("abcd", drawn, strict=False)]
)
budget_mw = st.integers(200 * W, 3000 * W)


@given(alone, budget_mw)
def test_concave_curves_are_shared_as_well_as_can_be(units: list[Unit], most: int) -> None:
    bounds = [Bound(everything(units), most)]
    assert value(units, share_out(units, bounds)) == pytest.approx(best(units, bounds))


@given(any_units, budget_mw)
def test_any_curves_are_shared_to_within_one_step(units: list[Unit], most: int) -> None:
    bounds = [Bound(everything(units), most)]
    step = max(len(u.gpus) * (u.speed[-1] - u.speed[0]) for u in units)
    assert value(units, share_out(units, bounds)) >= best(units, bounds) - step - 1e-9


@given(any_units, st.lists(st.tuples(st.sets(st.sampled_from("abcd")), budget_mw), max_size=3))
def test_all_budgets_hold_or_everybody_has_the_least(
    units: list[Unit], drawn: list[tuple[set[str], int]]
) -> None:
    bounds = [
        Bound(frozenset(gpu for u in units if u.name in names for gpu in u.gpus), most)
        for names, most in drawn
    ]
    limits = share_out(units, bounds)
    for bound in bounds:
        inside = [u for u in units if bound.gpus & set(u.gpus)]
        if least(units, bound) > bound.most_mw:
            assert all(limits[u.name] == u.limits_mw[0] for u in inside)
        else:
            assert watts(units, limits, bound.gpus) <= bound.most_mw
    assert all(limits[u.name] in u.limits_mw for u in units)


@given(any_units, budget_mw, st.integers(0, 500 * W))
def test_a_larger_budget_is_no_slower(units: list[Unit], most: int, more: int) -> None:
    gpus = everything(units)
    less, larger = (share_out(units, [Bound(gpus, mw)]) for mw in (most, most + more))
    assert value(units, larger) >= value(units, less) - 1e-9


@given(any_units, budget_mw, st.randoms())
def test_the_order_in_which_they_are_named_is_nothing(units: list[Unit], most: int, rng: object) -> None:
    bounds = [Bound(everything(units), most)]
    mixed = list(units)
    rng.shuffle(mixed)  # type: ignore[attr-defined]  # a Random
    assert share_out(mixed, bounds) == share_out(units, bounds)


@pytest.mark.parametrize(
    ("most", "spreads", "idle"),
    [
        pytest.param(10**9, True, 7, id="a budget that does not bind throttles nobody"),
        pytest.param(11 * STRIDE, True, 5, id="who gains nothing gets what is left"),
        pytest.param(10**9, False, 4, id="where a signal is followed, watts without a gain raise nothing"),
    ],
)
def test_who_gains_has_all_that_it_gains_from(most: int, spreads: bool, idle: int) -> None:  # noqa: FBT001
    units = [unit("a", [3, 1]), unit("idle", [0, 0, 0])]
    shared = share_out(units, [Bound(everything(units), most, spreads=spreads)])
    assert shared == {"a": 6 * STRIDE, "idle": idle * STRIDE}


def test_units_of_a_lower_rank_get_all_that_they_gain_from_first() -> None:
    units = [replace(unit("last", [9, 9, 9]), rank=1), unit("first", [1, 1, 1])]
    bound = Bound(everything(units), 12 * STRIDE)
    assert share_out(units, [bound]) == {"first": 7 * STRIDE, "last": 5 * STRIDE}


# ---- what a limit gains ----------------------------------------------------------------------------------

LIMITS = tuple(range(100 * W, 275 * W, 25 * W))


def trial(limit_w: int, step_ms: float, power_w: float = 200) -> Trial:
    return Trial(limit_w * W, round(power_w * step_ms * 10), round(step_ms * 1e7), 10)


def test_measured_times_are_met_where_they_were_measured() -> None:
    found = speeds(LIMITS, 1, (trial(250, 100), trial(175, 110), trial(100, 180)))
    assert found[-1] == 1
    assert found[LIMITS.index(175 * W)] == pytest.approx(100 / 110)
    assert found[0] == pytest.approx(100 / 180)


def test_without_a_profile_a_lower_limit_costs_more_and_more() -> None:
    found = speeds(LIMITS, 1, ())
    lost = [after - before for before, after in pairwise(found)]
    assert all(later < earlier for earlier, later in pairwise(lost))
    assert found[-1] == 1


def test_what_draws_little_loses_little() -> None:
    assert speeds(LIMITS, 1, (trial(250, 100, power_w=60),))[0] > 0.98
    assert speeds(LIMITS, 1, (trial(250, 100, power_w=250),))[0] < 0.8
    assert speeds(LIMITS, 4, (trial(250, 100, power_w=4 * 60),))[0] > 0.98


@given(st.dictionaries(st.sampled_from([100, 150, 175, 200, 250]), st.floats(50, 500), max_size=5))
def test_no_limit_is_faster_than_a_higher_one(measured: dict[int, float]) -> None:
    found = speeds(LIMITS, 1, tuple(trial(limit, ms) for limit, ms in measured.items()))
    assert list(found) == sorted(found)
    assert found[-1] == 1
    assert found[0] > 0
