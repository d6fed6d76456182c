"""The whole pipeline without processes, sockets or waiting: arithmetic GPUs and training, real decisions.

    Training (steps that feel the limit) --events--> Host (devices, sampler, log) --frames--> Interpreter
                                                      ^------------- commands ---------------------'

Time is a number. Everything is one thread and one seed: the same world gives the same outputs. Each host
has a clock of its own.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TypeVar

from analyzers.interpreter import Asked, Interpreter, Logged
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.instructions import ApplyControl, GiveAnswer, Instruction, RestoreControl
from analyzers.results.rows import Row
from collectors.devices.simulated import Schedule, SimulatedDevice
from collectors.devices.simulated_spec import Spec, parse
from collectors.sampling import change_detector, schedule
from zeus_stream.protocol.events import (
    Ask,
    AskTry,
    EpochBegan,
    EpochEnded,
    Event,
    RunEnded,
    RunPlanned,
    RunStarted,
    StepBoundary,
    WindowBegan,
    WindowEnded,
)
from zeus_stream.protocol.fields import UNLOCKED
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import (
    Cause,
    CollectorStarted,
    ControlApplied,
    ControlRefused,
    DeviceFound,
    Note,
    Notes,
    RunAdmitted,
    SessionEnded,
)
from zeus_stream.protocol.readings import Readings, Seen
from zeus_stream.simulated_gpu.shared_memory import LimitChange, Load

START_NS = 1_000_000_000_000
"""The collectors start."""
BEGIN_NS = START_NS + 1_000_000_000
"""The training begins."""
READ_NS = 50_000
"""A read of a device takes this long."""
FLUSH_NS = 20_000_000
"""Publishers and samplers hand over this often."""
COMMAND_NS = 2_000_000
"""From an instruction to its outcome."""
HEARTBEAT_NS = 500_000_000

Output = Row | Instruction
R = TypeVar("R")


def outputs_of(interpreter: Interpreter, frame: Frame, body: Body, *, hurried: bool = False) -> list[Output]:
    """Return what a frame gives: rows, then instructions."""
    rows, instructions = interpreter.handle(Logged(frame, body, hurried), frame.t_ns)
    return [*rows, *instructions]


def replayed(interpreter: Interpreter, frames: Iterable[tuple[Frame, Body]]) -> list[Output]:
    """Return what frames give, in order."""
    return [output for frame, body in frames for output in outputs_of(interpreter, frame, body)]


def asked(interpreter: Interpreter, host: str, ask: Ask | AskTry) -> list[Output]:
    """Return what a question of a script gives at once."""
    rows, instructions = interpreter.handle(Asked(host, ask), interpreter.frame_ns(host))
    return [*rows, *instructions]


@dataclass(frozen=True, slots=True)
class Training:
    """What is trained. One rank a host, all in step: each GPU does its share, then waits for the others."""

    workload: str
    step_s: float
    """Of a step at the highest limit."""
    steps: int
    epoch_steps: int | None = None
    planned: tuple[int | None, int | None] | None = None
    """Epochs and steps, as the script says."""
    """Steps of an epoch; None: no epochs."""
    pause_s: float = 0.0
    """Between two epochs."""
    load_s: float = 0.0
    """Between two steps, the GPUs idle."""
    checkpoint_s: float = 0.0
    """A window ``checkpoint`` at the end of each epoch, in which the GPUs idle."""
    noise: float = 0.0
    """Relative standard deviation of a step's work."""
    heavier: tuple[int, float] | None = None
    """From this step on, steps hold so many times the work."""
    job: str = "job"
    run: str = "run"
    may_command: bool = True
    batch_size: int | None = None


@dataclass(slots=True)
class Gpu:
    device: SimulatedDevice
    loads: Schedule
    found_mw: int
    polls: schedule.Schedule
    left_s: float = 0.0
    """Its share of the step under way, at the highest limit."""
    state: change_detector.State = field(default_factory=change_detector.State)


