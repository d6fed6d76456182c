"""The shell of the analyzer: real archive, sockets and interpreter; the collector is a recorded log."""

import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path

import anyio
import pytest
from msgspec import Struct
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.store import Received
from analyzers.checkpoints.checkpoint_taker import CheckpointTaker
from analyzers.checkpoints.restart import Restart, restart
from analyzers.dispatch.pending import Pending
from analyzers.interpreter.interpreter import Input, Interpreter, Logged
from analyzers.live.live_site import LiveSite
from analyzers.measurement.fixed_energies import SHED
from analyzers.power_limit import selectors
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.result import ApplyControl, Result
from analyzers.results.rows import Derived, StepColumns
from analyzers.service.analyzer import Analyzer
from analyzers.service.collectors import Collector
from analyzers.service.interpretation import PAUSE_S, Interpretation
from analyzers.service.watched_files import publish_budgets
from tests.analyzers.archives import ask, plan_of
from tests.empty_archive import archive_at
from tests.messages import WELCOME
from tests.simulation.simulated_site import Training
from tests.simulation.world import World
from zeus_stream.paths import Places, places
from zeus_stream.protocol import codec
from zeus_stream.protocol.commands import (
    Fetch,
    Fetched,
    Hello,
    ReleaseControl,
    RenewLeases,
    SetControl,
    Welcome,
)
from zeus_stream.protocol.frames import Events, Frame, encode_frame
from zeus_stream.protocol.notes import Notes
from zeus_stream.protocol.readings import Readings
from zeus_stream.settings import Settings
from zeus_stream.transport import sockets
from zeus_stream.transport.access import AccessGate
from zeus_stream.transport.listening.listener import Listener

pytestmark = pytest.mark.anyio
PATIENCE_S = 120.0
SETTINGS = Settings(search="exhaustive", stride_w=75, warmup_steps=1, profile_steps=5, settle_ms=0)


@cache
def recorded() -> tuple[tuple[Frame, ...], ApplyControl]:
    """Return a log until its run asks for the first limit, and that command."""
    world = World("simulated:v100x1", Training("imagenet", 0.02, 60), plan_of(SETTINGS))
    while not world.rows(ApplyControl):
        world.run(0.05)
    command = world.rows(ApplyControl)[0]
    frames = [replace(frame, body=codec.encode(body)) for frame, body in world.frames]
    outcome = next(
        (at for at, frame in enumerate(frames) if command.command.encode() in frame.body), len(frames)
    )
    return tuple(frames[:outcome]), command


class RecordedCollector:
    """The control socket of a collector whose log is recorded. It carries out nothing."""

    def __init__(self, where: Places) -> None:
        self.frames, self.command = recorded()
        self.host = self.frames[-1].host
        self.received: list[object] = []
        self._channel = Listener(where.control)
        self.close = self._channel.close

    async def run(self) -> None:
        while True:
            for message in await self._channel.receive():
                correlation, payload = message.parts
                request = codec.decode(payload, Hello, Fetch, SetControl, ReleaseControl, RenewLeases)
                self.received.append(request)
                match request:
                    case Hello():
                        self._channel.send(message.sender, correlation, codec.encode(self._welcome()))
                    case Fetch(first_offset=first, count=count):
                        wanted = self.frames[first : first + count]
                        fetched = Fetched(wanted[0].log_id, first, 0, len(self.frames))
                        parts = [part for frame in wanted for part in encode_frame(frame)]
                        self._channel.send(message.sender, correlation, codec.encode(fetched), *parts)
                    case _:
                        pass  # commands and renewals are kept

    def _welcome(self) -> Welcome:
        last = self.frames[-1]
        return replace(WELCOME, host=self.host, log_id=last.log_id, next_offset=len(self.frames))

    def commands(self) -> list[SetControl]:
        return [request for request in self.received if isinstance(request, SetControl)]

    def renewals(self) -> int:
        return sum(isinstance(request, RenewLeases) for request in self.received)


