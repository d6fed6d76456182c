import ctypes
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from analyzers.pipeline import frontier
from analyzers.pipeline.frontier import ClockOption, FrontierProgram, PipelineProfile
from analyzers.pipeline.graph import PipelineGraph
from analyzers.pipeline.plan import make_plans, most_changes, play, unplanned_s
from analyzers.pipeline.profile import EnergyWindow, InstructionSpan, combine, cut_windows, fit_stage
from analyzers.results.pipeline_rows import InstructionRow
from benchmarks.pipeline.groupings import draw, with_clocks
from benchmarks.pipeline.schedules import make_graph
from zeus_stream.errors import RefusedError, SettingsError

CLOCKS_MHZ = tuple(range(1410, 600, -15))


def option(clock_mhz: int, work_s: float) -> ClockOption:
    """Return an instruction of a made-up GPU: 85 % of its time follows the clock, voltage falls to 0.7."""
    share = clock_mhz / 1410
    time_s = work_s * (0.85 / share + 0.15)
    return ClockOption(clock_mhz, time_s, time_s * (80 + 220 * share * max(0.7, share) ** 2))


def profile(works: dict[str, list[float]], clocks: tuple[int, ...] = CLOCKS_MHZ) -> PipelineProfile:
    """``works``: seconds at the highest clock by kind, then stage."""
    options = {
        (stage, kind, 0): tuple(option(clock, work_s) for clock in clocks)
        for kind, all_s in works.items()
        for stage, work_s in enumerate(all_s)
    }
    return PipelineProfile(options, (90.0,) * max(map(len, works.values())))


UNBALANCED = profile({"forward": [0.02, 0.025, 0.018, 0.022], "backward": [0.04, 0.05, 0.036, 0.044]})


def brute_force(graph: PipelineGraph, known: PipelineProfile, deadline_s: float) -> float:
    """Return the least energy of all combinations of clocks that hold a deadline."""
    options = [known.of(each) for each in graph.instructions]
    best = float("inf")
    for choice in itertools.product(*options):
        time_s = graph.makespan_s([one.time_s for one in choice])
        if time_s <= deadline_s * (1 + 1e-9):
            spent = sum(one.energy_j for one in choice)
            waited_s = graph.stages * time_s - sum(one.time_s for one in choice)
            best = min(best, spent + 90.0 * waited_s)
    return best


@pytest.mark.sweep
@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0.01, 0.05), min_size=4, max_size=4), st.floats(1.0, 1.4))
def test_on_tiny_graphs_the_energy_lies_between_the_bound_and_brute_force(
    works: list[float], slowdown: float
) -> None:
    graph = make_graph("1f1b", 2, 1)
    known = profile({"forward": works[:2], "backward": works[2:]}, CLOCKS_MHZ[::6])
    deadline_s = unplanned_s(graph, known) * slowdown
    point = FrontierProgram(graph, known, range(4)).solve(deadline_s)
    best_j = brute_force(graph, known, deadline_s)
    assert point.bound_j <= best_j * (1 + 1e-9) <= point.energy_j * (1 + 2e-9)
    assert point.energy_j <= best_j * 1.01


def test_with_two_clocks_and_slack_on_one_side_it_equals_brute_force() -> None:
    graph = make_graph("gpipe", 2, 2)
    known = profile({"forward": [0.01, 0.03], "backward": [0.02, 0.06]}, (1410, 900))
    for slowdown in (1.0, 1.1, 1.2, 1.6):
        deadline_s = unplanned_s(graph, known) * slowdown
        point = FrontierProgram(graph, known, range(8)).solve(deadline_s)
        assert point.energy_j == pytest.approx(brute_force(graph, known, deadline_s), rel=1e-9)


def test_rounding_stays_within_two_per_mille_of_the_bound() -> None:
    graph = make_graph("1f1b", 4, 8)
    fastest_s = unplanned_s(graph, UNBALANCED)
    program = FrontierProgram(graph, UNBALANCED, range(len(graph.instructions)))
    energies = []
    for percent in range(0, 30, 5):
        point = program.solve(fastest_s * (1 + percent / 100))
        assert point.time_s <= fastest_s * (1 + percent / 100) * (1 + 1e-9)
        assert point.energy_j <= point.bound_j * 1.002
        energies.append(point.energy_j)
    assert energies == sorted(energies, reverse=True)
    assert energies[0] < 0.9 * play(graph, UNBALANCED, (1410,) * 64, 0.0)[1]


