import gc
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.patience import complaints
from tests.waiting import until
from tests.zeus_stream.stand_in_collector import Collector, answer
from zeus_stream import paths
from zeus_stream.protocol import codec
from zeus_stream.protocol.events import (
    Answer,
    Ask,
    EpochBegan,
    EpochEnded,
    GpuEnergy,
    Metric,
    RunEnded,
    RunPlanned,
    RunStarted,
    StepBoundary,
    WindowBegan,
    WindowCancelled,
    WindowEnded,
)
from zeus_stream.training.answers import Missing, WindowEnergy
from zeus_stream.training.publisher import MAX_OPEN_WINDOWS, Publisher, publishers
from zeus_stream.training.sender import flush_s

ROOT = Path(__file__).parents[3]


def script(zeus_dir: Path, text: str, *, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a training script to its end."""
    path = zeus_dir / "train.py"
    path.write_text(text, encoding="utf-8")
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        # A fork beside our thread is what some of these are about; Python 3.12 and later warns of it.
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", path],
        env=environ, capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout, complaints(done.stderr))


def shape(collector: Collector) -> list[str]:
    """Return the kinds of what arrived, without the ends of the run."""
    return [type(event).__name__ for event in collector.events[1:-1]]


def no_collector(zeus_dir: Path) -> str:
    where = f"zeus-stream: no collector at {zeus_dir}/publish"
    return f"{where}: training goes on unmeasured. Start one with `zeus-stream collect`."


# ---- what a script says


def test_a_run_arrives_as_it_happened(collector: Collector) -> None:
    before_ns = time.monotonic_ns()
    with Publisher(job="mnist", run="r1", gpus=["GPU-1", 0]) as pub:
        for _ in pub.epochs(2):
            for _ in pub.steps("ab"):
                pub.metric("loss", 1)
        with pub.window("validation"):
            pass
    started = collector.seen(RunStarted)[0]
    assert (started.job, started.run, started.gpus) == ("mnist", "r1", ("GPU-1", "index:0"))
    assert (started.pid, started.rank, started.world_size) == (os.getpid(), 0, 1)
    assert abs(started.wall_ns - time.time_ns()) < 60_000_000_000
    epoch = [
        "EpochBegan", "StepBoundary", "Metric", "StepBoundary", "Metric", "StepBoundary", "EpochEnded",
    ]  # fmt: skip
    assert shape(collector) == [
        "RunPlanned", epoch[0], "RunPlanned", *epoch[1:], *epoch, "WindowBegan", "WindowEnded",
    ]  # fmt: skip
    assert collector.seen(RunPlanned)[-1].all_steps == 4
    assert isinstance(collector.events[-1], RunEnded)
    assert [event.index for event in collector.seen(EpochBegan)] == [0, 1]
    assert [event.index for event in collector.seen(EpochEnded)] == [0, 1]
    assert collector.boundaries() == [
        (0, False, True), (1, True, True), (2, True, False),
        (2, False, True), (3, True, True), (4, True, False),
    ]  # fmt: skip
    times = [
        t_ns
        for event in collector.events
        for t_ns in (
            (event.ended_ns, event.began_ns)
            if isinstance(event, StepBoundary)
            else (getattr(event, "t_ns", None),)
        )
        if t_ns is not None
    ]
    assert times == sorted(times)
    assert before_ns <= times[0]
    assert times[-1] <= time.monotonic_ns()


class Loader(list[int]):
    """Says how many samples a batch has, or raises when it is asked."""

    def __init__(self, size: object) -> None:
        super().__init__([1, 2])
        self._size = size

    @property
    def batch_size(self) -> object:
        if isinstance(self._size, Exception):
            raise self._size
        return self._size


@pytest.mark.parametrize(
    ("said", "of_loader", "size"),
    [(None, 64, 64), (32, 64, 32), (None, None, None), (None, RuntimeError("no"), None), (None, "big", None)],
)
def test_the_first_loop_s_batch_size_is_told_with_the_run(
    collector: Collector, said: int | None, of_loader: object, size: int | None
) -> None:
    with Publisher(batch_size=said) as pub:
        for _ in pub.epochs(2):
            assert list(pub.steps(Loader(of_loader))) == [1, 2]
    assert [started.batch_size for started in collector.seen(RunStarted)] == [size]


def test_a_break_or_an_exception_ends_the_step_and_the_epoch_and_passes_through(collector: Collector) -> None:
    with Publisher() as pub:
        for _ in pub.epochs(range(3)):
            for item in pub.steps(iter(range(5))):
                if item == 1:
                    break
            break
        with pytest.raises(ZeroDivisionError):  # noqa: PT012  (the loop is what is tested)
            for item in pub.steps([1, 0]):
                1 / item
        with pytest.raises(LookupError, match="the loader"):
            list(pub.steps(broken_loader()))
    assert collector.boundaries() == [
        (0, False, True), (1, True, True), (2, True, False),
        (2, False, True), (3, True, True), (4, True, False),
        (4, False, True), (5, True, False),
    ]  # fmt: skip
    assert shape(collector)[:2] == ["RunPlanned", "EpochBegan"]
    assert shape(collector)[5] == "EpochEnded"


def test_the_length_of_a_run_is_sent_as_far_as_its_loops_say_it(collector: Collector) -> None:
    with Publisher() as pub:
        list(pub.steps("abc"))
        list(pub.steps("de"))  # a second loop: nobody knows how many there are
        for _ in pub.epochs(4):
            list(pub.steps("ab"))
        list(pub.epochs(iter(range(2))))
    plans = [(event.epochs, event.steps) for event in collector.seen(RunPlanned)]
    assert plans == [(None, 3), (None, None), (4, None)]


def test_the_only_epoch_of_a_run_is_as_long_as_its_loop(collector: Collector) -> None:
    with Publisher() as pub:
        for _ in pub.epochs(1):
            list(pub.steps("abc"))
    plans = [(event.epochs, event.steps) for event in collector.seen(RunPlanned)]
    assert plans == [(1, None), (1, 3)]


def broken_loader() -> Iterator[int]:
    yield 1
    raise LookupError("the loader")


def test_what_is_wrapped_keeps_its_length_if_it_has_one_and_can_be_looped_over_again(
    collector: Collector,
) -> None:
    with Publisher() as pub:
        loader = pub.steps([1, 2, 3])
        assert len(loader) == 3
        assert len(pub.epochs(7)) == 7
        assert list(loader) == list(loader) == [1, 2, 3]
        with pytest.raises(TypeError, match="has no len"):
            len(pub.steps(iter([1])))
        assert list(pub.steps(iter([1]))) == [1]
    assert collector.seen(StepBoundary)[-1].index == 7


def test_time_spent_waiting_for_the_loader_belongs_to_no_step(collector: Collector) -> None:
    def loader() -> Iterator[int]:
        for item in range(3):
            time.sleep(0.02)
            yield item

    with Publisher() as pub:
        for _ in pub.steps(loader()):
            pass
    _, *between, _ = collector.seen(StepBoundary)
    for boundary in between:
        assert boundary.ended_ns is not None
        assert boundary.began_ns is not None
        assert boundary.began_ns - boundary.ended_ns >= 20_000_000


def test_steps_within_steps_are_part_of_the_outer_ones(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    with Publisher() as pub:
        for _ in pub.steps(range(2)):
            assert list(pub.steps("xy")) == ["x", "y"]
            pub.begin_step()
        assert list(pub.steps("z")) == ["z"]
    assert [index for index, *_ in collector.boundaries()] == [0, 1, 2, 2, 3]
    assert [record.getMessage() for record in caplog.records] == [
        (
            "zeus-stream: steps within steps, or in two threads, are not counted: the outer ones are."
            " An iterator of steps that is left midway stays open: close() it."
        )
    ]


def test_a_loop_that_cannot_be_wrapped_says_where_its_steps_are(collector: Collector) -> None:
    with Publisher() as pub:
        pub.begin_step()
        pub.begin_step()
        pub.end_step()
        with pub.epoch(), pub.step():
            pass
    assert collector.boundaries() == [
        (0, False, True), (1, True, True), (2, True, False), (2, False, True), (3, True, False),
    ]  # fmt: skip


def test_windows_that_begin_and_end_in_different_places_are_known_by_name(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    with Publisher() as pub:
        first = pub.begin_window("a")
        second = pub.begin_window("b")
        assert pub.end_window("a") is first
        assert pub.end_window("a") is None
        pub.end_window("never begun")
        third = pub.begin_window("b")
        third.cancel()
        pub.begin_window("left open")
    assert [first.number, second.number, third.number] == [0, -1, -1]
    assert [event.window for event in collector.seen(WindowBegan)] == [0, 1, 2, 3]
    assert [event.window for event in collector.seen(WindowEnded)] == [0]
    assert [event.window for event in collector.seen(WindowCancelled)] == [1, 2]
    assert [record.getMessage() for record in caplog.records] == [
        "zeus-stream: window 'a': could not end: none of this name is open.",
        "zeus-stream: window 'b': began twice. The first is cancelled.",
        "zeus-stream: window 'left open': was never ended, so it has no energy. Call end_window().",
    ]


def test_a_misspelled_variable_is_named_and_what_others_set_is_not(
    collector: Collector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUS_STREAM_SELCT", "energy")
    monkeypatch.setenv("ZEUS_STREAM_SERVICE_HOST", "10.0.0.7")  # Kubernetes, of a service of our name
    Publisher(gpus=[0]).close()
    assert collector.seen(RunStarted)
    [line] = caplog.messages
    assert "ZEUS_STREAM_SELCT: there is no such variable. Did you mean ZEUS_STREAM_SELECT?" in line


def test_open_windows_are_bounded(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    with Publisher() as pub:
        windows = [pub.begin_window(f"w{number}") for number in range(MAX_OPEN_WINDOWS + 1)]
    assert windows[-1].number == -1
    assert len(collector.seen(WindowBegan)) == MAX_OPEN_WINDOWS
    assert "1000 windows are open" in caplog.text


def test_a_metric_that_is_no_finite_number_is_left_out_and_said_once(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    with Publisher() as pub:
        pub.metric("loss", 0.25)
        pub.metric("loss", float("nan"))
        pub.metric("loss", float("inf"))
        pub.metric("loss", "high")  # type: ignore[arg-type]  # what a script may get wrong
        pub.metric("\udcff" * 300, 1)
    assert [(event.name, event.value) for event in collector.seen(Metric)] == [
        ("loss", 0.25),
        ("?" * 200, 1.0),
    ]
    assert len(caplog.records) == 2


def test_events_of_many_threads_all_arrive_and_each_windows_own_in_order(collector: Collector) -> None:
    def work(pub: Publisher) -> None:
        for _ in range(500):
            with pub.window("w"):
                pub.metric("m", 1)

    with Publisher() as pub:
        threads = [threading.Thread(target=work, args=(pub,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(lambda: pub.statistics().waiting == 0)
    began = [event.window for event in collector.seen(WindowBegan)]
    assert sorted(began) == list(range(2000))
    assert sorted(event.window for event in collector.seen(WindowEnded)) == list(range(2000))
    assert len(collector.seen(Metric)) == 2000


def test_the_gpus_are_those_that_torch_uses_if_it_does(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = [SimpleNamespace(uuid="11"), SimpleNamespace(uuid="22")]
    cuda = SimpleNamespace(
        is_initialized=lambda: True, device_count=lambda: 2, get_device_properties=devices.__getitem__
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    Publisher().close()
    del devices[1].uuid  # a torch that knows no UUIDs
    Publisher().close()
    devices[1].uuid = "22"
    monkeypatch.setattr(sys.modules["torch"], "version", SimpleNamespace(hip="6.4"), raising=False)
    Publisher().close()  # HIP's UUIDs are its own
    monkeypatch.setattr(cuda, "is_initialized", lambda: False)
    Publisher().close()
    expected = [("GPU-11", "GPU-22"), *[("index:all",)] * 3]
    assert [event.gpus for event in collector.seen(RunStarted)] == expected


# ---- what a window cost


def test_energy_is_the_analyzers_answer_to_a_question_asked_after_the_window_has_arrived(
    collector: Collector,
) -> None:
    ended_before_asked = []

    def reply(ask: Ask) -> bytes:
        ended_before_asked.append([event.window for event in collector.seen(WindowEnded)] == [ask.window])
        gpus = (GpuEnergy("GPU-1", 100.0, 99.0, 102.0), GpuEnergy("GPU-2", 50.0, 49.5, 50.5))
        return codec.encode(Answer(ask.question, 1.5, gpus, None))

    collector.answer = reply
    with Publisher() as pub:
        with pub.window("validation") as window:
            assert not window.energy()
        energy = window.energy(60)
    assert isinstance(energy, WindowEnergy)
    assert (energy.energy_j, energy.energy_low_j, energy.energy_high_j) == (150.0, 148.5, 152.5)
    assert str(energy) == "validation: 150.0 J (148.5 to 152.5) in 1.500 s on 2 GPUs"
    assert ended_before_asked == [True]


def test_no_answer_is_a_sentence_and_no_exception(collector: Collector) -> None:
    with Publisher() as pub:
        with pub.window("v") as window:
            pass
        until(lambda: pub.statistics().acknowledged)
        nobody = f"the collector at {collector.path} gave no answer within 0.2 s."
        assert str(window.energy(0.2)) == f"window 'v': its energy is not known: {nobody}"
        collector.answer = lambda ask: answer(ask, "the analyzer has gone.")
        missing = window.energy(60)
        assert missing == Missing(
            reason="window 'v': its energy is not known: the analyzer has gone.", name="v"
        )
        assert not missing
        pub.begin_window("open").cancel()
    assert str(window.energy()) == "window 'v': its energy is not known: the publisher is closed."


# ---- collectors come and go


def test_without_a_collector_training_goes_on_and_it_is_said_once(
    zeus_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Publisher() as pub:
        until(lambda: caplog.records)
        with pub.window("v") as window:
            assert list(pub.steps(range(100))) == list(range(100))
        assert pub.statistics().waiting == 105
        energy = window.energy(3600)  # at once
    assert not energy
    fields = ("duration_s", "energy_j", "energy_low_j", "energy_high_j")
    assert [getattr(energy, name) for name in fields] == [None] * 4
    assert (energy.name, energy.gpus) == ("v", ())
    assert "no collector at" in str(energy)
    assert [record.getMessage() for record in caplog.records] == [no_collector(zeus_dir)]


def test_a_collector_that_starts_later_gets_everything(zeus_dir: Path) -> None:
    with Publisher() as pub:
        assert list(pub.steps(range(2000))) == list(range(2000))
        with Collector(zeus_dir / "publish") as collector:
            until(lambda: pub.statistics().waiting == 0)
            pub.close()
    assert [index for index, *_ in collector.boundaries()] == list(range(2001))
    assert isinstance(collector.events[0], RunStarted)
    assert isinstance(collector.events[-1], RunEnded)


@pytest.mark.sweep
def test_the_socket_file_of_a_dead_collector_does_not_hide_a_living_one(
    zeus_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (zeus_dir / "zeus-stream").mkdir()
    with Collector(zeus_dir / "publish"):
        pass
    monkeypatch.delenv("ZEUS_STREAM_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(zeus_dir))
    monkeypatch.setattr(paths, "ROOT_RUN", zeus_dir)
    if not (zeus_dir / "publish").exists():
        (zeus_dir / "publish").touch()
    with Collector(zeus_dir / "zeus-stream" / "publish") as living, Publisher() as pub:
        until(lambda: living.seen(RunStarted))
        assert pub.statistics().reconnects >= 1


def test_a_collector_that_talks_nonsense_is_counted_and_said(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.answer = lambda _: b"nonsense"
    with Publisher() as pub:
        with pub.window("v") as window:
            pass
        asked = window.energy_later(60)
        until(lambda: pub.statistics().errors)
        assert not asked()
    assert "was not understood" in caplog.text


def test_what_fails_in_the_publisher_is_said_and_ends_only_the_publishing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    long = tmp_path / ("d" * 120)
    long.mkdir()
    (long / "publish").touch()  # a file where no socket can be: its path is too long
    monkeypatch.setenv("ZEUS_STREAM_DIR", str(long))
    with Publisher() as pub:
        until(lambda: pub.statistics().errors)
        until(lambda: caplog.records)
        with pub.window("v") as window:
            assert list(pub.steps("ab")) == ["a", "b"]
        assert "publishing failed" in str(window.energy())
        assert pub.statistics().waiting == 0
    assert "over 107 bytes" in caplog.text


@pytest.mark.sweep
def test_the_end_waits_as_long_as_it_is_told_while_there_is_a_collector(
    zeus_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUS_STREAM_FLUSH_S", "60")
    with Collector(zeus_dir / "publish", acknowledges=False) as collector:
        pub = Publisher()
        until(lambda: collector.batches)
        ending = threading.Thread(target=pub.close)
        ending.start()
        collector.acknowledges = True  # of what is sent again, a second after it was not answered
        ending.join()
    assert pub.statistics().waiting == 0
    assert isinstance(collector.events[-1], RunEnded)


def test_how_long_the_end_may_wait_is_a_number_of_seconds_up_to_an_hour() -> None:
    asked = ("2.5", "3600", "", "-1", "nan", "1e9", "long")
    assert [flush_s(text) for text in asked] == [2.5, 3600, *[0.5] * 5]


# ---- processes


def test_at_its_end_a_script_hands_over_its_last_events_and_says_that_it_ended(
    zeus_dir: Path, collector: Collector
) -> None:
    text = """
import sys, zeus_stream
for batch in zeus_stream.steps(range(3000)):
    pass
sys.exit(3)
"""
    done = script(zeus_dir, text)
    assert (done.returncode, done.stderr) == (3, "")
    assert collector.seen(RunStarted)[0].job == "train"
    assert len(collector.seen(StepBoundary)) == 3001
    assert isinstance(collector.events[-1], RunEnded)


def test_a_script_that_dies_of_an_exception_has_ended_its_step_and_its_run(
    zeus_dir: Path, collector: Collector
) -> None:
    done = script(zeus_dir, "import zeus_stream\nfor batch in zeus_stream.steps([1]): 1 / 0\n")
    assert "ZeroDivisionError" in done.stderr
    (ended,) = collector.seen(RunEnded)
    assert ended.failure == "ZeroDivisionError: division by zero"
    assert collector.boundaries() == [(0, False, True), (1, True, False)]
    assert isinstance(collector.events[-1], RunEnded)


def test_switched_off_nothing_is_sent_or_said(
    zeus_dir: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUS_STREAM_OFF", "1")
    text = """
import threading, zeus_stream
for batch in zeus_stream.steps(range(9)): pass
with zeus_stream.window("v") as w: pass
print(w.energy(), threading.active_count())
"""
    done = script(zeus_dir, text)
    assert done.stderr == ""
    assert done.stdout == "window 'v': its energy is not known: ZEUS_STREAM_OFF is set. 1\n"
    assert collector.events == []


FORK = """
import gc, json, os, sys, threading, time, zeus_stream

def wait(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

codes = {}
pub = zeus_stream.Publisher(job="explicit")
for batch in zeus_stream.steps(range(3)):
    if batch == 1:
        time.sleep(0.1)                 # sockets and threads are there
        child = os.fork()
        if child == 0:                  # a worker that only goes on with what it has
            pub.metric("in the child", 1)
            with pub.window("w") as w: pass
            assert "fork" in str(w.energy()), w.energy()
            pub.close()
            gc.collect()
            break
        codes["silent"] = wait(child)
if child == 0:
    sys.exit(7)                         # through atexit and all
child = os.fork()
if child == 0:                          # a worker that measures itself
    zeus_stream.metric("the child's own", 1)
    sys.exit(8)
codes["own"] = wait(child)
print(json.dumps(codes | {"child": child, "parent": os.getpid()}))
"""


@pytest.mark.sweep
def test_a_forked_child_is_silent_unless_it_measures_itself_and_never_disturbs_its_parent(
    zeus_dir: Path, collector: Collector
) -> None:
    done = script(zeus_dir, FORK)
    assert done.stderr == ""
    pids = json.loads(done.stdout)
    assert (pids["silent"], pids["own"]) == (7, 8)
    assert {event.pid for event in collector.seen(RunStarted)} == {pids["parent"], pids["child"]}
    own = collector.sessions[collector.session_of(pids["child"]) or ""]
    assert [type(event) for event in own] == [RunStarted, Metric, RunEnded]
    assert [event.name for event in collector.seen(Metric)] == ["the child's own"]
    assert collector.boundaries()[-1] == (3, True, False)
    assert len(collector.seen(RunEnded)) == 3


MULTIPROCESSING = """
import multiprocessing, sys, zeus_stream

def train(rank):
    for batch in zeus_stream.steps(range(5)):
        zeus_stream.metric("rank", rank)

if __name__ == "__main__":
    zeus_stream.metric("rank", -1)
    ranks = [multiprocessing.get_context("fork").Process(target=train, args=(rank,)) for rank in range(2)]
    for rank in ranks: rank.start()
    for rank in ranks: rank.join()
    sys.exit(sum(rank.exitcode for rank in ranks))
"""


def test_ranks_that_multiprocessing_forked_hand_over_everything_before_they_leave(
    zeus_dir: Path, collector: Collector
) -> None:
    done = script(zeus_dir, MULTIPROCESSING)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(collector.sessions) == 3
    assert sorted(event.value for event in collector.seen(Metric)) == [-1.0] + [0.0] * 5 + [1.0] * 5
    assert len(collector.seen(RunEnded)) == 3


SPAWNED = """
import copy, multiprocessing, zeus_stream

class Training:
    def __init__(self):
        self.publisher = zeus_stream.Publisher(job="travels")
        self.steps, self.window = zeus_stream.steps(range(4)), self.publisher.window("load")

    def run(self):
        for batch in self.steps:
            with self.window:
                pass

if __name__ == "__main__":
    training = Training()
    training.run()
    copy.deepcopy(training).run()
    process = multiprocessing.get_context("spawn").Process(target=training.run)
    process.start()
    process.join()
    raise SystemExit(process.exitcode)
"""


def test_what_is_copied_or_sent_to_a_spawned_process_works_there(
    zeus_dir: Path, collector: Collector
) -> None:
    """A copy raised TypeError: cannot pickle '_thread.lock' object."""
    done = script(zeus_dir, SPAWNED)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(collector.seen(WindowEnded)) == 12
    assert len([event for event in collector.seen(StepBoundary) if event.began_ns]) == 12


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_publisher_that_is_closed_leaves_nothing_behind(collector: Collector) -> None:
    threads, files = threading.active_count(), open_files()
    for _ in range(5):
        Publisher().close()
    gc.collect()
    until(lambda: threading.active_count() <= threads)  # fewer: one of a test before has ended meanwhile
    until(lambda: open_files() <= files)
    assert not publishers.open
    assert len(collector.seen(RunEnded)) == 5


# ---- steps that a framework makes


def test_steps_in_a_row_are_told_together_and_the_last_one_at_the_end(collector: Collector) -> None:
    with Publisher() as pub:
        for _ in range(2):
            pub.begin_step()
            pub.end_step(pauses=False)
        pub.end_step()
        pub.begin_step()
        pub.end_step(pauses=False)
        list(pub.steps("a"))
        pub.begin_step()
        pub.end_step(pauses=False)
    assert collector.boundaries() == [
        (0, False, True), (1, True, True), (2, True, False),
        (2, False, True), (3, True, False),
        (3, False, True), (4, True, False),
        (4, False, True), (5, True, False),
    ]  # fmt: skip


def test_a_cancelled_step_gives_its_number_to_the_next(collector: Collector) -> None:
    with Publisher() as pub:
        pub.cancel_step()
        pub.begin_step()
        pub.cancel_step()
        with pub.step():
            pass
    assert collector.boundaries() == [(0, False, True), (1, False, False), (0, False, True), (1, True, False)]


def test_a_resumed_training_goes_on_counting_and_never_goes_back(collector: Collector) -> None:
    with Publisher() as pub:
        pub.continue_from(step=7, epoch=2)
        with pub.epoch(), pub.step():
            pass
        pub.continue_from(step=3, epoch=1)
        with pub.epoch(), pub.step():
            pass
    assert collector.boundaries() == [(7, False, True), (8, True, False), (8, False, True), (9, True, False)]
    assert [event.index for event in collector.seen(EpochEnded)] == [2, 3]


def test_an_answer_can_be_picked_up_later(collector: Collector) -> None:
    with Publisher() as pub:
        with pub.window("w") as window:
            assert isinstance(window.energy_later()(), Missing)
        until(lambda: pub.statistics().acknowledged)
        late, in_vain = window.energy_later(60), window.energy_later(0)
        assert late() is None
        assert in_vain() == Missing(
            reason=f"window 'w': its energy is not known: {pub._sender.silence()} within 0 s.", name="w"
        )
        collector.answer = lambda ask: codec.encode(
            Answer(ask.question, 0.5, (GpuEnergy("GPU-1", 6.0, 5.0, 7.0),), None)
        )
        until(lambda: late() is not None)
        assert late() == WindowEnergy(
            name="w",
            duration_s=0.5,
            energy_j=6.0,
            energy_low_j=5.0,
            energy_high_j=7.0,
            gpus=(GpuEnergy("GPU-1", 6.0, 5.0, 7.0),),
        )
    assert isinstance(window.energy_later()(), Missing)


def test_a_question_whose_answer_nobody_waits_for_is_forgotten(collector: Collector) -> None:
    with Publisher() as pub:
        with pub.window("w") as window:
            pass
        for _ in range(10):
            window.energy_later(60)
        gc.collect()
        assert len(pub._sender._answers) == 0
        until(lambda: collector.asks)


def test_who_follows_a_publisher_is_one_of_its_kind_and_closed_with_it(collector: Collector) -> None:
    closed = []

    class Follower:
        def close(self) -> None:
            closed.append(self)

    with Publisher() as pub:
        first = pub.follow(Follower, Follower)
        assert pub.follow(Follower, Follower) is first
        assert closed == []
    assert closed == [first]
    assert isinstance(collector.events[-1], RunEnded)


def test_a_batch_that_its_loop_lets_go_is_held_by_nobody() -> None:
    class Batch:
        pass

    with Publisher(job="digits") as publisher:
        for batch in publisher.steps(Batch() for _ in range(3)):
            alive = weakref.ref(batch)
            del batch
            assert alive() is None


def test_a_metric_belongs_to_the_step_and_the_epoch_that_began_last(collector: Collector) -> None:
    with Publisher() as pub:
        pub.metric("early", 1)
        for epoch in pub.epochs(range(2)):
            for step in pub.steps(range(3)):
                pub.metric("inside", 10 * epoch + step)
            pub.metric("after", epoch)
        pub.metric("named", 1, step=4, epoch=0)
        pub.metric("nonsense", 1, step=-1)
    told = collector.seen(Metric)
    places = {(metric.name, metric.value): (metric.step, metric.epoch) for metric in told}
    assert places == {
        ("early", 1): (None, None),
        ("inside", 0): (0, 0), ("inside", 1): (1, 0), ("inside", 2): (2, 0), ("after", 0): (2, 0),
        ("inside", 10): (3, 1), ("inside", 11): (4, 1), ("inside", 12): (5, 1), ("after", 1): (5, 1),
        ("named", 1): (4, 0),
        ("nonsense", 1): (None, 1),
    }  # fmt: skip
