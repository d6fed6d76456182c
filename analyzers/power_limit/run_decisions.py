"""The rows of one run: its trials, its decisions, and what they leave to later runs. Pure."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from analyzers.fleet.session import Session
from analyzers.power_limit import profiler, profiles
from analyzers.power_limit.profiler import Decide, Observe
from analyzers.power_limit.profiles import Recollection
from analyzers.power_limit.search.belief import Confidence
from analyzers.power_limit.search.step_costs import StepCosts
from analyzers.power_limit.selectors import Trial
from analyzers.power_limit.trials import Taken, joined, trial_row
from analyzers.power_limit.visits import MAX_AWAITED, MeasureTrial
from analyzers.results.limit_rows import COUNTED, AtLimit
from analyzers.results.rows import DecisionRow, ProfileRow, Row, TrialRow
from zeus_stream.errors import SettingsError

BEHIND_NS = 2_000_000_000
"""A decision says by how much its analyzer was behind, if that was more."""


class At(Struct, frozen=True):
    """The place of a decision in its run."""

    t_ns: int
    """Frame time of the lead's host."""
    steps: int
    """Steps of the lead that have begun."""
    behind_ns: int = 0
    """The longest time from a request for a limit to its being in force, in this round."""


class RunDecisions:
    """The rows of one run. Each decision has the next number."""

    def __init__(self, run: str, decisions: int) -> None:
        """``decisions``: the number that runs of this name have used."""
        self.decisions = decisions
        self._run = run
        self._visited: dict[int, TrialRow] = {}
        """The rows of the last visits of limits, to which more blocks of steps may be added."""
        self.recollection: Recollection | None = None
        """None: no machine has begun."""

    def trial(
        self,
        asked: MeasureTrial,
        took: Taken,
        plan: profiler.ProfilerPlan,
        lead: Session,
    ) -> TrialRow:
        """Return the row of a trial, with the blocks of its visit before."""
        trial = Trial(asked.limit_mw, took.energy_mj, took.duration_ns, asked.steps)
        selector = plan.selector
        top_mw = max(plan.limits_mw)
        cost = None
        if selector.goal is not None and selector.eta is not None:
            cost = selector.goal.of(trial, top_mw, plan.gpus) * trial.steps / 1000
        row = trial_row(self._run, asked, took, cost, lead, plan.clock_mhz(asked.limit_mw))
        if self.recollection:
            self.recollection.measured(row.ended_ns)
        if asked.visit in self._visited:
            row = joined(self._visited[asked.visit], row)
        self._visited[asked.visit] = row
        if len(self._visited) > MAX_AWAITED + 1:
            del self._visited[next(iter(self._visited))]
        return row

    def with_best(self, row: TrialRow, state: profiler.ProfilerState | None) -> TrialRow:
        """Return the row of a trial with the best limit that is known by its end, and its bound."""
        if state is None or state.so_far is None or row.round != state.round:
            return row
        return replace(
            row,
            best_w=state.so_far.limit_mw / 1000,
            best_excess_p95_percent=100 * state.so_far.confidence.p95,
        )

    def learned(self, row: TrialRow, state: profiler.ProfilerState | None) -> list[ProfileRow]:
        """Return what a trial teaches for later runs; nothing once the round has decided."""
        if self.recollection is None or state is None:
            return []
        if row.confirms or state.chosen is not None or row.round != state.round:
            return []
        kept = self.recollection.keep(state.round, state.trials, state.trials)
        return [each for each in kept if each.power_limit_w == row.power_limit_w]

    def decided(
        self, decided: Decide, plan: profiler.ProfilerPlan, state: profiler.ProfilerState, at: At
    ) -> list[Row]:
        assert self.recollection is not None
        number, recollection = decided.round, self.recollection
        known = decided.trials
        kept = recollection.keep(number, state.trials, known, decided.limit_mw)
        reason = decided.reason + ("" if plan.goal is None else recollection.from_whom(number))
        source = recollection.source(max(trial.limit_mw for trial in known), number)
        decision = self._decision(
            plan, at, number, known, decided.limit_mw, reason, decided.confidence, applied=True, source=source
        )
        if decided.costs is not None:
            decision = _with_intervals(decision, decided.costs)
        if decided.changed_step is not None and decision.clock_mhz is None:
            decision = replace(decision, changed_step=max(0, decided.changed_step) // COUNTED * COUNTED)
        return [decision, *kept]

    def gathered(self, plan: profiler.ProfilerPlan, at: At, number: int, reason: str) -> DecisionRow:
        """Return the row that says with whom a round begins."""
        return self._decision(plan, at, number, (), None, reason, applied=False)

    def observation(self, plan: profiler.ProfilerPlan, at: At, observed: Observe) -> DecisionRow:
        """Return the row of a run that may not command: what would be saved, if that is known."""
        number, trials, reason, chosen = observed.round, observed.trials, observed.reason, observed.chosen
        source: tuple[str, int] | None = (self._run, number)
        if not trials:
            known = self._known(plan)
            trials = profiles.trials(known)
            source = (known[0].run, known[0].round) if known else None
        if not trials:
            reason = f"{reason.rstrip('.')}. What would be saved is not known"
            if not reason.startswith("its GPUs have no"):
                reason += (
                    ": no run of this job on such GPUs was profiled. Let one run of it set power limits."
                )
            return self._decision(plan, at, number, (), None, reason, applied=False)
        try:
            limit_mw = plan.selector.choose(trials, plan.gpus) if chosen is None else chosen.limit_mw
        except SettingsError as wrong:
            return self._decision(plan, at, number, (), None, f"{reason}. {wrong}", applied=False)
        confidence = None if chosen is None else chosen.confidence
        decision = self._decision(
            plan, at, number, trials, limit_mw, reason, confidence, applied=False, source=source
        )
        return decision if chosen is None or chosen.costs is None else _with_intervals(decision, chosen.costs)

    def _known(self, plan: profiler.ProfilerPlan) -> list[AtLimit]:
        """Return what was remembered of limits that this run could have."""
        limits = self.recollection.recalled.limits if self.recollection else ()
        return [
            at for at in limits if not plan.limits_mw or at.power_limit_w * 1000 <= plan.limits_mw[0] + 500
        ]

    def _decision(
        self,
        plan: profiler.ProfilerPlan,
        at: At,
        number: int,
        trials: Sequence[Trial],
        limit_mw: int | None,
        reason: str,
        confidence: Confidence | None = None,
        *,
        applied: bool,
        source: tuple[str, int] | None = None,
    ) -> DecisionRow:
        """``source``: run and round of the trials; its own if not given."""
        trials_run, trials_round = source or (self._run, number)
        self.decisions += 1
        if at.behind_ns > BEHIND_NS:
            reason = f"{reason.rstrip('.')}; the analyzer was behind by up to {at.behind_ns / 1e9:.0f} s"
        chosen = next((trial for trial in trials if trial.limit_mw == limit_mw), None)
        default = max(trials, key=lambda trial: trial.limit_mw, default=None)
        return DecisionRow(
            run=self._run,
            number=self.decisions,
            round=number,
            t_ns=at.t_ns,
            selector=plan.selector.text,
            power_limit_w=None if limit_mw is None else limit_mw / 1000,
            clock_mhz=plan.clock_mhz(limit_mw),
            steps=at.steps,
            default_limit_w=plan.limits_mw[0] / 1000 if plan.limits_mw else None,
            default_clock_mhz=plan.clock_mhz(max(plan.limits_mw, default=None)),
            energy_per_step_j=chosen.step_mj / 1000 if chosen else None,
            step_s=chosen.step_ns / 1e9 if chosen else None,
            default_energy_per_step_j=default.step_mj / 1000 if default else None,
            default_step_s=default.step_ns / 1e9 if default else None,
            applied=applied,
            reason=reason,
            trials_run=trials_run if trials else None,
            trials_round=trials_round if trials else None,
            excess_percent=100 * confidence.expected if confidence else None,
            excess_p95_percent=100 * confidence.p95 if confidence else None,
        )


def _with_intervals(decision: DecisionRow, costs: StepCosts) -> DecisionRow:
    """Return the row of a decision with the intervals of what it says is saved and added."""
    return replace(
        decision,
        energy_saved_low_percent=-100 * costs.energy.high,
        energy_saved_high_percent=-100 * costs.energy.low,
        time_added_low_percent=100 * costs.time.low,
        time_added_high_percent=100 * costs.time.high,
    )
