"""What the interpreter derives from the stream: rows of the archive, and what it wants done.

Joules, watts and seconds: these are for people. Times are CLOCK_MONOTONIC ns of ``host``, or as it is said.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from zeus_stream.protocol.events import Advice, Answer
from zeus_stream.protocol.fields import Control

Ended = Literal["running", "converged", "stopped", "exhausted", "lost"]
"""How a try ended. ``converged``: it reached the target. ``stopped``: by a verdict. ``exhausted``: the
maximum number of epochs was not enough. ``lost``: it was killed or fell silent."""


@dataclass(frozen=True, slots=True)
class WindowRow:
    """One closed window on one GPU or part of the host, of the tables ``windows``, ``steps``, ``epochs``.

    Key: (session, kind, index, gpu). ``index`` counts steps and epochs over the run and is the
    publisher's number of a named window. A window of a session without GPUs has one row, gpu None.
    """

    session: str
    run: str
    job: str
    rank: int
    host: str
    kind: str
    """``step``, ``epoch``, ``window`` (named) or ``run``."""
    name: str
    index: int
    gpu: str | None
    begin_ns: int
    end_ns: int
    duration_s: float
    energy_j: float | None
    """None: Missing, for the reason in ``quality``."""
    energy_low_j: float | None
    """Hard bounds by the counter: the truth (of this counter) lies within. None: there is no counter, or its
    sensor misses some."""
    energy_high_j: float | None
    energy_p2_5_j: float | None
    """The 95 % interval: in one case of 40 the truth is less, in another more than ``energy_p97_5_j``."""
    energy_p97_5_j: float | None
    phase_coverage: float | None
    """Share of the phases of a step that the sensor has looked at in the last 20 s; 1: it sees all; None: it
    is not known."""
    power_limit_w: float | None
    """In force all through the window; None when it changed within, or is not known."""
    estimator: str | None
    """``shaped`` (the counter, shared out by the events), ``counter`` (straight lines between its changes) or
    ``power`` (zero-order hold)."""
    quality: str
    """``ok``, or what is wrong, words separated by ``; ``."""
    shared: bool
    """Another run used the same GPU meanwhile: its energy is in here too."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """State of a run's session; a later one with the same session replaces it."""

    session: str
    run: str
    job: str
    rank: int
    world_size: int
    host: str
    pid: int
    uid: int | None
    gpus: tuple[str, ...]
    boundary: str
    began_ns: int
    ended_ns: int | None
    began_wall_ns: int
    """UTC, ns since 1970, within ``wall_error_ns``."""
    wall_error_ns: int
    ended_how: str | None
    """``ended`` (in order), the exception that ended the script, or the collector's reason."""
    may_command: bool
    command_reason: str
    batch_size: int | None = None
    """Samples of one rank's batch; None: not known."""
    start: int | None = None
    """Of the analyzer under whose settings the run goes; None: the one that stores this."""


