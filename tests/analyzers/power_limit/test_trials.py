"""What steps took, over ranks, spans and blocks."""

from functools import reduce
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from analyzers.fleet.session import Session, Span
from analyzers.measurement.energy import Meter, NoEnergy
from analyzers.measurement.timeline import Timeline
from analyzers.power_limit.trials import Taken, added_up, joined, taken, trial_row
from analyzers.power_limit.visits import MeasureTrial, Purpose
from tests.analyzers.archives import TRIAL
from tests.analyzers.readings import MS, S, steady
from tests.messages import RUN_ADMITTED, RUN_STARTED
from zeus_stream.protocol.events import StepBoundary

STEP_MS = 50
"""The counter changes after every second one."""
STEPS = 60


def rank(number: int, *gpus: str, steps: int = STEPS) -> Session:
    """Return a rank that has made so many steps in a row."""
    started = replace(RUN_STARTED, rank=number, world_size=2, gpus=gpus)
    session = Session(f"session-{number}", "host", 0, started, steps_kept=1_000)
    session.admitted = replace(RUN_ADMITTED, session=session.session, gpus=gpus)
    for index in range(steps):
        began_ns = index * STEP_MS * MS
        session.note((StepBoundary(index, began_ns if index else None, began_ns),))
    return session


def meter(changes: int = 40, power_w: int = 200) -> Meter:
    made = Timeline()
    made.add(steady(power_w, changes))
    return Meter(made)


def took(*spans: Span, meters: dict[str, Meter], ranks: tuple[Session, ...], timely: bool = False) -> Taken:
    found = taken(spans, ranks, meters.__getitem__, 4 * S, timely=timely)
    assert isinstance(found, Taken)
    return found


@given(st.lists(st.integers(4, 55), min_size=2, max_size=5, unique=True).map(sorted))
def test_spans_side_by_side_take_what_the_span_around_them_takes(edges: list[int]) -> None:
    meters, ranks = {"GPU-a": meter(), "GPU-b": meter(power_w=300)}, (rank(0, "GPU-a"), rank(1, "GPU-b"))
    parts = [took(Span(a, b), meters=meters, ranks=ranks) for a, b in pairwise(edges)]
    whole = took(Span(edges[0], edges[-1]), meters=meters, ranks=ranks)
    for gpu, energy_uj in whole.energy_uj.items():
        assert sum(part.energy_uj[gpu] for part in parts) == pytest.approx(energy_uj, abs=2 * len(parts))
    assert sum(part.duration_ns for part in parts) == whole.duration_ns
    assert whole.energy_mj * 1000 == pytest.approx(sum(whole.energy_uj.values()), abs=500)
    of_steps_mj = 500 * STEP_MS * (edges[-1] - edges[0])
    assert whole.energy_mj == pytest.approx(of_steps_mj, rel=1e-6)


def test_a_gpu_of_two_ranks_is_counted_once_and_the_slowest_rank_tells_the_time() -> None:
    slow = rank(1, "GPU-a")
    slow.note((StepBoundary(30, 29 * STEP_MS * MS, (30 * STEP_MS + 7) * MS),))
    found = took(Span(10, 30), meters={"GPU-a": meter()}, ranks=(rank(0, "GPU-a"), slow))
    assert dict(found.energy_uj) == {"GPU-a": pytest.approx(200_000 * STEP_MS * 20)}
    assert found.duration_ns == (20 * STEP_MS + 7) * MS


def test_a_delay_is_that_of_the_slowest_rank_beyond_its_quickest_step_without_waits_for_batches() -> None:
    slow = rank(1, "GPU-a", steps=20)
    t_ms = 19 * STEP_MS
    for index, (step_ms, batch_ms) in enumerate([(50, 0), (50, 30), (90, 0), (50, 0)], 20):
        slow.note((StepBoundary(index, (t_ms + step_ms) * MS, (t_ms + step_ms + batch_ms) * MS),))
        t_ms += step_ms + batch_ms
    found = took(Span(19, 23), meters={"GPU-a": meter()}, ranks=(rank(0, "GPU-a"), slow))
    assert (found.duration_ns, found.delay_ns) == (270 * MS, 40 * MS)
    assert took(Span(2, 12), meters={"GPU-a": meter()}, ranks=(slow,)).delay_ns == 0


