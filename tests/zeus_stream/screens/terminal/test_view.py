"""The view of a snapshot: any snapshot gives one, it fits, and nothing that is not known is shown as 0."""

from io import StringIO
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from tests.zeus_stream.screens.live_snapshots import PROCESS, SNAPSHOT, a_gpu, a_run, a_search, history_of
from zeus_stream.protocol.notes import GpuProcess
from zeus_stream.protocol.snapshots import GpuNow, HostNow, Phase, RunNow, Snapshot, State
from zeus_stream.screens.terminal.figures import Line, bar, braille, sparkline
from zeus_stream.screens.terminal.history import History
from zeus_stream.screens.terminal.once import print_once, print_services
from zeus_stream.screens.terminal.panels.columns import FRAME, Looks, Panel
from zeus_stream.screens.terminal.panels.gpu_panel import process_panel
from zeus_stream.screens.terminal.panels.run_panel import search_lines
from zeus_stream.screens.terminal.view import View, view
from zeus_stream.views.run_view import run_of_live
from zeus_stream.views.site_view import services_of, site_of_live

NAMES = st.text(min_size=1, max_size=30)
WATTS = st.none() | st.integers(0, 100_000_000)
FIGURES = st.none() | st.floats(-1e12, 1e12)
COUNTS = st.none() | st.integers(0, 2**53)


def text(line: Line) -> str:
    return "".join(span.text for span in line)


def page(shown: View) -> str:
    panels = (shown.gpus, shown.runs, shown.search)
    lines = [*shown.head, *(line for panel in panels for line in (panel.head, *panel.lines)), shown.foot]
    return "\n".join(map(text, lines))


def processes(snapshot: Snapshot, width: int, looks: Looks | None = None) -> Panel:
    return process_panel(site_of_live(snapshot), max(width, 20) - FRAME, looks or Looks())


PROCESSES = st.builds(
    GpuProcess, pid=st.integers(0, 2**53), user=st.none() | NAMES, command=st.none() | NAMES,
    memory_bytes=COUNTS, run=st.none() | NAMES,
)  # fmt: skip
GPUS = st.builds(
    a_gpu, index=COUNTS, host=NAMES, model=st.none() | NAMES, energy_mj=COUNTS, power_mw=WATTS,
    limit_mw=WATTS, found_mw=WATTS, most_mw=WATTS, temperature_c=st.none() | st.integers(-300, 3000),
    run=st.none() | NAMES, utilization_pct=st.none() | st.integers(0, 1000), age_ms=COUNTS,
    state=st.sampled_from(get_args(State)), why=NAMES, step_j=FIGURES,
    clock_mhz=st.none() | st.integers(0, 100_000), memory_bytes=COUNTS, memory_total_bytes=COUNTS,
    processes=st.none() | st.lists(PROCESSES, max_size=3).map(tuple),
    processes_left_out=st.integers(0, 2**53),
)  # fmt: skip
SEARCHES = st.builds(
    a_search, phase=st.sampled_from(get_args(Phase)), limit_mw=WATTS, trial=COUNTS, trials_planned=COUNTS,
    steps_done=COUNTS, steps_wanted=COUNTS, best_mw=WATTS, saved_j=FIGURES, saved_percent=FIGURES,
    time_added_percent=FIGURES, reason=st.text(max_size=200),
)  # fmt: skip
RUNS = st.builds(
    a_run, run=NAMES, job=NAMES, step=COUNTS, epoch=COUNTS, step_j=FIGURES, step_ms=FIGURES, energy_j=FIGURES,
    ended_wall_ns=st.none() | st.integers(0, 10**18), search=st.none() | SEARCHES,
)  # fmt: skip
LOOKS = st.builds(
    Looks, sort=st.sampled_from(("place", "power", "run")), unit=st.sampled_from(("W", "J", "price")),
    price=st.none() | st.just((0.3, "EUR")), words=st.text(max_size=5), paused=st.booleans(),
    trouble=st.text(max_size=50),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(GPUS, max_size=5), st.lists(RUNS, max_size=4), st.integers(20, 220), LOOKS)
