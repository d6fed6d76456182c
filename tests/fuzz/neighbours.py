"""Worlds with a neighbour: what is ours is the same as in the world without.

    our frames, a training that recurs --------------------------------> what they give
    our frames, and frames of a neighbour among them, from the first on -> the same, and nothing of ours else

A neighbour is another host, which sends anything about our GPUs, sessions and runs, at any time of its clock;
or another user, on our host or on another, whose job and runs have our names, maybe from before ours on.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from random import Random
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from analyzers.batch_size.registry import Default
from analyzers.interpreter.interpreter import Interpreter
from analyzers.results.rows import GapRow
from tests.analyzers.batch_size.test_tracker import Recurs, again
from tests.extreme_values import any_of
from tests.fuzz.extremes import EVENTS, NOTES, bent
from tests.fuzz.targets import SETTINGS
from tests.simulation.simulated_site import Training
from tests.simulation.world import Output, outputs_of
from zeus_stream.errors import MalformedError
from zeus_stream.protocol import codec
from zeus_stream.protocol.events import Event, RunEnded, RunStarted
from zeus_stream.protocol.fields import Unknown
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import Notes
from zeus_stream.protocol.readings import Readings

Stream = list[tuple[Frame, Body]]
Kind = Literal["host", "user", "user elsewhere", "user before"]
KINDS: tuple[Kind, ...] = ("host", "user", "user elsewhere", "user before")
OURS, THEIRS = 1001, 1002
"""Users."""
NEIGHBOUR = "neighbour"
S = 1_000_000_000


class Second(Recurs):
    """Our training where a user before us has taken its names."""

    def hear(self, frame: Frame, body: Body) -> None:
        if not self.frames:
            for theirs in began_before(frame):
                outputs_of(self.interpreter, *theirs)
        super().hear(*_of_user([(frame, body)], OURS)[0])


@cache
def ours(kind: Kind = "host") -> tuple[tuple[Frame, Body], ...]:
    """Return the frames of two trainings of a job, one after the other, which search their power limits."""
    of_kind = Second if kind == "user before" else Recurs
    world = of_kind("simulated:v100x1", Training("imagenet", 0.037, 100, epoch_steps=50), SETTINGS)
    world.run()
    first = _of_user(world.frames, OURS)
    return (*first, *again(first, 1))


def began_before(first: Frame) -> Stream:
    """Return the begin of a neighbour's training of our names, before the first of our frames."""
    bodies = _theirs()
    begin = next(n for n, body in enumerate(bodies) if isinstance(body, Events))
    return [
        (Frame(log_id="before", offset=n, host=first.host, t_ns=first.t_ns, topic="t", body=b""), body)
        for n, body in enumerate(bodies[: begin + 1])
    ]


def _of_user(frames: Iterable[tuple[Frame, Body]], uid: int) -> Stream:
    return [(frame, replace(body, uid=uid) if isinstance(body, Events) else body) for frame, body in frames]