@dataclass(frozen=True, slots=True)
class GpuRow:
    """State of a GPU; a later one with the same gpu replaces it."""

    gpu: str
    host: str
    index: int
    name: str
    driver: str
    counts_energy: bool
    min_limit_w: float | None
    max_limit_w: float | None
    default_limit_w: float | None
    found_limit_w: float | None
    mig: bool
    period_ms: float | None
    """Counter period, as observed (median of recent changes)."""
    counter_kind: str | None
    """``integrating``, ``boxcar`` (sees the last ``sensor_window_ms`` of a period), ``power`` (no counter);
    None: not known yet."""
    sensor_window_ms: float | None
    gone: str | None
    """Why it is not there at present."""
    scope: str = "gpu"
    """What its figures are of: ``gpu``, or ``module``, CPU included."""
    tenants: tuple[str, ...] = ()
    """UUIDs of its MIG instances."""


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One power limit, measured from its setting to the next. Key: (run, number)."""

    run: str
    number: int
    """Grows over the run."""
    round: int
    """Profiling round: a drift begins a new one."""
    power_limit_w: float
    steps: int
    duration_s: float
    """Of all measured steps: the slowest rank's."""
    energy_j: float
    """Of all GPUs of the run in that time."""
    average_power_w: float
    cost: float | None
    """ZeusCost in joules, with eta of the run's selector; None for selectors without one."""
    temperature_c: float | None
    began_ns: int
    ended_ns: int
    confirms: bool
    """A measurement of the chosen limit again, after the decision."""


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A limit chosen, or why none was. Key: (run, number)."""

    run: str
    number: int
    round: int
    t_ns: int
    selector: str
    power_limit_w: float | None
    """None: no choice; ``reason`` says why."""
    steps: int
    """Steps of the run until the decision."""
    default_limit_w: float | None
    """The limit found at start, which everything is compared with."""
    energy_per_step_j: float | None
    step_s: float | None
    default_energy_per_step_j: float | None
    """At the limit found, or at the highest measured one below it."""
    default_step_s: float | None
    applied: bool
    """False: observing; the decision only says what would be saved."""
    reason: str
    trials_run: str | None = None
    """Whose trials it was chosen from: the run's own, or an earlier one's; None: there were none."""
    trials_round: int | None = None
    excess_percent: float | None = None
    """Of what the selector minimizes: how much more the limit is expected to take than the best one."""
    excess_p95_percent: float | None = None
    """With 95 % confidence no more than this. None for both: every limit was measured, or none chosen."""


@dataclass(frozen=True, slots=True)
class GpuLimitRow:
    """One GPU's limit at or below its job's, after it was looked for who waits. Key: (run, round, gpu)."""

    run: str
    round: int
    """Profiling round: another one begins with one limit for all again."""
    gpu: str
    t_ns: int
    power_limit_w: float
    job_limit_w: float
    steps: int
    """That it took to find out."""
    energy_percent: float | None
    """Of a step, all GPUs at these limits against all at the job's. None: no GPU was lowered."""
    time_percent: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """What a round of profiling has left at one limit, and for whom.

    Key: (session, round, power_limit_w).
    """

    session: str
    """Of the run's lowest rank."""
    run: str
    round: int
    job: str
    gpu_model: str
    driver: str
    """Of GPUs with several, all of them."""
    gpus: int
    world_size: int
    batch_size: int | None
    least_limit_w: float | None
    """The limits that all its GPUs may have."""
    highest_limit_w: float | None
    power_limit_w: float
    steps: int
    duration_s: float
    """Of these steps: the slowest rank's."""
    energy_j: float
    """Of all GPUs of the run."""
    measured_run: str
    """Whose trials say so: its own, or of an earlier run that it remembered and found true."""
    measured_round: int
    measured_wall_ns: int
    """UTC, ns since 1970: of the round's last trial."""
    chosen_limit_w: float | None
    """None: the round was cut short, or goes on."""


class AtLimit(NamedTuple):
    """What steps cost at one power limit, and whose trials say so."""

    power_limit_w: float
    steps: int
    duration_s: float
    energy_j: float
    run: str
    round: int