def test_any_snapshot_gives_a_view_of_exactly_the_width(
    gpus: list[GpuNow], runs: list[RunNow], width: int, looks: Looks
) -> None:
    snapshot = replace(SNAPSHOT, gpus=tuple(gpus), runs=tuple(runs))
    shown = view(snapshot, history_of(snapshot, 30), width, looks)
    assert {sum(cell_len(span.text) for span in line) for line in (*shown.head, shown.foot)} == {width}
    panels = (shown.gpus, processes(snapshot, width, looks), shown.runs, shown.search)
    inside = [panel_width(panel) for panel in panels]
    assert all(len(sizes) <= 1 for sizes in inside)
    for panel, sizes in zip(panels, inside, strict=True):
        assert all(size <= width - FRAME for size in sizes)
        assert all(letter.isprintable() for line in panel.lines for letter in text(line))


def panel_width(panel: Panel) -> set[int]:
    return {sum(cell_len(span.text) for span in line) for line in panel.lines}


def test_what_is_not_known_is_a_dash_and_never_0() -> None:
    gpu: dict[str, Any] = dict.fromkeys(GpuNow.__struct_fields__)
    blank = a_gpu(**(gpu | {"gpu": "GPU-x", "host": "h", "state": "there", "why": ""}))
    nothing = a_run(
        run="r", job="j", step=None, epoch=None, step_j=None, step_ms=None, energy_j=None, search=None
    )
    totals = replace(
        SNAPSHOT.totals, power_mw=None, hour_mj=None, saved_j=None, saved_percent=None, hosts=1, gpus=1,
        runs=1,
    )  # fmt: skip
    head = replace(SNAPSHOT, totals=totals, lag_ms=None, gpus=(blank,), runs=(nothing,))
    shown = view(head, History(), 160)
    for panel in (shown.gpus, shown.runs):
        for line in panel.lines:
            assert "0" not in text(line)
            assert "None" not in text(line)
            assert "-" in text(line)
    assert "0 W" not in page(shown)


def test_the_phase_of_the_search_is_in_words() -> None:
    phases = {
        "waiting": "waiting for steps", "measuring": "trial 4 of 7: 175 W", "chosen": "chosen 175 W",
        "recalled": "recalled 175 W", "observing": "only observed", "within a budget": "budget: 175 W",
    }  # fmt: skip
    for phase, words in phases.items():
        run = a_run(search=a_search(phase=phase))
        assert words in page(view(replace(SNAPSHOT, runs=(run,)), History(), 80))
    run = a_run(search=None, pipeline="profiling")
    shown = page(view(replace(SNAPSHOT, runs=(run,)), History(), 120))
    assert "profiling clocks" in shown
    assert "No power limit is searched for: the clocks of a pipeline" in " ".join(shown.split())


def test_clock_and_memory_are_shown_where_the_column_of_runs_keeps_its_room() -> None:
    gpus = tuple(replace(gpu, memory_bytes=12 << 30, memory_total_bytes=16 << 30) for gpu in SNAPSHOT.gpus)
    heads = {
        width: text(view(replace(SNAPSHOT, gpus=gpus), History(), width).gpus.head).split()
        for width in (80, 96, 120, 160)
    }
    assert {width: [word in head for word in ("GiB", "MHz", "run")] for width, head in heads.items()} == {
        80: [True, False, True],
        96: [True, True, True],
        120: [True, True, True],
        160: [True, True, True],
    }
    assert "12.0/16" in page(view(replace(SNAPSHOT, gpus=gpus), History(), 120))
    assert "GiB" not in text(view(SNAPSHOT, History(), 160).gpus.head)


