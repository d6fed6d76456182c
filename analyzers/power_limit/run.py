"""One run: the profiling machine between the steps of its ranks and the commands to its GPUs. Pure.

    step boundaries of its ranks ->  machine  -> commands, one for each GPU
    outcomes of commands         ->           -> measurements of trials over all ranks, as rows
    measured trials              ->           -> decisions, as rows

The machine counts in the steps of the *lead*, the lowest rank there is. Ranks on other hosts have other
clocks: each measures a trial on its own host's clock, between its own boundaries of the same steps.

A machine is about the ranks that were there when it began. When one of them ends or another joins, it is
over: what it changed is given back, and a machine for those there now begins another round. Nothing of that
takes place in the training loop: ranks never wait for each other here.

After a choice, where the plan wants it, a second machine (`per_gpu`) looks for GPUs that wait for others
and may have a lower limit. It works while the first one keeps watch, and ends with whatever moves that on.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from analyzers.dispatch.pending import ControlOfGpu, Pending
from analyzers.fleet.fleet import Allocation, Clocks, Fleet
from analyzers.fleet.session import Session
from analyzers.power_limit.commands import Commands
from analyzers.power_limit.limit_search import NOTHING_USED, LimitSearch, Used
from analyzers.power_limit.profiles import KnownProfiles
from analyzers.power_limit.ranks import Ranks
from analyzers.power_limit.run_settings import RunSettings
from analyzers.power_limit.visits import (
    Barred,
    Capped,
    Lapsed,
    LimitRefused,
    Observing,
    Over,
    RunOver,
    StepBegan,
    StepsPaused,
)
from analyzers.results.result import NOTHING, Result, in_order
from zeus_stream.protocol.events import SearchWanted, StepBoundary
from zeus_stream.protocol.fields import Control
from zeus_stream.protocol.notes import ControlApplied, ControlRefused, LeaseCause

# ---- events ------------------------------------------------------------------------------------------


class StepsPassed(NamedTuple):
    """A rank went on to its next step, or pauses, once or more."""

    session: Session
    boundaries: Sequence[StepBoundary]


class EpochPassed(Struct, frozen=True):
    """An epoch ended within a step, of a loop that goes on: the step belongs to no trial."""

    session: Session


class SearchAsked(Struct, frozen=True):
    """A script says how the limit is to be searched for."""

    wish: SearchWanted


class LengthPlanned(Struct, frozen=True):
    """A script says how many steps its run has."""

    steps: int | None


class RankEnded(Struct, frozen=True):
    """A rank has ended; so has the machine that was about it."""

    session: Session


class PipelineJoined(Struct, frozen=True):
    """A rank runs a stage of a pipeline."""


class LimitSet(Struct, frozen=True):
    """A control of a GPU was set as asked."""

    host: str
    note: ControlApplied


class SetRefused(Struct, frozen=True):
    """A control of a GPU was not set."""

    note: ControlRefused


class LimitLost(Struct, frozen=True):
    """A lease on a control of a GPU has ended."""

    gpu: str
    cause: LeaseCause
    reason: str
    t_ns: int | None = None
    """On the clock of its host; None: that is not known."""
    control: Control = "power_limit"


class ShareChanged(Struct, frozen=True):
    """A power budget may allow its GPUs more or less than before."""


class ReadingsCame(Struct, frozen=True):
    """Readings came, or time has passed: trials may be measured by now."""


class SetAside(Struct, frozen=True):
    """Its events cannot be interpreted: every limit is given back, and the machine left."""


RunEvent: TypeAlias = (
    StepsPassed
    | EpochPassed
    | SearchAsked
    | LengthPlanned
    | PipelineJoined
    | RankEnded
    | LimitSet
    | SetRefused
    | LimitLost
    | ShareChanged
    | ReadingsCame
    | SetAside
)


# ---- the run -----------------------------------------------------------------------------------------


class Run:
    """One run on any number of hosts."""

    def __init__(
        self,
        name: str,
        fleet: Fleet,
        pending: Pending,
        settings: RunSettings,
        known: KnownProfiles,
        allocations: Mapping[str, Allocation],
        used: Used = NOTHING_USED,
    ) -> None:
        """Begin a run. Its name is unique among open ones; ``allocations``: by GPU, of power budgets."""
        self.name = name
        self._fleet = fleet
        self._pending = pending
        self._allocations = allocations
        self._ranks = Ranks(name, fleet, pending)
        self._commands = Commands(name, fleet, pending, allocations, self._ranks.sessions)
        self.search = LimitSearch(self._ranks, self._commands, settings, known, used)
        self.sessions = self._ranks.sessions

    # ---- what happens to it

    def handle(self, event: RunEvent, now: Clocks) -> Result:
        self._ranks.now = now
        match event:
            case StepsPassed(session, boundaries):
                return self._steps_passed(session, boundaries)
            case EpochPassed(session):
                return self._epoch_passed(session)
            case SearchAsked(wish):
                return self._asked(wish)
            case LengthPlanned(steps):
                self.search.planned = steps
                return NOTHING
            case PipelineJoined():
                return self._leave_to_pipeline()
            case RankEnded(session):
                return self._rank_ended(session)
            case LimitSet(host, applied):
                self._commands.applied(applied, host)
                return self.search.land()
            case SetRefused(refused):
                return self._refused(refused)
            case LimitLost():
                return self._lost(event)
            case ShareChanged():
                return self._reallocated()
            case ReadingsCame():
                return self.search.measure()
            case SetAside():
                return self._set_aside()

    def _step_passed(self, session: Session, boundary: StepBoundary) -> Result:
        session.note((boundary,))
        result = NOTHING
        if not self._is_known(session):
            result |= self._break_up(f"rank {session.started.rank} has joined")
        if self._ranks.lead is None:
            self._ranks.lead = self._ranks.choose_lead()
        if session is self._ranks.lead:
            if boundary.began_ns is not None:
                if self.search.state is None:
                    result |= self._start(session, boundary.began_ns)
                self.search.steps = boundary.index + 1
                result |= self.search.feed_both(StepBegan(boundary.index, boundary.began_ns))
            elif boundary.ended_ns is not None:
                result |= self.search.feed_both(StepsPaused(boundary.index, boundary.ended_ns))
            elif (began_ns := session.began_ns(boundary.index - 1)) is not None:  # it was cancelled
                result |= self.search.feed_both(StepsPaused(boundary.index - 1, began_ns))
        return result | self.search.land()

    def _is_known(self, session: Session) -> bool:
        """Return False if a rank has joined that the machine is not about."""
        return self.search.state is None or session in self._ranks.about or not session.admitted

    def _steps_passed(self, session: Session, boundaries: Sequence[StepBoundary]) -> Result:
        """Take in steps; a machine hears of each, and of none where nothing is searched for."""
        if self.rests(session):
            session.note(boundaries)
            if session is self._ranks.lead:
                began = [each.index for each in boundaries if each.began_ns is not None]
                self.search.steps = began[-1] + 1 if began else self.search.steps
            return self.search.land()
        results = []
        for boundary in boundaries:
            session.step = None if boundary.began_ns is None else boundary.index
            results.append(self._step_passed(session, boundary))
        return in_order(results)

    def _epoch_passed(self, session: Session) -> Result:
        if session is not self._ranks.lead or session.step is None:
            return NOTHING
        began_ns = session.began_ns(session.step)
        return NOTHING if began_ns is None else self.search.feed_both(StepsPaused(session.step, began_ns))

    def _refused(self, note: ControlRefused) -> Result:
        if (attempt := self._commands.refused(note)) is None:
            return NOTHING
        refused = LimitRefused(attempt.number, note.cause, note.reason)
        return self.search.feed_single(refused) if attempt.single else self.search.feed(refused)

    def _lost(self, lost: LimitLost) -> Result:
        held, gpu = self._pending.holding(self.name).held, lost.gpu
        if (gpu, lost.control) not in held:
            return NOTHING
        del held[gpu, lost.control]
        what = f"{gpu}: the lease on its {lost.control.replace('_', ' ')} ended: {lost.reason}"
        match lost.cause:
            case "released" | "run" | "plan":  # of a plan, that is a pipeline's
                return NOTHING
            case "other_program":
                return self.search.feed(Barred(what))
            case "lapsed" | "shutdown" | "restart" | "device":
                return self.search.feed(Lapsed(what, self._ranks.under_way(gpu, lost.t_ns)))

    def holds(self, host: str) -> list[ControlOfGpu]:
        """Return the controls of GPUs of a host that are ours."""
        held = self._pending.holding(self.name).held
        return [(gpu, control) for gpu, control in held if self._fleet.gpus[gpu].host == host]

    def _rank_ended(self, session: Session) -> Result:
        assert session.ended is not None
        if session in self._ranks.about:
            how = "" if session.ended[1] == "ended" else f" ({session.ended[1]})"
            return self._break_up(f"rank {session.started.rank} has ended{how}")
        if session is self._ranks.lead:
            self._ranks.lead = self._ranks.choose_lead() or session
        return NOTHING

    def _break_up(self, why: str) -> Result:
        """End the machine, since the ranks are others than it is about; limits are given back."""
        result = self.search.feed(RunOver(why))
        self._ranks.disperse(why)
        self.search.stop()
        return result

    def _set_aside(self) -> Result:
        self._ranks.set_aside()
        self.search.stop()
        return self._commands.give_back(self._ranks.now)

    @property
    def settings(self) -> RunSettings:
        return self.search.settings

    @property
    def lead(self) -> Session | None:
        return self._ranks.lead

    @property
    def over(self) -> bool:
        return self._ranks.over

    def rests(self, session: Session) -> bool:
        """Return whether no machine waits for steps of a rank: no limit is searched for, or may be set."""
        state = self.search.state
        if self._ranks.lead is None or not self._is_known(session):
            return False
        if state is None:
            return self.settings.selector is None
        return isinstance(state.phase, Observing | Over)  # then no limits of single GPUs are tried either

    @property
    def used(self) -> Used:
        """The numbers that it and earlier runs of its name have used."""
        return self.search.used

    # ---- the machine

    def _asked(self, wish: SearchWanted) -> Result:
        """Search as the script wishes, unless the search has begun."""
        if self.search.state is None:
            self.search.settings = self.settings.wished(wish)
        return NOTHING

    def _leave_to_pipeline(self) -> Result:
        """Search nothing where clocks are planned for pipelines: this run is one."""
        settings = self.settings
        if settings.pipelines is None or settings.selector is None:
            return NOTHING
        self.search.settings = replace(settings, selector=None)
        return NOTHING if self.search.state is None else self._break_up("it runs a pipeline")

    def _start(self, lead: Session, t_ns: int) -> Result:
        """Start the machine once all ranks are there, or have been waited for."""
        selector = self.settings.selector
        if selector is None or not self._ranks.gather(lead, t_ns, self.settings.timeout_ns):
            return NOTHING
        started, commands = self.search.start(lead, selector)
        return started | self._reallocated() if commands else started

    def _reallocated(self) -> Result:
        """Take in what power budgets allow its GPUs by now."""
        shares = [share for gpu in self._ranks.gpus() if (share := self._allocations.get(gpu))]
        least = min(shares, key=lambda share: share.most_mw, default=None)
        cap = Capped(None) if least is None else Capped(least.most_mw, f"budget {least.group}")
        state = self.search.state
        return NOTHING if state is None or state.cap == cap else self.search.feed(cap)