@dataclass(frozen=True, slots=True)
class RecallRow:
    """What a run remembered as its profiling began. Key: (session, round)."""

    session: str
    """Of the run's lowest rank."""
    run: str
    round: int
    """Its first."""
    profile_run: str | None = None
    """Whose profile it is; None: none was known."""
    profile_round: int | None = None
    measured_wall_ns: int | None = None
    """UTC, ns since 1970."""
    limits: tuple[AtLimit, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandRow:
    """A command and its outcome; the outcome replaces the row without one. Key: command."""

    command: str
    run: str
    gpu: str
    asked_ns: int
    limit_w: float | None
    """Asked for; None: release."""
    outcome: str | None
    """``applied``, ``refused``, None while it is under way."""
    outcome_ns: int | None
    outcome_limit_w: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class GapRow:
    """Something that is known to be absent from the archive."""

    host: str
    what: str
    """``events``, ``readings``, ``frames``, ``messages``."""
    t_ns: int
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class MetricRow:
    session: str
    run: str
    name: str
    t_ns: int
    step: int | None
    """The step that the sender names, or else the step that was under way."""
    value: float
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class JobRow:
    """What a job that recurs is for; a later one with the same job and version replaces it."""

    job: str
    version: int
    """Grows when what a try is to reach changes, or the job is forgotten: tries of others do not count."""
    batch_sizes: tuple[int, ...]
    default_batch_size: int
    metric: str
    target: float
    lower_is_better: bool
    max_epochs: int
    eta: float
    beta: float
    cost_window: int
    """Only so many of the latest costs of a size count; 0: all."""


@dataclass(frozen=True, slots=True)
class TryRow:
    """One training of a job with one batch size; a later one with the same job and number replaces it."""

    job: str
    number: int
    """Grows over the job, whatever its version."""
    version: int
    recurrence: int
    run: str
    session: str
    """That asked first, and its ``attempt``: who asks again for these gets the same batch size."""
    attempt: int
    setup: str
    """GPU model and number of GPUs."""
    batch_size: int
    policy: str
    reason: str
    """Why this size was chosen."""
    stop_cost_j: float | None
    """It ends before an epoch that would take its cost above this."""
    began_wall_ns: int
    """UTC, ns since 1970."""
    ended_wall_ns: int | None
    epochs: int
    """Whole and measured."""
    energy_j: float | None
    """Of them, all GPUs of the run; None: of one it is missing."""
    duration_s: float
    """Of them, the slowest rank's."""
    cost_j: float | None
    """eta x energy + (1 - eta) x the highest limit of the GPUs x time."""
    epoch_cost_j: float | None
    """Of the latest one under one power limit."""
    metrics: tuple[float, ...]
    ended: Ended
    ended_why: str


@dataclass(frozen=True, slots=True)
class SimulationRow:
    """One simulated game of a recurring job. Key: game; stored with its tries when it is over."""

    game: str
    """All that it depends on, in words."""
    world: str
    gpu: str
    """Model, of the traces."""
    workload: str
    player: str
    seed: int
    eta: float
    beta: float
    cost_window: int
    drift: str
    overlap: float
    recurrences: int
    default_energy_j: float
    """Of a recurrence at the default batch size and the highest limit, on average; likewise those below."""
    default_time_s: float
    default_cost_j: float


@dataclass(frozen=True, slots=True)
class SimulatedTryRow:
    """One try of a simulated game. Key: (game, number)."""

    game: str
    number: int
    """In the order in which they ended."""
    recurrence: int
    batch_size: int
    epochs: int
    energy_j: float
    time_s: float
    cost_j: float
    ended: str
    optimum_j: float
    """Least mean cost that a recurrence could have at that time."""


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """State of a power budget; a later one with the same key replaces it. Key: (budget, set_ns).

    Times are UTC, ns since 1970.
    """

    budget: str
    set_ns: int
    limit_w: float
    """What the limits of its GPUs may add up to."""
    begin_ns: int
    end_ns: int
    gpus: tuple[str, ...]
    """Those it is about."""
    binding: bool
    """It holds, or is on its way there or back."""
    reason: str
    """Why it cannot be kept; empty: it can."""


@dataclass(frozen=True, slots=True)
class RationRow:
    """What budgets leave a GPU; a later one with the same gpu replaces it."""

    gpu: str
    budget: str | None
    """The first that has it; None: no more."""
    run: str | None
    most_w: float | None
    """Its limit may be so high; might, if it could be commanded."""
    limit_w: float
    """In force, as last confirmed."""
    reason: str
    """Why it cannot be commanded; empty: it can."""


Row = (
    WindowRow
    | RunRow
    | GpuRow
    | TrialRow
    | DecisionRow
    | GpuLimitRow
    | ProfileRow
    | RecallRow
    | CommandRow
    | GapRow
    | MetricRow
    | JobRow
    | TryRow
    | SimulationRow
    | SimulatedTryRow
    | BudgetRow
    | RationRow
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyControl:
    """Set a control of one GPU. ``command`` is the same when the same stream is interpreted again."""

    command: str
    run: str
    host: str
    gpu: str
    control: Control
    value: int
    """mW of a power limit, MHz of a clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreControl:
    """Give a control of one GPU back: the collector restores the value it found."""

    command: str
    run: str
    host: str
    gpu: str
    control: Control


@dataclass(frozen=True, slots=True)
class GiveAnswer:
    host: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class GiveAdvice:
    host: str
    advice: Advice


Command = ApplyControl | RestoreControl
Instruction = Command | GiveAnswer | GiveAdvice