class StalledArchive(DuckdbFile):
    """An archive whose commits wait until they are let go."""

    go: threading.Event

    def put(
        self,
        received: Sequence[Received],
        rows: Sequence[Derived] = (),
        interpreted: Mapping[str, int] | None = None,
        *,
        replaying: bool = False,
    ) -> None:
        if received or rows:  # nothing comes as it is opened
            self.go.wait(PATIENCE_S)
        super().put(received, rows, interpreted, replaying=replaying)


class Bench(Struct, frozen=True):
    analyzer: Analyzer
    archive: DuckdbFile
    interpretation: Interpretation
    collector: RecordedCollector
    gate: AccessGate

    def stored(self, sql: str) -> list[tuple[object, ...]]:
        return ask(self.archive, sql)

    def status(self) -> dict[str, str]:
        return {name: value for section, name, value in self.analyzer.status(self.gate).rows}


@cache
def ended() -> tuple[Frame, ...]:
    """Return the log of a run that was only measured, to its end."""
    plan = replace(plan_of(SETTINGS), selector=None)
    world = World("simulated:v100x1", Training("imagenet", 0.02, 60), plan)
    world.run()
    return tuple(replace(frame, body=codec.encode(body)) for frame, body in world.frames)


@asynccontextmanager
async def running(
    zeus_dir: Path, kind: type[DuckdbFile] = DuckdbFile, *, host: str | None = None
) -> AsyncIterator[Bench]:
    """Run an analyzer that follows a recorded collector. ``host``: one with the log of `ended`."""
    where = places({"ZEUS_STREAM_DIR": str(zeus_dir)})
    context, archive = sockets.context(), kind.open(archive_at(zeus_dir / "energy.duckdb"), SETTINGS)
    if isinstance(archive, StalledArchive):
        archive.go = threading.Event()
    collector = RecordedCollector(where)
    try:
        begin = Restart(
            Interpreter(plan_of(SETTINGS), pending=Pending()),
            LiveSite(),
            CheckpointTaker(1, {}, whole=False),
            None,
            None,
        )
        if host is not None:
            collector.frames, collector.host = ended(), host
            begin = restart(archive, SETTINGS, None)
        followed = Collector(context, "here", where, archive, SETTINGS)
        analyzer = Analyzer(archive, zeus_dir, SETTINGS, begin, [followed])
        gate = AccessGate(None, where.keys, {})
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(collector.run)
                tasks.start_soon(analyzer.follow, partial(publish_budgets, where.budgets, {}))
                yield Bench(analyzer, archive, analyzer.interpretation, collector, gate)
                if isinstance(archive, StalledArchive):
                    archive.go.set()
                tasks.cancel_scope.cancel()
    finally:
        archive.close()
        collector.close()
        context.destroy(linger=0)


async def test_budgets_that_cannot_be_read_end_no_analyzer_and_hold_once_they_are_mended(
    zeus_dir: Path,
) -> None:
    """Systemd started it again each second, and it said that those before hold on."""
    file = places({"ZEUS_STREAM_DIR": str(zeus_dir)}).budgets
    file.write_text("{", encoding="utf-8")
    async with running(zeus_dir) as bench:
        while not bench.collector.commands():
            await anyio.sleep(0.002)
        file.write_text('{"rack1": {"watts": 500, "gpus": ["alpha:all"]}}', encoding="utf-8")
        while not bench.stored("SELECT budget FROM budgets"):
            await bench.analyzer.store_signals(())
            await anyio.sleep(0.05)


