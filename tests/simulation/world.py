"""A site whose frames the interpreter gets at once, and whose hosts obey it: real decisions, nothing fails.

Training (steps that feel the limit) --events--> Host (devices, sampler, log) --frames--> Interpreter
                                                  ^------------- commands ---------------------'
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import TypeVar

from msgspec.structs import replace

from analyzers.interpreter.interpreter import Interpreter, Logged, ProgressAsked
from analyzers.power_limit import selectors
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.result import ApplyControl, GiveAnswer, Instruction, RestoreControl
from analyzers.results.rows import Row, each_row
from collectors.devices.simulated_spec import Spec, parse
from collectors.sampling import sampled_device, schedule
from tests.messages import RUN_STARTED
from tests.simulation.simulated_site import START_NS, Gpu, Host, Site, Training, collector_started
from zeus_stream.protocol.events import Ask, AskTry, Event
from zeus_stream.protocol.fields import UNLOCKED
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import (
    Cause,
    ControlApplied,
    ControlRefused,
    Note,
    Notes,
    RunAdmitted,
    SessionEnded,
)
from zeus_stream.protocol.readings import Readings, Seen

BEGIN_NS = START_NS + 1_000_000_000
"""The training begins."""
FLUSH_NS = 20_000_000
"""Publishers and samplers hand over this often."""
COMMAND_NS = 2_000_000
"""From an instruction to its outcome."""

Output = Row | Instruction
R = TypeVar("R")


def outputs_of(interpreter: Interpreter, frame: Frame, body: Body, *, hurried: bool = False) -> list[Output]:
    """Return what a frame gives: rows, then instructions. What has to hold after it is checked."""
    rows, instructions = interpreter.handle(Logged(frame, body, hurried), frame.t_ns)
    interpreter.validate()
    return [*each_row(rows), *instructions]


def replayed(interpreter: Interpreter, frames: Iterable[tuple[Frame, Body]]) -> list[Output]:
    """Return what frames give, in order."""
    return [output for frame, body in frames for output in outputs_of(interpreter, frame, body)]


def asked(interpreter: Interpreter, host: str, ask: Ask | AskTry) -> list[Output]:
    """Return what a question of a script gives at once."""
    rows, instructions = interpreter.handle(ProgressAsked(host, ask), interpreter.frame_ns(host))
    return [*each_row(rows), *instructions]


class WatchedHost(Host):
    """A host and its collector, as far as an analyzer can tell."""

    def __init__(self, world: "World", name: str, device: str | Sequence[Spec], offset_ns: int) -> None:
        self._events: list[Event] = []
        specs = parse(device) if isinstance(device, str) else device
        super().__init__(world, name, specs, self._events.append, offset_ns=offset_ns)
        self._world = world
        self._polls = {name: schedule.Schedule(self.now()) for name in self.gpus}
        self._rows = bytearray()
        self._offset = count()
        self._sequence = 0
        self._attempt = 0

    @property
    def session(self) -> str:
        return f"session-{self.name}" + (f"-{self._attempt}" if self._attempt else "")

    def restart(self) -> None:
        """Let the next training process of this host be another session."""
        self._attempt += 1
        self._sequence = 0

    def start(self) -> None:
        """Find the devices and begin to read them."""
        self.note(collector_started(self.now(), self.now()))
        for gpu in self.gpus.values():
            self.note(gpu.found(self.now(), gpu.found_mw))
            self._poll(gpu)
        self._flush()

    def admit(self, training: Training, rank: int, world_size: int) -> None:
        """Let the training's process begin."""
        now_ns, gpus = self.now(), tuple(self.gpus)
        started = replace(
            RUN_STARTED,
            t_ns=now_ns,
            job=training.job,
            run=training.run,
            rank=rank,
            world_size=world_size,
            gpus=gpus,
            wall_ns=now_ns,
            batch_size=training.batch_size,
        )
        self.publish(started)
        self.flush_events()
        reason = "" if training.may_command else "Insufficient Permissions. Run the collector as root."
        self.note(
            RunAdmitted(
                t_ns=now_ns,
                session=self.session,
                run=training.run,
                gpus=gpus,
                may_command=training.may_command,
                reason=reason,
            )
        )

    def die(self) -> None:
        """The training process of this host is killed."""
        self.stop_work(self._world.training.workload)
        self.flush_events()
        self.note(SessionEnded(self.now(), self.session, "killed by signal 9"))

    def note(self, note: Note) -> None:
        """The collector logs a note."""
        self.log(Notes((note,)))

    def log(self, body: Body) -> None:
        """Log a frame and have it heard."""
        frame = Frame(
            log_id=f"log-{self.name}",
            offset=next(self._offset),
            host=self.name,
            t_ns=self.now(),
            topic="topic",
            body=b"",
        )
        self._world.hear(frame, body)

    def set_limit(self, gpu: str, limit_mw: int) -> None:
        """Set a limit as anybody on the host may."""
        self.gpus[gpu].device.set_control("power_limit", limit_mw)

    def flush_events(self) -> None:
        if events := tuple(self._events[:1000]):
            del self._events[:1000]
            self.log(Events(self.session, self._sequence, 0, 1, events))
            self._sequence += len(events)

    def _poll(self, gpu: Gpu) -> None:
        name, before_ns = gpu.device.gpu, self.now()
        reading = gpu.sample(before_ns)
        if reading is not None:
            self._rows += sampled_device.pack(reading, list(self.gpus).index(name))
        change = None
        if reading is not None and reading.seen == Seen.CHANGED:
            change = reading.t_lo_ns, reading.t_hi_ns
        polls = self._polls[name] = schedule.was_read(self._polls[name], gpu.state.period_ns, change)
        self._world.at(schedule.next_poll_ns(polls, before_ns) - self._offset_ns, lambda: self._poll(gpu))

    def _flush(self) -> None:
        self.flush_events()
        if self._rows:
            rows = bytes(self._rows)
            self._rows.clear()
            self.log(Readings(tuple(self.gpus), rows))
        self._world.at(self._world.now_ns + FLUSH_NS, self._flush)


