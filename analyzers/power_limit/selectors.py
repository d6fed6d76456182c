"""Selectors: measured power limits -> the one to use. Pure, except for code that somebody else wrote.

    energy            least energy
    time              least time
    cost:ETA          least ETA * energy + (1 - ETA) * MAXPOWER * time        (0: time only, 1: energy only)
    edp:N             least energy * time ** N
    slowdown:FACTOR   lowest limit whose time is at most FACTOR times that at the highest limit measured
    NAME or NAME:VALUE   a selector that an installed package registers under the entry point group `GROUP`
    MODULE:FUNCTION   the limit that FUNCTION(trials, gpus) returns, one of the trials' limits, mW

Each name of the first five is one entry of `BUILT_IN`. MAXPOWER is the highest limit measured times the
number of GPUs of the job. Trials may hold different numbers of steps, so everything is compared per step.
Ties go to the higher limit.

Source of the cost: You, Chung, Chowdhury, "Zeus: Understanding and Optimizing GPU Energy Consumption of
DNN Training", NSDI 2023. Of energy * delay ** N: Horowitz, Indermaur, Gonzalez, "Low-Power Digital
Design", IEEE Symposium on Low Power Electronics, 1994.
"""

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from zeus_stream.errors import SettingsError
from zeus_stream.plugins import names, registered

if TYPE_CHECKING:  # `zeus-stream run` checks a selector before it starts anything: numpy takes 0.1 s
    from importlib.metadata import EntryPoint

    import numpy as np
    import numpy.typing as npt

    Figure: TypeAlias = float | npt.NDArray[np.float64]

GROUP = "zeus_stream.selectors"
"""Entry points of packages that add selectors."""


class Halves(Struct, frozen=True):
    """The steps of a block, split at the widest gap between their times: two kinds, if there are two."""

    shorter: int
    shorter_ns: float
    """Of a step, in the mean."""
    longer: int
    """0: all took the same."""
    longer_ns: float


class Trial(Struct, frozen=True):
    """One power limit, measured."""

    limit_mw: int
    energy_mj: int
    """Of all GPUs of the job."""
    duration_ns: int
    """Of all steps: the slowest rank's."""
    steps: int
    delay_ns: int = 0
    """Of the duration: how much longer steps took than the quickest of their block."""
    halves: Halves | None = None
    """Its shorter and its longer steps. None: not known."""

    @property
    def step_mj(self) -> float:
        return self.energy_mj / self.steps

    @property
    def step_ns(self) -> float:
        return self.duration_ns / self.steps


class Goal(Struct, frozen=True):
    """The objective of a selector, for a search that does not measure every limit."""

    energy_weight: float
    """Least ``energy_weight`` * energy + (1 - ``energy_weight``) * MAXPOWER * time."""
    factor: float | None = None
    """Or the lowest limit whose time is at most so many times that at the highest."""
    delay_exponent: float | None = None
    """Or least energy * time ** ``delay_exponent``."""

    def of(self, trial: Trial, top_mw: int, gpus: int) -> float:
        """Return a step's objective in a trial: mJ, or mJ * s ** ``delay_exponent``."""
        return float(self.of_step(trial.step_mj, trial.step_ns / 1e9, top_mw * gpus))

    def of_step(self, energy_mj: "Figure", time_s: "Figure", most_mw: int) -> "Figure":
        """Return the objective of a step. ``most_mw``: the highest limit, of all GPUs that drew energy."""
        if self.delay_exponent is not None:
            return energy_mj * time_s**self.delay_exponent
        return self.energy_weight * energy_mj + (1 - self.energy_weight) * most_mw * time_s

    def choose(self, trials: Sequence[Trial], gpus: int) -> int:
        """Return the best limit of trials, mW, one or more; ties go to the higher limit."""
        top = max(trials, key=lambda trial: trial.limit_mw)
        if self.factor is not None:
            bound_ns = self.factor * top.step_ns
            return min(trial.limit_mw for trial in trials if trial.step_ns <= bound_ns)
        return min(trials, key=lambda trial: (self.of(trial, top.limit_mw, gpus), -trial.limit_mw)).limit_mw

    def more(self, trial: Trial, other: Trial, top_mw: int, gpus: int) -> float:
        """Return by which share a trial costs more than another; with a bound on the time, in energy."""
        if self.factor is not None:
            return trial.step_mj / other.step_mj - 1
        return self.of(trial, top_mw, gpus) / self.of(other, top_mw, gpus) - 1


Choose = Callable[[Sequence[Trial], int], int]
"""Trials (one or more, a limit each) and the number of GPUs of the job -> one of the limits, mW."""


class Selector(Struct, frozen=True):
    """A way to choose, and the text it was written as."""

    text: str
    choose: Choose
    goal: Goal | None = None
    """None: only the function knows, so every limit has to be measured."""
    eta: float | None = None
    """Of ``cost:ETA``."""

    def choose_of_each(self, trials: Sequence[Trial], clocks: Collection[int], gpus: int) -> int:
        """Return the better of the best clock and the best limit; the highest is among both.

        ``clocks``: limits, mW, that are nominal powers of clocks.
        """
        if len(clocks) in {0, len(trials)}:
            return self.choose(trials, gpus)
        top, found = max(trials, key=lambda trial: trial.limit_mw), list[Trial]()
        for locked in (True, False):
            of = [each for each in trials if each is top or (each.limit_mw in clocks) is locked]
            best_mw = self.choose(of, gpus)
            found += [each for each in of if each.limit_mw == best_mw]
        goal = self.goal or Goal(1.0)
        return min(found, key=lambda each: goal.more(each, top, top.limit_mw, gpus)).limit_mw

    @property
    def wanted(self) -> str:
        """Return what the reason of a decision says that it looks for."""
        name, _, value = self.text.partition(":")
        match name:
            case "energy" | "time":
                return f"least {name} of a step"
            case "slowdown":
                return f"least energy of a step that takes at most {value} times as long"
            case _:
                return f"best by {self.text}"


