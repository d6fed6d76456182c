"""What a fuzzer calls with bytes: every decoder, and the pure modules behind them."""

from contextlib import suppress
from functools import cache
from random import Random

from analyzers.interpreter.interpreter import Interpreter
from analyzers.power_limit.run_settings import RunSettings
from collectors.ingest.sessions import PublisherSession, check, receive
from tests import hostile
from tests.simulation.simulated_site import Training
from tests.simulation.world import QUICK, World, outputs_of
from zeus_stream.errors import MalformedError
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
from zeus_stream.protocol.events import Ack, Advice, Answer, Ask, AskTry, Batch
from zeus_stream.protocol.frames import Body, Events, Frame, decode_frame
from zeus_stream.protocol.notes import ControlApplied, ControlRefused, Notes
from zeus_stream.protocol.queries import AskStatus, Cancel, ForgetJob, Forgotten, No, Query, QueryDone, Status
from zeus_stream.protocol.readings import Readings
from zeus_stream.protocol.snapshots import AskNow, Snapshot
from zeus_stream.transport.follower import FollowerSequence
from zeus_stream.transport.listening import zmtp
from zeus_stream.transport.listening.curve_server import CurveServer

NOW_NS = 10**12
SECRET = bytes(range(32))
"""Of a listener for other hosts."""
SETTINGS = QUICK
KINDS: tuple[tuple[type, ...], ...] = (
    (Batch, Ask, AskTry),
    (Hello, Fetch, SetControl, ReleaseControl, RenewLeases, AskStatus, AskNow, Answer, Advice),
    (Query, Cancel, AskNow, ForgetJob),
    (Ack, No),
    (Welcome, Fetched, ControlApplied, ControlRefused, Status, Snapshot, QueryDone, Forgotten),
    (Readings, Events, Notes),
)
"""What is decoded where."""


def decode(data: bytes) -> None:
    """Take bytes as every message there is; raise what no reader of a socket expects."""
    for kinds in KINDS:
        with suppress(MalformedError):
            take(codec.decode(data, *kinds))
    connect(data)
    for topic, envelope in ((b"events/h", data), (data, b"\x94\xa1l\x00\xa1h\x01")):
        with suppress(MalformedError):
            FollowerSequence("l", 0).frames([decode_frame(topic, envelope, data)])


def connect(data: bytes) -> None:
    """Take bytes as a client of a listener sends them: of this host, or of another that has no key."""
    for curve in (None, CurveServer(SECRET, lambda _: "anna")):
        for before in (b"", zmtp.GREETING if curve is None else zmtp.CURVE_GREETING):
            reader = zmtp.ZmtpReader("ROUTER", 1_000, curve)
            with suppress(MalformedError):
                reader.feed(before + data)
                while reader.next() is not None or reader.behind:
                    pass
            assert curve is None or curve.key is None


def take(message: object) -> None:
    """Hand a message to who would be given it. Raises MalformedError."""
    match message:
        case Batch():
            session, new = receive(PublisherSession(session=message.session, uid=1, pid=1), message)
            check(session, new, [session], NOW_NS)
        case Readings() | Events() | Notes():
            interpreter = Interpreter(RunSettings(selector=None))
            for offset, t_ns in enumerate((NOW_NS, 2 * NOW_NS)):
                outputs_of(
                    interpreter,
                    Frame(log_id="l", offset=offset, host="h", t_ns=t_ns, topic="t", body=b""),
                    message,
                )
        case Welcome():
            FollowerSequence("l", 3).welcome(message)
        case Fetched():
            FollowerSequence("l", 3).fetched(message, [])
        case _:
            pass  # its fields are all there is to it
    codec.decode(codec.encode(message), type(message))


@cache
def recorded() -> tuple[tuple[Frame, Body], ...]:
    """Return the frames of a run on a GPU that is profiled: readings, a session, admission, outcomes."""
    world = World("simulated:v100x1", Training("imagenet", 0.037, 100), SETTINGS)
    world.run()
    return tuple(world.frames)


def seeds(rng: Random, count: int) -> list[bytes]:
    """Return messages to begin with."""
    makers = (hostile.said, hostile.commanded, hostile.asked, hostile.logged, hostile.replied)
    return [codec.encode(rng.choice(makers)(rng)) for _ in range(count)]
