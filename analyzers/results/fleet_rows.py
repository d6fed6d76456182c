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
            Computed("began_at", "wall_error_ns", "began_wall_ns", help="UTC"),
            Computed("ended_at", "began_at", "began_wall_ns + ended_ns - began_ns"),
        ),
    )

    session: str
    """one process of the run"""
    run: str
    """its name, and that of what recurs"""
    job: str
    rank: int
    """from 0"""
    world_size: int
    """ranks. 0: it only measured windows (``zeus-stream measure``), and has none of kind ``run``"""
    host: str
    """of its process"""
    pid: int
    uid: int | None
    """of its user, as the kernel says"""
    gpus: tuple[str, ...]
    """UUIDs"""
    boundary: str
    """how step ends are placed where possible: ``device`` by timing events of the GPU, ``dispatch`` by the
    Python loop; ``events`` has each"""
    began_ns: int
    """on the host's clock"""
    ended_ns: int | None
    """NULL while it runs"""
    began_wall_ns: int
    """at ``began_ns``"""
    wall_error_ns: int
    """bound of its error"""
    ended_how: str | None
    """``ended`` (in order), the exception, or the collector's reason. The run ``RUN/command`` has the exit
    code or signal of a command of ``zeus-stream run`` that failed"""
    may_command: bool
    """its limits may be changed"""
    command_reason: str
    """why they may not"""
    batch_size: int | None = None
    """samples of one rank's batch"""
    start: int | None = None
    """number in ``settings`` of those that the run keeps to"""
    cgroup: str | None = None
    """cgroup of its process; NULL: it cannot be seen"""
    namespace: str | None = None
    """that the kubelet has given its GPUs to; NULL: it is in no pod, or `gaps` says why that is not known"""
    pod: str | None = None
    container: str | None = None


class AllocationRow(Struct, frozen=True, kw_only=True):
    """The GPUs of one host that a batch system gave to a job, with their energy; a row for each host."""

    TABLE: ClassVar = Table(
        "allocations",
        ("session",),
        computed=(
            Computed("began_at", "ended_wall_ns", "began_wall_ns"),
            Computed("ended_at", "began_at", "ended_wall_ns"),
        ),
    )

    session: str
    """its name in ``events``"""
    job_id: str
    """as the batch system numbers the job; each task of an array has one of its own"""
    array_task: str | None
    """JOB_TASK; NULL: it is none"""
    name: str | None
    """of the job, its user and partition"""
    uid: int
    user_name: str
    partition: str | None
    restarts: int
    """how often the job was requeued before"""
    node: str
    """the host, as the batch system and as its collector names it"""
    host: str
    gpus: tuple[str, ...]
    """a GPU that several jobs share counts whole in each"""
    began_wall_ns: int
    """NULL while the job has them"""
    ended_wall_ns: int | None
    duration_s: float | None
    """NULL: not measured yet"""
    energy_j: float | None
    """of all its GPUs, as in ``windows``"""
    energy_low_j: float | None
    energy_high_j: float | None
    energy_p2_5_j: float | None
    energy_p97_5_j: float | None
    quality: str
    """as in ``windows``; empty: the job goes on"""


class ForecastRow(Struct, frozen=True, kw_only=True):
    """A forecast of a whole run, made at the end of an epoch or of a block of steps."""

    TABLE: ClassVar = Table("forecasts", ("run", "step"))

    run: str
    """as in ``runs``"""
    step: int
    """that were done when it was made"""
    made_wall_ns: int
    """when it was made"""
    epochs_done: int
    """epochs that had ended"""
    epochs: int | None
    """of the whole run, as the script says, or its epochs had; NULL: it says steps only"""
    steps: int
    power_limit_w: float | None
    """steps at this limit were taken for those to come; NULL: limits differ or are not known"""
    spent_j: float | None
    """of all its GPUs until then; NULL: not measured"""
    spent_s: float
    energy_j: float | None
    """of the whole run, spent and to come, with the 95 % interval; NULL: not known, as the interval is after
    one epoch"""
    energy_p2_5_j: float | None
    energy_p97_5_j: float | None
    duration_s: float | None
    duration_p2_5_s: float | None
    duration_p97_5_s: float | None


