"""The collector whole: real sockets, real SQLite, threads and processes; only the GPUs are arithmetic."""

import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import numpy as np
import pytest
from msgspec.structs import replace

from collectors.device import Bus, Sample
from collectors.devices.rapl import REFRESH_NS, RaplBus
from collectors.devices.registry import HostBus
from collectors.log.sqlite import SqliteLog
from collectors.service import AtSite, collect
from tests.collectors.devices.arithmetic import FOUND_MW, PERIOD_NS, POWER_W, ArithmeticBus, ArithmeticDevice
from tests.gpu.powercap import Powercap
from tests.messages import RELEASE_CONTROL, RUN_STARTED, SET_CONTROL
from tests.waiting import eventually
from zeus_stream.clock import boot_id, monotonic_ns
from zeus_stream.errors import PermissionMissingError
from zeus_stream.paths import Places, places
from zeus_stream.protocol import codec
from zeus_stream.protocol.commands import (
    Fetch,
    Fetched,
    Hello,
    Welcome,
)
from zeus_stream.protocol.events import (
    Ack,
    Advice,
    Answer,
    Ask,
    AskTry,
    Batch,
    EpochBegan,
    Event,
    JobAllocation,
    Metric,
    RunEnded,
    RunStarted,
)
from zeus_stream.protocol.fields import UNLOCKED, Control
from zeus_stream.protocol.frames import Events, Frame, decode_frame
from zeus_stream.protocol.notes import (
    CollectorStarted,
    ControlApplied,
    ControlLeaseEnded,
    ControlRefused,
    DeviceFound,
    DeviceGone,
    Lost,
    Notes,
    RunAdmitted,
    SessionEnded,
)
from zeus_stream.protocol.pipelines import SetPlan
from zeus_stream.protocol.queries import AskStatus, No, Status
from zeus_stream.protocol.readings import READING_FIELDS, Readings, Seen
from zeus_stream.protocol.snapshots import AskNow, Snapshot
from zeus_stream.settings import Settings
from zeus_stream.transport import sockets

pytestmark = pytest.mark.anyio
N = TypeVar("N")
GPU = "GPU-0000"
PATIENCE_S = 180.0


class Client:
    """An analyzer and a training process in one."""

    def __init__(self, where: Places) -> None:
        self._context = sockets.context()
        self.publish = sockets.ask(self._context, where.publish)
        self.control = sockets.ask(self._context, where.control)
        self.feed = sockets.follow(self._context, where.feed)
        self._fence = 0
        self.incarnation = ""

    async def request(self, message: object) -> tuple[Any, list[bytes]]:
        await self.send(self.control, bytes(8), codec.encode(message))
        (received,) = await self.control.receive()
        reply = codec.decode(
            received.parts[1], Welcome, Fetched, ControlApplied, ControlRefused, Status, Snapshot, No
        )
        return reply, received.parts[2:]

    async def send(self, channel: sockets.Channel, *parts: bytes) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not channel.send(*parts):
                await anyio.sleep(0.005)

    async def greet(self) -> Welcome:
        welcome, _ = await self.request(Hello("analyzer", "test"))
        assert isinstance(welcome, Welcome)
        self.incarnation = welcome.incarnation
        return welcome

    async def frames(self) -> list[Frame]:
        """Return the whole log."""
        welcome = await self.greet()
        frames: list[Frame] = []
        while len(frames) < welcome.next_offset - welcome.first_offset:
            fetch = Fetch(welcome.log_id, welcome.first_offset + len(frames), 1000)
            _, parts = await self.request(fetch)
            frames += [decode_frame(*parts[i : i + 3]) for i in range(0, len(parts), 3)]
        return frames

    async def notes(self, kind: type[N]) -> list[N]:
        frames = await self.frames()
        return [note for frame in frames for note in notes_of(frame) if isinstance(note, kind)]

    async def wait_for(self, kind: type[N], count: int = 1) -> list[N]:
        """Return the notes of a kind once there are so many."""
        with anyio.fail_after(PATIENCE_S):
            while len(found := await self.notes(kind)) < count:
                await anyio.sleep(0.01)
        return found

    async def say(self, session: str, sequence: int, *events: Event) -> Ack:
        """Publish a batch and return the acknowledgement."""
        await self.send(self.publish, codec.encode(Batch(session, sequence, events)))
        with anyio.fail_after(PATIENCE_S):
            (received,) = await self.publish.receive()
        return codec.decode(received.parts[0], Ack)

    async def start_run(self, session: str = "s", run: str = "r", gpus: tuple[str, ...] = (GPU,)) -> None:
        count = len(await self.notes(RunAdmitted))
        await self.say(session, 0, started(run, gpus))
        await self.wait_for(RunAdmitted, count + 1)

    async def set(self, command: str, limit_w: int, **more: Any) -> Any:
        return await self.lock(command, limit_w * 1000, **{"control": "power_limit"} | more)

    async def release(self, command: str, gpu: str = GPU, control: Control = "power_limit") -> Any:
        self._fence += 1
        request = replace(
            RELEASE_CONTROL, command=command, owner="anna", incarnation=self.incarnation,
            fence=self._fence, gpu=gpu, control=control,
        )  # fmt: skip
        return (await self.request(request))[0]

    async def lock(self, command: str, value: int, **more: Any) -> Any:
        """Ask for a clock, or for another control. ``more``: what else differs."""
        await self.greet()
        self._fence += 1
        plain = {"owner": "anna", "run": "r", "gpu": GPU, "control": "graphics_clock", "lease_ms": 60_000}
        known = {"command": command, "value": value, "incarnation": self.incarnation, "fence": self._fence}
        return (await self.request(replace(SET_CONTROL, **plain | known | more)))[0]

    async def plan(self, command: str, clock_mhz: int, owner: str) -> Any:
        """Ask for a plan of one instruction."""
        plan = SetPlan(
            command=command, owner=owner, incarnation=self.incarnation, fence=1, run="r", gpu=GPU,
            lease_ms=60_000, plan="p", iteration_ms=1000, codes=(1,), clocks_mhz=(clock_mhz,),
            raise_after_us=(0,),
        )  # fmt: skip
        return (await self.request(plan))[0]

    async def unlock(self, command: str, gpu: str = GPU, control: Control = "graphics_clock") -> Any:
        return await self.release(command, gpu, control)

    def close(self) -> None:
        self._context.destroy(linger=0)


