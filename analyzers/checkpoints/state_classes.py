"""The classes whose objects are the state of an analyzer, and a digest of what they consist of. Pure.

A checkpoint constructs objects of these classes and of no other. It is read as long as they consist of what
they consisted of when it was written: an upgrade that changes what they do, not what they hold, reads it.
"""

import inspect
from collections.abc import Iterable
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from hashlib import sha256
from importlib import import_module
from typing import Any

MODULES = frozenset(
    (
        "analyzers.batch_size.followed_try",
        "analyzers.batch_size.history",
        "analyzers.batch_size.known_jobs",
        "analyzers.batch_size.policy",
        "analyzers.dispatch.pending",
        "analyzers.fleet.fleet",
        "analyzers.fleet.ownership",
        "analyzers.fleet.session",
        "analyzers.forecast.batch_means",
        "analyzers.forecast.run_forecast",
        "analyzers.interpreter.state",
        "analyzers.live.job_steps",
        "analyzers.live.live_run",
        "analyzers.measurement.counters.counter_kind",
        "analyzers.measurement.counters.refresh_times",
        "analyzers.measurement.energy_fit",
        "analyzers.measurement.fixed_energies",
        "analyzers.measurement.knots",
        "analyzers.measurement.cuts",
        "analyzers.measurement.phases.mark_times",
        "analyzers.measurement.phases.phase_tracker",
        "analyzers.measurement.power_model",
        "analyzers.measurement.sensors",
        "analyzers.measurement.timeline",
        "analyzers.measurement.windows",
        "analyzers.pipeline.clock_visits",
        "analyzers.pipeline.frontier",
        "analyzers.pipeline.graph",
        "analyzers.pipeline.pipeline_run",
        "analyzers.pipeline.plan",
        "analyzers.pipeline.profile",
        "analyzers.pipeline.remembering.known_pipelines",
        "analyzers.pipeline.stage_record",
        "analyzers.pipeline.watching.chosen_plans",
        "analyzers.pipeline.watching.held_clocks",
        "analyzers.pipeline.watching.measured",
        "analyzers.pipeline.watching.timelines",
        "analyzers.power_budget.accounts",
        "analyzers.power_budget.allocation",
        "analyzers.power_budget.budget_reports",
        "analyzers.power_limit.search.step_costs",
        "analyzers.power_limit.search.visit_blocks",
        "analyzers.power_limit.search.drift",
        "analyzers.power_limit.commands",
        "analyzers.power_limit.limit_search",
        "analyzers.power_limit.ranks",
        "analyzers.power_limit.run_decisions",
        "analyzers.power_limit.per_gpu",
        "analyzers.power_limit.profiler",
        "analyzers.power_limit.profiles",
        "analyzers.power_limit.run",
        "analyzers.power_limit.run_settings",
        "analyzers.power_limit.selectors",
        "analyzers.power_limit.visits",
        "analyzers.power_limit.profiles",
        "analyzers.results.budget_rows",
        "analyzers.results.fleet_rows",
        "analyzers.results.instructions",
        "analyzers.results.job_rows",
        "analyzers.results.limit_rows",
        "analyzers.results.pipeline.pipeline_rows",
        "analyzers.results.result",
        "analyzers.results.signal_rows",
        "analyzers.results.windows.step_columns",
        "analyzers.results.windows.window_rows",
        "zeus_stream.live.latest",
        "zeus_stream.protocol.events",
        "zeus_stream.protocol.notes",
        "zeus_stream.protocol.pipelines",
    )
)
"""Modules with state classes. None of them opens, reads or sends anything."""
PARTS = frozenset(
    (
        "analyzers.batch_size.known_jobs",
        "analyzers.batch_size.tracker",
        "analyzers.fleet.questions",
        "analyzers.interpreter.interpreter",
        "analyzers.live.live_runs",
        "analyzers.live.live_site",
        "analyzers.power_budget.enforcer",
        "analyzers.power_limit.profiles",
    )
)
"""Modules of what there is once. A checkpoint sets attributes of it, and makes none."""


class UnregisteredError(ValueError):
    """A class that is no state class."""


@cache
def name_of(kind: type) -> tuple[str, str]:
    """Return module and name of a state class. Raises UnregisteredError."""
    if kind.__module__ not in MODULES:
        raise UnregisteredError(f"{kind.__module__}.{kind.__qualname__} is no state class")
    return kind.__module__, kind.__qualname__


@cache
def class_of(module: str, name: str) -> Any:
    """Return the state class of this name. Raises UnregisteredError."""
    if module not in MODULES:
        raise UnregisteredError(f"{module}.{name} is no state class")
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or found.__module__ != module:
        raise UnregisteredError(f"{module}.{name} is no state class")
    return found


@cache
def version() -> str:
    """Return a digest of what objects of all state classes consist of, and the parts of an interpreter."""
    digest = sha256()
    for module in sorted(MODULES | PARTS):
        members = vars(import_module(module)).values()
        for kind in sorted(
            {each for each in members if isinstance(each, type)}, key=lambda each: each.__qualname__
        ):
            if kind.__module__ == module:
                digest.update("\n".join((module, kind.__qualname__, *_contents(kind))).encode())
    return digest.hexdigest()[:16]


def _contents(kind: type) -> Iterable[str]:
    """Yield the values of an enumeration, fields and their types, and what a constructor sets."""
    if issubclass(kind, Enum):
        yield from (f"{each.name} = {each.value!r}" for each in kind)
    else:
        yield from (f"{name}: {hint}" for name, hint in inspect.get_annotations(kind).items())
        yield from sorted(vars(kind).get("NOT_STATE", ()))
        constructor = vars(kind).get("__init__")
        if inspect.isfunction(constructor) and not is_dataclass(kind):
            yield inspect.getsource(constructor)
