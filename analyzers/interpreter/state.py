"""The state of an interpreter: the machines of a site, and what is open. Pure."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from analyzers.batch_size.known_jobs import KnownJobs
from analyzers.batch_size.policy import Policy
from analyzers.batch_size.registry import Default
from analyzers.batch_size.tracker import JobTracker
from analyzers.dispatch.pending import Pending
from analyzers.fleet.fleet import Fleet, Use, known_counters
from analyzers.fleet.ownership import Owners
from analyzers.fleet.questions import Questions
from analyzers.fleet.session import Session
from analyzers.interpreter.run_forecast import RunForecast, Spent
from analyzers.measurement.phases.phase_tracker import PhaseTracker
from analyzers.measurement.windows import Windows
from analyzers.pipeline.known_pipelines import KnownPipelines
from analyzers.pipeline.pipeline_run import PipelineRun, Pipelines
from analyzers.power_budget.enforcer import Enforcer
from analyzers.power_limit.limit_search import Used
from analyzers.power_limit.profiles import KnownProfiles
from analyzers.power_limit.run import Run
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.fleet_rows import EarlierUse
from analyzers.results.memory import Memory
from analyzers.results.result import NOTHING, Result
from analyzers.results.rows import WindowRow


@dataclass(slots=True)
class FollowedForecast:
    """The forecast of one run, and its windows that some of its GPUs have measured."""

    forecast: RunForecast
    open: dict[tuple[str, int], list[WindowRow]] = field(default_factory=dict)
    """By kind and index."""


@dataclass(slots=True, kw_only=True, eq=False)
class SiteState:
    """All that an interpreter knows. Its modules are functions of it."""

    NOT_STATE: ClassVar = frozenset(
        ("settings", "began_under", "shared_jobs", "earlier_uses", "run_owners", "session_hosts")
    )
    """These fields are settings of this start, or rows of the archive."""

    settings: RunSettings
    """The settings of runs that begin from now on."""
    began_under: Mapping[str, RunSettings]
    """By session, the settings of runs that began under an earlier analyzer."""
    shared_jobs: frozenset[str]
    """Jobs that are every user's."""
    now_ns: dict[str, int] = field(default_factory=dict)
    """By host: the time of its latest frame."""

    # machines
    fleet: Fleet
    pending: Pending
    profiles: KnownProfiles
    questions: Questions
    jobs: JobTracker
    enforcer: Enforcer
    pipelines: Pipelines

    # sessions and runs
    sessions: dict[str, Session] = field(default_factory=dict)
    """By name, the sessions that have begun and are not measured to their end."""
    on: defaultdict[str, dict[str, Session]] = field(default_factory=lambda: defaultdict(dict))
    """The same by host."""
    windows: dict[str, Windows] = field(default_factory=dict)
    """The windows of each of them."""
    phases: dict[str, PhaseTracker] = field(default_factory=dict)
    """The phases of each of them."""
    runs: dict[str, Run]
    """By name, the open runs."""
    ended_runs: dict[str, Used] = field(default_factory=dict)
    """By name."""
    run_owners: Owners[int]
    """The users of runs."""
    session_hosts: Owners[str]
    """The hosts of sessions, open or not."""
    unknown: dict[str, None] = field(default_factory=dict)
    """Sessions whose beginning is not in the log."""
    earlier_uses: dict[str, list[EarlierUse]]
    """By host, uses of its GPUs that were over when the analyzer started."""
    host_uses: defaultdict[str, list[Use]] = field(default_factory=lambda: defaultdict(list))
    """By host: runs on it, all of which use its CPUs."""
    waiting: dict[str, Session] = field(default_factory=dict)
    """Sessions with frames of steps that wait, by name."""

    left: Result = NOTHING
    """Rows and instructions that come with the result of the next event."""

    # what belongs to one module
    looked_ns: dict[str, int] = field(default_factory=dict)
    """By host, frame time at which all its windows were looked at."""
    boots: dict[str, str] = field(default_factory=dict)
    """By host, the id of its boot."""
    host_power_w: dict[str, float] = field(default_factory=dict)
    """By host, the mean power of its CPUs and memory by the last record of its collector that has it."""
    forecasts: dict[str, FollowedForecast] = field(default_factory=dict)
    """By open run whose script says how long it is."""
    ended_spent: dict[str, Spent] = field(default_factory=dict)
    """By name, what runs with a forecast had spent when they ended."""


def new_site(
    settings: RunSettings,
    memory: Memory,
    policy: tuple[str, Policy[Any]] | None,
    shared_jobs: frozenset[str],
    began_under: Mapping[str, RunSettings],
    pending: Pending,
) -> SiteState:
    """Return the state of an interpreter that has handled nothing. For the arguments see `Interpreter`."""
    name, chooser = policy or ("default", Default())
    fleet, runs = Fleet(counters=known_counters(memory.gpus), pending=pending), dict[str, Run]()
    pipeline_runs = dict[str, PipelineRun]()
    enforcer = Enforcer(fleet, pending, runs, pipeline_runs, settings)
    known = KnownPipelines(memory.instructions)
    earlier = defaultdict[str, list[EarlierUse]](list)
    for use in memory.uses:
        earlier[use.host].append(use)
    return SiteState(
        settings=settings,
        began_under=began_under,
        shared_jobs=shared_jobs,
        fleet=fleet,
        pending=pending,
        profiles=KnownProfiles(memory),
        questions=Questions(),
        jobs=JobTracker(chooser, name, fleet, KnownJobs(memory, shared_jobs), settings.timeout_ns),
        enforcer=enforcer,
        pipelines=Pipelines(fleet, settings.pipelines, pending, enforcer.allocations, known, pipeline_runs),
        runs=runs,
        run_owners=Owners(memory.owners.runs),
        session_hosts=Owners(memory.owners.hosts),
        earlier_uses=earlier,
    )


def validate(site: SiteState) -> None:
    """Check what holds between events; an AssertionError names what does not."""
    site.pending.validate()
    site.enforcer.validate()
    site.jobs.validate()
    for name, session in site.sessions.items():
        assert session.session == name, name
        assert site.on[session.host].get(name) is session, f"{name} is not on {session.host}"
        assert session.ended is not None or session.started.run in site.runs, f"{name} has no run"
        assert (name in site.waiting) == bool(session.waiting), f"{name}: its steps are lost"
        for uuid in session.gpus:
            assert site.fleet.gpus[uuid].sessions.get(name) is session, f"{name} does not use {uuid}"
    for host, sessions in site.on.items():
        for name in sessions:
            assert name in site.sessions, f"{name} is on {host} and nowhere else"
    assert site.windows.keys() == site.phases.keys() == site.sessions.keys(), "a session has no windows"
    assert site.waiting.keys() <= site.sessions.keys(), "steps of a session that is forgotten wait"
    for name, run in site.runs.items():
        assert run.name == name, name
        run.search.validate()
        assert any(rank.ended is None for rank in run.sessions.values()), f"{name} is over, and open"
        for rank in run.sessions.values():
            assert site.sessions.get(rank.session) is rank, f"{name}: {rank.session} is forgotten"
    for uuid, gpu in site.fleet.gpus.items():
        assert gpu.sessions.keys() <= site.sessions.keys(), f"{uuid}: a session that is forgotten uses it"
    assert site.forecasts.keys() <= site.runs.keys(), "a forecast is of no open run"