def test_what_may_still_come_is_awaited_and_what_does_not_is_missing() -> None:
    meters = {"GPU-a": meter(changes=8)}
    short, whole = rank(1, "GPU-a", steps=12), rank(0, "GPU-a")
    for ranks, reason in (((short,), "the steps of rank 1 are not known"), ((whole,), "GPU-a: no reading")):
        assert taken((Span(10, 20),), ranks, meters.__getitem__, S, timely=True) is None
        missing = taken((Span(10, 20),), ranks, meters.__getitem__, S, timely=False)
        assert isinstance(missing, NoEnergy)
        assert missing.reason.startswith(reason)


blocks = st.builds(
    Taken,
    energy_uj=st.fixed_dictionaries({"GPU-a": st.integers(10**6, 10**9), "GPU-b": st.integers(10**6, 10**9)}),
    duration_ns=st.integers(10**8, 10**10),
    temperatures_c=st.lists(st.floats(20, 90), max_size=3).map(tuple),
    locked=st.booleans(),
)


@given(st.lists(blocks, min_size=1, max_size=4), st.sampled_from([None, 7.0]))
def test_blocks_of_a_visit_are_one_row_that_holds_all_of_them(some: list[Taken], cost: float | None) -> None:
    lead = rank(0, "GPU-a", "GPU-b")
    rows = []
    for number, block in enumerate(some, 3):
        first = 10 * (number - 3)
        asked = MeasureTrial(
            number=number,
            round=2,
            limit_mw=250_000,
            spans=(Span(first, first + 8),),
            purpose=Purpose.PROFILE,
            visit=3,
            ended_ns=0,
        )
        rows.append(trial_row("run", asked, block, cost, lead))
    visit = reduce(joined, rows)
    energy_mj = sum(block.energy_mj for block in some)
    duration_s = sum(block.duration_ns for block in some) / 1e9
    assert (visit.number, visit.round, visit.steps, visit.confirms) == (3, 2, 8 * len(some), False)
    assert visit.energy_j == pytest.approx(energy_mj / 1000)
    assert visit.average_power_w == pytest.approx(energy_mj / 1000 / duration_s)
    assert visit.cost == (None if cost is None else pytest.approx(7 * len(some)))
    assert (visit.began_ns, visit.ended_ns) == (0, (10 * (len(some) - 1) + 8) * STEP_MS * MS)
    known = [temperature for block in some for temperature in block.temperatures_c]
    assert (visit.temperature_c is None) == (not known)
    if visit.temperature_c is not None:
        assert min(known) - 1e-6 <= visit.temperature_c <= max(known) + 1e-6
    (trial,) = added_up(rows)
    assert (trial.limit_mw, trial.steps) == (250_000, visit.steps)
    assert trial.energy_mj == pytest.approx(energy_mj, abs=len(some))


def test_of_each_limit_there_is_one_trial() -> None:
    low = replace(
        TRIAL,
        run="run",
        number=1,
        power_limit_w=100.0,
        steps=8,
        duration_s=2.0,
        energy_j=150.0,
        average_power_w=75.0,
        cost=None,
        temperature_c=None,
        ended_ns=1,
    )
    high = replace(low, number=2, power_limit_w=300.0, energy_j=400.0)
    trials = added_up([low, high, replace(low, number=3)])
    assert {(trial.limit_mw, trial.energy_mj, trial.steps) for trial in trials} == {
        (100_000, 300_000, 16),
        (300_000, 400_000, 8),
    }
