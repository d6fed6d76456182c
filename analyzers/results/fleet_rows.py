"""Rows of runs, GPUs and the commands that they were given. Pure.

Times are CLOCK_MONOTONIC ns of ``host``; names with ``wall`` are UTC.
"""

from typing import ClassVar

from msgspec import Struct

from analyzers.results.table import Computed, Table
from zeus_stream.protocol.fields import Control


class RunRow(Struct, frozen=True, kw_only=True):
    """One row a session: one rank of a run."""

    TABLE: ClassVar = Table(
        "sessions",
        ("session",),
        computed=(
            Computed("began_at", "wall_error_ns", "UTC"),
            Computed("ended_at", "began_at", "UTC"),
        ),
    )

    session: str
    """one process of the run"""
    run: str
    """one training"""
    job: str
    """what recurs"""
    rank: int
    """from 0"""
    world_size: int
    """number of ranks. 0: it only measured windows (``zeus-stream measure``), and has none of kind ``run``"""
    host: str
    """where its process runs"""
    pid: int
    """its process"""
    uid: int | None
    """its user, as the kernel says"""
    gpus: tuple[str, ...]
    """list of UUIDs"""
    boundary: str
    """how step ends are placed where that is possible: ``device`` by the GPU's timing events, ``dispatch`` by
    host time of the Python loop; each boundary in ``events`` says its own"""
    began_ns: int
    """begin, on the host's clock"""
    ended_ns: int | None
    """end; NULL while it runs"""
    began_wall_ns: int
    """UTC at ``began_ns``, ns since 1970"""
    wall_error_ns: int
    """bound of the error of ``began_wall_ns``"""
    ended_how: str | None
    """``ended`` (in order), the exception that ended the script, or the collector's reason. The run
    ``RUN/command`` has the exit code or signal of a command of ``zeus-stream run`` that failed"""
    may_command: bool
    """whether its limits may be changed"""
    command_reason: str
    """why they may not"""
    batch_size: int | None = None
    """samples of one rank's batch; NULL: not known"""
    start: int | None = None
    """start of the analyzer at which the run began: it keeps to those ``settings`` until it ends"""


class AllocationRow(Struct, frozen=True, kw_only=True):
    """The GPUs of one host that a batch system gave to a job, with their energy from begin to end.

    A job on several hosts has a row for each. It need not know zeus-stream.
    """

    TABLE: ClassVar = Table(
        "allocations",
        ("session",),
        computed=(Computed("began_at", "ended_wall_ns", "UTC"), Computed("ended_at", "began_at", "UTC")),
    )

    session: str
    """its name in ``events``"""
    job_id: str
    """as the batch system numbers the job; each task of an array has one of its own"""
    array_task: str | None
    """job and task of an array, JOB_TASK; NULL: it is none"""
    name: str | None
    """that the user gave the job; NULL: not known, as for `partition`"""
    uid: int
    """the user's number"""
    user_name: str
    """the user's name"""
    partition: str | None
    restarts: int
    """how often the job was requeued before"""
    node: str
    """the host, as the batch system names it"""
    host: str
    """the host, as its collector names it"""
    gpus: tuple[str, ...]
    """list of UUIDs; a GPU that several jobs share counts whole in each"""
    began_wall_ns: int
    """UTC, ns since 1970"""
    ended_wall_ns: int | None
    """UTC, ns since 1970; NULL while the job has them"""
    duration_s: float | None
    """seconds; NULL: not measured yet, as for the energy"""
    energy_j: float | None
    """joules of all its GPUs; NULL: not measured, for the reason in ``quality``"""
    energy_low_j: float | None
    """hard bounds by the counters; NULL where a counter has none"""
    energy_high_j: float | None
    energy_p2_5_j: float | None
    """the 95 % interval; errors of GPUs are independent"""
    energy_p97_5_j: float | None
    quality: str
    """``ok``, or what is to be known of the energy, as in `windows`; empty: the job goes on"""


class ForecastRow(Struct, frozen=True, kw_only=True):
    """A forecast of a whole run, made at the end of an epoch or of a block of steps."""

    TABLE: ClassVar = Table("forecasts", ("run", "step"))

    run: str
    """whose it is"""
    step: int
    """steps that were measured by then"""
    made_wall_ns: int
    """when: UTC, ns since 1970"""
    epochs_done: int
    """epochs that had ended"""
    epochs: int | None
    """of the whole run, as the script says; NULL: it says steps only"""
    steps: int
    """of the whole run, as the script says, or as its epochs had"""
    power_limit_w: float | None
    """watts: steps at this limit were taken for those to come; NULL: limits differ or are not known"""
    spent_j: float | None
    """joules of all its GPUs until then; NULL: not measured"""
    spent_s: float
    """seconds since it began"""
    energy_j: float | None
    """forecast of the whole run: what is spent and what is to come; NULL: not known"""
    energy_p2_5_j: float | None
    """its 95 % interval, from the scatter of steps and epochs; NULL: one epoch has no scatter"""
    energy_p97_5_j: float | None
    duration_s: float | None
    """forecast of its duration, and the 95 % interval"""
    duration_p2_5_s: float | None
    duration_p97_5_s: float | None


