"""Measured power limits -> the one to use. Pure.

    energy            least energy
    time              least time
    cost:ETA          least ETA * energy + (1 - ETA) * MAXPOWER * time        (0: time only, 1: energy only)
    slowdown:FACTOR   lowest limit whose time is at most FACTOR times that at the highest limit measured
    MODULE:FUNCTION   whatever FUNCTION(trials, gpus) returns, one of the trials' limits, mW

MAXPOWER is the highest limit measured times the number of GPUs of the job. Trials may hold different
numbers of steps, so everything is compared per step. Ties go to the higher limit.

Source of the cost: You, Chung, Chowdhury, "Zeus: Understanding and Optimizing GPU Energy Consumption of
DNN Training", NSDI 2023.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zeus_stream.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Trial:
    """One power limit, measured."""

    limit_mw: int
    energy_mj: int
    """Of all GPUs of the job."""
    duration_ns: int
    """Of all steps: the slowest rank's."""
    steps: int

    @property
    def step_mj(self) -> float:
        return self.energy_mj / self.steps

    @property
    def step_ns(self) -> float:
        return self.duration_ns / self.steps


@dataclass(frozen=True, slots=True)
class Goal:
    """What a selector minimizes, for a search that does not measure every limit."""

    energy_weight: float
    """Least ``energy_weight`` * energy + (1 - ``energy_weight``) * MAXPOWER * time."""
    factor: float | None = None
    """Or the lowest limit whose time is at most so many times that at the highest."""

    def of(self, trial: Trial, top_mw: int, gpus: int) -> float:
        """Return a trial's objective, mJ."""
        return cost_mj(trial, self.energy_weight, top_mw, gpus)


Choose = Callable[[Sequence[Trial], int], int]
"""Trials (one or more, a limit each) and the number of GPUs of the job -> one of the limits, mW."""


@dataclass(frozen=True, slots=True)
class Selector:
    """A way to choose, and the text it was written as."""

    text: str
    choose: Choose
    eta: float | None = None
    """Of ``cost:ETA``."""
    goal: Goal | None = None
    """None: only the function knows, so every limit has to be measured."""


def least_energy(trials: Sequence[Trial], gpus: int) -> int:  # noqa: ARG001 - every selector is asked alike
    return min(trials, key=lambda trial: (trial.step_mj, -trial.limit_mw)).limit_mw


def least_time(trials: Sequence[Trial], gpus: int) -> int:  # noqa: ARG001 - every selector is asked alike
    return min(trials, key=lambda trial: (trial.step_ns, -trial.limit_mw)).limit_mw


def least_cost(eta: float) -> Choose:
    def choose(trials: Sequence[Trial], gpus: int) -> int:
        top_mw = max(trial.limit_mw for trial in trials)
        return min(
            trials, key=lambda trial: (cost_mj(trial, eta, top_mw, gpus) / trial.steps, -trial.limit_mw)
        ).limit_mw

    return choose


def within_slowdown(factor: float) -> Choose:
    def choose(trials: Sequence[Trial], gpus: int) -> int:  # noqa: ARG001 - every selector is asked alike
        bound_ns = factor * max(trials, key=lambda trial: trial.limit_mw).step_ns
        return min(trial.limit_mw for trial in trials if trial.step_ns <= bound_ns)

    return choose


def cost_mj(trial: Trial, eta: float, top_mw: int, gpus: int) -> float:
    """Return a trial's cost, mJ. ``top_mw``: highest limit measured; ``gpus``: of the job."""
    return eta * trial.energy_mj + (1 - eta) * top_mw * gpus * trial.duration_ns / 1e9


def parse(text: str) -> Selector | None:
    """Return the selector written so, or None for ``none``: only measure.

    Raises:
        SettingsError: there is no such selector; the sentence lists what there is.
    """
    word, colon, value = text.partition(":")
    match word:
        case "none" if not colon:
            return None
        case "energy" if not colon:
            return Selector(text, least_energy, goal=Goal(1.0))
        case "time" if not colon:
            return Selector(text, least_time, goal=Goal(0.0))
        case "cost":
            eta = _number(text, value, "ETA is a number from 0 (time only) to 1 (energy only)", 0, 1)
            return Selector(text, least_cost(eta), eta, Goal(eta))
        case "slowdown":
            factor = _number(text, value, "FACTOR is a number from 1", 1, 1e6)
            return Selector(text, within_slowdown(factor), goal=Goal(0.0, factor))
        case _ if colon and value:
            return Selector(text, _checked(text, _load(text, word, value)))
        case _:
            raise _wrong(text, "there is no such selector")


def unnamed(text: str) -> Selector:
    """Return a selector in the place of somebody else's function that nobody has named to this process."""

    def choose(trials: Sequence[Trial], gpus: int) -> int:  # noqa: ARG001 - every selector is asked alike
        raise SettingsError(
            f"select = {text!r}: could not choose a limit: this analyzer was not told to run that function."
            f" Start it with --select {text} until the run has ended."
        )

    return Selector(text, choose)


def is_foreign(text: str) -> bool:
    """Tell whether a selector is somebody else's function: to `parse` it runs their code."""
    word, colon, _ = text.partition(":")
    return bool(colon) and word not in ("cost", "slowdown")


def _number(text: str, value: str, expected: str, least: float, most: float) -> float:
    try:
        number = float(value)
    except ValueError as wrong:
        raise _wrong(text, expected) from wrong
    if not least <= number <= most:
        raise _wrong(text, expected)
    return number


def _load(text: str, module: str, function: str) -> Choose:
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as wrong:  # importing somebody else's code may raise anything; it is told on
        raise _wrong(text, f"{wrong}") from wrong
    if not callable(found):
        raise _wrong(text, f"{function} is not a function")
    choose: Choose = found
    return choose


def _checked(text: str, choose: Choose) -> Choose:
    """Return somebody else's function with its mistakes named."""

    def checked(trials: Sequence[Trial], gpus: int) -> int:
        limits = [trial.limit_mw for trial in trials]
        try:
            chosen = choose(trials, gpus)
        except Exception as wrong:  # somebody else's code may raise anything; it is told on
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


def _wrong(text: str, why: str) -> SettingsError:
    return SettingsError(
        f"select = {text!r}: could not be understood: {why}."
        " Choose energy, time, cost:ETA, slowdown:FACTOR, MODULE:FUNCTION, or none to only measure."
    )
