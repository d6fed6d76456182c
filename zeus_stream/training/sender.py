"""Takes an outbox to the collector of this host: finds it, loses it, finds it again.

A daemon thread wakes every 20 ms by timer, never by an event of the training, sends one batch, and takes in
what was acknowledged. While somebody waits for the events, it looks every 5 ms whether there are any. It
wakes less often while nobody waits for them, or takes them. This file and `sockets` are the only ones that
import zmq; here there is no event loop.
"""

import os
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import zmq

from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import MalformedError
from zeus_stream.paths import endpoint, trusted
from zeus_stream.protocol import codec
from zeus_stream.protocol.events import Ack, Advice, Answer, Ask, AskTry, Batch, No
from zeus_stream.training.outbox import BATCH, OpenQuestion, Outbox

TICK_S = 0.02
GLANCE_S = 0.005
"""Between two looks for new events while somebody waits for them, at least: a look costs 10 to 30 us."""
MAX_FLUSH_S = 3600.0
FLUSH_S = 0.5
"""Time that the training waits at exit until its last events are acknowledged, unless a setting says more."""
WATCH_S = 0.1
"""Between two looks at a loop of steps while there is no collector: it may have no more room."""
LOOK_NS = 1_000_000_000
"""Between two looks for a collector while there is none."""
PATIENCE_NS = 1_000_000_000
"""Without an acknowledgement for so long, the socket is opened again: doubled each time, up to the most."""
MOST_PATIENCE_NS = 8_000_000_000
STUCK_NS, STUCK_TICKS = 300_000_000, 10
"""Without one for so long, it wakes so many times less often: who trains has no use for its trying."""
DRAIN = 100
"""Messages taken in a turn, and queued in a socket."""

Say: TypeAlias = Callable[[str, str], None]
"""Says a sentence, once for each cause."""


def flush_s(asked: str) -> float:
    """Return the seconds that the end may wait: as asked, if that is a number of seconds up to an hour."""
    try:
        seconds = float(asked)
    except ValueError:
        return FLUSH_S
    return seconds if 0 <= seconds <= MAX_FLUSH_S else FLUSH_S


def pause_s(turns: int, mean_s: float = TICK_S) -> float:
    """Return the time to the next turn, ``mean_s`` on average, and uneven: steps must not fall in with it."""
    return mean_s * (0.5 + (turns % 1_000_000) ** 2 * 0.618034 % 1)


