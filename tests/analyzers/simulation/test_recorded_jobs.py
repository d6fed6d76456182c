"""The game of recurring jobs, in a world whose every figure is known; golden figures where the traces are."""

from collections.abc import Sequence
from math import inf
from random import Random
from statistics import fmean, stdev
from typing import Any

import pytest
from msgspec.structs import replace

from analyzers.batch_size.belief.try_summary import JobHistory
from analyzers.batch_size.policy import Choice, Try, TryVerdict
from analyzers.batch_size.thompson import Reference
from analyzers.simulation.baselines import PLAYERS, Known
from analyzers.simulation.recorded_jobs import (
    Powered,
    RecordedWorkload,
    Size,
    Traces,
    Trained,
    World,
    levels,
    pooled,
    sweep,
    world,
)
from analyzers.simulation.runner import Game, play_all
from analyzers.simulation.simulated_jobs import (
    DRIFTS,
    Rules,
    by_recurrence,
    drifting,
    play,
    regret,
    tried_limits_w,
)
from analyzers.simulation.traces import read

EPOCHS = {8: (None, None), 16: (4, 5), 32: (4, 4), 64: (6, 8)}
WORKLOAD = RecordedWorkload(dataset="digits", default=32, optimizer="sgd", target=0.9, max_epochs=20)
TABLES = Traces(
    tuple(
        Trained(
            dataset="digits",
            network="net",
            batch_size=size,
            optimizer="sgd",
            learning_rate="0.1",
            run=str(run),
            level=level,
            epoch=reached if level == 0.9 else 2,
        )
        for size, runs in EPOCHS.items()
        for run, reached in enumerate(runs)
        for level in (0.5, 0.9)
    ),
    {
        "v100": tuple(
            Powered(
                dataset="digits",
                network="net",
                batch_size=size,
                optimizer="sgd",
                limit_w=limit_w,
                epoch_s=1600 / size * slow,
                power_w=limit_w / 2,
            )
            for size in EPOCHS
            for limit_w, slow in ((200, 1.0), (100, 1.5))
        )
    },
)
DIGITS = world(TABLES, "v100", WORKLOAD)
"""An epoch of 32 takes 50 s and 5000 J at 200 W, cost 7500; 75 s, 3750 J and cost 9375 at 100 W."""


class Always:
    """Chooses sizes in turn, with a bound, and remembers what it was asked."""

    def __init__(self, *sizes: int, stop_cost_j: float = inf, most_epochs: int = 99) -> None:
        self.sizes, self.stop_cost_j, self.most_epochs = sizes, stop_cost_j, most_epochs
        self.asked: list[JobHistory] = []
        self.judged: list[Try] = []

    def choose(self, history: JobHistory, _setup: str, _rng: Random) -> Choice:
        self.asked.append(history)
        return Choice(self.sizes[len(history.tries) % len(self.sizes)], self.stop_cost_j)

    def verdict(self, _history: JobHistory, a_try: Try) -> TryVerdict:
        self.judged.append(a_try)
        return TryVerdict(a_try.epochs < self.most_epochs)


def spent(policy: Always, rules: Rules, recurrences: int = 1) -> list[Any]:
    """Return batch size, epochs, cost and end of every try."""
    played = play([DIGITS] * recurrences, policy, 1, rules)
    return [(one.batch_size, one.epochs, one.spent.cost_j, one.ended) for one in played]


def test_a_world_is_what_the_tables_say() -> None:
    assert DIGITS.job.batch_sizes == (8, 16, 32, 64)
    assert DIGITS.limits_w == (200, 100)
    assert DIGITS.competing == pytest.approx({16: 4.5 * 15_000, 32: 4 * 7500, 64: 7 * 3750})
    assert DIGITS.optimum_j == pytest.approx(26_250)
    assert (DIGITS.by_default.energy_j, DIGITS.by_default.time_s) == pytest.approx((20_000, 200))
    assert DIGITS.recurrences == 16
    assert levels(TABLES, "digits") == (0.5, 0.9)


def test_a_world_that_was_not_recorded_is_refused() -> None:
    with pytest.raises(ValueError, match="batch size 48 was not recorded"):
        world(TABLES, "v100", replace(WORKLOAD, default=48))


@pytest.mark.parametrize("rules", [Rules(), Rules(faithful=True)])
def test_the_first_epoch_of_a_size_profiles(rules: Rules) -> None:
    profiling = (7500 + 9375) / 2
    assert spent(Always(32), rules, 2) == [
        (32, 4, pytest.approx(profiling + 3 * 7500), "converged"),
        (32, 4, pytest.approx(4 * 7500), "converged"),
    ]


def test_a_bound_ends_a_try_before_the_epoch_that_passes_it() -> None:
    bounded = Always(8, 32, stop_cost_j=92_000)
    (first, second) = spent(bounded, Rules())
    assert first == (8, 2, pytest.approx(33_750 + 30_000), "stopped")
    assert second[3] == "converged"
    # The reference reckons with the best limit alone: three epochs for this bound.
    assert spent(bounded, Rules(faithful=True))[0] == (8, 3, pytest.approx(33_750 + 60_000), "stopped")