class GpuRow(Struct, frozen=True, kw_only=True):
    """GPUs, and the CPUs and their memory beside them (``CPU-HOST-package-0``, ``DRAM-HOST-package-0``)."""

    TABLE: ClassVar = Table("gpus", ("gpu",))

    gpu: str
    """UUID"""
    host: str
    """where it was last"""
    index: int
    """its number in PCI order"""
    name: str
    """its model"""
    driver: str
    """version of its driver"""
    counts_energy: bool
    """it has an energy counter; otherwise energy is integrated from power"""
    min_limit_w: float | None
    """watts, as the device says"""
    max_limit_w: float | None
    default_limit_w: float | None
    found_limit_w: float | None
    """watts: the limit before any change of ours, which is never exceeded"""
    mig: bool
    """it is divided; energy is that of the whole"""
    period_ms: float | None
    """between changes of its counter, as observed: median of recent changes"""
    counter_kind: str | None
    """``integrating``, ``boxcar`` (it sees only the last ``sensor_window_ms`` of each period) or ``power``
    (there is no counter); NULL: not known until the load has varied for some seconds"""
    sensor_window_ms: float | None
    """see ``counter_kind``"""
    gone: str | None
    """why it is not there at present; NULL: it is"""
    scope: str = "gpu"
    """``gpu``, or ``module``: its figures include the CPU beside it (Grace Hopper)"""
    tenants: tuple[str, ...] = ()
    """UUIDs of its MIG instances, as of when it was opened"""
    sensor_gain: float | None = None
    """watts that its sensor shows for each true watt: by ``zeus-stream calibrate``, else the middle of what
    is published of such sensors. A calibrated gain is taken out of all windows from then on, another never;
    NULL: nothing is known"""
    sensor_gain_error: float | None = None
    """half of its 95 % interval. No interval of a window includes it: `true_energy` does"""
    sensor_calibrated: bool | None = None
    """the gain was fitted against a meter; NULL: the row is older than this column"""
    sensor_gain_source: str | None = None
    """the meter's record, or what is published"""


class CommandRow(Struct, frozen=True, kw_only=True):
    """A command for a control of a GPU, and its outcome. The outcome replaces the row without one."""

    TABLE: ClassVar = Table("commands", ("command",))

    command: str
    """its id"""
    run: str
    """whose it is; begins with ``budget:`` where a power budget sets the limit. Such a row is there once it
    has its outcome"""
    gpu: str
    """UUID"""
    control: Control = "power_limit"
    """``power_limit``, ``graphics_clock`` or ``memory_clock``"""
    asked_ns: int
    """when it was asked for, on the host's clock"""
    limit_w: float | None
    """watts asked for; NULL: a release, or another control"""
    clock_mhz: int | None = None
    """MHz asked for, of a plan its highest; NULL: a release, or another control"""
    outcome: str | None
    """``applied`` or ``refused``; NULL: under way"""
    outcome_ns: int | None
    """when that was"""
    outcome_limit_w: float | None
    """watts in force then; NULL: refused, or another control"""
    reason: str
    """why it was refused"""
    plan: int | None = None
    """number of the plan of a pipeline, as in ``plans``, that the GPU's clock is to follow; NULL: another
    command"""
    plan_changes: int | None = None
    """changes of the clock in each iteration by that plan, which the collector makes without a command"""


class CheckpointRow(Struct, frozen=True, kw_only=True):
    """The state of the analyzer's machines, from which a restart goes on. There is only the latest."""

    TABLE: ClassVar = Table("checkpoints", ("name",))

    name: str
    """whose machines: ``analyzer``"""
    number: int
    """of this start, from 1"""
    start: int
    """of the analyzer that wrote it, see ``settings``"""
    wall_ns: int
    """UTC when it was taken, ns since 1970"""
    code: str
    """digest of the classes that it consists of; where they have changed, the streams are replayed instead"""
    runs: tuple[str, ...]
    sessions: tuple[str, ...]
    """that are open"""
    log_ids: tuple[str, ...]
    """the logs that it stands in"""
    offsets: tuple[int, ...]
    """in each of these logs, the frame that comes next"""
    state: bytes
    """of the machines"""
    live: bytes
    """of the screens"""
    signature: bytes
    """HMAC-SHA256 of the other columns by the key of the state directory; another one is not read"""


class OwnUseRow(Struct, frozen=True, kw_only=True):
    """The use of collectors and the analyzer themselves: a row a minute, one more at the end of a run.

    A service has the share of the energy of its host's CPUs and memory that it has of their processor time.
    The lower estimate takes the time of all processors, idle or not; the higher one that of those at work. So
    it gives a service its part of what the host draws at rest.
    """

    TABLE: ClassVar = Table(
        "own_use",
        ("host", "service", "began_wall_ns"),
        computed=(Computed("began_at", "ended_wall_ns", "UTC"), Computed("ended_at", "began_at", "UTC")),
    )

    host: str
    """where the service runs"""
    service: str
    """``collector`` or ``analyzer``, with its child processes"""
    began_wall_ns: int
    """UTC, ns since 1970"""
    ended_wall_ns: int
    """UTC, ns since 1970"""
    duration_s: float
    """seconds"""
    cpu_s: float
    """its processor time, seconds"""
    host_cpu_s: float | None
    """processor time of everything on the host; NULL: not known"""
    processors: int
    """of the host"""
    host_energy_j: float | None
    """joules of its CPUs and memory in that time, by RAPL; NULL: not readable. An analyzer may not read it:
    it has the mean power of the last record of the collector beside it"""
    energy_low_j: float | None
    """lower estimate of its own joules: ``host_energy_j * cpu_s / (processors * duration_s)``"""
    energy_high_j: float | None
    """higher estimate: ``host_energy_j * cpu_s / host_cpu_s``"""
    reason: str
    """why there are no joules; else empty"""


class EarlierUse(Struct, frozen=True):
    """A run's use of GPUs of a host that was over when the analyzer started."""

    host: str
    run: str
    gpus: tuple[str, ...]
    began_ns: int
    ended_ns: int
