"""Targets of a load signal: never faster than the ramp, and corrected by what was drawn."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.power_budget.allocation import in_force
from analyzers.power_budget.following import RAMP_SHARE, STEP_NS, Following, rank, target_mw
from zeus_stream.protocol.notes import Budget

S = 1_000_000_000
W = 1000

signals = st.lists(st.tuples(st.integers(1, 600), st.integers(0, 5000 * W)), min_size=1, max_size=6).map(
    lambda drawn: tuple((sum(gap for gap, _ in drawn[: i + 1]) * S, mw) for i, (_, mw) in enumerate(drawn))
)


def load(*targets: tuple[int, int], ramp_mw_s: int = 0) -> Budget:
    return Budget(
        group="site", limit_mw=1, gpus=(), set_ns=0, begin_ns=0, end_ns=10**15, ramp_ns=0,
        targets=targets, follows="load.csv", ramp_mw_s=ramp_mw_s, first=("prod-*",),
    )  # fmt: skip


@given(signals, st.integers(1, 100 * W), st.integers(0, 3600), st.integers(0, 600))
def test_a_target_never_moves_faster_than_its_ramp(
    signal: tuple[tuple[int, int], ...], ramp_mw_s: int, now_s: int, later_s: int
) -> None:
    before, after = (target_mw(signal, ramp_mw_s, at * S) for at in (now_s, now_s + later_s))
    assert abs(after - before) <= RAMP_SHARE * ramp_mw_s * later_s + 1
    assert min(mw for _, mw in signal) <= after <= max(mw for _, mw in signal)


@given(signals, st.integers(0, 4000))
def test_without_a_ramp_it_is_the_signal(signal: tuple[tuple[int, int], ...], now_s: int) -> None:
    begun = [mw for since_ns, mw in signal if since_ns < now_s * S] or [signal[0][1]]
    assert target_mw(signal, 0, now_s * S) == begun[-1]


def test_a_ramp_reaches_the_signal_and_stays() -> None:
    signal = ((0, 1000 * W), (100 * S, 400 * W))
    assert [target_mw(signal, 10 * W, at * S) // W for at in (50, 100, 130, 160, 500)] == [
        1000, 1000, 775, 550, 400,
    ]  # fmt: skip


def test_a_note_has_the_value_of_its_step_and_no_signal() -> None:
    signal = ((0, 1000 * W), (100 * S, 400 * W))
    (now,) = in_force([load(*signal, ramp_mw_s=10 * W)], 137 * S)
    assert (now.limit_mw, now.target_ns, now.targets, now.first) == (775 * W, 130 * S, (), ("prod-*",))
    assert in_force([now], 139 * S) == (now,), "a note is taken as it is"


@pytest.mark.parametrize(
    ("job", "place"), [("prod-llm", 0), ("eval", 1), ("evaluate", 2), ("dev", 2), ("my-prod-x", 2)]
)
def test_jobs_are_ranked_by_the_first_name_that_is_theirs(job: str, place: int) -> None:
    assert rank(job, ("prod-*", "eval")) == place


def test_who_draws_less_than_the_limits_gets_more_until_the_target_is_drawn() -> None:
    """A site draws 80 % of its limits above 100 W that nobody controls."""
    following, drawn_mw = Following(), {"site": 0}
    signal = ((0, 1000 * W), (200 * S, 700 * W))
    errors = []
    for step in range(40):
        now = in_force([load(*signal, ramp_mw_s=2 * W)], step * STEP_NS)
        following.follow(now, drawn_mw)
        used_mw = following.of["site"].bound_mw
        following.used("site", used_mw, more=True)
        drawn_mw = {"site": round(100 * W + 0.8 * (used_mw - 100 * W))}
        errors.append(abs(drawn_mw["site"] / now[0].limit_mw - 1))
    assert max(errors[5:]) < 0.02


def test_a_bound_that_nobody_can_use_is_not_in_the_way_when_the_target_falls() -> None:
    following, drawn_mw = Following(), {"site": 500 * W}
    for step in range(30):
        target_w = 2000 if step < 20 else 400
        following.follow(in_force([load((0, target_w * W))], step * STEP_NS), drawn_mw)
        used_mw = min(following.of["site"].bound_mw, 500 * W)
        following.used("site", used_mw, more=used_mw < 500 * W)
        drawn_mw = {"site": used_mw}
        if step == 21:
            break
    assert drawn_mw["site"] == pytest.approx(400 * W, rel=0.05)


def test_what_is_drawn_moves_within_the_ramp_though_jobs_come_and_go() -> None:
    """With a target that used all of the ramp it moved faster in 47 minutes of a day."""
    following, rng, ramp_w_s = Following(), Random(1), 10
    signal = ((0, 9000 * W), (300 * S, 3000 * W), (1500 * S, 9000 * W))
    drawn_w, jobs_w = [9000.0], 0.0
    for step in range(240):
        now = in_force([load(*signal, ramp_mw_s=ramp_w_s * W)], step * STEP_NS)
        following.follow(now, {"site": round(drawn_w[-1] * W)})
        used_w = following.of["site"].bound_mw / W
        following.used("site", following.of["site"].bound_mw, more=True)
        jobs_w += rng.choice((-60.0, 0.0, 0.0, 60.0))
        drawn_w.append(0.9 * used_w + jobs_w)
    minutes = [sum(drawn_w[at : at + 6]) / 6 for at in range(31, 235, 6)]
    assert max(abs(after - before) for before, after in pairwise(minutes)) <= 60 * ramp_w_s
