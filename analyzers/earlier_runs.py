"""The start of an analyzer: its claim, profiles of earlier runs, and settings of open runs."""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from analyzers.archive.store import Store
from analyzers.batch_size import registry
from analyzers.batch_size.history import Known
from analyzers.dispatch.pending import Pending
from analyzers.interpreter.interpreter import Interpreter
from analyzers.measurement.counters.counter_kind import known_counters
from analyzers.power_limit import profiles, selectors
from analyzers.power_limit.run_settings import PLANNED, RunSettings
from analyzers.power_limit.selectors import Selector
from analyzers.results.memory import Memory
from zeus_stream import own_cost
from zeus_stream.errors import SettingsError
from zeus_stream.paths import Places, claim, places, prepare
from zeus_stream.settings import Settings, read_back

_log = logging.getLogger(__name__)
SWITCH_S = 0.001
"""For so long the thread that interprets keeps the interpreter lock of Python to itself."""


@contextmanager
def only_analyzer(settings: Settings, environ: Mapping[str, str]) -> Iterator[Places]:
    """Make this process the analyzer of its directories. Raises SettingsError, RefusedError."""
    sys.setswitchinterval(SWITCH_S)
    own_cost.collect_seldom()
    where = places(environ)
    check(settings)
    prepare(where, settings.group)
    with claim(where.run / "analyzer.lock", "analyzer"):
        yield where


def check(settings: Settings) -> None:
    """Raise SettingsError unless selector and policy can be had."""
    selectors.parse(settings.select)
    registry.parse(settings.policy)


def interpreter_of(archive: Store, settings: Settings, memory: Memory) -> Interpreter:
    """Return an interpreter that goes on where the archive ends.

    Args:
        archive: of earlier starts.
        settings: of this start.
        memory: of the archive.

    Raises:
        SettingsError: there is no such selector or policy.
    """
    selector = selectors.parse(settings.select)
    return Interpreter(
        RunSettings.of(settings, selector, archive.starts),
        remembered(memory),
        policy=(settings.policy, registry.parse(settings.policy)),
        jobs=Known(
            memory.jobs,
            memory.tries,
            memory.owners.jobs,
            frozenset(settings.shared_jobs),
            run_owners=memory.owners.runs,
            hosts=memory.owners.hosts,
        ),
        began_under=settings_of_begun(memory, settings, selector),
        pending=Pending(),
    )


def remembered(memory: Memory) -> profiles.Memory:
    """Return what of a memory the searches of an interpreter start with."""
    return profiles.Memory(
        profiles.of_rows(memory.profiles),
        memory.recalled,
        memory.instructions,
        known_counters(memory.gpus),
        memory.uses,
    )


def settings_of_begun(
    memory: Memory, settings: Settings, selector: Selector | None
) -> dict[str, RunSettings]:
    """Return by session the plans of runs that have begun; say which open ones keep to other settings."""
    try:
        then = {start: read_back(values, "the archive") for start, values in memory.settings.items()}
        plans = {
            start: RunSettings.of(
                was,
                selector if was.select == settings.select else selectors.parse_archived(was.select),
                start,
            )
            for start, was in then.items()
        }
    except SettingsError as wrong:  # another version's
        _log.warning("%s Runs that are open go on under the settings of now.", wrong)
        return {}
    for run, start in {each.run: each.start for each in memory.begun if not each.over}.items():
        if start in then and (others := _others(then[start], settings)):
            _log.warning("run %s keeps to what it began with, %s. Others follow the settings.", run, others)
    return {each.session: plans[each.start] for each in memory.begun if each.start in plans}


def _others(then: Settings, now: Settings) -> str:
    """Return the settings of a plan that are not as they were, in words."""
    names = [name for name in PLANNED if getattr(then, name) != getattr(now, name)]
    return ", ".join(f"{name} = {getattr(then, name)}" for name in names)
