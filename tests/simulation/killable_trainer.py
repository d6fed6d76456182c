"""The process of a training that can be killed: what it emits reaches a collector by a real outbox."""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from tests.messages import RUN_STARTED
from tests.simulation.processes import MS, Process, S, Stream
from zeus_stream.protocol.events import Ack, Event
from zeus_stream.training.outbox import Outbox

if TYPE_CHECKING:
    from tests.simulation.troubled_world import TroubledWorld


class Trainer(Process):
    """The process of a training: its outbox, and the thread that sends from it."""

    def __init__(self, world: "TroubledWorld", run: str, number: int) -> None:
        super().__init__(world)
        self.world = world
        self.pid = number
        self.run = run
        self.started = replace(
            RUN_STARTED,
            t_ns=world.now_ns,
            run=run,
            gpus=tuple(world.host.gpus),
            pid=number,
            wall_ns=world.wall_ns(),
            wall_error_ns=1,
        )
        self.emitted: list[Event] = [self.started]
        self.sessions: list[str] = []
        self.outbox = Outbox(self.started, self._new_session)
        self._stream: Stream | None = None
        self._sent: tuple[str, int] | None = None
        self._received_ns = world.now_ns
        self.after(0, self._tick)

    def _new_session(self) -> str:
        self.sessions.append(f"{self.run}-{len(self.sessions)}")
        return self.sessions[-1]

    def put(self, event: Event) -> None:
        self.emitted.append(event)
        self.outbox.put((lambda: event,))

    def _tick(self) -> None:
        world = self.world
        if self._stream is None or not self._stream.open:
            self._stream, self._sent = Stream(world, world.rng), None
            world.streams.append(self._stream)
        batch = self.outbox.batch(world.now_ns)
        if batch is None:
            self._received_ns = world.now_ns
        elif self._sent != (batch.session, batch.sequence) and world.collector.alive:
            self._sent = batch.session, batch.sequence
            stream = self._stream
            stream.send(0, lambda message: world.collector.take_in(self, stream, message), batch)
        if world.now_ns - self._received_ns > S:
            self._stream.open = False  # nothing was acknowledged for so long
            self._received_ns = world.now_ns
        self.after(20 * MS, self._tick)

    def acknowledge(self, ack: Ack) -> None:
        if self.alive and self.outbox.acknowledge(ack):
            self._received_ns = self.world.now_ns

    def kill(self) -> None:
        self.alive = False
        if self._stream is not None:
            self._stream.open = False
