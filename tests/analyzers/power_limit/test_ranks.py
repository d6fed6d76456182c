"""Jobs of several ranks: whose energy and time count, who is lowered, and who comes and goes."""

import pytest
from msgspec.structs import replace

from analyzers.interpreter.interpreter import Interpreter
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.result import ApplyControl, RestoreControl
from analyzers.results.rows import DecisionRow, GpuLimitRow, TrialRow
from tests.messages import COLLECTOR_STARTED
from tests.simulation.simulated_site import Training
from tests.simulation.world import BEGIN_NS, QUICK, World, replayed

S = 1_000_000_000
PLAN = replace(QUICK, timeout_ns=S)
V100 = "simulated:v100,period_ms=100"
TRAINING = Training("imagenet", 0.04, 150)


def ranks(count: int, training: Training = TRAINING, plan: RunSettings = PLAN, late: int = 0) -> World:
    """Return a job of so many ranks, a host and a clock each."""
    more = tuple((f"{V100},seed={number}", number * 1_234 * S) for number in range(1, count))
    return World(V100, training, plan, more=more, late=late)


def gpu_of(made: World, rank: int) -> str:
    (gpu,) = made.hosts[rank].gpus
    return gpu


def reasons(made: World) -> list[str]:
    return [row.reason for row in made.rows(DecisionRow)]


# ---- one that dies, one that comes late ------------------------------------------------------------------


@pytest.mark.parametrize("dead", [0, 1])
@pytest.mark.parametrize("after_ns", [300_000_000, 2 * S])
def test_when_a_rank_dies_its_gpu_is_given_back_and_those_left_begin_another_round(
    dead: int, after_ns: int
) -> None:
    made = ranks(3)
    gpu = gpu_of(made, dead)
    made.at(BEGIN_NS + after_ns, lambda: made.kill_rank(dead))
    made.run(after_ns / S + 1.01)
    before = len(made.outputs)
    assert made.rows(ApplyControl)
    assert {row.gpu for row in made.rows(RestoreControl)} == {gpu_of(made, rank) for rank in range(3)}
    made.run()
    told = [reason for reason in reasons(made) if "killed by signal 9" in reason]
    assert told == [f"rank {dead} has ended (killed by signal 9): limits are looked for with 2 of 3 ranks"]
    commands = [row for row in made.outputs[before:] if isinstance(row, ApplyControl)]
    assert commands
    assert gpu not in {command.gpu for command in commands}
    rounds = [[row for row in made.rows(TrialRow) if row.round == number] for number in (1, 2)]
    assert len([row for row in rounds[1] if not row.confirms]) == 3
    for first, second in zip(*rounds, strict=False):  # all visit the same limits in the same order
        assert second.power_limit_w == first.power_limit_w
        assert second.average_power_w == pytest.approx(first.average_power_w * 2 / 3, rel=0.06)
    assert made.rows(DecisionRow)[-1].applied
    assert made.limits_mw() == [250_000] * 3


def test_a_trial_under_way_when_a_rank_dies_is_not_counted() -> None:
    made = ranks(2, plan=replace(PLAN, profile_steps=40))
    made.at(BEGIN_NS + S, lambda: made.kill_rank(1))
    made.run()
    assert all(row.ended_ns <= BEGIN_NS + S or row.began_ns >= BEGIN_NS + S for row in made.rows(TrialRow))
    assert {row.round for row in made.rows(TrialRow)} == {2}


def test_a_rank_that_joins_late_begins_another_round_with_all() -> None:
    made = ranks(2, late=1)
    made.at(BEGIN_NS + 3 * S, made.join)
    made.run()
    assert [reason for reason in reasons(made) if "looked for" in reason] == [
        "not all came within 1 s: limits are looked for with 1 of 2 ranks",
        "rank 1 has joined: limits are looked for with 2 of 2 ranks",
    ]
    alone, both = (next(row for row in made.rows(TrialRow) if row.round == number) for number in (1, 2))
    assert both.average_power_w == pytest.approx(2 * alone.average_power_w, rel=0.06)
    assert {command.gpu for command in made.rows(ApplyControl)} == {gpu_of(made, 0), gpu_of(made, 1)}