class Host:
    """One host's collector, as far as an analyzer can tell."""

    def __init__(self, world: "World", name: str, device: str | Sequence[Spec], offset_ns: int) -> None:
        self.name = name
        self.gpus: dict[str, Gpu] = {}
        self._world = world
        self._offset_ns = offset_ns
        """Its clock against the world's."""
        self._rows = bytearray()
        self._events: list[Event] = []
        self._offset = count()
        self._sequence = 0
        self._attempt = 0
        for index, spec in enumerate(parse(device) if isinstance(device, str) else device):
            loads = Schedule(first=LimitChange(self.now() - 1_000_000_000, spec.model.default_limit_mw))
            made = SimulatedDevice(spec, index, loads, self.now, lambda _: None)
            polls = schedule.Schedule(self.now())
            self.gpus[made.gpu] = Gpu(made, loads, spec.model.default_limit_mw, polls)

    @property
    def session(self) -> str:
        return f"session-{self.name}" + (f"-{self._attempt}" if self._attempt else "")

    def restart(self) -> None:
        """Let the next training process of this host be another session."""
        self._attempt += 1
        self._sequence = 0

    def now(self) -> int:
        return self._world.now_ns + self._offset_ns

    def start(self) -> None:
        """Find the devices and begin to read them."""
        now_ns = self.now()
        self.note(
            CollectorStarted(
                t_ns=now_ns,
                incarnation="incarnation",
                version="0",
                boot_id="boot",
                wall_ns=now_ns,
                wall_error_ns=0,
                observe=False,
            )
        )
        for gpu in self.gpus.values():
            told = gpu.device.describe()
            self.note(
                DeviceFound(
                    t_ns=now_ns,
                    gpu=told.gpu,
                    index=told.index,
                    name=told.name,
                    driver=told.driver,
                    counts_energy=told.counts_energy,
                    min_limit_mw=told.min_limit_mw,
                    max_limit_mw=told.max_limit_mw,
                    default_limit_mw=told.default_limit_mw,
                    found_limit_mw=gpu.found_mw,
                    mig=False,
                    graphics_clocks_mhz=told.graphics_clocks_mhz,
                )
            )
            self._poll(gpu)
        self._flush()

    def admit(self, training: Training, rank: int, world_size: int) -> None:
        """Let the training's process begin."""
        now_ns, gpus = self.now(), tuple(self.gpus)
        started = RunStarted(
            t_ns=now_ns,
            job=training.job,
            run=training.run,
            rank=rank,
            world_size=world_size,
            gpus=gpus,
            pid=1,
            boot_id="boot",
            wall_ns=now_ns,
            wall_error_ns=0,
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
        for gpu in self.gpus.values():
            gpu.left_s = 0.0
            gpu.loads.pending.append(Load(self.now(), self.now(), self._world.training.workload))
        self.flush_events()
        self.note(SessionEnded(self.now(), self.session, "killed by signal 9"))

    def publish(self, event: Event) -> None:
        """The training process of this host has an event."""
        self._events.append(event)

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

    def work(self, workload: str) -> int:
        """Load every GPU with what is left of its share, from now on. Returns in how long all are done."""
        longest_ns = 0
        for gpu in self.gpus.values():
            for_ns = round(gpu.left_s * self.slowdown(gpu, workload) * 1e9)
            if for_ns > 0:
                gpu.loads.pending.append(Load(self.now(), self.now() + for_ns, workload))
            longest_ns = max(longest_ns, for_ns)
        return longest_ns

    def worked(self, workload: str, for_ns: int) -> None:
        """Take off what every GPU did in this time, at its limit."""
        for gpu in self.gpus.values():
            gpu.left_s = max(0.0, gpu.left_s - for_ns / 1e9 / self.slowdown(gpu, workload))

    def slowdown(self, gpu: Gpu, workload: str) -> float:
        limit_mw = gpu.device.read_control("power_limit") or 0
        locked_mhz = gpu.device.locked_mhz("graphics_clock")
        return gpu.device._spec.model.workloads[workload].slowdown(limit_mw, locked_mhz)

    def set_limit(self, gpu: str, limit_mw: int) -> None:
        """Set a limit as anybody on the host may."""
        self.gpus[gpu].device.set_control("power_limit", limit_mw)

    def flush_events(self) -> None:
        events, self._events = tuple(self._events[:1000]), self._events[1000:]
        if events:
            self.log(Events(self.session, self._sequence, 0, 1, events))
            self._sequence += len(events)

    def _poll(self, gpu: Gpu) -> None:
        before_ns = self.now()
        gpu.state, reading = change_detector.observe(
            gpu.state, gpu.device.sample(), before_ns, before_ns + READ_NS, HEARTBEAT_NS
        )
        if reading is not None:
            self._rows += change_detector.pack(reading, list(self.gpus).index(gpu.device.gpu))
        change = None
        if reading is not None and reading.seen == Seen.CHANGED:
            change = reading.t_lo_ns, reading.t_hi_ns
        gpu.polls = schedule.was_read(gpu.polls, gpu.state.period_ns, change)
        self._world.at(schedule.next_poll_ns(gpu.polls, before_ns) - self._offset_ns, lambda: self._poll(gpu))

    def _flush(self) -> None:
        self.flush_events()
        if self._rows:
            rows = bytes(self._rows)
            self._rows.clear()
            self.log(Readings(tuple(self.gpus), rows))
        self._world.at(self._world.now_ns + FLUSH_NS, self._flush)


class World:
    """Hosts, one training over all of them, and the interpreter that hears them.

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
        self._hurried, self._command_ns = hurried, command_ns
        self.now_ns = START_NS
        self.training = training
        self.interpreter = Interpreter(plan)
        self.outputs: list[Output] = []
        self.frames: list[tuple[Frame, Body]] = []
        self.answers: list[GiveAnswer] = []
        self.step = 0
        self.ended = False
        self._refuse = dict(refuse or {})
        self._rng = Random(seed)
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._since_ns = 0
        self._plan_of_step = 0
        self.hosts = [Host(self, f"{host}{i}", *its) for i, its in enumerate(((device, 0), *more))]
        self.ranks = self.hosts[: len(self.hosts) - late]
        """Hosts whose rank takes part."""
        for each in self.hosts:
            each.start()
        self.at(BEGIN_NS, self._begin)

    def at(self, t_ns: int, action: Callable[[], None]) -> None:
        """Have something done at a time of the world."""
        heapq.heappush(self._due, (t_ns, next(self._order), action))

    def run(self, seconds: float = float("inf")) -> None:
        """Let time pass, until the training has ended and its readings have arrived."""
        until_ns = self.now_ns + seconds * 1e9
        while self._due and self._due[0][0] <= until_ns:
            if self.ended and self.now_ns > self._since_ns + 1_000_000_000:
                return
            self.now_ns, _, action = heapq.heappop(self._due)
            action()

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
        self._plan_of_step += 1
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
        if command.control == "graphics_clock":
            value = command.value if isinstance(command, ApplyControl) else UNLOCKED
            self._advance()
            gpu.device.set_control("graphics_clock", value)
            note = ControlApplied(host.now(), command.command, command.gpu, "graphics_clock", value)
            host.note(note)
            self._go_on()
            return
        limit_mw = command.value if isinstance(command, ApplyControl) else gpu.found_mw
        cause = self._refuse.get(limit_mw) or ("range" if limit_mw > gpu.found_mw else None)
        if cause and isinstance(command, ApplyControl):
            host.note(
                ControlRefused(host.now(), command.command, command.gpu, cause, f"it is refused: {cause}")
            )
            return
        self._advance()
        host.set_limit(command.gpu, limit_mw)
        host.note(ControlApplied(host.now(), command.command, command.gpu, "power_limit", limit_mw))
        self._go_on()

    # ---- the training's part

    def _publish(self, event: Callable[[int], Event]) -> None:
        for host in self.ranks:
            host.publish(event(host.now()))

    def _begin(self) -> None:
        for rank, host in enumerate(self.ranks):
            host.admit(self.training, rank, len(self.hosts))
        self._begin_loop()

    def _begin_loop(self) -> None:
        if self.step == 0 and self.training.planned:
            plan = self.training.planned
            self._publish(lambda t_ns: RunPlanned(t_ns, *plan))
        if self.training.epoch_steps:
            epoch = self.step // self.training.epoch_steps
            self._publish(lambda t_ns: EpochBegan(t_ns, epoch))
        self._begin_step(None)

    def _begin_step(self, ended_ns: int | None) -> None:
        """``ended_ns``: world time at which the step before ended, if this is not the first of a loop."""
        step = self.step
        for host in self.ranks:
            shift_ns = host.now() - self.now_ns
            host.publish(StepBoundary(step, None if ended_ns is None else ended_ns + shift_ns, host.now()))
        training = self.training
        work_s = training.step_s * max(0.1, self._rng.gauss(1, training.noise))
        if training.heavier and step >= training.heavier[0]:
            work_s *= training.heavier[1]
        self._share(work_s)
        self._since_ns = self.now_ns
        self._go_on()

    def _share(self, work_s: float) -> None:
        """Give every GPU so much to do."""
        for host in self.ranks:
            for gpu in host.gpus.values():
                gpu.left_s = work_s

    def _advance(self) -> None:
        """Take off what was worked since, before a limit changes."""
        if self.working:
            for host in self.ranks:
                host.worked(self.training.workload, self.now_ns - self._since_ns)
            self._since_ns = self.now_ns

    @property
    def working(self) -> bool:
        return any(gpu.left_s > 0 for host in self.ranks for gpu in host.gpus.values())

    def _go_on(self) -> None:
        """Work at the step under way for as long as it takes under the limits in force now."""
        if not self.working:
            return
        self._plan_of_step += 1
        plan = self._plan_of_step
        for_ns = max(host.work(self.training.workload) for host in self.ranks)

        def end() -> None:
            if plan == self._plan_of_step:
                self._end_step()

        self.at(self.now_ns + for_ns, end)

    def _end_step(self) -> None:
        training, ended_ns = self.training, self.now_ns
        self._share(0.0)
        self.step += 1
        loop_over = training.epoch_steps is not None and self.step % training.epoch_steps == 0
        if self.step < training.steps and not loop_over:
            self.at(ended_ns + round(training.load_s * 1e9), lambda: self._begin_step(ended_ns))
            return
        step = self.step
        self._publish(lambda t_ns: StepBoundary(step, t_ns, None))
        if training.epoch_steps and training.checkpoint_s:
            number = step // training.epoch_steps
            self._publish(lambda t_ns: WindowBegan(t_ns, number, "checkpoint"))
            self.at(ended_ns + round(training.checkpoint_s * 1e9), lambda: self._end_checkpoint(number))
        else:
            self._end_loop()

    def _end_checkpoint(self, number: int) -> None:
        self._publish(lambda t_ns: WindowEnded(t_ns, number))
        self._end_loop()

    def _end_loop(self) -> None:
        training, ended_ns, step = self.training, self.now_ns, self.step
        if training.epoch_steps:
            epoch = (step - 1) // training.epoch_steps
            self._publish(lambda t_ns: EpochEnded(t_ns, epoch))
        if self.step < training.steps:
            self.at(ended_ns + round(training.pause_s * 1e9), self._begin_loop)
        else:
            self._publish(RunEnded)
            self._stop()

    def _stop(self) -> None:
        self._share(0.0)
        self.ended, self._since_ns = True, self.now_ns