def few_clocks(seed: int, schedule: str, clocks: int) -> FrontierProgram:
    """Return the program of single instructions that have few clocks."""
    graph, known = draw(seed, schedule, long=False)
    return FrontierProgram(graph, with_clocks(known, clocks), range(len(graph.instructions)))


@pytest.mark.parametrize(
    ("seed", "schedule", "clocks", "slowdown"),
    [
        (600, "1f1b", 9, 1.0),
        (600, "gpipe", 4, 1.0),
        (602, "gpipe", 4, 1.05),
    ],
)
def test_with_few_clocks_a_search_proves_two_per_mille_where_rounding_does_not(
    seed: int, schedule: str, clocks: int, slowdown: float
) -> None:
    program = few_clocks(seed, schedule, clocks)
    quick, point = (program.solve(program.fastest_s * slowdown, quick=each) for each in (True, False))
    assert quick.energy_j > quick.bound_j * 1.002
    assert point.energy_j < quick.energy_j
    assert quick.bound_j < point.bound_j <= point.energy_j <= point.bound_j * 1.002


def test_the_solver_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(frontier, "CLOSE", 0.0005)  # a long search repairs solutions, and says so
    program = few_clocks(602, "gpipe", 4)
    program.solve(program.fastest_s * 1.05)
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(("switching_s", "changes_per_s"), [(0.0, 0.0), (0.005, 5.0), (0.02, 20.0)])
def test_a_plan_holds_its_deadline_in_spite_of_switches(switching_s: float, changes_per_s: float) -> None:
    graph = make_graph("1f1b", 4, 8)
    fastest_s = unplanned_s(graph, UNBALANCED)
    plans = make_plans(
        graph,
        UNBALANCED,
        (fastest_s, fastest_s * 1.05),
        switching_s=switching_s,
        changes_per_s=changes_per_s,
    )
    unplanned_j = play(graph, UNBALANCED, (1410,) * len(graph.instructions), 0.0)[1]
    for plan, most_s in zip(plans, (fastest_s, fastest_s * 1.05), strict=True):
        for taken_s in (0.0, switching_s / 2, switching_s):
            assert play(graph, UNBALANCED, plan.clocks_mhz, taken_s)[0] <= plan.time_s * (1 + 1e-9)
        assert plan.time_s <= most_s * (1 + 1e-9)
        assert plan.bound_j <= plan.energy_j <= unplanned_j
        assert most_changes(graph, plan.clocks_mhz) <= changes_per_s * most_s
        assert most_s == fastest_s or plan.energy_j < 0.97 * unplanned_j


def scattered(seed: int) -> PipelineProfile:
    """Return a profile whose times and energies scatter by 5 %."""
    draw = random.Random(seed)
    options = {
        name: tuple(
            ClockOption(
                each.clock_mhz, each.time_s * draw.gauss(1, 0.05), each.energy_j * draw.gauss(1, 0.05)
            )
            for each in of[::6]
        )
        for name, of in UNBALANCED.options.items()
    }
    return PipelineProfile(options, UNBALANCED.waiting_w, dict.fromkeys(options, 0.001))


@pytest.mark.parametrize(("seed", "switching_s"), [(5, 0.0), (11, 0.0), (12, 0.01), (22, 0.01)])
def test_more_time_never_costs_more_energy_whatever_the_profile_scatters(
    seed: int, switching_s: float
) -> None:
    graph, known = make_graph("1f1b", 4, 8), scattered(seed)
    fastest_s = unplanned_s(graph, known)
    deadlines_s = [fastest_s * slowdown for slowdown in (1.0, 1.05, 1.1, 1.15, 1.2, 1.3)]
    plans = make_plans(graph, known, deadlines_s, switching_s=switching_s, quick=True)
    energies_j = [plan.energy_j for plan in plans]
    assert energies_j == sorted(energies_j, reverse=True)
    assert all(plan.time_s <= most_s * (1 + 1e-9) for plan, most_s in zip(plans, deadlines_s, strict=True))


