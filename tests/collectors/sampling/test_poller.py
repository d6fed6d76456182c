"""One thread reads all devices, and a device that does not answer holds up none of the others."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from collectors.sampling.poller import HANG_NS, SLOW_NS, TOGETHER_NS, Poller
from tests.waiting import until
from zeus_stream.clock import monotonic_ns

MS = 1_000_000
PATIENCE_S = 120.0


class Device:
    """A device that is due a while after each read, and answers as long as it is let."""

    def __init__(self, every_ns: int = MS) -> None:
        self.every_ns = every_ns
        self.due_ns = 0
        self.reads = self.early = 0
        self.takes_s = 0.0
        self.answers = threading.Event()
        self.answers.set()
        self.lost = False
        self.threads = set[int]()

    def poll(self) -> int | None:
        sooner_ns = self.due_ns - monotonic_ns()
        self.early += 0 < sooner_ns <= TOGETHER_NS
        self.threads.add(threading.get_ident())
        time.sleep(self.takes_s)
        assert self.answers.wait(PATIENCE_S)
        self.reads += 1
        self.due_ns = monotonic_ns() + self.every_ns
        return None if self.lost else self.due_ns


@contextmanager
def polling(*devices: Device, alone_ns: int = 3_600_000 * MS) -> Iterator[Poller]:
    poller = Poller(alone_ns)
    for device in devices:
        poller.add(device)
    try:
        yield poller
    finally:
        for device in devices:
            device.answers.set()
        assert poller.stop(PATIENCE_S)


def test_a_device_that_is_due_soon_is_read_by_the_same_wake_up() -> None:
    first, second = Device(5 * MS), Device(5 * MS + TOGETHER_NS // 4)
    with polling(first, second, alone_ns=MS):
        until(lambda: first.early + second.early > 0)


def test_a_read_that_hangs_is_left_to_its_thread_and_the_others_go_on() -> None:
    hangs, others = Device(), [Device(), Device()]
    with polling(hangs, *others) as poller:
        until(lambda: all(each.reads for each in (hangs, *others)))
        hangs.answers.clear()
        reads = hangs.reads + 1
        before = [each.reads for each in others]

        def gone_on() -> bool:
            again_ns = poller.check(monotonic_ns())
            assert again_ns is None or again_ns <= monotonic_ns() + HANG_NS
            return all(each.reads > was + 50 for each, was in zip(others, before, strict=True))

        until(gone_on)
        assert poller.alone
        assert hangs.reads <= reads
        hangs.answers.set()
        until(lambda: hangs.reads > reads + 3)


def test_a_device_known_to_be_slow_has_its_own_thread_from_the_first_read_on() -> None:
    slow, other = Device(), Device()
    slow.answers.clear()
    with polling(other) as poller:
        poller.add(slow, alone=True)
        until(lambda: slow.threads)
        reads = other.reads
        until(lambda: other.reads > reads + 20)  # nobody calls `check`: no read of the other waits for it
        slow.answers.set()
        until(lambda: slow.reads > 20)
        assert slow.threads.isdisjoint(other.threads)
        assert len(slow.threads) == 1


def test_a_device_that_is_slow_again_and_again_has_a_thread_of_its_own_for_a_time() -> None:
    slow, other = Device(), Device()
    slow.takes_s = 2 * SLOW_NS / 1e9
    with polling(slow, other, alone_ns=MS) as poller:
        until(lambda: poller.alone == 1)
        slow.takes_s = 0
        until(lambda: not poller.alone)
        reads = slow.reads, other.reads
        until(lambda: slow.reads > reads[0] and other.reads > reads[1])


def test_a_device_that_waits_is_read_at_once_when_asked_for_and_a_lost_one_no_more() -> None:
    waits, lost = Device(3_600_000 * MS), Device()
    lost.lost = True
    with polling(waits, lost) as poller:
        until(lambda: lost.reads > 0)
        for _ in range(3):
            reads = waits.reads
            poller.read_now(waits)
            until(lambda: waits.reads > reads)  # noqa: B023  (it is called before the next turn)
        assert lost.reads == 1


def test_a_stop_says_that_a_read_does_not_return() -> None:
    hangs = Device()
    with polling(hangs) as poller:
        hangs.answers.clear()
        until(lambda: poller.check(monotonic_ns()) is not None)
        assert not poller.stop(0.01)