def test_a_job_that_ends_rank_by_rank_says_nothing_of_it() -> None:
    made = ranks(2)
    made.run()
    assert len(made.rows(DecisionRow)) == 1
    assert made.limits_mw() == [250_000] * 2
    rounds = [row.round for row in made.rows(TrialRow)]
    assert set(rounds) == {1}


def test_a_run_taken_up_again_by_fewer_ranks_goes_on_counting_rounds() -> None:
    made = ranks(2, Training("imagenet", 0.04, 400))
    made.at(BEGIN_NS + 3 * S, lambda: made.kill_rank(0))
    made.run(5.0)
    made.kill()
    ((numbers, decisions, rounds),) = made.interpreter.site.ended_runs.values()
    assert numbers >= made.rows(TrialRow)[-1].number
    assert (decisions, rounds) == (len(made.rows(DecisionRow)), 2)


# ---- single GPUs ------------------------------------------------------------------------------------------

PER_GPU = replace(PLAN, per_gpu=True, timeout_ns=5 * S)
UNEQUAL = "simulated:v100,period_ms=100,slower=1.25+v100,period_ms=100"


def unequal(steps: int = 1200, **more: object) -> World:
    return World(UNEQUAL, Training("imagenet", 0.12, steps, **more), PER_GPU)  # type: ignore[arg-type]  # as the callers give them


def until_found(made: World) -> list[GpuLimitRow]:
    while not made.rows(GpuLimitRow):
        assert not made.ended
        made.run(1.0)
    return made.rows(GpuLimitRow)


def test_a_gpu_that_waits_is_lowered_and_no_other() -> None:
    made = unequal()
    slow, quick = made.hosts[0].gpus
    rows = {row.gpu: row for row in until_found(made)}
    job_w = made.rows(DecisionRow)[0].power_limit_w
    assert job_w is not None
    assert (rows[slow].power_limit_w, rows[slow].reason) == (job_w, "the others wait for it")
    assert rows[quick].power_limit_w < job_w
    energy, time = rows[quick].energy_percent, rows[quick].time_percent
    assert energy is not None
    assert time is not None
    assert energy < -3
    assert abs(time) < 0.3
    made.run(5.0)
    assert made.limits_mw() == [round(rows[gpu].power_limit_w * 1000) for gpu in (slow, quick)]
    confirmed = [row for row in made.rows(TrialRow) if row.confirms]
    even, uneven = (row.energy_j / row.steps for row in confirmed)
    assert uneven / even - 1 == pytest.approx(energy / 100, abs=0.015)
    again = Interpreter(PER_GPU)
    assert replayed(again, made.frames) == made.outputs
    # a workload that changes is profiled again, from one limit for all
    made.training = replace(made.training, heavier=(made.step, 1.4))
    before = len(made.outputs)
    made.run(60.0)
    asked = [row for row in made.outputs[before:] if isinstance(row, ApplyControl)]
    assert {row.gpu for row in asked[:2]} == {slow, quick}
    assert len({row.value for row in asked[:2]}) == 1


def test_a_lapse_meanwhile_puts_all_back_to_the_job_s_limit() -> None:
    made = unequal()
    while len({row.value for row in made.rows(ApplyControl)[-2:]}) == 1 or not made.rows(DecisionRow):
        made.run(0.2)
    job_w = made.rows(DecisionRow)[0].power_limit_w
    host = made.hosts[0]
    before = len(made.outputs)
    host.note(replace(COLLECTOR_STARTED, t_ns=host.now()))
    made.run(8.0)
    asked = [row for row in made.outputs[before:] if isinstance(row, ApplyControl)]
    assert [(row.gpu, row.value) for row in asked[:2]] == [
        (gpu, round((job_w or 0) * 1000)) for gpu in host.gpus
    ]