def test_processes_have_a_user_memory_run_and_program() -> None:
    hidden = replace(PROCESS, pid=5, user=None, command=None, memory_bytes=None, run=None)
    one = a_gpu(0, processes=(PROCESS, hidden), processes_left_out=3, use_age_ms=150_000)
    gone = a_gpu(1, state="gone", why="fell off the bus", processes=(PROCESS,))
    shown = processes(replace(SNAPSHOT, gpus=(one, gone)), 100)
    assert shown.title == "2 processes, memory as of 2.5 min ago"
    assert [text(line).split() for line in (shown.head, *shown.lines)] == [
        ["gpu", "pid", "user", "GiB", "run", "program"],
        ["0", "4711", "anna", "12", "asr-9a73", "python", "train.py"],
        ["0", "5", "-", "-", "-", "-"],
        ["0", "3", "more", "processes", "with", "less", "memory"],
    ]
    assert processes(replace(SNAPSHOT, gpus=(one,)), 100, Looks(words="anna")).keys == ("4711",)


def test_a_service_that_does_not_answer_is_named_and_all_is_dim() -> None:
    shown = view(SNAPSHOT, History(), 100, Looks(trouble="analyzer: did not answer"))
    assert "analyzer: did not answer" in page(shown)
    assert {span.tone for line in shown.gpus.lines for span in line} == {"dim"}


def test_a_collector_alone_does_not_say_that_no_run_is_open() -> None:
    alone = page(view(replace(SNAPSHOT, process="collector", runs=()), History(), 100))
    assert "No analyzer answers here, and it knows the runs. Ask on its host" in alone
    assert "No run is open" not in alone
    assert "0 open runs" not in alone


def test_one_screen_as_text_has_all_columns_of_the_limits_measured() -> None:
    """Half of them were left out, as if another panel stood beside."""
    out = StringIO()
    print_once(replace(SNAPSHOT, runs=(a_run(),)), out)
    assert "J a step  ms a step  steps" in out.getvalue()


def test_a_state_of_a_service_that_is_a_long_sentence_is_shown_whole() -> None:
    """A full disk has one, and neither its state nor any other was shown."""
    why = "log.sqlite: could not be written: " + "disk is full. " * 20 + "Make room."
    full = replace(SNAPSHOT, hosts=(HostNow(host="h0", state="connected", trouble=why),))
    out = StringIO()
    print_services(services_of({"collector": full}, ["analyzer"]), out)
    words = out.getvalue().split()
    assert (words.count("full."), words.count("room.")) == (20, 1)
    assert "does not answer" in out.getvalue()


@pytest.mark.parametrize(
    ("ended_wall_ns", "words"),
    [
        (None, "No limit is searched for: --select or the script says so, or no analyzer answers."),
        (1, "The run has ended: `zeus-stream report` shows what was measured."),
    ],
)
def test_a_run_without_a_search_says_why_on_a_narrow_screen_too(
    ended_wall_ns: int | None, words: str
) -> None:
    run = replace(SNAPSHOT.runs[0], search=None, ended_wall_ns=ended_wall_ns)
    assert " ".join(map(text, search_lines(run_of_live(run, SNAPSHOT.wall_ns), (), 30))) == words


@given(
    st.none() | st.floats(0, 1e9),
    st.none() | st.floats(0, 1e9),
    st.none() | st.floats(0, 1e9),
    st.integers(0, 40),
)
def test_a_bar_has_its_width(
    value: float | None, limit: float | None, most: float | None, width: int
) -> None:
    assert cell_len(text(bar(value, limit, most, width))) == width


@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=40), st.floats(0, 1e6), st.integers(1, 6))
def test_charts_have_one_place_for_each_value(values: list[float | None], most: float, height: int) -> None:
    assert len(sparkline(values, most)) == len(values)
    assert [len(row) for row in braille(values, most, height)] == [(len(values) + 1) // 2] * height


def test_a_minute_of_power_has_gaps_where_nothing_was_known() -> None:
    history = History()
    for second in (0, 10, 50):
        history.remember(
            replace(SNAPSHOT, wall_ns=(100 + second) * 10**9, gpus=(a_gpu(gpu="g", power_mw=second * 1000),))
        )
    assert history.gpu("g", 60, 6) == [0.0, 10.0, None, None, None, 50.0]
    assert history.gpu("unknown", 60, 2) == [None, None]
