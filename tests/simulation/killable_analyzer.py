"""An analyzer that can be killed: a real sequencer and interpreter; sockets are played."""

from typing import TYPE_CHECKING, Any

from analyzers.interpreter.interpreter import Interpreter
from analyzers.results.result import ApplyControl, RestoreControl
from analyzers.results.rows import Row
from tests.simulation.processes import MS, Process, S
from tests.simulation.world import outputs_of
from zeus_stream.protocol.commands import (
    Fetch,
    Fetched,
    Hello,
    ReleaseControl,
    RenewLeases,
    SetControl,
    Welcome,
)
from zeus_stream.protocol.frames import Body, Frame, Part
from zeus_stream.protocol.notes import ControlApplied, ControlLeaseEnded, ControlRefused, Notes
from zeus_stream.transport.follower import FollowerSequence

if TYPE_CHECKING:
    from tests.simulation.troubled_world import TroubledWorld


class Analyzer(Process):
    """Follows, archives, interprets, commands; after a kill it hears its archive again."""

    def __init__(self, world: "TroubledWorld", number: int) -> None:
        super().__init__(world)
        self.world = world
        self._fence = number << 32
        self._sequencer = FollowerSequence(*world.archive.position())
        self._interpreter = Interpreter(world.plan, world.archive.memory())
        self._waiting: list[Frame] = []
        self._asked: Hello | Fetch | None = None
        self._asked_ns = self._received_ns = 0
        self._welcome: Welcome | None = None
        self._held: set[str] = set()
        self._unanswered: dict[str, SetControl | ReleaseControl] = {}
        self._to_interpret: list[tuple[Frame, Body]] = []
        self._interpreted: dict[str, int] = {}
        """By log, the offset that is interpreted next, since rows were put last."""
        for page in world.archive.to_replay():
            self._interpret(page, replaying=True)
        self._tick()
        self.after(0, self._renew)

    def _tick(self) -> None:
        now_ns = self.world.now_ns
        if self._asked is not None and now_ns - self._asked_ns > S:
            self._asked = None
        if self._asked is None and (self._welcome is None or now_ns - self._received_ns > S):
            self._ask(Hello("analyzer", "analyzer"))
        self.after(100 * MS, self._tick)

    def _ask(self, request: Hello | Fetch) -> None:
        self._asked, self._asked_ns = request, self.world.now_ns
        self._send(request)

    def _send(self, message: Any) -> None:
        collector = self.world.collector
        if collector.alive:
            collector.connection.send(0, collector.receive, message)

    def feed(self, frame: Frame) -> None:
        self._waiting.append(frame)
        if self._asked is None and self._welcome is not None:
            self._take_in(self._sequencer.frames(self._waiting))
            self._waiting.clear()

    def receive(self, message: Any) -> None:
        match message:
            case Welcome():
                self._welcome = message
                if isinstance(self._asked, Hello):
                    self._asked = None
                    self._take_in(self._sequencer.welcome(message))
            case (Fetched() as fetched, list(frames)):
                if isinstance(self._asked, Fetch):
                    self._asked = None
                    self._take_in(self._sequencer.fetched(fetched, frames))
            case ControlApplied(command=command) | ControlRefused(command=command):
                self._unanswered.pop(command, None)
            case _:
                raise AssertionError(message)

    def _take_in(self, ready: list[Part]) -> None:
        """Archive what is in order, interpret it a little later, and fetch what is missing."""
        if ready:
            self._received_ns = self.world.now_ns
        self._to_interpret += self.world.archive.put(ready)
        if ready:
            self.after(self.world.rng.uniform(0, 20) * MS, self._interpret_all)
        if self._asked is None and (wanted := self._sequencer.wanted()) is not None:
            self._ask(wanted)

    def _interpret_all(self) -> None:
        frames, self._to_interpret = self._to_interpret, []
        self._interpret(frames, replaying=False)

    def _interpret(self, frames: list[tuple[Frame, Body]], *, replaying: bool) -> None:
        rows: list[Row] = []
        for frame, body in frames:
            obey = not replaying and self.world.now_ns - frame.t_ns < S
            rows += self._take_up(frame, body, obey=obey)
        self._interpreted |= {frame.log_id: frame.offset + 1 for frame, _ in frames}
        if rows:  # as `Commits` does, frames that gave none are counted with the next that do
            self.world.archive.put_rows(rows, self._interpreted, replaying=replaying)
            self._interpreted = {}

    def _take_up(self, frame: Frame, body: Body, *, obey: bool) -> list[Row]:
        for note in body.notes if isinstance(body, Notes) else ():
            match note:
                case ControlApplied(gpu=gpu):
                    self._held.add(gpu)
                case ControlLeaseEnded(gpu=gpu):
                    self._held.discard(gpu)
                case _:
                    pass
        outputs = outputs_of(self._interpreter, frame, body)
        for output in outputs:
            self.world.derived(output)
            if obey and isinstance(output, ApplyControl | RestoreControl):
                self._command(output)
        return [output for output in outputs if isinstance(output, Row)]

    def _command(self, wanted: ApplyControl | RestoreControl) -> None:
        if self._welcome is None:
            return
        self._fence += 1
        request: SetControl | ReleaseControl
        if isinstance(wanted, ApplyControl):
            request = SetControl(
                command=wanted.command,
                owner="analyzer",
                incarnation=self._welcome.incarnation,
                fence=self._fence,
                run=wanted.run,
                gpu=wanted.gpu,
                control=wanted.control,
                value=wanted.value,
                lease_ms=1500,
            )
        else:
            self._held.discard(wanted.gpu)
            request = ReleaseControl(
                command=wanted.command,
                owner="analyzer",
                incarnation=self._welcome.incarnation,
                fence=self._fence,
                gpu=wanted.gpu,
                control=wanted.control,
            )
        self._unanswered[wanted.command] = request
        self._send(request)

    def _renew(self) -> None:
        self._send(Hello("analyzer", "analyzer"))
        if self._welcome is not None and self._held:
            self._send(RenewLeases("analyzer", self._welcome.incarnation, tuple(self._held), 1500))
        for request in self._unanswered.values():
            self._send(request)
        self.after(300 * MS, self._renew)

    def kill(self) -> None:
        self.alive = False