def test_a_budget_below_an_epoch_costs_nothing_in_the_references_game_and_an_epoch_in_ours() -> None:
    poor = Always(8, 32, stop_cost_j=29_000)
    assert spent(poor, Rules(faithful=True))[0] == (8, 0, 0, "stopped")
    assert spent(poor, Rules())[0] == (8, 1, pytest.approx(33_750), "stopped")


def test_epochs_are_limited_and_so_are_tries() -> None:
    assert spent(Always(8), Rules(faithful=True)) == spent(Always(8), Rules())
    assert [(epochs, ended) for _, epochs, _, ended in spent(Always(8), Rules())] == [(20, "exhausted")] * 20


def test_a_verdict_ends_a_try_and_the_policy_hears_what_it_needs() -> None:
    policy = Always(64, 32, most_epochs=3)
    assert spent(policy, Rules())[0][1::2] == (3, "stopped")
    first, second, third = policy.judged[:3]
    ended = policy.asked[1].tries[0]
    assert first.epoch_cost_j == 3750
    assert [one.metrics for one in (first, second)] == [(pytest.approx(0.1),), (pytest.approx(0.1), 0.5)]
    assert [one.epochs for one in (first, second, third, ended)] == [1, 2, 3, 3]
    assert ended == replace(third, ended="stopped")


def test_without_profiling_as_many_tries_as_limits_run_at_one_each() -> None:
    costs = [cost for _, _, cost, _ in spent(Always(32), Rules(profiling="by runs"), 4)]
    assert costs == pytest.approx([4 * 7500, 4 * 9375, 4 * 7500, 4 * 7500])


@pytest.mark.parametrize(
    ("player", "limits_w"),
    [("grid", [200, 200, 100, 100]), ("default", [200] * 4), ("zeus", [100] * 4)],
)
def test_a_try_has_the_limit_that_its_player_gives_it(player: str, limits_w: list[int]) -> None:
    """Where only energy counts the best limit is 100 W; a grid tries the highest first."""
    made = world(TABLES, "v100", WORKLOAD, eta=1.0)
    assert tried_limits_w(made, PLAYERS[player](made).rules, (32, 64, 32, 32)) == limits_w


def test_regret_is_in_units_of_the_optimum() -> None:
    worlds = [DIGITS] * 3
    played = play(worlds, Known(64), 4)
    costs = [took.cost_j for took in by_recurrence(played, 3)]
    assert regret(played, worlds)[-1] == pytest.approx(sum(costs) / 26_250 - 3)


@pytest.mark.parametrize("name", PLAYERS)
@pytest.mark.parametrize("overlap", [0.0, 3.0])
def test_a_game_is_the_same_for_the_same_seed_and_reaches_every_target(name: str, overlap: float) -> None:
    games = [Game(world=DIGITS, player=name, seed=seed, overlap=overlap) for seed in (1, 1, 2)]
    first, again, other = (played for _, played in play_all(games, 1))
    assert first == again
    assert {one.recurrence for one in other if one.ended == "converged"} == set(range(DIGITS.recurrences))


def test_games_on_several_processes_are_those_of_one() -> None:
    games = [Game(world=DIGITS, player="zeus", seed=seed) for seed in range(15)]
    assert dict(_by_seed(play_all(games, 2))) == dict(_by_seed(play_all(games, 1)))


def test_each_recurrence_of_a_pool_runs_on_one_of_its_gpu_models() -> None:
    members = [DIGITS, replace(DIGITS, gpu="a40")]
    worlds = drifting(pooled(members), "none")
    assert {here.gpu for here in worlds} == {"v100", "a40"}
    profiled = [played for played in play(worlds, Always(32), 1) if played.spent.cost_j != 30_000]
    assert [worlds[one.recurrence].gpu for one in profiled] in (["v100", "a40"], ["a40", "v100"])


def test_costs_that_scatter_are_the_same_for_all_players_and_right_on_average() -> None:
    noisy = replace(DIGITS, cost_scatter=0.1)
    costs = [one.spent.cost_j for one in play([noisy] * 400, Always(32), 1)][1:]
    assert fmean(costs) == pytest.approx(30_000, rel=0.03)
    assert stdev(costs) == pytest.approx(3_000, rel=0.15)
    assert costs == [one.spent.cost_j for one in play([noisy] * 400, Always(32), 1)][1:]


def _by_seed(played: object) -> list[tuple[int, object]]:
    return [(game.seed, tries) for game, tries in played]  # type: ignore[attr-defined]


def test_overlapping_recurrences_meet_a_policy_that_does_not_know_their_end() -> None:
    policy = Always(32)
    play([DIGITS] * 10, policy, 1, Rules(overlap=5.0))
    for history in policy.asked:
        assert [one.number for one in history.tries] == list(range(len(history.tries)))
    assert max(sum(one.ended == "running" for one in history.tries) for history in policy.asked) > 1