def test_a_search_finds_what_rounding_leaves_of_a_scattered_profile() -> None:
    graph, known = make_graph("1f1b", 4, 8), scattered(12)
    most_s = unplanned_s(graph, known)
    rounded, searched = (
        make_plans(graph, known, (most_s,), switching_s=0.01, quick=each)[0] for each in (True, False)
    )
    assert searched.time_s <= most_s * (1 + 1e-9)
    assert rounded.energy_j > 1.05 * rounded.bound_j
    assert searched.energy_j < 1.03 * searched.bound_j


@pytest.mark.parametrize(
    ("schedule", "scale", "share"),
    [
        *((schedule, 1.0, 0.85) for schedule in ("1f1b", "gpipe", "interleaved", "zero_bubble")),
        *((schedule, 4.5, 0.95) for schedule in ("interleaved", "zero_bubble")),
    ],
)
def test_a_plan_of_few_changes_saves_nearly_what_single_instructions_could(
    schedule: str, scale: float, share: float
) -> None:
    """Forwards of 90 or 20 ms, a change of 10 ms."""
    split = schedule == "zero_bubble"
    graph = make_graph(schedule, 4, 16, 2 if schedule == "interleaved" else 1)
    works = {"forward": [0.02, 0.025, 0.018, 0.022], "backward": [0.044, 0.048, 0.036, 0.04]}
    if split:
        works["weight"] = works["backward"] = [work_s / 2 for work_s in works["backward"]]
    known = profile({kind: [scale * work_s for work_s in all_s] for kind, all_s in works.items()})
    options = {(stage, kind, chunk): o for (stage, kind, _), o in known.options.items() for chunk in (0, 1)}
    known = PipelineProfile(options, known.waiting_w)
    most_s = unplanned_s(graph, known)
    (plan,) = make_plans(graph, known, (most_s,), switching_s=0.01, changes_per_s=20)
    unplanned_j = play(graph, known, (1410,) * len(graph.instructions), 0.0)[1]
    assert unplanned_j - plan.energy_j >= share * (unplanned_j - plan.bound_j) > 0
    assert plan.time_s <= most_s * (1 + 1e-9)
    assert most_changes(graph, plan.clocks_mhz) <= 20 * most_s


def test_runs_that_were_priced_once_more_save_what_single_instructions_could() -> None:
    """Forwards of 20 ms, two parts of a model a stage: by the first prices, it saves 47 % of the bound's."""
    graph, known = draw(201, "interleaved", long=False)
    most_s = unplanned_s(graph, known)
    (plan,) = make_plans(graph, known, (most_s,), switching_s=0.01, changes_per_s=20)
    unplanned_j = play(graph, known, [known.of(each)[0].clock_mhz for each in graph.instructions], 0.0)[1]
    assert unplanned_j - plan.energy_j >= 0.85 * (unplanned_j - plan.bound_j) > 0


def test_a_reserve_lets_late_instructions_catch_up() -> None:
    graph = make_graph("1f1b", 4, 8)
    most_s = unplanned_s(graph, UNBALANCED)
    known = replace(UNBALANCED, spread_s=dict.fromkeys(UNBALANCED.options, 0.002))

    def late_s(reserve: float) -> float:
        """Return the duration of an iteration in which every seventh instruction takes 5 % longer."""
        (plan,) = make_plans(graph, known, (most_s,), reserve=reserve)
        pairs = zip(graph.instructions, plan.clocks_mhz, strict=True)
        usual_s = [next(o.time_s for o in known.of(each) if o.clock_mhz == mhz) for each, mhz in pairs]
        return graph.makespan_s([time_s * (1 if at % 7 else 1.05) for at, time_s in enumerate(usual_s)])

    assert late_s(1.0) < late_s(0.0)


def test_an_impossible_deadline_is_refused_with_the_duration_at_the_highest_clocks() -> None:
    graph = make_graph("1f1b", 4, 8)
    with pytest.raises(RefusedError, match=r"could not plan an iteration of 0.1 s: at the highest clocks it"):
        make_plans(graph, UNBALANCED, (0.1,))


@pytest.mark.parametrize(
    ("known", "sentence"),
    [
        (PipelineProfile({}, (1.0,) * 4), "forward on stage 0 has no profile"),
        (PipelineProfile(UNBALANCED.options, (1.0,)), "the waiting power of 1 of 4 stages"),
        (
            PipelineProfile(
                {**UNBALANCED.options, (0, "backward", 0): (option(1410, 1.0),)}, UNBALANCED.waiting_w
            ),
            "instructions on stage 0 have different clocks",
        ),
    ],
)
def test_a_profile_that_does_not_fit_is_refused_with_a_sentence(
    known: PipelineProfile, sentence: str
) -> None:
    graph = make_graph("1f1b", 4, 8)
    with pytest.raises(SettingsError, match="pipeline: could not plan clocks") as wrong:
        FrontierProgram(graph, known, range(len(graph.instructions)))
    assert sentence in str(wrong.value)