def _theirs() -> list[Body]:
    """Return what a user's training of our names makes a collector log: other sessions on another GPU."""
    first = ours()[: len(ours()) // 2]
    events = (event for _, body in first if isinstance(body, Events) for event in body.events)
    ours_began = next(event for event in events if isinstance(event, RunStarted))
    bodies: list[Body] = []
    for _, body in _of_user(again(first, 7), THEIRS):
        if isinstance(body, Events):
            named = [
                replace(event, run=ours_began.run, wall_ns=ours_began.wall_ns)
                if isinstance(event, RunStarted)
                else event
                for event in body.events
            ]
            bodies.append(replace(body, events=tuple(named)))
        else:
            bodies.append(body)
    return bodies


class Neighbour:
    """Makes frames that come between ours."""

    def __init__(self, rng: Random, kind: Kind) -> None:
        self._rng, self._kind = rng, kind
        self._ahead_ns = rng.choice((0, 0, -10 * S, 1000 * S))
        """Of its clock."""
        self._share = rng.choice((0.02, 0.2, 0.5))
        self._seen: list[Body] = []
        self._names: list[str] = []
        self._script = iter(_theirs())
        self._offset = 0

    def after(self, frame: Frame, body: Body) -> Iterator[tuple[Frame, Body]]:
        """Yield what comes after one of our frames."""
        self._seen.append(body)
        self._names += [name for _, name in names_of(body) if name not in self._names]
        if self._kind == "host":
            while self._rng.random() < self._share:
                yield from self._logged(frame, self._claim())
        elif (next_body := next(self._script, None)) is not None:
            yield from self._logged(frame, self._of_its_script(next_body))

    def _claim(self) -> Body:
        """Return a body about what is ours: one of ours again, with another value, or any other."""
        rng = self._rng
        match rng.randrange(3):
            case 0:
                return rng.choice(self._seen)
            case 1:
                return self._bent(rng.choice(self._seen))
            case _:
                return self._any()

    def _bent(self, body: Body) -> Body:
        rng = self._rng
        match body:
            case Readings():
                return body
            case Notes():
                return replace(body, notes=tuple(bent(rng, note, self._names) for note in body.notes))
            case Events():
                return replace(body, events=tuple(self._changed(event) for event in body.events))

    def _changed(self, event: Event | Unknown) -> Event | Unknown:
        """Return an event with another value. A user that names another run or job is no namesake."""
        if isinstance(event, RunStarted | Unknown) or self._rng.random() < 0.7:
            return event
        return bent(self._rng, event, self._names)

    def _any(self) -> Body:
        rng = self._rng
        if rng.random() < 0.5:
            return Notes((any_of(rng, rng.choice(NOTES), self._names),))
        sessions = [body.session for body in self._seen if isinstance(body, Events)]
        event = any_of(rng, rng.choice((*EVENTS, RunEnded)), self._names)
        return Events(rng.choice(sessions or ["x"]), rng.randrange(100), 0, 1, (event,))

    def _of_its_script(self, body: Body) -> Body:
        return self._bent(body) if isinstance(body, Events) and self._rng.random() < self._share else body

    def _logged(self, ours: Frame, body: Body) -> Iterator[tuple[Frame, Body]]:
        """Yield the frame of a body, if a collector would log it."""
        try:
            taken = codec.decode(codec.encode(body), Readings, Events, Notes)
        except MalformedError:
            return
        self._offset += 1
        host, t_ns = NEIGHBOUR, ours.t_ns
        if self._kind in ("user", "user before"):
            host = ours.host
        elif self._kind == "host" and self._rng.random() < 0.05:
            self._ahead_ns += self._rng.choice((S, 61 * S, 10_000 * S))
        if host == NEIGHBOUR:
            t_ns = max(0, t_ns + self._ahead_ns)
        yield Frame(log_id="theirs", offset=self._offset, host=host, t_ns=t_ns, topic="t", body=b""), taken


def names_of(value: object) -> Iterator[tuple[str, str]]:
    """Yield the GPUs, sessions, runs, jobs and commands in a body or a row: what each is, and its name."""
    if isinstance(value, tuple | list):
        for each in value:
            yield from names_of(each)
    elif isinstance(value, Struct):
        for name in value.__struct_fields__:
            inside: Any = getattr(value, name)
            if name in ("gpu", "session", "run", "job", "command") and isinstance(inside, str):
                yield name, inside
            elif name == "gpus" and isinstance(inside, tuple):
                yield from (("gpu", gpu) for gpu in inside if isinstance(gpu, str))
            elif not isinstance(inside, str):
                yield from names_of(inside)


@cache
def alone(kind: Kind = "host") -> tuple[list[Output], ...]:
    """Return what each of our frames gives in the world without a neighbour, or with one who only began."""
    interpreter = _begun(kind)
    return tuple(outputs_of(interpreter, frame, body) for frame, body in ours(kind))


def _begun(kind: Kind) -> Interpreter:
    interpreter = _interpreter()
    if kind == "user before":
        for theirs in began_before(ours(kind)[0][0]):
            outputs_of(interpreter, *theirs)
    return interpreter


def _of_user_alone(kind: Kind, name: tuple[str, str]) -> bool:
    """Tell whether a name that we use is only ours: who was there before has those of the run and the job."""
    return kind != "user before" or name[0] not in ("run", "job") or f"user {OURS}" in name[1]


def _interpreter() -> Interpreter:
    return Interpreter(SETTINGS, None, ("default", Default()))


def play(seed: int, kind: Kind) -> list[str]:
    """Interpret our frames with those of a neighbour among them. Return what of ours is not as it was."""
    interpreter, neighbour = _begun(kind), Neighbour(Random(seed), kind)
    of_them = {name for body in _theirs() for name in names_of(body)}
    of_them.difference_update(name for _, body in ours() for name in names_of(body))
    of_us: set[tuple[str, str]] = set()
    wrong: list[str] = []
    for (frame, body), expected in zip(ours(kind), alone(kind), strict=True):
        outputs = outputs_of(interpreter, frame, body)
        given = [row for row in outputs if not of_them.intersection(names_of(row))]
        if given != expected:
            wrong.append(f"frame {frame.offset} of {frame.host} gave {_difference(given, expected)}")
        of_us.update(names_of(body), *map(names_of, expected))
        for their_frame, their_body in neighbour.after(frame, body):
            for output in outputs_of(interpreter, their_frame, their_body):
                taken = {name for name in of_us.intersection(names_of(output)) if _of_user_alone(kind, name)}
                if taken and not isinstance(output, GapRow):
                    wrong.append(f"{type(their_body).__name__} of a {kind} gave {output}, of our {taken}")
        if len(wrong) > 3:
            break
    return wrong


def _difference(given: list[Output], expected: list[Output]) -> str:
    more = [row for row in given if row not in expected]
    less = [row for row in expected if row not in given]
    return f"{more[:2]} in place of {less[:2]}"
