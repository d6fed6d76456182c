"""The control socket: greetings, missing frames, commands with their outcomes, status.

The same requests may come over other doors, such as a broker. A reply goes back the way its request came.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, cast, get_args

import anyio
from msgspec import Struct
from msgspec.structs import replace

from collectors.controls.lease_messages import Outcome
from collectors.controls.supervisor import Supervisor
from collectors.ingest.analyzers_known import AnalyzersKnown
from collectors.log.store import LogStore
from collectors.position_server import PositionServer
from collectors.publish_server import PublishServer
from collectors.status import Row
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import MalformedError, StorageError
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
from zeus_stream.protocol.events import Advice, Answer, Ask, AskTry
from zeus_stream.protocol.frames import encode_frame
from zeus_stream.protocol.notes import Cause, ControlRefused
from zeus_stream.protocol.pipelines import SetPlan
from zeus_stream.protocol.queries import AskStatus, No, Reply, Status
from zeus_stream.protocol.snapshots import AskNow
from zeus_stream.transport import sockets
from zeus_stream.transport.access import AccessGate
from zeus_stream.transport.channel import PeerConnection
from zeus_stream.transport.keys import Role
from zeus_stream.transport.listening.listener import Listener

FETCH_BYTES = 700_000
"""Frames in one reply to a fetch, about: with their envelopes less than a message of a broker may have."""
RETURN_NS = 2_000_000_000
"""An analyzer whose connection closed may come back within this."""
MAX_COMMANDS = 1_000
"""Commands whose sender is remembered; the oldest is forgotten."""
MAX_SECOND = 100
"""Analyzers named in the log because they decide on runs of another one."""
_log = logging.getLogger(__name__)
Asked: TypeAlias = (
    Hello | Fetch | SetControl | SetPlan | ReleaseControl | RenewLeases | AskStatus | AskNow | Answer | Advice
)


class Door(Protocol):
    """A way by which requests come in."""

    async def receive(self) -> list[sockets.Received]:
        """Wait for requests and return those that are there."""

    def send(self, sender: bytes, *parts: bytes) -> bool:
        """Reply to a sender. False: it is not there."""

    def objection(self, message: sockets.Received, role: Role) -> str | None:
        """Return why a sender may not do what needs a role, or None."""


class SocketDoor(Struct, frozen=True):
    """The control socket of this host, and its TCP port for those who have a key."""

    channel: Listener
    gate: AccessGate

    async def receive(self) -> list[sockets.Received]:
        return await self.channel.receive()

    def send(self, sender: bytes, *parts: bytes) -> bool:
        return self.channel.send(sender, *parts)

    def objection(self, message: sockets.Received, role: Role) -> str | None:
        return self.gate.objection(message, role)


class Way(Struct, frozen=True):
    """The way back to the sender of a request."""

    door: Door
    sender: bytes
    correlation: bytes = bytes(8)
    connection: PeerConnection | None = None
    """None: whether it is open cannot be seen, as over a broker."""

    @property
    def closed(self) -> bool:
        """Tell whether the sender's connection has closed."""
        return self.connection is not None and not self.connection.open

    def send(self, *parts: bytes) -> bool:
        return self.door.send(self.sender, self.correlation, *parts)


