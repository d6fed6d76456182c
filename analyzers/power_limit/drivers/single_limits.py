"""The limits of single GPUs of a run: when to look for GPUs that wait for others, and what is found. Pure."""

from collections.abc import Sequence

from analyzers.power_limit import per_gpu, profiler
from analyzers.power_limit.run_settings import RunSettings
from analyzers.power_limit.trials import Taken
from analyzers.power_limit.visits import Event, MeasureTrial, Measuring, Purpose, limits_mw
from analyzers.results.rows import GpuLimitRow

SEARCH_SETTLE_NS = 500_000_000
"""After a change of limit, before an adaptive search measures; it leaves out itself what settles longer."""
FINER = 4
"""Levels of a single GPU's limit within a stride."""
MAX_LOOKS = 3
"""Times that a round looks for GPUs which wait, if a lapse cuts it short."""


class SingleLimits:
    """The machine of single GPUs of one run, and its results."""

    def __init__(self) -> None:
        """Begin without a machine."""
        self.state: per_gpu.PerGpuState | None = None
        """None while the limits of all are the same."""
        self._plan: per_gpu.PerGpuPlan | None = None
        self._evened = False
        """Whether it has found out, since all had one limit, which GPUs may have a lower one."""
        self._looks = 0, 0
        """A round, and how often it tried to."""
        self._round = 0

    @property
    def trying(self) -> bool:
        """True while limits of single GPUs are tried."""
        return self.state is not None and not self.state.over

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs in the order of the limits that are tried."""
        return () if self._plan is None else self._plan.gpus

    def validate(self) -> None:
        """Check what holds between events."""
        if self.state is not None and self._plan is not None:
            per_gpu.validate(self.state, self._plan)

    def begin_again(self) -> None:
        """Take in that all GPUs get one limit."""
        self._evened = False

    def stop(self) -> None:
        """End the machine."""
        self.state = None

    def give_up(self, number: int) -> None:
        """Look no more in this round."""
        self._looks = number, MAX_LOOKS

    def look(
        self,
        asked: MeasureTrial,
        took: Taken,
        state: profiler.ProfilerState,
        plan: profiler.ProfilerPlan,
        settings: RunSettings,
    ) -> Sequence[per_gpu.Instruction]:
        """Begin to try which GPUs may have a lower limit, after a window at the chosen one, if wanted."""
        if settings.control != "power_limit":
            return ()  # single GPUs are lowered by their limit
        if not settings.per_gpu or self.trying or self._evened or asked.purpose is Purpose.PROFILE:
            return ()
        phase, looks = state.phase, self._looks[1] if self._looks[0] == state.round else 0
        if not isinstance(phase, Measuring) or looks >= MAX_LOOKS:
            return ()
        least_mw, finer_mw = plan.limits_mw[-1], max(1000, settings.stride_mw // FINER)
        levels_mw = limits_mw(phase.limit_mw, least_mw, finer_mw // 1000 * 1000)
        gpus = tuple(sorted(took.energy_uj, key=lambda gpu: -took.energy_uj[gpu]))
        if len(gpus) < 2 or len(levels_mw) < 2:
            return ()
        self._looks, self._round = (state.round, looks + 1), state.round
        self._plan = per_gpu.PerGpuPlan(
            gpus, levels_mw, SEARCH_SETTLE_NS, plan.window_ns, plan.outcome_ns, state.round
        )
        self.state, wanted = per_gpu.start(self._plan, state.visiting.step)
        return wanted

    def step(self, event: Event) -> Sequence[per_gpu.Instruction]:
        """Pass an event to the machine, if there is one. Return what it wants."""
        if self.state is None or self._plan is None:
            return ()
        self.state, wanted = per_gpu.step(self.state, event, self._plan)
        return wanted

    def found(self, run: str, t_ns: int, found: per_gpu.Found) -> list[GpuLimitRow]:
        """Take in which limits were found. Return a row of each GPU."""
        assert self._plan is not None
        self._evened = True
        job_w, effect = self._plan.limits_mw[0] / 1000, found.effect
        return [
            GpuLimitRow(
                run=run,
                round=self._round,
                gpu=gpu,
                t_ns=t_ns,
                power_limit_w=limit_mw / 1000,
                job_limit_w=job_w,
                steps=found.steps,
                energy_percent=100 * effect.energy if effect else None,
                time_percent=100 * effect.time if effect else None,
                reason=why,
            )
            for gpu, limit_mw, why in zip(self._plan.gpus, found.limits_mw, found.why, strict=True)
        ]
