"""A collector's publish socket and nothing behind it: takes in batches, acknowledges, answers."""

import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self, TypeVar

import zmq

from zeus_stream.protocol import codec
from zeus_stream.protocol.events import Ack, Answer, Ask, AskTry, Batch, Event, RunStarted, StepBoundary
from zeus_stream.protocol.fields import Unknown

M = TypeVar("M")


class Collector(AbstractContextManager["Collector"]):
    """Listens at ``path`` while entered; what it logged outlives that, like a real one's log."""

    def __init__(self, path: Path, *, acknowledges: bool = True) -> None:
        self.path = path
        self.acknowledges = acknowledges
        self.answer: Callable[[Ask], bytes] | None = None
        self.advise: Callable[[AskTry], bytes] | None = None
        self.sessions: dict[str, list[Event | Unknown]] = {}
        self.asks: list[Ask] = []
        self.batches = 0
        self.gather_ms = 0
        """Publishers may let events come together for so long."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._stop.clear()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = context.socket(zmq.ROUTER)
        socket.bind(f"ipc://{self.path}")
        self._thread = threading.Thread(target=self._serve, args=(context, socket))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread is not None
        self._stop.set()
        self._thread.join()

    @property
    def events(self) -> list[Event | Unknown]:
        """Of all sessions, in the order in which these began."""
        return [event for events in self.sessions.values() for event in events]

    def seen(self, kind: type[M]) -> list[M]:
        return [event for event in self.events if isinstance(event, kind)]

    def boundaries(self) -> list[tuple[int, bool, bool]]:
        """Return of each step boundary its index, whether a step ended, and whether one began."""
        return [
            (at.index, at.ended_ns is not None, at.began_ns is not None) for at in self.seen(StepBoundary)
        ]

    def session_of(self, pid: int) -> str | None:
        """Return the session that this process opened."""
        for session, events in list(self.sessions.items()):
            if isinstance(events[0], RunStarted) and events[0].pid == pid:
                return session
        return None

    def _serve(self, context: "zmq.Context[zmq.Socket[bytes]]", socket: "zmq.Socket[bytes]") -> None:
        try:
            while not self._stop.is_set():
                if socket.poll(5):
                    sender, *parts = socket.recv_multipart()
                    socket.send_multipart([sender, reply]) if (reply := self._hear(parts)) else None
        finally:
            context.destroy(linger=0)

    def _hear(self, parts: Iterable[bytes]) -> bytes | None:
        message: object = codec.decode(b"".join(parts), Batch, Ask, AskTry)
        if isinstance(message, AskTry):
            return self.advise(message) if self.advise else None
        if isinstance(message, Ask):
            self.asks.append(message)
            return self.answer(message) if self.answer else None
        assert isinstance(message, Batch)
        self.batches += 1
        if not self.acknowledges:
            return None
        have = len(self.sessions.get(message.session, ()))
        if message.sequence <= have:
            self.sessions.setdefault(message.session, []).extend(message.events[have - message.sequence :])
        have = len(self.sessions.get(message.session, ()))
        return codec.encode(Ack(message.session, have, self.gather_ms))


def answer(ask: Ask, missing: str) -> bytes:
    return codec.encode(Answer(ask.question, None, (), missing))