def more_words(share: float) -> str:
    """Return by how much something has grown, or fallen."""
    percent = round(100 * share)
    return f"{abs(percent)} % {'more' if percent > 0 else 'less'}" if percent else "as much"


class Entry(Struct, frozen=True):
    """A selector of the registry."""

    usage: str
    """Name, and value if it takes one."""
    goal: Callable[[float], Goal]
    """Of the value; 0: it takes none."""
    value: str = ""
    """The meaning of the value, for people; empty: it takes none."""
    least: float = 0
    most: float = 0


BUILT_IN: Mapping[str, Entry] = {
    "energy": Entry("energy", lambda _: Goal(1.0)),
    "time": Entry("time", lambda _: Goal(0.0)),
    "cost": Entry("cost:ETA", Goal, "ETA is a number from 0 (time only) to 1 (energy only)", 0, 1),
    "edp": Entry("edp:N", lambda n: Goal(1.0, delay_exponent=n), "N is a number from 0 to 10", 0, 10),
    "slowdown": Entry("slowdown:FACTOR", lambda of: Goal(0.0, of), "FACTOR is a number from 1", 1, 1e6),
}
"""By name: what is before the colon."""


def parse(text: str) -> Selector | None:
    """Return the selector written so; None for ``none`` and ``script``. Raises SettingsError."""
    if text in ("none", "script"):
        return None
    name, colon, after = text.partition(":")
    value = after if colon else None
    if (entry := BUILT_IN.get(name)) is not None:
        number = _number(text, entry, value)
        goal = entry.goal(number)
        return Selector(text, goal.choose, goal, number if name == "cost" else None)
    if (plugin := _plugin(name)) is not None:
        return _of_plugin(text, plugin, value)
    if name and value:
        return Selector(text, _checked(text, _load(text, name, value)))
    raise _wrong(text, "there is no such selector")


def parse_archived(text: str) -> Selector | None:
    """Return the selector of an earlier start of the analyzer; code that only the archive names is not run.

    In place of a function named by its module comes one that says how to name it again.
    """
    return _unnamed(text) if is_foreign(text) else parse(text)


def is_foreign(text: str) -> bool:
    """Tell whether a selector is a function that only its text names: to `parse` it runs that code."""
    name, colon, _ = text.partition(":")
    return bool(colon) and name not in BUILT_IN and _plugin(name) is None


def _unnamed(text: str) -> Selector:
    def choose(trials: Sequence[Trial], gpus: int) -> int:  # noqa: ARG001 - all selectors get the same
        raise SettingsError(
            f"select = {text!r}: could not choose a limit: this analyzer may not run that function."
            f" Start it with --select {text} until the run has ended, or install the package that adds it."
        )

    return Selector(text, choose)


# ---- selectors of other packages -----------------------------------------------------------------------


def _plugin(name: str) -> "EntryPoint | None":
    """Return the entry point of an installed package that registers a name; the first, if there are two."""
    return next(iter(registered(GROUP).select(name=name)), None) if name else None


def _of_plugin(text: str, plugin: "EntryPoint", value: str | None) -> Selector:
    """Return the selector that a package makes of a value: a function as for MODULE:FUNCTION."""
    try:
        choose = plugin.load()(value)
    except Exception as wrong:  # code of another package may raise anything; the sentence passes it on
        raise _wrong(text, f"{plugin.value} raised {wrong!r}") from wrong
    if not callable(choose):
        raise _wrong(text, f"{plugin.value} returned {choose!r}, which is no function")
    return Selector(text, _checked(text, choose))


def _load(text: str, module: str, function: str) -> Choose:
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as wrong:  # importing other code may raise anything; the sentence passes it on
        raise _wrong(text, f"{wrong}") from wrong
    if not callable(found):
        raise _wrong(text, f"{function} is not a function")
    choose: Choose = found
    return choose


def _checked(text: str, choose: Choose) -> Choose:
    """Return a function of other code with its mistakes named."""

    def checked(trials: Sequence[Trial], gpus: int) -> int:
        limits = [trial.limit_mw for trial in trials]
        try:
            chosen = choose(trials, gpus)
        except Exception as wrong:  # other code may raise anything; the sentence passes it on
            raise SettingsError(
                f"select = {text!r}: could not choose a limit: {wrong!r}. Correct the function."
            ) from wrong
        if chosen not in limits:
            raise SettingsError(
                f"select = {text!r}: could not choose a limit: {chosen!r} is none of those measured,"
                f" {limits} mW. Correct the function."
            )
        return chosen

    return checked


# ---- values and errors ---------------------------------------------------------------------------------


def _number(text: str, entry: Entry, value: str | None) -> float:
    """Return the number that a value is; 0 where none is wanted. Raises SettingsError."""
    if not entry.value:
        if value is not None:
            raise _wrong(text, "it takes no value")
        return 0.0
    try:
        number = float(value or "")
    except ValueError as wrong:
        raise _wrong(text, entry.value) from wrong
    if not entry.least <= number <= entry.most:
        raise _wrong(text, entry.value)
    return number


def _wrong(text: str, why: str) -> SettingsError:
    installed = names(GROUP)
    there = ", ".join([*(entry.usage for entry in BUILT_IN.values()), *installed])
    return SettingsError(
        f"select = {text!r}: could not be understood: {why}."
        f" Choose {there}, MODULE:FUNCTION, or none to only measure."
    )
