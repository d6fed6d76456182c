"""The plans of one pipeline: that of every replica, and why it has it. Pure.

profile                          -> the frontier
slowdown wanted, power limits    -> the usual plan
a replica that is slower         -> the plan of the others, for its duration
"""

from collections.abc import Iterable, Mapping, Sequence

from analyzers.pipeline.frontier import PipelineProfile
from analyzers.pipeline.graph import PipelineGraph
from analyzers.pipeline.plan import FrequencyPlan, make_plans, play, unplanned_s
from analyzers.pipeline.watching.measured import LATE
from analyzers.pipeline.watching.power_share import are_below, within_limits
from analyzers.pipeline.watching.replicas import Straggler
from analyzers.power_limit.run_settings import PipelineSettings
from analyzers.results.pipeline_rows import PlanPointRow, PlanRow

SLOWDOWNS = (1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5)
"""Points of the frontier that are stored."""
LITTLE = 0.01
"""Share of an iteration's energy; a plan that saves less says what more time would save."""


class ChosenPlans:
    """The plans of one run, once its profile is known."""

    def __init__(
        self,
        run: str,
        settings: PipelineSettings,
        graph: PipelineGraph,
        profile: PipelineProfile,
        gpus: int = 1,
    ) -> None:
        """``gpus``: that run a stage together. A profile is that of one of them; rows are of all."""
        self.graph, self.profile = graph, profile
        self.plan: FrequencyPlan | None = None
        """The usual one."""
        self.straggler: Straggler | None = None
        """It has the usual plan, and the other replicas one for its duration."""
        self.limits_w: dict[int, float] = {}
        """By stage, what power budgets allow a GPU, when the plan was made."""
        self.is_promise = True
        """False: a limit is below the lowest clock, and makes iterations longer than the profile says."""
        self.slower = 0
        """Plans that were replaced since iterations took too long."""
        self._run, self._settings, self.gpus = run, settings, gpus
        self._within = profile
        """The clocks of the profile that the limits allow."""
        self._answer: FrequencyPlan | None = None
        self.number = 0
        """Of the plan that was chosen last."""
        self._points: list[PlanPointRow] = []
        self._top = tuple(profile.of(each)[0].clock_mhz for each in graph.instructions)
        self.base_s, self.base_j = play(graph, profile, self._top, 0.0)
        """Duration and energy of an iteration at the highest clocks, by the profile."""

    @property
    def last(self) -> FrequencyPlan:
        """The plan that was chosen last."""
        plan = self._answer or self.plan
        assert plan is not None
        return plan

    @property
    def name(self) -> str:
        """The name of that plan; the same for all ranks."""
        return f"{self._run[:100]}/{self.number}"

    def frontier(self) -> list[PlanPointRow]:
        """Return points of the frontier as rows."""
        slowdowns = sorted({*SLOWDOWNS, self._settings.slowdown})
        plans = self._make(self.profile, [self.base_s * each for each in slowdowns], quick=True)
        self._points = [
            PlanPointRow(
                run=self._run,
                slowdown=slowdown,
                time_s=plan.time_s,
                energy_j=self.gpus * plan.energy_j,
                bound_j=self.gpus * plan.bound_j,
                unplanned_s=self.base_s,
                unplanned_j=self.gpus * self.base_j,
            )
            for slowdown, plan in zip(slowdowns, plans, strict=True)
        ]
        return self._points

    @property
    def lowers_clocks(self) -> bool:
        """Tell whether the plan that was chosen last changes anything."""
        return self.last.clocks_mhz != self._top

    def _next_point(self, plan: FrequencyPlan) -> str:
        """Return what more time would save, if the plan saves next to nothing."""
        if plan.energy_j < (1 - LITTLE) * self.base_j:
            return ""
        for point in self._points:
            saved = 1 - point.energy_j / point.unplanned_j
            if point.time_s > plan.time_s and saved >= LITTLE:
                more = f"{100 * (point.slowdown - 1):.3g} % more would save {100 * saved:.2g} %"
                return f"little is to save without more time; {more}"
        return "little is to save, even with more time"

    def choose(self, limits_w: Mapping[int, float], t_ns: int) -> PlanRow:
        """Choose the plan of all replicas: as slow as wanted, or as slow as limits make it."""
        plan, slowdown, why = self._plan_within(limits_w)
        return self._row(plan, slowdown, t_ns, why)

    def adapt(self, limits_w: Mapping[int, float], t_ns: int) -> PlanRow | None:
        """Choose the plan of all replicas for other limits. None: they have these clocks already."""
        before = None if self.straggler else self.last.clocks_mhz
        plan, slowdown, why = self._plan_within(limits_w)
        return None if plan.clocks_mhz == before else self._row(plan, slowdown, t_ns, why)

    def _plan_within(self, limits_w: Mapping[int, float]) -> tuple[FrequencyPlan, float, str]:
        """Return the plan of all replicas from now on, the slowdown asked for, and the reason."""
        self.straggler = self._answer = None
        self.limits_w = dict(limits_w)
        self._within = within_limits(self.profile, limits_w)
        self.is_promise = not are_below(self.profile, limits_w)
        fastest_s = unplanned_s(self.graph, self._within)
        wanted_s = max(fastest_s, self.base_s * self._settings.slowdown / LATE**self.slower)
        (self.plan,) = self._make(self._within, [wanted_s])
        why = self._next_point(self.plan)
        if limits_w:
            why = f"power budgets allow a GPU {min(limits_w.values()):.4g} W"
        why += "" if self.is_promise else ", less than it draws at the lowest clock that was measured"
        return self.plan, max(self._settings.slowdown, wanted_s / self.base_s), why

    def answer(self, straggler: Straggler | None, t_ns: int) -> PlanRow | None:
        """Choose the plan of the replicas beside a straggler, or the usual one again; None: no change."""
        assert self.plan is not None
        before, clocks_mhz = self.straggler, self.last.clocks_mhz
        self.straggler, self._answer = straggler, None
        if straggler is not None:
            most_s = max(straggler.time_s, self.plan.time_s)
            (self._answer,) = self._make(self._within, [most_s], quick=True)
        same = before is None or straggler is None or before.replica == straggler.replica
        if same and self.last.clocks_mhz == clocks_mhz:
            return None
        if straggler is None or self._answer is None:
            why = "no replica is slower than the others any more"
            return self._row(self.plan, self._settings.slowdown, t_ns, why)
        longer = 100 * (straggler.slower - 1)
        why = f"replica {straggler.replica} takes {longer:.0f} % longer than promised"
        return self._row(self._answer, straggler.time_s / self.base_s, t_ns, why)

    def concerned(self, replicas: Iterable[int]) -> list[int]:
        """Return the replicas that get the plan chosen last."""
        return [each for each in replicas if self.straggler is None or each != self.straggler.replica]

    def promised_s(self, replicas: Sequence[int]) -> dict[int, float]:
        """Return the duration of an iteration that each replica was promised."""
        assert self.plan is not None
        promised_s = dict.fromkeys(replicas, self.plan.time_s)
        return promised_s | dict.fromkeys(self.concerned(replicas), self.last.time_s)

    def _make(
        self, profile: PipelineProfile, deadlines_s: Sequence[float], *, quick: bool = False
    ) -> tuple[FrequencyPlan, ...]:
        return make_plans(
            self.graph,
            profile,
            deadlines_s,
            switching_s=self._settings.switching_s,
            changes_per_s=self._settings.changes_per_s,
            reserve=2.0**self.slower,
            quick=quick,
        )

    def _row(self, plan: FrequencyPlan, slowdown: float, t_ns: int, reason: str) -> PlanRow:
        self.number += 1
        return PlanRow(
            run=self._run,
            number=self.number,
            t_ns=t_ns,
            slowdown=slowdown,
            promised_s=plan.time_s,
            promised_j=self.gpus * plan.energy_j,
            unplanned_s=self.base_s,
            unplanned_j=self.gpus * self.base_j,
            first_iteration=None,
            measured_s=None,
            state="offered",
            reason=reason,
        )
