"""A device that no session uses is read seldom, and closely again at once when one does."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import iter_unpack

import pytest

from collectors.controls.device_messages import Mail, SeeProcesses, Stop
from collectors.controls.device_thread import DeviceThread
from collectors.controls.frequency_plan import ChangeClock
from collectors.device import Sample
from collectors.devices.cards.known_cards import keep_card
from collectors.devices.cards.sensor_card import Read, make_card
from collectors.sampling import schedule
from collectors.sampling.poller import Poller
from tests.collectors.devices.arithmetic import PERIOD_NS, ArithmeticDevice
from tests.waiting import until
from zeus_stream.clock import monotonic_ns
from zeus_stream.protocol.fields import Control
from zeus_stream.protocol.readings import READING_STRUCT, Seen

S = 1_000_000_000
PATIENCE_S = 60.0


@contextmanager
def watching(
    directory: Path, device: ArithmeticDevice | None = None, cards: Path | None = None
) -> Iterator[DeviceThread]:
    mail = Mail()
    poller = Poller()
    watch = DeviceThread(device or ArithmeticDevice(0), 0, mail, poller, directory, cards=cards)
    watch.start()
    try:
        yield watch
    finally:
        assert poller.stop(PATIENCE_S)
        watch.do(Stop())
        assert watch.join(PATIENCE_S)
        mail.close()


class Sleepy(ArithmeticDevice):
    """A device that Linux suspends, and that each call wakes."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.suspended = False
        self.woken = 0

    def asleep(self) -> bool:
        return self.suspended

    def sample(self) -> Sample:
        self.woken += self.suspended
        return super().sample()

    def processes(self) -> tuple[int, ...] | None:
        self.woken += self.suspended
        return super().processes()


class Stuck(ArithmeticDevice):
    """A device whose driver does not return from a change, as long as it is not let."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.asked, self.let = threading.Event(), threading.Event()

    def set_control(self, control: Control, value: int) -> None:
        self.asked.set()
        assert self.let.wait(PATIENCE_S)
        super().set_control(control, value)


def changes(watch: DeviceThread, count: int) -> list[tuple[int, int]]:
    """Return between which two instants the next changes of the counter lie."""
    deadline_ns = monotonic_ns() + round(PATIENCE_S * S)
    found: list[tuple[int, int]] = []
    while len(found) < count:
        assert monotonic_ns() < deadline_ns
        for row in watch.take_rows(1_000):
            found += [
                (r[0], r[1]) for r in iter_unpack(READING_STRUCT, row) if r[-1] in (Seen.CHANGED, Seen.RESTED)
            ]
        time.sleep(0.001)
    return found


def test_a_change_that_hangs_holds_up_no_other_device(tmp_path: Path) -> None:
    mail, poller, stuck = Mail(), Poller(), Stuck(0)
    one, other = (
        DeviceThread(device, place, mail, poller, tmp_path)
        for place, device in enumerate((stuck, ArithmeticDevice(1)))
    )
    one.start()
    other.start()
    changes(one, 1)
    changes(other, 1)
    one.do(ChangeClock(135))
    assert stuck.asked.wait(PATIENCE_S)
    changes(other, 3)
    one.take_rows(1_000)
    reads = one.reads
    changes(other, 3)
    assert one.reads == reads, "a device is used by one thread at a time"
    stuck.let.set()
    changes(one, 1)
    assert stuck.locks == [135]
    assert poller.stop(PATIENCE_S)
    for watch in (one, other):
        watch.do(Stop())
        assert watch.join(PATIENCE_S)
    mail.close()


@pytest.mark.sweep
def test_a_device_that_nobody_uses_is_read_seldom_and_at_once_when_it_is_used(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        while watch.sampled.period_ns is None:
            changes(watch, 1)
        watch.relax(relaxed=True)
        reads, begin_ns = watch.reads, monotonic_ns()
        seldom = changes(watch, 3)[-1]
        while seldom[1] - begin_ns < schedule.RELAXED_NS:
            seldom = changes(watch, 1)[-1]
        assert watch.reads - reads <= 10, "of 150 that it would be otherwise"
        assert seldom[1] - seldom[0] >= 0.8 * schedule.RELAXED_NS, "its bounds say how little is known"
        period_ns = watch.sampled.period_ns
        while not 2 * PERIOD_NS < monotonic_ns() - seldom[1] < schedule.RELAXED_NS // 2:  # in mid-pause
            seldom = changes(watch, 1)[-1] if monotonic_ns() - seldom[1] > S // 2 else seldom
        used_ns = monotonic_ns()
        watch.relax(relaxed=False)
        first, second, *_ = changes(watch, 2)
        assert first[0] < used_ns < first[1], "it is read at once, and its bounds reach back over the pause"
        assert second[1] - second[0] < schedule.RELAXED_NS // 2
        near = pytest.approx(period_ns, rel=0.01)  # the change after it may say a little
        assert watch.sampled.period_ns == near, "a pause says nothing of the period"
        assert begin_ns < first[0]


def test_while_windows_are_long_a_refresh_has_about_one_read_as_long_as_the_device_is_used(
    tmp_path: Path,
) -> None:
    with watching(tmp_path) as watch:
        while not watch.sampled.timed:
            changes(watch, 1)
        watch.sampled.closely = False
        changes(watch, 10)
        watch.relax(relaxed=False)  # as each second
        reads = watch.reads
        assert len(changes(watch, 40)) >= 40
        assert watch.reads - reads < 1.8 * 40, "of 88 closely"


def test_a_suspended_device_at_rest_is_not_woken_and_not_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "RELAXED_NS", S // 20)
    device = Sleepy(0)
    with watching(tmp_path, device) as watch:
        until(lambda: watch.sampled.period_ns is not None)
        watch.relax(relaxed=True)
        until(lambda: watch.at_rest)
        device.suspended = True
        until(lambda: watch.slept > 5)
        watch.do(SeeProcesses())
        until(lambda: watch.slept > 10)
        assert device.woken == 0
        assert watch.at_rest
        watch.relax(relaxed=False)
        until(lambda: device.woken > 2)  # a run uses it


def test_a_device_begins_with_the_period_of_its_sensor_card(tmp_path: Path) -> None:
    device = ArithmeticDevice(0)
    reads = [Read(t_ns, t_ns, Sample(t_ns // PERIOD_NS, 1, None, None)) for t_ns in range(0, S, S // 1000)]
    keep_card(tmp_path / "cards", device.gpu, make_card(device.describe(), reads))
    with watching(tmp_path, device, tmp_path / "cards") as watch:
        until(lambda: watch.reads > 0)
        assert watch.card == "its own: refreshed every 20.0 ms"
        assert watch.sampled.period_ns is not None, "known before five refreshes were seen"