class EventSender:
    """Takes an outbox to a collector: finds one, loses it, finds it again."""

    def __init__(
        self,
        outbox: Outbox,
        candidates: Sequence[Path],
        say: Say,
        fail: Callable[[Exception], None],
        flush_s: float = FLUSH_S,
    ) -> None:
        self._outbox = outbox
        self._flush_s = flush_s
        self._candidates = candidates
        self._say = say
        self._fail = fail
        self._thread = threading.Thread(target=self._run, name="zeus-stream", daemon=True)
        self._stopping = False
        self._wake = threading.Lock()
        """Held but to wake the thread: waiting for a lock costs four fifths of waiting for an Event."""
        self._wake.acquire()
        self._answers: WeakValueDictionary[str, queue.Queue[Any]] = WeakValueDictionary()
        self._socket: zmq.Socket[bytes] | None = None
        self._path: Path | None = None
        self._sent: tuple[str, int] | None = None
        """Session and sequence of the batch that was sent on this socket."""
        self._offered: tuple[str, int] | None = None
        """Session and sequence of the batch that waits for its acknowledgement."""
        self._gather_s = 0.0
        """Events may come together for so long, by the last acknowledgement."""
        self._due_ns = 0
        """When the next batch is to be sent."""
        self._progress_ns = self._next_look_ns = 0
        self._looping = False
        """A loop of steps may be under way."""
        self._glances = self._fresh_ns = self._between_ns = 0
        """Looks for new events, when one last found any, and how long after the one before."""
        self._found = False
        """A collector was there at some time: it may come back."""
        self.absent = False
        """There is no collector on this host, and there has been none since this began."""
        self._patience_ns = PATIENCE_NS
        self.reconnects = 0
        self.errors = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Hand over what can be while there is a collector, within ``flush_s``, and return."""
        self._stopping = True
        self._rouse()
        self._thread.join(self._flush_s + 0.1)

    def _rouse(self) -> None:
        """Wake the thread. Never called from a training's loop: it costs a switch of threads."""
        with suppress(RuntimeError):  # another did
            self._wake.release()

    def question(self, window: int, until_ns: int) -> "queue.Queue[Answer]":
        """Ask the analyzer until then; return where its answer will be. Let go, it is forgotten."""
        return self._question(Ask, (window,), until_ns)

    def question_of_try(self, attempt: int, epochs: int, until_ns: int) -> "queue.Queue[Advice]":
        """Ask the analyzer in the same way what to try or whether to go on."""
        return self._question(AskTry, (attempt, epochs), until_ns)

    def _question(
        self, kind: type[Ask] | type[AskTry], about: tuple[int, ...], until_ns: int
    ) -> "queue.Queue[Any]":
        name = os.urandom(8).hex()
        box = self._answers[name] = queue.Queue()
        self._outbox.put((OpenQuestion, name, kind, about, until_ns))
        self._rouse()
        return box

    def silence(self) -> str:
        """Name the process that did not answer."""
        return self._no_collector() if self._path is None else f"the collector at {self._path} gave no answer"

    def _no_collector(self) -> str:
        return f"no collector at {' or '.join(map(str, self._candidates))}"

    def _run(self) -> None:
        try:
            self._deliver()
        except Exception as wrong:  # noqa: BLE001  (nothing of ours may reach the training: logged, and over)
            self.errors += 1
            self._fail(wrong)

    def _deliver(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            turns = 0
            while not self._stops(turns):
                turns += 1
                self._turn(context, monotonic_ns())
            until_ns = monotonic_ns() + round(self._flush_s * 1e9)
            self._turn(context, monotonic_ns())
            while self._outbox.waiting and self._path is not None and monotonic_ns() < until_ns:
                if self._socket is not None:  # else it was hung up, and the next turn makes another
                    self._socket.poll(round(TICK_S * 100))
                self._turn(context, monotonic_ns())
        finally:
            context.destroy(linger=0)

    def _stops(self, turns: int) -> bool:
        """Wait for the next turn; return whether there is none."""
        left_s = self._pause_s(turns)
        mean_s = max(GLANCE_S, self._between_ns / 2e9)  # two looks for an event
        while left_s > 0:
            self._glances += 1
            glance_s = min(left_s, pause_s(self._glances, mean_s)) if self._awaited else left_s
            left_s -= glance_s
            if self._wake.acquire(timeout=glance_s):
                break
            if self._outbox.fresh:
                now_ns = monotonic_ns()
                self._between_ns = now_ns - self._fresh_ns if self._fresh_ns else 0
                self._fresh_ns = now_ns
                break
        return self._stopping

    def _pause_s(self, turns: int) -> float:
        """Return the time to the next turn: one is seldom while there is nobody to take in anything."""
        now_ns = monotonic_ns()
        if self._socket is None and turns:
            look_s = max(TICK_S, (self._next_look_ns - now_ns) / 1e9)
            return min(look_s, WATCH_S) if self._looping else look_s
        if self._socket is not None and now_ns - self._progress_ns > STUCK_NS + self._gather_s * 1e9:
            return pause_s(turns, STUCK_TICKS * TICK_S)
        return pause_s(turns, TICK_S if self._outbox.holding or self._hurried else self._gather_s or TICK_S)

    @property
    def _awaited(self) -> bool:
        """Somebody waits for events, and the collector takes them."""
        taken = self._socket is not None and monotonic_ns() - self._progress_ns <= STUCK_NS
        return taken and not self._gather_s and not self._outbox.holding

    @property
    def _hurried(self) -> bool:
        """Events are not to come together now: there are many, or an answer is waited for."""
        return self._stopping or bool(self._answers) or self._outbox.waiting >= BATCH

    def _turn(self, context: "zmq.Context[zmq.Socket[bytes]]", now_ns: int) -> None:
        self._looping = self._outbox.watch()
        if self._socket is None and now_ns >= self._next_look_ns:
            self._look(context, now_ns)
        if self._socket is None:
            return
        self._receive(self._socket, now_ns)
        if self._gather_s:
            self._outbox.gather(now_ns)
        batch = self._outbox.batch(now_ns)
        offered = None if batch is None else (batch.session, batch.sequence)
        if batch is None or offered != self._offered:
            # The wait begins with this turn: a script may have held the interpreter since the last one.
            self._offered, self._progress_ns = offered, now_ns
        if _is(self._socket, zmq.POLLOUT):
            due = now_ns >= self._due_ns or self._hurried
            if batch and due and self._sent != offered and self._send(self._socket, batch):
                self._sent = offered
                self._due_ns = now_ns + round(self._gather_s * 0.9e9)
            for ask in self._outbox.asks(now_ns):
                self._send(self._socket, ask)
        if now_ns - self._progress_ns > self._patience_ns + self._gather_s * 1e9:
            self._hang_up(self._socket)

    def _look(self, context: "zmq.Context[zmq.Socket[bytes]]", now_ns: int) -> None:
        there = [path for path in self._candidates if os.access(path, os.W_OK) and trusted(path)]
        self._found = self._found or bool(there)
        self.absent = not self._found
        if not there:
            self._next_look_ns = now_ns + LOOK_NS
            self._path = None
            cure = "training goes on unmeasured. Start one with `zeus-stream collect`."
            self._say("collector", f"{self._no_collector()}: {cure}")
            return
        # One that did not answer may be the socket file of a dead collector: then it is the other's turn.
        self._path = there[self.reconnects % len(there)]
        self._socket = context.socket(zmq.DEALER)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.IMMEDIATE, 1),  # nothing is queued for a collector that is not there
            (zmq.SNDHWM, DRAIN),
            (zmq.RCVHWM, DRAIN),
            (zmq.MAXMSGSIZE, codec.MAX_BYTES),
            (zmq.RECONNECT_IVL, 50),
            (zmq.HANDSHAKE_IVL, 5_000),
        ):
            self._socket.setsockopt(option, value)
        self._socket.connect(endpoint(self._path))
        self._sent = None
        self._progress_ns = now_ns

    def _hang_up(self, socket: "zmq.Socket[bytes]") -> None:
        socket.close(linger=0)
        self._socket = None
        self.reconnects += 1
        self._patience_ns = min(2 * self._patience_ns, MOST_PATIENCE_NS)
        self._say(
            "silence",
            f"the collector at {self._path} takes in nothing: training goes on, and its events are kept while"
            " there is room. `zeus-stream status` says why. If it has ended: `zeus-stream collect`.",
        )

    def _send(self, socket: "zmq.Socket[bytes]", message: Batch | Ask | AskTry) -> bool:
        try:
            socket.send(codec.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _receive(self, socket: "zmq.Socket[bytes]", now_ns: int) -> None:
        for _ in range(DRAIN):
            if not _is(socket, zmq.POLLIN):
                return
            try:
                data = socket.recv_multipart(zmq.NOBLOCK)[-1]
                message: Ack | Answer | Advice | No = codec.decode(data, Ack, Answer, Advice, No)
            except MalformedError as wrong:
                self.errors += 1
                self._say("malformed", f"the collector at {self._path} was not understood: {wrong}")
                continue
            match message:
                case Ack():
                    self._gather_s = message.gather_ms / 1e3
                    if self._outbox.acknowledge(message):
                        self._progress_ns, self._patience_ns = now_ns, PATIENCE_NS
                case Answer(question) | Advice(question):
                    self._outbox.answered(question)
                    if (box := self._answers.get(question)) is not None:
                        box.put(message)
                case No(reason):
                    self._say("refused", f"the collector at {self._path} refused what was sent: {reason}")


def _is(socket: "zmq.Socket[bytes]", ready: int) -> bool:
    events = socket.getsockopt(zmq.EVENTS)
    return isinstance(events, int) and bool(events & ready)