class HangingDevice(ArithmeticDevice):
    """A device whose driver does not return from a read, as long as it is not let; then it is lost."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.hangs, self.hung, self.returns = threading.Event(), threading.Event(), threading.Event()

    def sample(self) -> Sample:
        if self.hangs.is_set():
            self.hung.set()
            assert self.returns.wait(PATIENCE_S)
            self.lost = True
        return super().sample()


def started(run: str = "r", gpus: tuple[str, ...] = (GPU,)) -> RunStarted:
    return replace(RUN_STARTED, t_ns=monotonic_ns(), run=run, gpus=gpus, pid=os.getpid(), boot_id=boot_id())


def notes_of(frame: Frame) -> tuple[object, ...]:
    return codec.decode(frame.body, Notes).notes if frame.topic.startswith("notes/") else ()


def rows_of(frames: list[Frame], place: int) -> "np.ndarray[Any, np.dtype[np.void]]":
    """Return the readings of the device at a place, in order."""
    bodies = [codec.decode(frame.body, Readings) for frame in frames if frame.topic.startswith("readings/")]
    assert all(gpu.startswith(("GPU-000", "-")) for body in bodies for gpu in body.gpus)
    rows = np.frombuffer(b"".join(body.rows for body in bodies), np.dtype(list(READING_FIELDS)))
    of_place: np.ndarray[Any, np.dtype[np.void]] = rows[rows["gpu"] == place]
    return of_place


def changes_of(frames: list[Frame], place: int) -> "np.ndarray[Any, np.dtype[np.void]]":
    rows = rows_of(frames, place)
    changes: np.ndarray[Any, np.dtype[np.void]] = rows[rows["seen"] == Seen.CHANGED]
    return changes


def events_of(frames: list[Frame]) -> list[tuple[str, int, object]]:
    found: list[tuple[str, int, object]] = []
    for frame in frames:
        if frame.topic.startswith("events/"):
            body = codec.decode(frame.body, Events)
            found += [(body.session, body.sequence + i, event) for i, event in enumerate(body.events)]
    return found


@asynccontextmanager
async def collector(
    bus: Bus,
    directory: Path,
    devices: int = 2,
    settings: Settings | None = None,
    at_site: AtSite | None = None,
) -> AsyncIterator[Client]:
    """Run a collector until the end of the block, once its devices are found."""
    environ = {"ZEUS_STREAM_DIR": str(directory)}
    ready = anyio.Event()

    async def serve() -> None:
        await collect(
            settings or Settings(device="test"),
            bus,
            environ=environ,
            started=lambda _: ready.set(),
            at_site=at_site,
        )

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        await ready.wait()
        client = Client(places(environ))
        try:
            await client.wait_for(CollectorStarted)
            before = len(await client.notes(CollectorStarted)) - 1
            await client.wait_for(DeviceFound, devices * (before + 1))
            yield client
        finally:
            client.close()
            tasks.cancel_scope.cancel()


def logged(directory: Path) -> list[Frame]:
    """Return the log of a collector that has stopped."""
    log = SqliteLog(directory / "log.sqlite", "test", boot_id())
    try:
        return log.fetch(0, 10**6, 10**9)
    finally:
        log.close()


# ---- readings --------------------------------------------------------------------------------------


async def test_readings_of_all_devices_are_logged_in_order_and_add_up_to_the_energy_drawn(
    zeus_dir: Path,
) -> None:
    async with collector(ArithmeticBus(2), zeus_dir) as client:
        frames = await client.frames()
        with anyio.fail_after(PATIENCE_S):
            while min(len(changes_of(frames, gpu)) for gpu in (0, 1)) < 16:
                frames = await client.frames()
    assert [frame.offset for frame in frames] == list(range(len(frames)))
    for gpu in (0, 1):
        rows, changes = rows_of(frames, gpu), changes_of(frames, gpu)
        assert rows["seen"][0] == Seen.FIRST
        first, last = changes[0], changes[-1]
        drawn_mj = int(last["energy_mj"] - first["energy_mj"])
        shortest_s = (last["t_lo_ns"] - first["t_hi_ns"]) / 1e9
        longest_s = (last["t_hi_ns"] - first["t_lo_ns"]) / 1e9
        assert shortest_s <= drawn_mj / 1000 / POWER_W <= longest_s
        assert min(changes["t_hi_ns"] - changes["t_lo_ns"]) < PERIOD_NS


async def test_a_cpu_is_logged_beside_the_gpus_and_no_run_is_asked_or_allowed_to_name_it(
    zeus_dir: Path, tmp_path: Path
) -> None:
    powercap = Powercap(tmp_path)
    counter = powercap.package(0) / "energy_uj"
    written_ns: dict[int, tuple[int, int]] = {}

    async def draw() -> None:
        fresh, begun_ns = tmp_path / "fresh", monotonic_ns()
        while True:
            before_ns = monotonic_ns()
            drawn_uj = 1000 + (before_ns - begun_ns) * POWER_W // 1000
            fresh.write_text(str(drawn_uj))
            fresh.replace(counter)
            written_ns[drawn_uj // 1000] = before_ns, monotonic_ns()
            await anyio.sleep(0.002)

    def of_cpu(frames: list[Frame]) -> "np.ndarray[Any, np.dtype[np.void]]":
        found = [np.empty(0, np.dtype(list(READING_FIELDS)))]
        for frame in frames:
            if frame.topic.startswith("readings/"):
                body = codec.decode(frame.body, Readings)
                rows = np.frombuffer(body.rows, found[0].dtype)
                of_it = rows["gpu"] == (body.gpus.index(cpu) if cpu in body.gpus else len(body.gpus))
                found.append(rows[of_it & (rows["seen"] == Seen.CHANGED)])
        return np.concatenate(found)

    cpu = "CPU-h-package-0"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(draw)
        bus = HostBus(ArithmeticBus(1), RaplBus("h", tmp_path), wanted=True)
        async with collector(bus, zeus_dir) as client:
            await client.start_run(gpus=("index:all",))
            (word,) = await client.notes(RunAdmitted)
            assert word.gpus == (GPU,)
            refused = await client.set("c", 100, gpu=cpu)
            assert "it has none that could be set" in refused.reason
            (found,) = [note for note in await client.notes(DeviceFound) if note.gpu == cpu]
            with anyio.fail_after(PATIENCE_S):
                while len(changes := of_cpu(await client.frames())) < 12:
                    await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert (found.min_limit_mw, found.found_limit_mw, found.driver) == (None, None, "powercap")
    seconds = (changes["t_hi_ns"][-1] - changes["t_lo_ns"][0]) / 1e9
    assert len(changes) <= seconds * 20 + 1, "read 20 times a second, however often it moves"
    for energy_mj, t_lo_ns, t_hi_ns in changes[["energy_mj", "t_lo_ns", "t_hi_ns"]].tolist():
        before_ns, after_ns = written_ns[energy_mj]
        assert before_ns <= t_hi_ns
        assert after_ns >= t_lo_ns - REFRESH_NS


async def test_devices_are_read_before_what_else_there_is_to_run(zeus_dir: Path) -> None:
    async with collector(ArithmeticBus(2), zeus_dir):
        readers = [thread for thread in threading.enumerate() if thread.name.startswith("device ")]
        policies = [os.sched_getscheduler(thread.native_id or 0) for thread in readers]
    usual, first = os.sched_getscheduler(0), os.SCHED_RR | os.SCHED_RESET_ON_FORK

    def permitted() -> bool:
        try:
            os.sched_setscheduler(0, first, os.sched_param(1))
        except OSError:
            return False
        return True

    with ThreadPoolExecutor(1) as thread:
        assert policies == [first if thread.submit(permitted).result() else usual] * 2
    assert os.sched_getscheduler(0) == usual


async def test_the_feed_carries_what_the_log_has(zeus_dir: Path) -> None:
    async with collector(ArithmeticBus(1), zeus_dir, 1) as client:
        fed: dict[int, Frame] = {}
        with anyio.fail_after(PATIENCE_S):
            while len(fed) < 20:
                for message in await client.feed.receive():
                    topic, envelope, body = message.parts
                    frame = decode_frame(topic, envelope, body)
                    fed[frame.offset] = frame
        frames = {frame.offset: frame for frame in await client.frames()}
    assert sorted(fed) == list(range(min(fed), max(fed) + 1))
    assert all(frames[offset] == frame for offset, frame in fed.items())


@pytest.mark.sweep
async def test_a_lost_device_ends_alone_and_is_taken_up_again(zeus_dir: Path) -> None:
    bus = ArithmeticBus(2)
    async with collector(bus, zeus_dir) as client:
        bus.devices[0].lost = True
        (gone,) = await client.wait_for(DeviceGone)
        assert gone.gpu == GPU
        assert "it is lost" in gone.reason
        bus.devices[0].lost = False
        found = await client.wait_for(DeviceFound, 3)
        assert found[-1].gpu == GPU
        assert len(await client.notes(DeviceGone)) == 1
    assert bus.closed
    assert all(device.closed for device in bus.devices)


async def test_what_was_read_of_a_device_is_logged_before_its_loss(zeus_dir: Path) -> None:
    """Logged later, it said that the device was back: windows waited, and gave its loss for other gaps."""
    bus = ArithmeticBus(1)
    async with collector(bus, zeus_dir, 1) as client:
        for times in range(1, 4):
            await client.wait_for(DeviceFound, times)
            known = len(rows_of(await client.frames(), 0))
            while len(rows_of(await client.frames(), 0)) == known:
                await anyio.sleep(0.01)
            bus.devices[0].lost = True
            await client.wait_for(DeviceGone, times)
            bus.devices[0].lost = False
        frames = await client.frames()
    gone: DeviceGone | None = None
    for each in frames:
        notes = notes_of(each)
        gone = next((note for note in notes if isinstance(note, DeviceGone)), gone)
        gone = None if any(isinstance(note, DeviceFound) for note in notes) else gone
        assert gone is None or not len(rows_of([each], 0))


# ---- events ----------------------------------------------------------------------------------------


async def test_a_batch_that_comes_again_is_logged_once_and_acknowledged_again(zeus_dir: Path) -> None:
    async with collector(ArithmeticBus(1), zeus_dir, 1) as client:
        first, second = started(), EpochBegan(5, 0)
        assert await client.say("s", 0, first) == Ack("s", 1)
        assert await client.say("s", 0, first, second) == Ack("s", 2)
        assert await client.say("s", 0, first, second) == Ack("s", 2)
        assert await client.say("s", 7, second) == Ack("s", 2)
        frames = await client.frames()
    assert events_of(frames) == [("s", 0, first), ("s", 1, second)]
    topics = {frame.topic for frame in frames if frame.topic.startswith("events/")}
    assert {topic.split("/")[2] for topic in topics} == {"job"}
    bodies = [codec.decode(f.body, Events) for f in frames if f.topic.startswith("events/")]
    assert {(body.uid, body.pid) for body in bodies} == {(os.getuid(), os.getpid())}


async def test_a_restarted_collector_knows_what_it_has_of_a_session_and_goes_on(zeus_dir: Path) -> None:
    first, second = started(), EpochBegan(5, 0)
    async with collector(ArithmeticBus(1), zeus_dir, 1) as client:
        await client.say("s", 0, first)
    async with collector(ArithmeticBus(1), zeus_dir, 1) as client:
        assert await client.say("s", 0, first, second) == Ack("s", 2)
        assert events_of(await client.frames()) == [("s", 0, first), ("s", 1, second)]
        await client.wait_for(RunAdmitted, 2)
        assert isinstance(await client.set("c", 250), ControlApplied)


@pytest.mark.parametrize("name", ["r (user {})", "r (part s)", "r (user {}) (part s)"])
async def test_a_run_is_commanded_by_the_names_that_an_analyzer_makes_of_its_own(
    zeus_dir: Path, name: str
) -> None:
    bus = ArithmeticBus(1)
    async with collector(bus, zeus_dir, 1) as client:
        await client.start_run()
        assert (await client.set("c", 200, run="r (user 12345)")).cause == "ownership"
        applied = await client.set("d", 250, run=name.format(os.geteuid()))
        assert isinstance(applied, ControlApplied)
        await client.say("s", 1, RunEnded(2))
        await client.wait_for(ControlLeaseEnded)
        assert bus.devices[0].requested_mw == FOUND_MW


async def test_malformed_messages_are_counted_named_once_and_hurt_nobody(zeus_dir: Path) -> None:
    async with collector(ArithmeticBus(1), zeus_dir, 1) as client:
        for junk in (
            b"",
            b"\xff" * 1000,
            codec.encode(Ack("s", 1)),
            codec.encode(Batch("x", 0, (RunEnded(1),))),
        ):
            await client.send(client.publish, junk)
        refusals: list[No] = []
        with anyio.fail_after(PATIENCE_S):
            while len(refusals) < 4:
                refusals += [
                    codec.decode(received.parts[0], No) for received in await client.publish.receive()
                ]
        assert "one RunStarted" in refusals[-1].reason
        await client.start_run()
        (named,) = [note for note in await client.wait_for(Lost) if note.what == "messages"]
        assert f"process {os.getpid()} of user {os.getuid()}" in named.reason
        status, _ = await client.request(AskStatus())
        assert ("publish", "messages refused", "4") in status.rows
        reply, _ = await client.request(Ack("s", 1))
        assert isinstance(reply, No)
        assert "expected" in reply.reason


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        pytest.param(Ask("q", "s", 3), Answer("q", 1.0, (), None), id="about a window"),
        pytest.param(
            AskTry("q", "s", 0, 3), Advice("q", 64, go_on=False, reason="it costs too much"), id="about a try"
        ),
    ],
)
async def test_a_question_goes_to_the_analyzer_and_its_answer_to_who_asked(
    zeus_dir: Path, question: Ask | AskTry, answer: Answer | Advice
) -> None:
    async with collector(ArithmeticBus(1), zeus_dir, 1) as client:
        await client.greet()
        await client.start_run()
        await client.send(client.publish, codec.encode(question))
        (passed,) = await client.control.receive()
        assert codec.decode(passed.parts[1], Ask, AskTry) == question
        await client.send(client.control, bytes(8), codec.encode(answer))
        (received,) = await client.publish.receive()
        assert codec.decode(received.parts[0], Answer, Advice) == answer


async def test_a_question_about_no_session_of_ones_own_is_refused(zeus_dir: Path) -> None:
    async with collector(ArithmeticBus(1), zeus_dir, 1) as client:
        await client.greet()
        await client.send(client.publish, codec.encode(Ask("q", "s", 3)))
        (received,) = await client.publish.receive()
        assert "no session of yours" in codec.decode(received.parts[0], No).reason


async def test_a_question_without_an_analyzer_is_answered_with_the_cure(zeus_dir: Path) -> None:
    async with collector(ArithmeticBus(1), zeus_dir, 1) as first:
        analyzer = Client(places({"ZEUS_STREAM_DIR": str(zeus_dir)}))
        await first.start_run()
        await analyzer.greet()
        analyzer.close()
        other = Client(places({"ZEUS_STREAM_DIR": str(zeus_dir)}))
        with anyio.fail_after(PATIENCE_S):
            missing = None
            while missing is None:  # until the collector has noticed that the analyzer is gone
                await first.send(other.publish, codec.encode(Ask("q", "s", 3)))
                with anyio.move_on_after(0.2):
                    received, *_ = await other.publish.receive()  # of several: it was asked again
                    missing = codec.decode(received.parts[0], Answer).missing
            await first.send(other.publish, codec.encode(AskTry("q2", "s", 0, 0)))
            advice = None
            while advice is None or advice.question != "q2":
                for received in await other.publish.receive():
                    advice = codec.decode(received.parts[0], Answer, Advice)
        other.close()
    assert "zeus-stream analyze" in missing
    assert advice == Advice("q2", None, go_on=True, reason=missing)


# ---- commands --------------------------------------------------------------------------------------


async def test_a_limit_is_set_within_its_record_and_put_back_on_release(zeus_dir: Path) -> None:
    bus = ArithmeticBus(2)
    record = zeus_dir / "restore" / f"{GPU}.json"
    async with collector(bus, zeus_dir) as client:
        await client.start_run()
        applied = await client.set("c1", 250)
        assert isinstance(applied, ControlApplied)
        assert (bus.devices[0].requested_mw, record.exists()) == (250_000, True)
        assert (await client.release("c2")).value == FOUND_MW
        await eventually(lambda: not record.exists())
        assert bus.devices[0].changes == [250_000, FOUND_MW]
        assert await client.notes(ControlApplied) == [applied, *(await client.notes(ControlApplied))[1:]]
        (ended,) = await client.notes(ControlLeaseEnded)
    assert ended.cause == "released"
    assert bus.devices[1].changes == []


async def test_limit_and_clock_have_a_record_and_a_lease_each(zeus_dir: Path) -> None:
    bus = ArithmeticBus(1)
    (device,) = bus.devices

    def records() -> list[str]:
        return sorted(path.name.removeprefix(GPU) for path in (zeus_dir / "restore").glob("*.json"))

    async with collector(bus, zeus_dir, 1) as client:
        await client.start_run()
        await client.set("c1", 250)
        applied = await client.lock("c2", 1365)
        assert isinstance(applied, ControlApplied)
        assert (applied.value, device.locks, records()) == (1365, [1365], [".clock.json", ".json"])
        other = await client.lock("c3", 1365, owner="berta")
        assert (other.cause, "run r of anna holds it" in other.reason) == ("owned", True)
        assert "start one with --select none" in other.reason
        plan = await client.plan("c3", 1365, owner="berta")
        assert (plan.cause, plan.reason) == ("owned", other.reason)
        assert not await client.notes(ControlRefused), (
            "it would be the outcome of anna's command of that name"
        )
        status, _ = await client.request(AskStatus())
        rows = {name: value for section, name, value in status.rows if GPU in section}
        assert rows["graphics clock"] == "locked at 1365 MHz"
        assert "run r of anna" in rows["graphics clock: lease"]
        await client.release("c4")
        await eventually(lambda: records() == [".clock.json"])
        assert isinstance(await client.lock("c5", 135), ControlApplied)
        assert (await client.unlock("c6")).value == UNLOCKED
        await eventually(lambda: records() == [])
        assert (device.locks, device.requested_mw) == ([1365, 135, 0], FOUND_MW)
        ended = [note for note in await client.notes(ControlLeaseEnded) if note.control == "graphics_clock"]
    assert [(note.cause, note.value) for note in ended] == [("released", UNLOCKED)]


@pytest.mark.sweep
async def test_a_gpu_that_was_lost_while_its_clock_was_locked_is_unlocked_when_it_is_back(
    zeus_dir: Path,
) -> None:
    bus = ArithmeticBus(1)
    (device,) = bus.devices
    async with collector(bus, zeus_dir, 1) as client:
        await client.start_run()
        await client.lock("c1", 1365)
        device.lost = True
        await client.wait_for(DeviceGone)
        device.lost = False
        (ended,) = await client.wait_for(ControlLeaseEnded)
    assert (ended.control, ended.cause, ended.value) == ("graphics_clock", "device", UNLOCKED)
    assert "may have forgotten" in ended.reason
    assert device.locks == [1365, 0]


async def test_a_long_lease_of_an_analyzer_whose_connection_closed_ends_soon(zeus_dir: Path) -> None:
    bus = ArithmeticBus()
    async with collector(bus, zeus_dir) as client:
        await client.start_run(gpus=(GPU,))
        await client.set("c1", 250, lease_ms=60_000)
        dead = Client(places({"ZEUS_STREAM_DIR": str(zeus_dir)}))
        await dead.request(Hello("analyzer", "anna", lease_ms=300))
        closed_ns = monotonic_ns()
        dead.close()
        (ended,) = await client.wait_for(ControlLeaseEnded)
        took_ns = ended.t_ns - closed_ns
    assert (ended.cause, ended.value, bus.devices[0].requested_mw) == ("lapsed", FOUND_MW, FOUND_MW)
    assert 1_900_000_000 < took_ns < 20_000_000_000


@pytest.mark.parametrize("observe", [False, True])
async def test_what_may_not_be_changed_is_not_changed(zeus_dir: Path, *, observe: bool) -> None:
    bus = ArithmeticBus(2)
    bus.devices[0].set_error = PermissionMissingError("GPU-0000: could not: no. Run the collector as root.")
    async with collector(bus, zeus_dir, settings=Settings(observe=observe)) as client:
        await client.start_run()
        refused = [
            await client.set("c1", 250),
            await client.set("c2", 250, gpu="GPU-0001"),
            await client.set("c3", 250, gpu="GPU-9"),
            await client.lock("c4", 1365),
            await client.lock("c5", 1365, gpu="GPU-0001"),
            await client.lock("c6", 1365, gpu="GPU-9"),
        ]
        causes = [r.cause for r in refused]
        assert await client.notes(ControlRefused) == refused
    assert causes == 2 * (
        ["observe", "observe", "device"] if observe else ["permission", "ownership", "device"]
    )
    assert observe or "Run the collector as root" in refused[0].reason
    assert [device.changes + device.locks for device in bus.devices] == [[], []]
    assert {path.suffix for path in (zeus_dir / "restore").iterdir()} == {".lock"}


async def test_a_collector_that_stops_puts_everything_back_and_says_so(zeus_dir: Path) -> None:
    bus = ArithmeticBus(2)
    async with collector(bus, zeus_dir) as client:
        await client.start_run(gpus=("index:all",))
        await client.set("c1", 250)
        await client.set("c2", 200, gpu="GPU-0001")
        await client.lock("c3", 1365)
    assert [device.locks for device in bus.devices] == [[1365, 0], []]
    assert [device.requested_mw for device in bus.devices] == [FOUND_MW, FOUND_MW]
    ended = [n for frame in logged(zeus_dir) for n in notes_of(frame) if isinstance(n, ControlLeaseEnded)]
    assert sorted((note.gpu, note.control, note.cause) for note in ended) == [
        (GPU, "graphics_clock", "shutdown"),
        (GPU, "power_limit", "shutdown"),
        ("GPU-0001", "power_limit", "shutdown"),
    ]
    assert list((zeus_dir / "restore").glob("*.json")) == []


async def test_a_driver_gone_mad_stops_the_collector_which_still_puts_everything_back(zeus_dir: Path) -> None:
    bus = ArithmeticBus(1)

    async def until_it_goes_mad() -> None:
        async with collector(bus, zeus_dir, 1) as client:
            await client.start_run()
            await client.set("c1", 250)
            bus.devices[0].mad = True
            await anyio.sleep(PATIENCE_S)

    with pytest.raises(ExceptionGroup) as failed:
        await until_it_goes_mad()
    assert "ZeroDivisionError" in repr(failed.value)
    assert bus.devices[0].changes == [250_000, FOUND_MW]
    assert list((zeus_dir / "restore").glob("*.json")) == []


async def test_a_call_to_a_driver_that_returns_after_the_collector_has_stopped_is_no_error(
    zeus_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectors.controls.supervisor.JOIN_S", 0.05)
    device = HangingDevice(0)
    bus = ArithmeticBus(0)
    bus.devices = (device,)
    async with collector(bus, zeus_dir, 1):
        device.hangs.set()
        await eventually(device.hung.is_set)
    readers = [thread for thread in threading.enumerate() if thread.name in ("poller", "device 0")]
    device.returns.set()
    for thread in readers:
        thread.join(PATIENCE_S)  # pytest fails the test if one of them raises


async def test_the_end_of_a_training_process_ends_its_session_and_its_runs_leases(zeus_dir: Path) -> None:
    bus = ArithmeticBus(1)
    async with collector(bus, zeus_dir, 1) as client:
        with python(TRAINER, zeus_dir) as trainer:
            await client.wait_for(RunAdmitted)
            assert isinstance(await client.set("c1", 250, run="theirs"), ControlApplied)
            assert bus.devices[0].requested_mw == 250_000
            trainer.kill()
            (ended,) = await client.wait_for(SessionEnded)
            assert (ended.session, str(trainer.pid) in ended.reason) == ("t", True)
            (lease,) = await client.wait_for(ControlLeaseEnded)
    assert (lease.cause, lease.value) == ("run", FOUND_MW)


async def test_events_of_a_training_that_ended_while_no_collector_ran_are_a_loss_that_is_logged(
    zeus_dir: Path,
) -> None:
    with python(TRAINER, zeus_dir) as trainer:
        async with collector(ArithmeticBus(1), zeus_dir, 1) as client:
            await client.wait_for(RunAdmitted)
            assert await client.notes(Lost) == []
        trainer.kill()
    async with collector(ArithmeticBus(1), zeus_dir, 1) as client:
        await client.wait_for(SessionEnded)
        (lost,) = await client.wait_for(Lost)
    assert (lost.what, "session t: its process ended while no collector" in lost.reason) == ("events", True)


async def test_a_run_that_ends_in_order_ends_its_leases_while_its_process_lives(zeus_dir: Path) -> None:
    bus = ArithmeticBus(1)
    async with collector(bus, zeus_dir, 1) as client:
        await client.start_run("s1")
        await client.start_run("s2")
        await client.set("c1", 250)
        await client.say("s1", 1, RunEnded(1))
        await client.set("c2", 240)  # in its turn, after the end of s1: the run goes on with s2
        assert bus.devices[0].requested_mw == 240_000
        await client.say("s2", 1, RunEnded(1))
        await eventually(lambda: bus.devices[0].requested_mw == FOUND_MW)
        assert await client.notes(SessionEnded) == []


async def test_the_end_of_an_allocation_ends_the_runs_of_its_user_on_its_gpus(zeus_dir: Path) -> None:
    """A process may outlive its job: what it has set does not."""
    bus = ArithmeticBus(2)
    mine = JobAllocation(job_id="12", uid=os.getuid(), user_name="anna", node="n1")
    other = replace(mine, uid=12345, job_id="13")
    async with collector(bus, zeus_dir) as client:
        for each in (mine, other):
            gpu = f"index:{each.job_id == '13':d}"
            begins = replace(started(f"slurm-{each.job_id}", (gpu,)), world_size=0, pid=0, allocation=each)
            assert await client.say(f"a{each.job_id}", 0, begins) == Ack(f"a{each.job_id}", 1)
        await client.start_run("s1")
        assert isinstance(await client.set("c1", 250), ControlApplied)
        await client.wait_for(RunAdmitted, 3)
        await client.say("a13", 1, RunEnded(2))  # another user's, on another GPU
        assert isinstance(await client.set("c2", 240), ControlApplied)
        await client.say("a12", 1, RunEnded(2))
        (ended,) = await client.wait_for(SessionEnded)
        assert (ended.session, ended.reason) == ("s1", "the job of slurm-12 has ended")
        await eventually(lambda: bus.devices[0].requested_mw == FOUND_MW)
        frames = [
            codec.decode(f.body, Events) for f in await client.frames() if f.topic.startswith("events/")
        ]
        words = {word.session: word for word in await client.notes(RunAdmitted)}
    assert {(body.session, body.uid, body.pid) for body in frames} == {
        ("a12", os.getuid(), 0), ("a13", 12345, 0), ("s1", os.getuid(), os.getpid())
    }  # fmt: skip
    assert (words["a13"].gpus, words["a13"].may_command) == (("GPU-0001",), False)
    assert words["a12"].reason.startswith("A batch system")


@contextmanager
def python(script: str, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a script until the end of the block, where it is killed."""
    command = [sys.executable, "-c", script, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        try:
            yield running
        finally:
            running.kill()


TRAINER = """
import os, sys, time
from pathlib import Path
from zeus_stream.transport import sockets
from zeus_stream.protocol import codec
from zeus_stream.clock import boot_id, monotonic_ns
from zeus_stream.protocol.events import Batch, RunStarted
context = sockets.context()
channel = sockets.ask(context, Path(sys.argv[1]) / "publish")
run = RunStarted(t_ns=monotonic_ns(), job="job", run="theirs", rank=0, world_size=1, gpus=("index:0",),
                 pid=os.getpid(), boot_id=boot_id(), wall_ns=0, wall_error_ns=0)
while not channel.send(codec.encode(Batch("t", 0, (run,)))):
    time.sleep(0.01)
time.sleep(60)
"""

# ---- storage, doors, status ------------------------------------------------------------------------


async def test_a_user_who_floods_is_not_acknowledged_and_status_says_so(zeus_dir: Path) -> None:
    flood = tuple(Metric(1, "m" * 200, 0.5) for _ in range(400))  # 100 kB of a budget of 250 at once
    async with collector(ArithmeticBus(1), zeus_dir, 1, settings=Settings(log_mb=1)) as client:
        await client.start_run()
        for place in range(2):
            assert (await client.say("s", 1 + 400 * place, *flood)).next_sequence == 401 + 400 * place
        await client.send(client.publish, codec.encode(Batch("s", 801, flood)))
        with anyio.fail_after(PATIENCE_S):
            while True:
                status, _ = await client.request(AskStatus())
                rows = {name: value for _, name, value in status.rows}
                if "1 messages refused" in rows[f"budget of user {os.geteuid()}"]:
                    break
        (lost,) = await client.wait_for(Lost)
    assert "more than its user may write in an hour" in lost.reason
    events = [codec.decode(frame.body, Events) for frame in logged(zeus_dir) if "events/" in frame.topic]
    assert sum(len(body.events) for body in events) == 801


async def test_everybody_may_publish_and_only_the_owner_may_command(zeus_dir: Path) -> None:
    async with collector(ArithmeticBus(1), zeus_dir, 1):
        modes = {name: (zeus_dir / name).stat().st_mode & 0o777 for name in ("publish", "control", "feed")}
    assert modes == {"publish": 0o666, "control": 0o600, "feed": 0o600}


async def test_status_names_devices_limits_leases_and_what_went_wrong(zeus_dir: Path) -> None:
    bus = ArithmeticBus(1)
    async with collector(bus, zeus_dir, 1) as client:
        await client.start_run()
        await client.set("c1", 250)
        device, limits = f"Arithmetic {GPU}", set()
        with anyio.fail_after(PATIENCE_S):
            while "250 W, found 300 W, enforced 250 W" not in limits:
                status, _ = await client.request(AskStatus())
                rows = {(section, name): value for section, name, value in status.rows}
                limits.add(rows[device, "power limit"])
    # never the limit that was enforced before
    assert limits <= {f"250 W, found 300 W, enforced {enforced}" for enforced in ("not known", "250 W")}
    assert "run r of anna" in rows[device, "lease"]
    assert rows["runs", "r"] == f"job on {GPU}"
    assert rows["publish", "sessions"] == "1 of 1 open"
    assert rows["log", "trouble"] == "none"


async def test_the_live_state_has_the_gpus_their_limits_and_who_uses_them(zeus_dir: Path) -> None:
    async with collector(ArithmeticBus(2), zeus_dir, 2) as client:
        await client.start_run()
        await client.set("c1", 250)
        with anyio.fail_after(PATIENCE_S):
            while True:
                now, _ = await client.request(AskNow())
                assert isinstance(now, Snapshot)
                if now.gpus and now.gpus[0].limit_mw == 250_000:
                    break
                await anyio.sleep(0.05)
        elsewhere, _ = await client.request(AskNow("elsewhere"))
    first, second = now.gpus
    assert (now.process, now.lag_ms, now.archive_id) == ("collector", None, None)
    assert (first.gpu, first.run, first.state, first.found_mw) == (GPU, "r", "there", 300_000)
    assert (second.run, second.limit_mw) == (None, 300_000)
    assert (first.leased_mw, second.leased_mw) == (250_000, None)
    assert [(run.run, run.job, run.gpus, run.step_j) for run in now.runs] == [("r", "job", (GPU,), None)]
    assert dict(now.counters) | {"leases": 1, "commands applied": 1} == dict(now.counters)
    assert (elsewhere.gpus, elsewhere.totals.gpus) == ((), 2)
