"""Hosts made of arithmetic, and one training over all of them, whose steps feel the limits of their GPUs.

Time is a number. Everything is one thread and one seed: the same site gives the same events. Each host has a
clock of its own. Who watches a site is said elsewhere: `world` calls the interpreter with what a collector
would log, `troubled_world` has processes that die.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from collectors.devices.simulated import SimulatedDevice
from collectors.devices.simulated_spec import Spec
from collectors.sampling import sampled_device
from tests.messages import COLLECTOR_STARTED
from tests.simulation.scheduled_loads import ScheduledLoads
from tests.simulation.virtual_time import VirtualTime
from zeus_stream.protocol.events import (
    EpochBegan,
    EpochEnded,
    Event,
    RunEnded,
    RunPlanned,
    StepBoundary,
    WindowBegan,
    WindowEnded,
)
from zeus_stream.protocol.notes import CollectorStarted, DeviceFound
from zeus_stream.simulated_gpu.shared_memory import LimitChange, Load

START_NS = 1_000_000_000_000
"""The collectors start."""
READ_NS = 50_000
"""A read of a device takes this long."""
HEARTBEAT_NS = 500_000_000


class Training(Struct, frozen=True):
    """A training: one rank a host, all in step: each GPU does its share, then waits for the others."""

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


class Gpu:
    """A simulated GPU, and what a collector knows of its counter."""

    def __init__(self, spec: Spec, index: int, now: Callable[[], int], found_mw: int) -> None:
        self.loads = ScheduledLoads(first=LimitChange(now() - 1_000_000_000, found_mw))
        self.device = SimulatedDevice(spec, index, self.loads, now, lambda _: None)
        self.model = spec.model
        self.found_mw = found_mw
        self.left_s = 0.0
        """Its share of the step under way, at the highest limit."""
        self.state = sampled_device.DetectorState()

    @property
    def requested_mw(self) -> int:
        """The limit that the driver would report, also while the GPU is lost."""
        self.device._learn()
        return self.device._draw.limit.limit_mw

    def slowdown(self, workload: str) -> float:
        locked_mhz = self.device.locked_mhz("graphics_clock")
        return self.model.workloads[workload].slowdown(self.requested_mw, locked_mhz)

    def sample(self, before_ns: int) -> sampled_device.Reading | None:
        """Read the device. Raises DeviceError."""
        self.state, reading = sampled_device.observe(
            self.state, self.device.sample(), before_ns, before_ns + READ_NS, HEARTBEAT_NS
        )
        return reading

    def found(self, t_ns: int, found_limit_mw: int) -> DeviceFound:
        """Return the note of a collector that has found the device. Raises DeviceError."""
        told = self.device.describe()
        return DeviceFound(
            t_ns=t_ns,
            gpu=told.gpu,
            index=told.index,
            name=told.name,
            driver=told.driver,
            counts_energy=told.counts_energy,
            min_limit_mw=told.min_limit_mw,
            max_limit_mw=told.max_limit_mw,
            default_limit_mw=told.default_limit_mw,
            found_limit_mw=found_limit_mw,
            mig=False,
            graphics_clocks_mhz=told.graphics_clocks_mhz,
        )


def collector_started(t_ns: int, wall_ns: int, incarnation: str = "incarnation") -> CollectorStarted:
    return replace(COLLECTOR_STARTED, t_ns=t_ns, incarnation=incarnation, wall_ns=wall_ns)


class Host:
    """A machine with GPUs that a training process loads."""

    def __init__(
        self,
        site: VirtualTime,
        name: str,
        specs: Sequence[Spec],
        publish: Callable[[Event], None],
        *,
        offset_ns: int = 0,
        found_mw: int | None = None,
    ) -> None:
        """Begin idle.

        Args:
            site: tells the time.
            name, specs: of the host, and of its GPUs.
            publish: takes in the events of its training process.
            offset_ns: of its clock against the site's.
            found_mw: the limit of its GPUs; None: the default.
        """
        self.name = name
        self.publish = publish
        self._site = site
        self._offset_ns = offset_ns
        made = [
            Gpu(spec, index, self.now, found_mw or spec.model.default_limit_mw)
            for index, spec in enumerate(specs)
        ]
        self.gpus = {gpu.device.gpu: gpu for gpu in made}

    def now(self) -> int:
        return self._site.now_ns + self._offset_ns

    def work(self, workload: str) -> int:
        """Load every GPU with what is left of its share, from now on. Returns in how long all are done."""
        longest_ns = 0
        for gpu in self.gpus.values():
            for_ns = round(gpu.left_s * gpu.slowdown(workload) * 1e9)
            if for_ns > 0:
                gpu.loads.pending.append(Load(self.now(), self.now() + for_ns, workload))
            longest_ns = max(longest_ns, for_ns)
        return longest_ns

    def worked(self, workload: str, for_ns: int) -> None:
        """Take off what every GPU did in this time, at its limit."""
        for gpu in self.gpus.values():
            gpu.left_s = max(0.0, gpu.left_s - for_ns / 1e9 / gpu.slowdown(workload))

    def stop_work(self, workload: str) -> None:
        """End what the GPUs were loaded with: their process is killed."""
        for gpu in self.gpus.values():
            gpu.left_s = 0.0
            gpu.loads.pending.append(Load(self.now(), self.now() + 1, workload))


H = TypeVar("H", bound=Host)


class Site(VirtualTime, Generic[H]):
    """Hosts, and one training: a rank a host, all in step."""

    def __init__(self, training: Training, seed: int = 0) -> None:
        super().__init__(START_NS)
        self.training = training
        self.hosts: list[H] = []
        self.ranks: list[H] = []
        """Hosts whose rank takes part."""
        self.step = 0
        self.ended = False
        self._rng = Random(seed)
        self._since_ns = 0
        self._plan = 0
        """Counts changes of what the training does next."""

    def _publish(self, event: Callable[[int], Event]) -> None:
        for host in self.ranks:
            host.publish(event(host.now()))

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
        self._plan += 1
        self._later(max(host.work(self.training.workload) for host in self.ranks), self._end_step)

    def _later(self, wait_ns: int, action: Callable[[], None]) -> None:
        """Have the training go on after a time, unless its step takes longer by then or it was stopped."""
        plan = self._plan
        self.at(self.now_ns + wait_ns, lambda: action() if plan == self._plan else None)

    def _end_step(self) -> None:
        training, ended_ns = self.training, self.now_ns
        self._share(0.0)
        self.step += 1
        loop_over = training.epoch_steps is not None and self.step % training.epoch_steps == 0
        if self.step < training.steps and not loop_over:
            self._later(round(training.load_s * 1e9), lambda: self._begin_step(ended_ns))
            return
        step = self.step
        self._publish(lambda t_ns: StepBoundary(step, t_ns, None))
        if training.epoch_steps and training.checkpoint_s:
            number = step // training.epoch_steps
            self._publish(lambda t_ns: WindowBegan(t_ns, number, "checkpoint"))
            self._later(round(training.checkpoint_s * 1e9), lambda: self._end_checkpoint(number))
        else:
            self._end_loop()

    def _end_checkpoint(self, number: int) -> None:
        self._publish(lambda t_ns: WindowEnded(t_ns, number))
        self._end_loop()

    def _end_loop(self) -> None:
        training, step = self.training, self.step
        if training.epoch_steps:
            epoch = (step - 1) // training.epoch_steps
            self._publish(lambda t_ns: EpochEnded(t_ns, epoch))
        if self.step < training.steps:
            self._later(round(training.pause_s * 1e9), self._begin_loop)
        else:
            self._publish(RunEnded)
            self._stop()

    def _stop(self) -> None:
        self._plan += 1
        self._share(0.0)
        self.ended, self._since_ns = True, self.now_ns