async def test_a_command_leaves_once_its_row_is_stored_and_its_lease_is_renewed(zeus_dir: Path) -> None:
    async with running(zeus_dir) as bench:
        while not bench.collector.commands():
            await anyio.sleep(0.002)
        (sent,) = bench.collector.commands()
        wanted = bench.collector.command
        assert (sent.command, sent.gpu, sent.value) == (wanted.command, wanted.gpu, wanted.value)
        assert bench.stored(f"SELECT command FROM commands WHERE command = '{sent.command}'")  # noqa: S608  (its own id)
        while not bench.collector.renewals():
            await anyio.sleep(0.002)
        renewal = next(each for each in bench.collector.received if isinstance(each, RenewLeases))
        assert renewal.gpus == (wanted.gpu,)
        await bench.analyzer.store_signals(())  # all that waits is stored with it
        last = bench.collector.frames[-1]
        assert bench.archive.position(last.host) == (last.log_id, last.offset + 1)


async def test_a_host_that_has_another_name_after_a_restart_has_each_step_once(zeus_dir: Path) -> None:
    """The archive has no log of that name: the whole log came, and was interpreted a second time."""
    windows, whole = (
        "SELECT kind, count(*) FROM windows GROUP BY ALL ORDER BY ALL",
        [("run", 1), ("step", 60)],
    )
    async with running(zeus_dir, host=ended()[-1].host) as bench:
        while bench.stored(windows) != whole:
            await bench.analyzer.store_signals(())
            await anyio.sleep(0.01)
    async with running(zeus_dir, host="renamed") as bench:
        while "frames that came again" not in bench.status():
            await bench.analyzer.store_signals(())
            assert bench.stored(windows) == whole
            await anyio.sleep(0.01)


async def pauses_of(settings: RunSettings) -> list[float]:
    """Return the pause of a host's feed after each frame of the recorded log."""
    interpreter, pauses = Interpreter(settings, pending=Pending(at_once=True)), list[float]()
    for frame in recorded()[0]:
        body = codec.decode(frame.body, Readings, Events, Notes)
        interpreter.handle(Logged(frame, body), frame.t_ns)
        interpretation = Interpretation(interpreter)
        await interpretation.run(Interpreter.searches)
        pauses.append(interpretation.pause_s(frame.host))
    return pauses


async def test_frames_of_a_host_come_together_while_its_runs_search_for_nothing() -> None:
    """They did so before its first run as well: the first steps of a search came up to 0.25 s late."""
    assert set(await pauses_of(plan_of(SETTINGS))) == {0.0}
    pauses = await pauses_of(replace(plan_of(SETTINGS), selector=None))
    assert pauses == sorted(pauses)
    assert set(pauses) == {0.0, PAUSE_S}


@pytest.mark.parametrize(
    ("selector", "behind_s", "shed"),
    [
        pytest.param("cost:0.5", 0.9, False, id="hardly behind"),
        pytest.param("cost:0.5", 2, True, id="a search waits"),
        pytest.param(None, 2, False, id="little to do on a busy host"),
        pytest.param(None, 1e6, True, id="much to do"),
    ],
)
async def test_steps_are_fitted_while_little_work_waits(
    selector: str | None,
    behind_s: float,
    shed: bool,  # noqa: FBT001  (a column of the table)
) -> None:
    """A host that was busy with others lost the fit, though its analyzer had little to do."""
    chosen = None if selector is None else selectors.parse(selector)
    pending, qualities = Pending(at_once=True), set[str]()
    interpreter = Interpreter(replace(plan_of(SETTINGS), selector=chosen), pending=pending)
    world = World(
        "simulated:v100x1", Training("imagenet", 0.02, 200), replace(plan_of(SETTINGS), selector=None)
    )
    world.run()  # nothing answers commands, so a search waits for ever
    for frame in (replace(frame, body=codec.encode(body)) for frame, body in world.frames):
        interpretation = Interpretation(interpreter)
        await interpretation.run(Interpreter.searches)
        body = codec.decode(frame.body, Readings, Events, Notes)
        _, result = await interpretation.interpret([(frame, body)], round(behind_s * 1e9), lambda _: ())
        qualities.update(
            quality for rows in result.rows if isinstance(rows, StepColumns) for quality in rows.quality
        )
    assert qualities
    assert any(SHED in quality for quality in qualities) == shed


