"""The clocks of one run's GPUs: asked for, in force, lost, given back. Pure."""

from collections import deque
from collections.abc import Iterable

from analyzers.dispatch.pending import Pending
from analyzers.fleet.fleet import Clocks, Fleet
from analyzers.results.instructions import ApplyControl, ApplyPlan, Command, RestoreControl
from analyzers.results.result import Result, in_order
from zeus_stream.protocol.notes import ControlApplied, ControlRefused


class HeldClocks:
    """The clocks that one run holds, and its commands without outcome."""

    def __init__(self, run: str, fleet: Fleet, pending: Pending) -> None:
        """``pending``: remembers commands until they have an outcome."""
        self.now: Clocks = {}
        """By host: frame time of the event under way."""
        self.set_ns: dict[str, int] = {}
        """By host: when its last clock was set."""
        self._calls_us: deque[int] = deque(maxlen=1_000)
        """The driver's calls that set a clock."""
        self._run, self._fleet, self._pending = run, fleet, pending
        self._waiting: dict[str, str] = {}
        """By command without outcome: its GPU."""
        self._held: dict[str, None] = {}
        self._count = 0

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    @property
    def call_s(self) -> float:
        """Return what nine in ten of the driver's calls that set a clock take at most, s; 0: not known."""
        calls = sorted(self._calls_us)
        return calls[9 * len(calls) // 10] / 1e6 if calls else 0.0

    def name(self, session: str, gpu: str) -> str:
        """Return the next command's id: the same when the stream is interpreted again."""
        self._count += 1
        return f"{self._run[:100]}/{session[:8]}-clock{self._count}/{gpu[-12:]}"

    def ask(self, commands: Iterable[ApplyControl | ApplyPlan]) -> Result:
        """Return commands as rows and instructions. Outcomes of earlier ones are awaited no more."""
        asked = tuple(commands)
        self._waiting = {command.command: command.gpu for command in asked}
        return self._send(asked)

    def _send(self, commands: Iterable[Command]) -> Result:
        return in_order(
            [Result((self._pending.ask(each, self._run, self.now[each.host]),), (each,)) for each in commands]
        )

    def settle(self, host: str, note: ControlApplied | ControlRefused) -> bool:
        """Take in the outcome of a command. False: it is not awaited."""
        if self._waiting.pop(note.command, None) is None:
            return False
        if isinstance(note, ControlApplied):
            self._held[note.gpu] = None
            if note.took_us:
                self._calls_us.append(note.took_us)
            self.set_ns[host] = max(note.t_ns, self.set_ns.get(host, 0))
        return True

    def lose(self, gpu: str) -> bool:
        """Take in that a lease ended. False: it was not held, or the GPU has been asked again since."""
        if gpu not in self._held:
            return False
        del self._held[gpu]
        return gpu not in self._waiting.values()

    def give_back(self, session: str) -> Result:
        """Return commands that unlock every clock that is held or may be by now."""
        held = self._held | dict.fromkeys(self._waiting.values())
        self._held, self._waiting = {}, {}
        commands = [
            RestoreControl(
                command=self.name(session, gpu),
                run=self._run,
                host=self._fleet.gpus[gpu].host,
                gpu=gpu,
                control="graphics_clock",
            )
            for gpu in held
        ]
        return self._send(commands)