def test_the_best_size_moves_by_four() -> None:
    """With recorded sizes a factor of two apart from 8 to 512, the best of which is 16."""
    sizes = {8 * 2**step: replace_epochs(DIGITS, 4 + abs(step - 1)) for step in range(7)}
    wide = replace(DIGITS, sizes=sizes, job=replace(DIGITS.job, batch_sizes=tuple(sizes), default=64))

    def best(here: World) -> int:
        return min(here.competing, key=here.competing.__getitem__)

    abrupt, slow = drifting(wide, "abrupt"), drifting(wide, "slow")
    assert [best(abrupt[0]), best(abrupt[13]), best(abrupt[14]), best(abrupt[27])] == [16, 16, 64, 64]
    assert sorted({best(here) for here in slow}) == [16, 32, 64]
    assert [best(here) for here in slow] == sorted(best(here) for here in slow)


def replace_epochs(here: World, epochs: int) -> Size:
    size = here.sizes[32]
    return replace(size, trainings=tuple(replace(run, epochs=epochs) for run in size.trainings))


@pytest.mark.parametrize("drift", DRIFTS)
@pytest.mark.parametrize("window", [0, 10])
def test_the_mended_reference_reaches_every_target_whatever_changes(drift: str, window: int) -> None:
    start = replace(DIGITS, job=replace(DIGITS.job, window=window))
    worlds = drifting(start, drift)  # type: ignore[arg-type]
    for seed in range(10):
        played = play(worlds, Reference(), seed)
        assert {one.recurrence for one in played if one.ended == "converged"} == set(range(len(worlds)))


def test_a_job_that_gets_too_hard_is_lost_to_the_reference_as_it_was() -> None:
    worlds = drifting(DIGITS, "harder 2.2")
    played = play(worlds, Reference(faithful=True), 1, Rules(faithful=True))
    converged = {one.recurrence for one in played if one.ended == "converged"}
    assert converged == set(range(len(worlds) // 2))


def _last(name: str, gpu: str, dataset: str, seeds: int) -> tuple[float, float]:
    """Return the mean regret, and energy of the last five recurrences relative to the default's."""
    traces = read()
    here = world(traces, gpu, traces.workloads[dataset])
    worlds = [here] * here.recurrences
    regrets: list[float] = []
    energies: list[float] = []
    for _, played in play_all([Game(world=here, player=name, seed=seed) for seed in range(seeds)], 1):
        regrets.append(regret(played, worlds)[-1])
        last = by_recurrence(played, len(worlds))[-5:]
        energies.append(fmean(took.energy_j for took in last) / here.by_default.energy_j)
    return fmean(regrets), fmean(energies)


@pytest.mark.parametrize(
    ("gpu", "dataset", "regrets", "energy"),
    [
        ("v100", "sentiment140", 1.7, 0.791),
        ("a40", "sentiment140", 4.4, 0.794),
        ("v100", "imagenet", 4.5, 0.800),
        ("a40", "librispeech", 8.3, 0.337),
    ],
)
def test_the_references_policy_does_as_published(
    gpu: str, dataset: str, regrets: float, energy: float
) -> None:
    assert _last("zeus", gpu, dataset, 8) == pytest.approx((regrets, energy), rel=0.12)


@pytest.mark.parametrize(
    ("dataset", "energy_j", "time_s", "percents", "best"),
    [
        ("cifar100", 1.125e5, 599.2, (-63.21, -31.45, -74.68), (128, 100)),
        ("imagenet", 1.641e7, 7.452e4, (-2.97, -22.52, -23.85), (360, 175)),
        ("squad", 1.622e6, 7106, (-6.73, -17.78, -27.55), (12, 200)),
        ("librispeech", 9.528e6, 5.934e4, (-18.00, -16.19, -42.79), (48, 150)),
        ("movielens-1m", 3229, 84.91, (-65.00, -2.97, -66.60), (16384, 175)),
        ("sentiment140", 2.758e6, 1.234e4, (-3.38, -21.21, -26.42), (64, 175)),
    ],
)
def test_the_published_savings_are_there_to_be_had(
    dataset: str, energy_j: float, time_s: float, percents: Sequence[float], best: tuple[int, int]
) -> None:
    traces = read()
    found = sweep([world(traces, "v100", traces.workloads[dataset])])
    default = world(traces, "v100", traces.workloads[dataset]).by_default
    assert (default.energy_j, default.time_s) == pytest.approx((energy_j, time_s), rel=5e-4)
    at_top = max(row["limit_w"] for row in found)
    least = (
        min(row["energy"] for row in found if row["limit_w"] == at_top),
        min(row["energy"] for row in found if row["default_size"]),
        min(row["energy"] for row in found),
    )
    assert [100 * (energy - 1) for energy in least] == pytest.approx(percents, abs=0.02)
    cheapest = min(found, key=lambda row: float(row["cost"]))
    assert (cheapest["batch_size"], cheapest["limit_w"]) == best
