"""The start of an analyzer: its claim, profiles of earlier runs, and settings of open runs."""

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from analyzers.archive.store import Store
from analyzers.batch_size import registry
from analyzers.batch_size.history import MAX_TRIES, Known
from analyzers.dispatch.pending import Pending
from analyzers.fleet.ownership import MAX_NAMES
from analyzers.interpreter import Interpreter
from analyzers.measurement.counters.counter_kind import known_counters
from analyzers.power_limit import profiles, selectors
from analyzers.power_limit.profiles import Memory
from analyzers.power_limit.run_settings import PLANNED, RunSettings
from analyzers.power_limit.selectors import Selector
from zeus_stream import own_cost
from zeus_stream.errors import SettingsError
from zeus_stream.paths import Places, claim, places, prepare
from zeus_stream.settings import Settings

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


def interpreter_of(archive: Store, settings: Settings, sessions: Sequence[str] | None = None) -> Interpreter:
    """Return an interpreter that goes on where the archive ends.

    Args:
        archive: of earlier starts.
        settings: of this start.
        sessions: see `remembered`.

    Raises:
        SettingsError: there is no such selector or policy.
        StorageError: the archive cannot be read.
    """
    selector = selectors.parse(settings.select)
    jobs, runs, hosts = archive.owners(MAX_NAMES)
    return Interpreter(
        RunSettings.of(settings, selector, archive.starts),
        remembered(archive, sessions),
        policy=(settings.policy, registry.parse(settings.policy)),
        jobs=Known(
            *archive.known_jobs(MAX_TRIES),
            jobs,
            frozenset(settings.shared_jobs),
            run_owners=runs,
            hosts=hosts,
        ),
        began_under=settings_of_begun(archive, settings, selector, sessions),
        pending=Pending(),
    )


def remembered(archive: Store, sessions: Sequence[str] | None = None) -> Memory:
    """Return what an analyzer that starts has to know beyond what it interprets again.

    Args:
        archive: of earlier starts.
        sessions: that are open, or begin in what is interpreted again; None: those of `Store.to_replay`.
    """
    if sessions is None:
        sessions = archive.sessions_to_replay()
    known = profiles.of_rows(archive.profiles())
    return Memory(
        known,
        archive.recalled(sessions),
        tuple(archive.pipeline_profiles()),
        known_counters(archive.gpus()),
        tuple(archive.earlier_uses(sessions)),
    )


def settings_of_begun(
    archive: Store, settings: Settings, selector: Selector | None, sessions: Sequence[str] | None = None
) -> dict[str, RunSettings]:
    """Return by session the plans of runs that have begun; say which open ones keep to other settings.

    ``sessions``: see `remembered`.
    """
    begun = archive.begun(archive.sessions_to_replay() if sessions is None else sessions)
    try:
        then = archive.settings_then({each.start for each in begun})
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
    for run, start in {each.run: each.start for each in begun if not each.over}.items():
        if start in then and (others := _others(then[start], settings)):
            _log.warning("run %s keeps to what it began with, %s. Others follow the settings.", run, others)
    return {each.session: plans[each.start] for each in begun if each.start in plans}


def _others(then: Settings, now: Settings) -> str:
    """Return the settings of a plan that are not as they were, in words."""
    names = [name for name in PLANNED if getattr(then, name) != getattr(now, name)]
    return ", ".join(f"{name} = {getattr(then, name)}" for name in names)
