"""Windows as a script writes them: what each way of writing one puts into the stream."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.messages import RUN_STARTED
from tests.waiting import until
from tests.zeus_stream.stand_in_collector import Collector
from tests.zeus_stream.training.test_publisher import script
from zeus_stream.protocol.events import Ack, Ask, WindowBegan, WindowCancelled, WindowEnded
from zeus_stream.training.outbox import Outbox
from zeus_stream.training.publisher import Publisher
from zeus_stream.training.sender import EventSender
from zeus_stream.training.windows import SessionWindows, Window

Heard = list[tuple[str, int]]
"""``began``, ``ended`` or ``cancelled``, and the number of the window."""
WORDS = {WindowBegan: "began", WindowEnded: "ended", WindowCancelled: "cancelled"}


def heard(collector: Collector) -> Heard:
    return [
        (WORDS[type(event)], event.window)
        for event in collector.events
        if isinstance(event, WindowBegan | WindowEnded | WindowCancelled)
    ]


# ---- contexts


def test_windows_nest_and_overlap(collector: Collector) -> None:
    with Publisher() as pub:
        with pub.window("outer"), pub.window("inner"):
            pass
        first, second = pub.window("first").restart(), pub.window("second").restart()
        first.end()
        second.end()
    assert heard(collector) == [
        ("began", 0), ("began", 1), ("ended", 1), ("ended", 0),
        ("began", 2), ("began", 3), ("ended", 2), ("ended", 3),
    ]  # fmt: skip
    assert [event.name for event in collector.seen(WindowBegan)] == ["outer", "inner", "first", "second"]


def test_a_window_restarted_forgets_what_it_was_and_nobody_complains(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    with Publisher() as pub:
        with pub.window("compile and run") as window:
            window.restart()
        pub.begin_window("by name").restart()
        assert pub.end_window("by name") is not None
        window.restart().end()
    assert heard(collector) == [
        ("began", 0), ("cancelled", 0), ("began", 1), ("ended", 1),
        ("began", 2), ("cancelled", 2), ("began", 3), ("ended", 3),
        ("began", 4), ("ended", 4),
    ]  # fmt: skip
    assert caplog.records == []


def test_one_object_is_one_span_at_a_time(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    with Publisher() as pub:
        window = pub.window("w")
        with window, window:
            pass
        with window:
            pass
    assert heard(collector) == [
        ("began", 0), ("cancelled", 0), ("began", 1), ("ended", 1), ("began", 2), ("ended", 2),
    ]  # fmt: skip
    assert [record.getMessage() for record in caplog.records] == [
        "zeus-stream: window 'w': began twice. The first is cancelled."
    ]


@given(st.lists(st.sampled_from(["enter", "end", "cancel", "restart"])))
def test_whatever_is_done_to_a_window_each_of_its_spans_ends_at_most_once_before_the_next(
    done: list[str],
) -> None:
    outbox = Outbox(RUN_STARTED, lambda: "session")
    sender = EventSender(outbox, [], lambda *_: None, lambda _: None)
    session = SessionWindows(outbox, sender, lambda *_: None, lambda _: None, lambda: "")
    window = Window("w", lambda: session)
    for what in done:
        window.__enter__() if what == "enter" else getattr(window, what)()
    asked = window.energy_later(0)
    put: Heard = []
    while (batch := outbox.batch(0)) is not None:
        put += [(WORDS[type(event)], event.window) for event in batch.events if type(event) in WORDS]  # type: ignore[union-attr]
        outbox.acknowledge(Ack(batch.session, batch.sequence + len(batch.events)))
    begins, closes = put[::2], put[1::2]
    assert begins == [("began", number) for number in range(len(begins))]
    assert [number for _, number in closes] == list(range(len(closes)))
    assert all(what in {"ended", "cancelled"} for what, _ in closes)
    if put and put[-1][0] == "ended":
        assert [ask.window for ask in outbox.asks(0) if isinstance(ask, Ask)] == [put[-1][1]]
    elif put and put[-1][0] == "began":
        assert "it has not ended" in str(asked())
    else:
        assert "it never began, or was cancelled" in str(asked())


# ---- decorators


def test_a_decorated_function_is_itself_and_each_call_is_a_window(collector: Collector) -> None:
    with Publisher() as pub:

        @pub.window("evaluate")
        def evaluate(x: int, *, y: int = 1) -> float:
            """Evaluate."""
            return x / y

        assert evaluate(3) == 3
        with pytest.raises(ZeroDivisionError):
            evaluate(1, y=0)
        assert (evaluate.__name__, evaluate.__doc__) == ("evaluate", "Evaluate.")
    assert heard(collector) == [("began", 0), ("ended", 0), ("began", 1), ("ended", 1)]
    assert {event.name for event in collector.seen(WindowBegan)} == {"evaluate"}


def test_threads_that_are_in_one_function_at_once_have_windows_of_their_own(collector: Collector) -> None:
    together = threading.Barrier(8)
    with Publisher() as pub:

        @pub.window("work")
        def work() -> None:
            together.wait(60)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(heard(collector)) == sorted((what, n) for what in ("began", "ended") for n in range(8))
    assert [what for what, _ in heard(collector)] == ["began"] * 8 + ["ended"] * 8


def test_coroutines_overlap(collector: Collector) -> None:
    async def both(pub: Publisher) -> tuple[int, int]:
        second_is_in = asyncio.Event()

        @pub.window("request")
        async def request(n: int) -> int:
            if n:
                second_is_in.set()
            await second_is_in.wait()
            return n

        async with pub.window("batch") as batch:
            first, second = await asyncio.gather(request(0), request(1))
        assert batch.number == 0
        return first, second

    with Publisher() as pub:
        assert asyncio.run(both(pub)) == (0, 1)
    assert heard(collector)[:3] == [("began", 0), ("began", 1), ("began", 2)]
    assert sorted(heard(collector)[3:5]) == [("ended", 1), ("ended", 2)]
    assert heard(collector)[5] == ("ended", 0)


def test_a_generator_is_refused_where_it_is_decorated(collector: Collector) -> None:
    def loader() -> Iterator[int]:
        yield 1

    async def stream() -> AsyncIterator[int]:
        yield 1

    with Publisher() as pub:
        for generator in (loader, stream):
            with pytest.raises(
                TypeError, match=r"'load': could not be put around .*: it is a generator, and"
            ):
                pub.window("load")(generator)
        until(lambda: pub.statistics().waiting == 0)
    assert heard(collector) == []


DECORATED = """
import os, threading, zeus_stream

@zeus_stream.window("eval")
def evaluate():
    pass

print(threading.active_count(), flush=True)     # a decorator alone starts nothing
if (child := os.fork()) == 0:
    evaluate()                                  # measured by a publisher of the child's own
else:
    os.waitpid(child, 0)
    evaluate()
"""


def test_a_decorator_of_a_module_speaks_for_the_process_that_calls(
    zeus_dir: Path, collector: Collector
) -> None:
    done = script(zeus_dir, DECORATED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    assert len(collector.sessions) == 2
    assert heard(collector) == [("began", 0), ("ended", 0)] * 2