# ---- profiles ------------------------------------------------------------------------------------------


def test_energies_come_out_of_windows_that_hold_several_instructions() -> None:
    """A stage alternates forwards (30 ms, 100 W), backwards (50 ms, 200 W) and waiting (7 ms, 40 W)."""
    spans, edges_ns, joules = [], [0], [0.0]
    for turn in range(300):
        for kind, length_ms, watts in (("forward", 30, 100), ("backward", 50, 200), (None, 7 + turn % 5, 40)):
            begin_ns = edges_ns[-1]
            edges_ns.append(begin_ns + length_ms * 1_000_000)
            joules.append(joules[-1] + watts * length_ms / 1000)
            if kind is not None:
                spans.append(InstructionSpan(kind, 0, begin_ns, edges_ns[-1]))
    refreshes = range(33_000_000, edges_ns[-1], 100_000_000)
    counter = []
    for refresh in refreshes:
        at = max(index for index, edge in enumerate(edges_ns) if edge <= refresh)
        way = (refresh - edges_ns[at]) / (edges_ns[at + 1] - edges_ns[at])
        counter.append(joules[at] + way * (joules[at + 1] - joules[at]))
    windows = cut_windows(1410, spans, list(refreshes), counter)
    assert len(windows) == len(refreshes) - 1
    lengths = {("forward", 0, 1410): [0.030] * 300, ("backward", 0, 1410): [0.050] * 300}
    found = fit_stage("r", 0, lengths, windows)
    energies = {each.kind: each for each in found}
    assert energies["forward"].energy_j == pytest.approx(3.0, rel=1e-6)
    assert energies["backward"].energy_j == pytest.approx(10.0, rel=1e-6)
    assert found[0].waiting_w == pytest.approx(40.0, rel=1e-6)
    assert energies["forward"].energy_low_j <= 3.0 + 1e-9
    assert combine(found).of(make_graph("1f1b", 1, 1).instructions[0])[0].time_s == pytest.approx(0.03)


@pytest.mark.parametrize("clocks", [3, 6])
def test_a_lower_clock_is_never_faster_whatever_was_measured_on_a_busy_host(clocks: int) -> None:
    usual = InstructionRow(
        run="r", stage=0, kind="forward", chunk=0, clock_mhz=1410, samples=3, time_s=0.020, time_low_s=0.015,
        time_high_s=0.025, energy_j=4.0, energy_low_j=3.5, energy_high_j=4.5, waiting_w=90.0,
    )  # fmt: skip
    rows = [
        replace(usual, clock_mhz=1410 - 100 * place, time_s=0.020 - 0.001 * place) for place in range(clocks)
    ]
    [options] = combine(rows).options.values()
    times_s = [each.time_s for each in options]
    assert times_s == pytest.approx(sorted(times_s))
    assert 0.020 - 0.001 * clocks < times_s[0] < 0.020


def test_one_hiccup_of_the_host_changes_no_time_and_no_reserve() -> None:
    rng = random.Random(3)
    usual = [rng.gauss(0.03, 0.0003) for _ in range(100)]
    windows = [EnergyWindow(1410, 3.0 + at % 3, ((("forward", 0), 1.0),), 0.01 * at) for at in range(9)]
    plain, odd = (
        combine(fit_stage("r", 0, {("forward", 0, 1410): lengths}, windows))
        for lengths in (usual, [*usual[1:], 0.5])
    )
    name = (0, "forward", 0)
    assert plain.spread_s[name] == pytest.approx(0.0003, rel=0.25)
    assert odd.spread_s[name] == pytest.approx(plain.spread_s[name], rel=0.1)
    assert odd.options[name][0].time_s == pytest.approx(plain.options[name][0].time_s, rel=0.001)


def test_too_few_windows_are_refused_with_a_sentence() -> None:
    with pytest.raises(RefusedError, match=r"stage 0: 0 windows for 2 unknowns. Run more iterations"):
        fit_stage("r", 0, {("forward", 0, 1410): [0.03]}, [])
