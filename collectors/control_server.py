"""The control socket: greetings, missing frames, commands with their outcomes, status."""

from collections.abc import Callable
from typing import TypeAlias, cast, get_args

from collectors.controls.lease_messages import Outcome
from collectors.controls.supervisor import Guards
from collectors.log.store import LogStore
from collectors.position_server import PositionServer
from collectors.publish_server import Intake
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
from zeus_stream.protocol.pipelines import SetPlan
from zeus_stream.protocol.queries import AskStatus, No, Reply, Status
from zeus_stream.protocol.snapshots import AskNow
from zeus_stream.transport import sockets
from zeus_stream.transport.access import Gate
from zeus_stream.transport.keys import Role

FETCH_BYTES = 1_000_000
"""Frames in one reply to a fetch, about."""
MAX_COMMANDS = 1_000
"""Commands whose sender is remembered; the oldest is forgotten."""
Asked: TypeAlias = (
    Hello | Fetch | SetControl | SetPlan | ReleaseControl | RenewLeases | AskStatus | AskNow | Answer | Advice
)


class ControlServer:
    """The control socket of one collector. `serve` has to run before `reply` and `pass_on` reach anybody."""

    def __init__(
        self,
        control: sockets.Channel,
        gate: Gate,
        log: LogStore,
        host: str,
        incarnation: str,
        status: Callable[[], list[Row]],
        now: Callable[[AskNow, int], bytes],
        *,
        observe: bool,
    ) -> None:
        self._control = control
        self._now = now
        self._gate = gate
        self._store = log
        self._host = host
        self._incarnation = incarnation
        self._status = status
        self._observe = observe
        self._analyzer: bytes | None = None
        self._commands: dict[str, tuple[bytes, bytes]] = {}
        """Sender and correlation of each command that has no outcome yet."""
        self.malformed = 0
        """Messages that could not be read."""

    @property
    def connected(self) -> bool:
        """An analyzer has greeted."""
        return self._analyzer is not None

    async def serve(self, guards: Guards, intake: Intake, positions: PositionServer) -> None:
        """Answer requests until cancelled."""
        self._guards, self._intake, self._positions = guards, intake, positions
        while True:
            for message in await self._control.receive():
                self._receive(message)

    def _receive(self, message: sockets.Received) -> None:
        try:
            correlation, payload = message.parts
        except ValueError:
            self.malformed += 1
            return
        try:
            request = cast("Asked", codec.decode(payload, *get_args(Asked)))
        except MalformedError as wrong:
            self.malformed += 1
            self._control.send(message.sender, correlation, codec.encode(No(str(wrong)[:2000])))
            return
        if (objection := self._gate.objection(message, _role(request))) is not None:
            self._control.send(message.sender, correlation, codec.encode(No(objection)))
            return
        match request:
            case SetControl() | ReleaseControl():
                self._expect(request.command, message.sender, correlation)
                objection = (
                    self._intake.objection(request.run, request.gpu)
                    if isinstance(request, SetControl)
                    else None
                )
                self._guards.command(request, objection)
            case SetPlan():
                self._expect(request.command, message.sender, correlation)
                self._positions.command(request, self._intake.objection(request.run, request.gpu))
            case RenewLeases():
                self._guards.renew(request)
            case Answer() | Advice():
                self._intake.answer(request)
            case Hello() | Fetch() | AskStatus() | AskNow():
                parts = self._answer(request, message.sender)
                self._control.send(message.sender, correlation, *parts)

    def _answer(self, request: Hello | Fetch | AskStatus | AskNow, sender: bytes) -> list[bytes]:
        match request:
            case Hello(role):
                if role == "analyzer":
                    self._analyzer = sender
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
        return [codec.encode(fetched), *(part for frame in frames for part in codec.encode_frame(frame))]

    def _expect(self, command: str, sender: bytes, correlation: bytes) -> None:
        if command not in self._commands and len(self._commands) >= MAX_COMMANDS:
            del self._commands[next(iter(self._commands))]
        self._commands[command] = sender, correlation

    def reply(self, outcome: Outcome) -> None:
        """Send the outcome of a command to the sender of the command, if it waits for it."""
        if (asked := self._commands.pop(outcome.command, None)) is not None:
            sender, correlation = asked
            self._control.send(sender, correlation, codec.encode(outcome))

    def pass_on(self, ask: Ask | AskTry) -> bool:
        """Send a question to the analyzer. False: none is connected."""
        return self._analyzer is not None and self._control.send(self._analyzer, bytes(8), codec.encode(ask))


def _role(request: Asked) -> Role:
    """Return what somebody on another host needs, to ask this."""
    match request:
        case Hello("watcher") | Fetch() | AskStatus() | AskNow():
            return "follow"
        case _:
            return "command"