class GpuRow(Struct, frozen=True, kw_only=True):
    """GPUs, and parts of hosts: CPUs and their memory (``CPU-HOST-package-0``, ``DRAM-HOST-package-0``),
    and meters (``WALL-HOST-NAME``, ``SITE-HOST-NAME``)."""

    TABLE: ClassVar = Table("gpus", ("gpu",))

    gpu: str
    """UUID"""
    host: str
    """where it was last"""
    index: int
    """in PCI order"""
    name: str
    """its model"""
    driver: str
    """version"""
    counts_energy: bool
    """it has an energy counter; otherwise energy is integrated from power"""
    min_limit_w: float | None
    """as the device says"""
    max_limit_w: float | None
    default_limit_w: float | None
    found_limit_w: float | None
    """before any change of ours: never exceeded"""
    mig: bool
    """it is divided; energy is that of the whole"""
    period_ms: float | None
    """distance of its refreshes; NULL: reads leave some out, or have been few"""
    counter_kind: str | None
    """``integrating``, ``boxcar`` (it sees the last ``sensor_window_ms`` of each period) or ``power`` (no
    counter); NULL: not known until the load has varied for some seconds"""
    sensor_window_ms: float | None
    gone: str | None
    """why it is not there at present; NULL: it is"""
    scope: str = "gpu"
    """``gpu``, or ``module``: its figures include the CPU beside it (Grace Hopper)"""
    tenants: tuple[str, ...] = ()
    """its MIG instances when it was opened"""
    sensor_gain: float | None = None
    """watts that its sensor shows for each true watt, and half of the 95 % interval, which ``true_energy``
    includes and windows do not; NULL: nothing is known"""
    sensor_gain_error: float | None = None
    sensor_calibrated: bool | None = None
    """fitted against a meter (``zeus-stream calibrate``), and taken out of all windows from then on"""
    sensor_gain_source: str | None = None
    """the meter's record, or what is published"""
    power_profile: str | None = None
    """workload power profiles in force, ``none`` or like ``llm_training+max_q``; NULL: it has none"""


class CommandRow(Struct, frozen=True, kw_only=True):
    """A command for a control of a GPU, and its outcome. The outcome replaces the row without one."""

    TABLE: ClassVar = Table("commands", ("command",))

    command: str
    """its id"""
    run: str
    """whose it is; ``budget:...``: a power budget, whose rows appear with their outcome"""
    gpu: str
    control: Control = "power_limit"
    """``power_limit``, ``graphics_clock``, ``memory_clock`` or ``power_profile``"""
    asked_ns: int
    """on the host's clock"""
    limit_w: float | None
    """asked for, of a plan its highest clock; NULL: a release, or another control"""
    clock_mhz: int | None = None
    outcome: str | None
    """``applied`` or ``refused``; NULL: under way"""
    outcome_ns: int | None
    """when, and what was in force then; NULL: refused, or another control"""
    outcome_limit_w: float | None
    reason: str
    """why it was refused"""
    plan: int | None = None
    """of a pipeline (``plans``), which the collector follows without commands, and its changes of the clock
    an iteration; NULL: another command"""
    plan_changes: int | None = None


class CheckpointRow(Struct, frozen=True, kw_only=True):
    """The state of the analyzer's machines, from which a restart goes on. There is only the latest."""

    TABLE: ClassVar = Table("checkpoints", ("name",))

    name: str
    """``analyzer``, its start (``settings``), the checkpoint's number in it, and when"""
    number: int
    start: int
    wall_ns: int
    code: str
    """digest of the state classes; where they have changed, the streams are replayed instead"""
    runs: tuple[str, ...]
    """that are open"""
    sessions: tuple[str, ...]
    log_ids: tuple[str, ...]
    """the logs, and in each the frame that comes next"""
    offsets: tuple[int, ...]
    state: bytes
    """of the machines, and of the screens"""
    live: bytes
    signature: bytes
    """HMAC-SHA256 of the other columns by the key of the state directory"""


class OwnUseRow(Struct, frozen=True, kw_only=True):
    """The use of collectors and the analyzer themselves: a row a minute, one more at the end of a run.

    A service has the share of the energy of its host's CPUs and memory that it has of their processor time:
    of all processors, or of those at work, which gives it its part of what the host draws at rest.
    """

    TABLE: ClassVar = Table(
        "own_use",
        ("host", "service", "began_wall_ns"),
        computed=(
            Computed("began_at", "ended_wall_ns", "began_wall_ns"),
            Computed("ended_at", "began_at", "ended_wall_ns"),
        ),
    )

    host: str
    """``collector`` or ``analyzer``, with its child processes"""
    service: str
    began_wall_ns: int
    """UTC, and ns since 1970"""
    ended_wall_ns: int
    duration_s: float
    """seconds"""
    cpu_s: float
    """its processor time, and that of everything on the host"""
    host_cpu_s: float | None
    processors: int
    """of the host"""
    host_energy_j: float | None
    """of its CPUs and memory, by RAPL; an analyzer has the collector's last mean power; NULL: none"""
    energy_low_j: float | None
    """``host_energy_j * cpu_s``, over ``processors * duration_s`` and over ``host_cpu_s``"""
    energy_high_j: float | None
    reason: str
    """why there are no joules; else empty"""


class EarlierUse(Struct, frozen=True):
    """A run's use of GPUs of a host that was over when the analyzer started."""

    host: str
    run: str
    gpus: tuple[str, ...]
    began_ns: int
    ended_ns: int
