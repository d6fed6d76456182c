"""The settings under which a run is measured, and its power limits are chosen. Pure."""

from typing import get_args

from msgspec import Struct
from msgspec.structs import replace

from analyzers.power_limit.selectors import Selector, is_foreign, parse
from zeus_stream.errors import SettingsError
from zeus_stream.protocol.events import SearchWanted
from zeus_stream.protocol.fields import POWER_PROFILES, Searched, parse_profiles
from zeus_stream.settings import Settings

STEPS_KEPT = 4_096
"""Boundaries a rank remembers beyond those of two trials: ranks run ahead of each other."""
PLANNED = (
    "select", "search", "stride_w", "wait_steps", "warmup_steps", "profile_steps", "settle_ms", "refreshes",
    "profile_only", "per_gpu", "profiling_share", "control", "slowdown", "power_profile",
)  # fmt: skip
"""The settings that `RunSettings` is made of."""


CALLING = 0.2
"""Share of time that a driver may spend in calls that set a clock: it answers nothing else in that time."""


class PipelineSettings(Struct, frozen=True, kw_only=True):
    """The settings of clocks for pipelines."""

    slowdown: float = 1.0
    """Duration of an iteration to plan for, relative to that at the highest clocks."""
    iterations: int = 30
    """To be measured at each clock."""
    clocks: int = 9
    """Measured at most."""
    lowest: float = 0.45
    """Share of the highest clock, below which none is measured."""
    switching_s: float = 0.01
    """That a change of clock takes at least."""
    changes_per_s: float = 20.0
    """Of the clock of one GPU at most."""

    def for_calls_of(self, call_s: float) -> "PipelineSettings":
        """Return settings for drivers whose call that sets a clock takes so long, s; 0: not known."""
        if not call_s:
            return self
        return replace(
            self,
            switching_s=max(self.switching_s, call_s),
            changes_per_s=min(self.changes_per_s, CALLING / call_s),
        )


class RunSettings(Struct, frozen=True, kw_only=True):
    """The settings of one run. A run keeps those under which it began."""

    selector: Selector | None
    """None: only measure."""
    stride_mw: int = 25_000
    wait_steps: int = 1
    warmup_steps: int = 10
    profile_steps: int = 40
    settle_ns: int = 300_000_000
    refreshes: int = 10
    timeout_ns: int = 5_000_000_000
    """Frame time that readings of a window, ranks of a run and outcomes of commands are waited for."""
    exhaustive: bool = False
    """Measure every limit, for ``profile_steps`` after ``warmup_steps``."""
    profile_only: bool = False
    """Measure every limit, then keep the one found: Zeus's observer mode."""
    per_gpu: bool = False
    """Lower GPUs that wait for others below the limit of their job."""
    profiling_share: float = 0.05
    """Of a run's steps, that profiling again may take."""
    only_mw: int | None = None
    """The one limit to use; None: it is searched for."""
    only_measures: bool = False
    """``select`` is ``none``: no wish of a script changes that."""
    control: Searched = "power_limit"
    profiles: int | None = None
    """Bits of the workload power profiles to request; None: those found."""
    pipelines: PipelineSettings | None = None
    """None: no clocks are planned for pipelines."""
    start: int | None = None
    """Of the analyzer whose settings these are; None: of the one under way."""

    @property
    def steps_kept(self) -> int:
        return STEPS_KEPT + 2 * (self.warmup_steps + self.profile_steps)

    @classmethod
    def of(cls, settings: Settings, selector: Selector | None, start: int | None = None) -> "RunSettings":
        """Raises SettingsError: there is no such search."""
        if settings.search not in ("adaptive", "exhaustive"):
            raise SettingsError(
                f"search = {settings.search!r}: could not be understood: there is no such search."
                " Choose adaptive or exhaustive."
            )
        control = next((each for each in get_args(Searched) if each == settings.control), None)
        if control is None:
            raise SettingsError(
                f"control = {settings.control!r}: could not be understood: there is no such control."
                " Choose power_limit, graphics_clock or both."
            )
        return cls(
            selector=selector,
            control=control,
            profiles=_profiles(settings.power_profile),
            stride_mw=round(settings.stride_w * 1000),
            wait_steps=settings.wait_steps,
            warmup_steps=settings.warmup_steps,
            profile_steps=settings.profile_steps,
            settle_ns=settings.settle_ms * 1_000_000,
            refreshes=settings.refreshes,
            exhaustive=settings.search == "exhaustive" or settings.profile_only,
            profile_only=settings.profile_only,
            per_gpu=settings.per_gpu,
            profiling_share=settings.profiling_share,
            only_measures=settings.select == "none",
            start=start,
            pipelines=PipelineSettings(
                slowdown=settings.slowdown,
                iterations=settings.pipeline_iterations,
                clocks=settings.pipeline_clocks,
                lowest=settings.pipeline_lowest,
                switching_s=settings.switching_ms / 1000,
                changes_per_s=settings.clock_changes_per_s,
            )
            if control != "power_limit"
            else None,
        )

    def wished(self, wish: SearchWanted) -> "RunSettings":
        """Return these settings with the search for a limit that a script wishes, if they allow it."""
        if self.only_measures or is_foreign(wish.select):
            return self
        try:
            selector = parse(wish.select)
        except SettingsError:
            return self
        return replace(
            self,
            selector=selector,
            exhaustive=True,
            control="power_limit",
            wait_steps=wish.wait_steps,
            warmup_steps=wish.warmup_steps,
            profile_steps=wish.profile_steps,
            stride_mw=wish.stride_mw,
            only_mw=wish.only_mw,
        )


def _profiles(names: str) -> int | None:
    """Return the bits of the power profiles that a setting names. Raises SettingsError."""
    try:
        return parse_profiles(names) if names else None
    except ValueError:
        raise SettingsError(
            f"power_profile = {names!r}: could not be understood: there is no such profile."
            f" Choose none, or some of {', '.join(POWER_PROFILES)}, with + between them."
        ) from None