QUICK = RunSettings(
    selector=selectors.parse("energy"), stride_mw=75_000, warmup_steps=2, profile_steps=5, settle_ns=0,
    refreshes=2, exhaustive=True,
)  # fmt: skip
"""Every limit is measured, a few steps each."""


class World(Site[WatchedHost]):
    """A site, and the interpreter that follows it.

    Args:
        device: of the first host, e.g. ``simulated:v100x1``, or what its GPUs are like.
        refuse: limits (mW) that no device takes, and the cause.
        more: further hosts, their device and the offset of their clock, ns.
        host: of their names, before the number.
        late: hosts, the last ones, whose rank is not there until `join`.
        hurried: the analyzer is behind all the time.
        command_ns: from an instruction to its outcome.
    """

    def __init__(
        self,
        device: str | Sequence[Spec],
        training: Training,
        plan: RunSettings,
        *,
        seed: int = 0,
        refuse: Mapping[int, Cause] | None = None,
        more: tuple[tuple[str | Sequence[Spec], int], ...] = (),
        late: int = 0,
        host: str = "h",
        hurried: bool = False,
        command_ns: int = COMMAND_NS,
    ) -> None:
        super().__init__(training, seed)
        self._hurried, self._command_ns = hurried, command_ns
        self.interpreter = Interpreter(plan)
        self.outputs: list[Output] = []
        self.frames: list[tuple[Frame, Body]] = []
        self.answers: list[GiveAnswer] = []
        self._refuse = dict(refuse or {})
        self.rounding_mw = 0
        """The driver rounds a limit up to a multiple of this."""
        self.hosts = [WatchedHost(self, f"{host}{i}", *its) for i, its in enumerate(((device, 0), *more))]
        self.ranks = self.hosts[: len(self.hosts) - late]
        for each in self.hosts:
            each.start()
        self.at(BEGIN_NS, self._begin)

    def run(self, seconds: float = float("inf")) -> None:
        """Let time pass, until the training has ended and its readings have arrived."""
        until_ns = self.now_ns + seconds * 1e9
        while self._due and self._due[0][0] <= until_ns:
            if self.ended and self.now_ns > self._since_ns + 1_000_000_000:
                return
            self.do_next()

    def hear(self, frame: Frame, body: Body) -> None:
        """Have the interpreter hear a frame, and carry out what it wants."""
        self.frames.append((frame, body))
        outputs = outputs_of(self.interpreter, frame, body, hurried=self._hurried)
        self.outputs += outputs
        for output in outputs:
            if isinstance(output, ApplyControl | RestoreControl):
                self.at(self.now_ns + self._command_ns, lambda command=output: self._obey(command))  # type: ignore[misc]  # mypy cannot type a lambda's default
            elif isinstance(output, GiveAnswer):
                self.answers.append(output)

    def rows(self, kind: type[R]) -> list[R]:
        """Return the outputs of a kind."""
        return [output for output in self.outputs if isinstance(output, kind)]

    def limits_mw(self) -> list[int]:
        """Return every GPU's limit."""
        return [
            gpu.device.read_control("power_limit") or 0 for host in self.hosts for gpu in host.gpus.values()
        ]

    def kill(self) -> None:
        """Every training process dies."""
        self._stop()
        for host in self.ranks:
            host.die()

    def restart(self, step: int) -> None:
        """The training was killed, and goes on from this step in new processes of the same run."""
        self.ended, self.step = False, step
        for host in self.ranks:
            host.restart()
        self.at(self.now_ns, self._begin)

    def kill_rank(self, rank: int) -> None:
        """One training process dies, and the others go on without it."""
        self._advance()
        host = self.hosts[rank]
        host.die()
        self.ranks.remove(host)
        self._go_on()

    def join(self) -> None:
        """The next late rank is there: it takes part from the next step on."""
        host = self.hosts[len(self.ranks)]
        host.admit(self.training, len(self.ranks), len(self.hosts))
        self.ranks.append(host)

    # ---- the collector's part

    def _obey(self, command: ApplyControl | RestoreControl) -> None:
        host = next(host for host in self.hosts if host.name == command.host)
        gpu = host.gpus[command.gpu]
        is_limit, sets = command.control == "power_limit", isinstance(command, ApplyControl)
        found = gpu.found_mw if is_limit else UNLOCKED
        value = command.value if isinstance(command, ApplyControl) else found
        cause = self._refuse.get(value) or ("range" if value > found else None)
        if is_limit and sets and cause:
            refused = f"it is refused: {cause}"
            host.note(ControlRefused(host.now(), command.command, command.gpu, cause, refused))
            return
        self._advance()
        if is_limit and sets and self.rounding_mw:
            value = min(-(-value // self.rounding_mw) * self.rounding_mw, found)
        gpu.device.set_control(command.control, value)
        host.note(ControlApplied(host.now(), command.command, command.gpu, command.control, value))
        self._go_on()

    def _begin(self) -> None:
        for rank, host in enumerate(self.ranks):
            host.admit(self.training, rank, len(self.hosts))
        self._begin_loop()
