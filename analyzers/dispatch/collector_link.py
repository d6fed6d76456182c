"""The analyzer's end of one collector's control socket: commands, leases, questions of scripts.

Outcomes of commands are not read here: they come through the log, like everything that is
interpreted. A reply only ends the sending again.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeAlias

import anyio
from msgspec import Struct
from msgspec.structs import asdict

from analyzers.results.result import (
    ApplyControl,
    ApplyPlan,
    GiveAdvice,
    GiveAnswer,
    Instruction,
    RestoreControl,
)
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import MalformedError
from zeus_stream.protocol import codec
from zeus_stream.protocol.commands import (
    Hello,
    ReleaseControl,
    RenewLeases,
    SetControl,
    Welcome,
)
from zeus_stream.protocol.events import Ask, AskTry
from zeus_stream.protocol.fields import Unknown
from zeus_stream.protocol.frames import Frame
from zeus_stream.protocol.notes import CollectorStarted, ControlApplied, ControlRefused, Note
from zeus_stream.protocol.pipelines import SetPlan
from zeus_stream.protocol.queries import No, Reply, Request
from zeus_stream.transport import sockets
from zeus_stream.transport.channel import FollowedSource, MessageWay

MAX_DELAYS = 1_000


class LeaseLength:
    """The length of the leases that one process renews."""

    def __init__(
        self, least_ms: int, *, factor: float = 4, most_ms: int = 30_000, remembered_s: float = 60
    ) -> None:
        """Begin with the least length. A lease outlasts ``factor`` times the longest delay remembered.

        What is leased stays up to ``most_ms`` after its holder has ended, or ``least_ms`` if that is more.
        """
        self.least_ms, self._most_ms = least_ms, most_ms
        """Where nothing delays; and the greatest."""
        self._factor, self._remembered_ns = factor, round(remembered_s * 1e9)
        self._delays: deque[tuple[int, int]] = deque(maxlen=MAX_DELAYS)
        """When and how long, ns; descending in length: a longer one hides those before it."""

    def delayed(self, now_ns: int, delay_ns: int) -> None:
        """Note that a renewal left, or an answer came, this much later than it was due."""
        while self._delays and self._delays[-1][1] <= delay_ns:
            self._delays.pop()
        self._delays.append((now_ns, delay_ns))

    def ms(self, now_ns: int) -> int:
        """Return the length of a lease that is asked for now."""
        while self._delays and now_ns - self._delays[0][0] > self._remembered_ns:
            self._delays.popleft()
        worst_ms = self._delays[0][1] / 1e6 if self._delays else 0.0
        return max(self.least_ms, round(min(self._factor * worst_ms, self._most_ms)))


BEAT_S = 0.3
"""Between renewals of leases."""
SILENCE_NS = 3_000_000_000
"""The socket is opened again when the collector has sent nothing for this time."""
RESEND_S = 1.2
"""Between two sendings of a command that got no reply, and from a sign of life to a greeting."""
GREET_S = 12.0
"""Between two greetings while no lease is held and frames of the collector come: they say as much."""
FIRST_NS = 10_000_000_000
"""From a greeting that was answered: leases of an earlier analyzer may become known."""
MAX_UNANSWERED = 1_000


Command: TypeAlias = SetControl | SetPlan | ReleaseControl
REQUESTS: Mapping[type[Instruction], type[Command]] = {
    ApplyControl: SetControl,
    ApplyPlan: SetPlan,
    RestoreControl: ReleaseControl,
}
"""The request of each instruction: it has its fields."""


class Commander(Struct, frozen=True):
    """The owner of commands, as collectors know it."""

    owner: str
    start: int
    """Grows with each start or take-over: fences grow from it."""
    shard: int | None = None
    """The shard of an analyzer that shares a site: its ``start`` is an epoch, kept by collectors."""
    shards: int | None = None
    may_command: Callable[[], bool] = lambda: True
    """Tells whether it is still the owner, as far as it knows."""

    @property
    def epoch(self) -> int | None:
        """Return the epoch; None: it has none."""
        return None if self.shard is None else self.start


class Link:
    """One collector, as the analyzer commands it."""

    def __init__(
        self,
        context: sockets.Context,
        where: FollowedSource,
        commander: Commander,
        lease_ms: int,
        host: str | None = None,
    ) -> None:
        """``host``: the only one that the collector may speak for."""
        self.leases: Callable[[], frozenset[str]] = frozenset
        """Returns the GPUs whose leases are to be renewed."""
        self._context = context
        self._where = where
        self._commander = commander
        self._owner = commander.owner
        self._lease = LeaseLength(lease_ms)
        self._fence = commander.start << 32
        self._channel: MessageWay | None = None
        self._welcome: Welcome | None = None
        self._unanswered: dict[str, Command] = {}
        self._bound = host
        self._known = anyio.Event()
        self._bell = anyio.Event()
        """Rings when a lease may begin."""
        self._pause = anyio.CancelScope()
        """The wait for the next greeting or renewal."""
        self._put_off_until = 0.0
        """Frames may put off its end until then, on the event loop's clock."""
        self._host = ""
        self._received_ns = 0
        self._welcomed_ns = 0
        """When the collector let us in."""
        self._greeted_ns = 0
        """When the greeting was sent that has no answer yet; 0: none."""
        self._objection: str | None = None
        self.dropped = 0
        """Instructions for a collector that is not there, or has too many unanswered."""
        self.malformed = 0
        """Messages of the collector that were not understood here, or of ours there."""

    @property
    def connected(self) -> bool:
        return self._welcome is not None

    @property
    def trouble(self) -> str | None:
        """Why the collector does not let us in, or does not do what we ask, in a sentence."""
        return (self._channel.trouble if self._channel else None) or self._objection

    async def host(self) -> str:
        """Return the name of the collector's host, as soon as it is known."""
        if self._bound is not None:
            return self._bound
        await self._known.wait()
        return self._host

    def behind(self, frame: Frame) -> int | None:
        """Return how many frames the log had after this one when it last answered; None: not connected."""
        if self._welcome is None or self._welcome.log_id != frame.log_id:
            return None
        return max(0, self._welcome.next_offset - frame.offset - 1)

    @property
    def lease_ms(self) -> int:
        """The length of a lease that is asked for now."""
        return self._lease.ms(monotonic_ns())

    def take_notes(self, notes: Iterable[Note | Unknown]) -> None:
        """Forget a welcome of an earlier collector than the one that the log says has started."""
        for note in notes:
            welcome = self._welcome
            if isinstance(note, CollectorStarted) and welcome and welcome.incarnation != note.incarnation:
                self._welcome = None
                self._bell.set()  # greet it now: it takes no command before

    def saw_frames(self, *, used: bool) -> None:
        """Take in that frames of its log have come: a greeting need not ask whether it is there.

        ``used``: sessions are open on the host. Greetings go on then: their delays give leases their length.
        """
        if not used and self._rests and not self._greeted_ns:
            self._received_ns = monotonic_ns()
            later = min(anyio.current_time() + RESEND_S, self._put_off_until)
            self._pause.deadline = max(self._pause.deadline, later)

    def carry_out(self, instruction: Instruction) -> None:
        """Send what the interpreter wants done; commands again until the collector has replied."""
        if isinstance(instruction, GiveAnswer | GiveAdvice):
            self._send(instruction.answer if isinstance(instruction, GiveAnswer) else instruction.advice)
            return
        if self._welcome is None or len(self._unanswered) >= MAX_UNANSWERED:
            self.dropped += 1
            return
        self._fence += 1
        kind = REQUESTS[type(instruction)]
        values = asdict(instruction) | {
            "owner": self._owner,
            "incarnation": self._welcome.incarnation,
            "fence": self._fence,
            "lease_ms": self.lease_ms,
        }
        request = kind(**{name: values[name] for name in kind.__struct_fields__})
        self._unanswered[request.command] = request
        self._send(request)
        self._bell.set()

    async def run(self, asked: Callable[[str, Ask | AskTry], object]) -> None:
        """Keep connection and leases alive; hand host and question of scripts on. Until cancelled."""
        while True:
            opening = partial(sockets.ask, self._context, self._where.control)
            channel = self._channel = await sockets.once_possible(opening)
            self._received_ns = monotonic_ns()
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._receive, channel, asked)
                    await self._beat()
                    tasks.cancel_scope.cancel()
            finally:
                self._objection = self.trouble
                self._channel = self._welcome = None
                channel.close()

    async def _beat(self) -> None:
        resent_ns = 0
        while (now_ns := monotonic_ns()) - self._received_ns < SILENCE_NS:
            self._bell = anyio.Event()
            if self._welcome is not None and (gpus := tuple(sorted(self.leases()))):
                renewal = self._owner, self._welcome.incarnation, gpus, self.lease_ms
                self._send(RenewLeases(*renewal, self._commander.epoch))
            if self._welcome is None or now_ns - resent_ns >= RESEND_S * 1e9:
                resent_ns = now_ns
                self._greeted_ns = self._greeted_ns or monotonic_ns()
                known = self._commander
                parts = known.epoch, known.shard, known.shards
                self._send(Hello("analyzer", self._owner, *parts, self._lease.least_ms))
                for request in self._unanswered.values():
                    self._send(request)
            began = anyio.current_time()
            self._put_off_until = began + GREET_S
            with anyio.CancelScope(deadline=began + self._pause_s()) as self._pause:
                await self._bell.wait()
            if self._pause.cancelled_caught:
                late_s = anyio.current_time() - self._pause.deadline
                self._lease.delayed(monotonic_ns(), round(late_s * 1e9))

    def _pause_s(self) -> float:
        """Return the time to the next renewal, or to the next greeting if nothing is to be renewed."""
        if self._welcome is None:
            return BEAT_S / 6
        return RESEND_S if self._rests else BEAT_S

    @property
    def _rests(self) -> bool:
        """Tell whether nothing is to be renewed or sent again."""
        first = monotonic_ns() - self._welcomed_ns < FIRST_NS
        return not (self._welcome is None or first or self._unanswered or self.leases())

    async def _receive(self, channel: MessageWay, asked: Callable[[str, Ask | AskTry], object]) -> None:
        while True:
            for message in await channel.receive():
                self._received_ns = monotonic_ns()
                try:
                    reply: Reply = codec.decode(
                        message.parts[-1], Welcome, ControlApplied, ControlRefused, No, Ask, AskTry
                    )
                except MalformedError:
                    self.malformed += 1
                    continue
                match reply:
                    case Welcome(host=host) if self._bound not in (None, host):
                        self._objection = (
                            f"the collector of {self._bound}: speaks for {host}, so it is not commanded."
                            f" If that is its name now: `zeus-stream keys create --host {host} NAME` there."
                        )
                    case Welcome():
                        if self._welcome is None:
                            self._welcomed_ns = self._received_ns
                        self._welcome, self._objection = reply, None
                        if self._greeted_ns:
                            self._lease.delayed(self._received_ns, self._received_ns - self._greeted_ns)
                            self._greeted_ns = 0
                        self._host = reply.host
                        self._known.set()
                    case ControlApplied(command=command) | ControlRefused(command=command):
                        self._unanswered.pop(command, None)
                    case Ask() | AskTry():
                        asked(self._host, reply)
                    case No(reason):
                        self._objection = reason
                    case _:
                        self.malformed += 1

    def _send(self, message: Request) -> None:
        if self._channel is not None and self._commander.may_command():
            self._channel.send(bytes(8), codec.encode(message))