async def test_a_search_that_begins_again_is_waited_for_from_its_first_command_on() -> None:
    """The next look at the searches came up to 0.2 s later, and the steps until then came 0.25 s late."""
    frames, _ = recorded()
    decoded = [(frame, codec.decode(frame.body, Readings, Events, Notes)) for frame in frames]
    interpretation = Interpretation(Interpreter(plan_of(SETTINGS), pending=Pending(at_once=True)))
    count, result = await interpretation.interpret(decoded[:1], 0, lambda _: ())
    interpretation.gathering = frozenset({frames[0].host})
    while count < len(decoded):
        more, result = await interpretation.interpret(decoded[count:], 0, lambda _: ())
        count += more
    assert result.instructions
    assert interpretation.pause_s(frames[0].host) == 0


class Located(Interpreter):
    """An interpreter that notes the thread in which it takes in readings."""

    def handle(self, event: Input, now_ns: int) -> Result:
        if isinstance(event, Logged) and isinstance(event.body, Readings):
            self.threads = {*getattr(self, "threads", ()), threading.get_ident()}
        return super().handle(event, now_ns)


@pytest.mark.parametrize(
    ("used", "wanted", "copies"),
    [
        pytest.param(False, False, 1, id="at rest"),
        pytest.param(True, False, 1, id="while a session is open"),
        pytest.param(False, True, 1, id="when a checkpoint is to be taken"),
        pytest.param(False, False, 500, id="many at once"),
    ],
)
async def test_the_event_loop_takes_in_readings_at_rest_and_leaves_all_else_to_a_thread(
    used: bool,  # noqa: FBT001  (a column of the table)
    wanted: bool,  # noqa: FBT001
    copies: int,
) -> None:
    pairs = ((frame, codec.decode(frame.body, Readings, Events, Notes)) for frame in recorded()[0])
    readings = next((frame, body) for frame, body in pairs if isinstance(body, Readings))
    interpreter, taker = Located(plan_of(SETTINGS)), CheckpointTaker(1, {}, whole=True)
    interpretation = Interpretation(interpreter, taker)
    await interpretation.run(Interpreter.searches)
    interpretation.used, taker.times.wanted = frozenset({readings[0].host} if used else ()), wanted
    await interpretation.interpret([readings] * copies, 0, lambda _: ())
    assert (interpreter.threads == {threading.get_ident()}) == (not used and not wanted and copies == 1)


async def test_leases_and_status_do_not_wait_for_the_interpreter(zeus_dir: Path) -> None:
    async with running(zeus_dir) as bench:
        while not bench.collector.renewals():
            await anyio.sleep(0.002)
        go, busy = threading.Event(), threading.Event()

        def stall(_: Interpreter) -> None:
            busy.set()
            go.wait(PATIENCE_S)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.interpretation.run, stall)
            try:
                while not busy.is_set():
                    await anyio.sleep(0.002)
                before = bench.collector.renewals()
                while bench.collector.renewals() == before:
                    await anyio.sleep(0.002)
                assert bench.status()["connected"] == "yes"
            finally:
                go.set()


async def test_frames_are_interpreted_and_no_command_leaves_while_a_commit_hangs(zeus_dir: Path) -> None:
    async with running(zeus_dir, StalledArchive) as bench:
        last = bench.collector.frames[-1].offset
        while f"{last} of log" not in bench.status().get("last frame", ""):
            await anyio.sleep(0.002)
        assert bench.collector.commands() == []
        assert isinstance(bench.archive, StalledArchive)
        bench.archive.go.set()
        while not bench.collector.commands():
            await anyio.sleep(0.002)
        assert bench.stored("SELECT count(*) FROM commands") == [(1,)]