class ControlServer:
    """The control socket of one collector. `serve` has to run before `reply` and `pass_on` reach anybody."""

    def __init__(
        self,
        doors: Sequence[Door],
        analyzers: AnalyzersKnown[Way],
        log: LogStore,
        host: str,
        incarnation: str,
        status: Callable[[], list[Row]],
        now: Callable[[AskNow, int], bytes],
        *,
        observe: bool,
    ) -> None:
        self._doors = doors
        self._analyzers = analyzers
        self._now = now
        self._store = log
        self._host = host
        self._incarnation = incarnation
        self._status = status
        self._observe = observe
        self._commands: dict[str, Way] = {}
        """The way back of each command that has no outcome yet."""
        self._second: set[str] = set()
        """Analyzers that decide on runs of another one, as they were logged."""
        self.malformed = 0
        """Messages that could not be read."""

    @property
    def stale(self) -> int:
        """The number of messages of analyzers that were replaced."""
        return self._analyzers.stale

    @property
    def connected(self) -> bool:
        """An analyzer has greeted."""
        return self._analyzers.any

    def end_longer_leases(self) -> None:
        """End the leases of analyzers whose connection has closed as soon as on a host without delays."""
        for hello, way in self._analyzers.ways():
            if hello.lease_ms is not None and way.closed:
                left_ns = max(hello.lease_ms * 1_000_000, RETURN_NS)
                self._guards.owner_disconnected(hello.name, monotonic_ns() + left_ns)

    async def serve(self, guards: Supervisor, publish: PublishServer, positions: PositionServer) -> None:
        """Answer requests until cancelled."""
        self._guards, self._publish, self._positions = guards, publish, positions
        async with anyio.create_task_group() as tasks:
            for door in self._doors:
                tasks.start_soon(self._serve, door)

    async def _serve(self, door: Door) -> None:
        while True:
            for message in await door.receive():
                self._receive(message, door)

    def _receive(self, message: sockets.Received, door: Door) -> None:
        try:
            correlation, payload = message.parts
        except ValueError:
            self.malformed += 1
            return
        way = Way(door, message.sender, correlation, message.connection)
        try:
            request = cast("Asked", codec.decode(payload, *get_args(Asked)))
        except MalformedError as wrong:
            self.malformed += 1
            way.send(codec.encode(No(str(wrong)[:2000])))
            return
        if (objection := door.objection(message, _role(request))) is not None:
            way.send(codec.encode(No(objection)))
            return
        if (
            isinstance(request, SetControl | SetPlan | ReleaseControl | RenewLeases)
            and (objection := self._analyzers.objection(request)) is not None
        ):
            way.send(codec.encode(self._refused(request, objection)))
            return
        match request:
            case SetControl() | ReleaseControl() | SetPlan() if objection := self._guards.decided_elsewhere(
                request
            ):
                way.send(codec.encode(self._refused(request, objection, "owned")))
                if request.owner not in self._second and len(self._second) < MAX_SECOND:
                    self._second.add(request.owner)
                    _log.warning("analyzer %s: %s", request.owner, objection)
            case SetControl() | ReleaseControl():
                self._expect(request.command, way)
                objection = (
                    self._publish.objection(request.run, request.gpu)
                    if isinstance(request, SetControl)
                    else None
                )
                self._guards.command(request, objection)
            case SetPlan():
                self._expect(request.command, way)
                self._positions.command(request, self._publish.objection(request.run, request.gpu))
            case RenewLeases():
                self._guards.renew(request)
            case Answer() | Advice():
                self._publish.answer(request)
            case Hello() | Fetch() | AskStatus() | AskNow():
                way.send(*self._answer(request, way))

    def _refused(
        self, request: SetControl | SetPlan | ReleaseControl | RenewLeases, why: str, cause: Cause = "stale"
    ) -> Outcome | No:
        """Return the refusal of a request that is not for its analyzer to make."""
        if isinstance(request, RenewLeases):
            return No(why)
        return ControlRefused(monotonic_ns(), request.command, request.gpu, cause, why)

    def _answer(self, request: Hello | Fetch | AskStatus | AskNow, way: Way) -> list[bytes]:
        match request:
            case Hello(role):
                if role == "analyzer":
                    try:
                        objection = self._analyzers.greet(request, replace(way, correlation=bytes(8)))
                    except StorageError as wrong:
                        objection = str(wrong)[:2000]
                    if objection is not None:
                        return [codec.encode(No(objection))]
                extent = self._store.extent
                welcome: Reply = Welcome(
                    host=self._host,
                    incarnation=self._incarnation,
                    log_id=extent.log_id,
                    first_offset=extent.first_offset,
                    next_offset=extent.next_offset,
                    observe=self._observe,
                )
                return [codec.encode(welcome)]
            case Fetch():
                return self._fetch(request)
            case AskStatus():
                return [codec.encode(Status(tuple(self._status())))]
            case AskNow():
                return [self._now(request, monotonic_ns())]

    def _fetch(self, request: Fetch) -> list[bytes]:
        extent = self._store.extent
        frames = []
        if request.log_id == extent.log_id:
            try:
                frames = self._store.fetch(request.first_offset, request.count, FETCH_BYTES)
            except StorageError as wrong:
                return [codec.encode(No(str(wrong)[:2000]))]
        first = frames[0].offset if frames else request.first_offset
        fetched = Fetched(extent.log_id, first, extent.first_offset, extent.next_offset)
        return [codec.encode(fetched), *(part for frame in frames for part in encode_frame(frame))]

    def _expect(self, command: str, way: Way) -> None:
        if command not in self._commands and len(self._commands) >= MAX_COMMANDS:
            del self._commands[next(iter(self._commands))]
        self._commands[command] = way

    def reply(self, outcome: Outcome) -> None:
        """Send the outcome of a command to the sender of the command, if it waits for it."""
        if (way := self._commands.pop(outcome.command, None)) is not None:
            way.send(codec.encode(outcome))

    def pass_on(self, ask: Ask | AskTry, job: str) -> bool:
        """Send a question about a job to the analyzer that decides on it. False: none is connected."""
        way = self._analyzers.way(job)
        return way is not None and way.send(codec.encode(ask))


def _role(request: Asked) -> Role:
    """Return what somebody on another host needs, to ask this."""
    match request:
        case Hello("watcher") | Fetch() | AskStatus() | AskNow():
            return "follow"
        case _:
            return "command"
