"""Start an interpreter: from the last checkpoint and what came since, or from the streams of open runs."""

import logging
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import Struct

from analyzers.archive.store import Store
from analyzers.batch_size import registry
from analyzers.checkpoints import machine_state, state_classes
from analyzers.checkpoints.checkpoint_taker import NAME, CheckpointTaker, verify
from analyzers.dispatch.pending import Pending
from analyzers.interpreter.interpreter import Interpreter
from analyzers.live.live_site import LiveSite
from analyzers.power_limit import selectors
from analyzers.power_limit.run_settings import PLANNED, RunSettings
from analyzers.power_limit.selectors import Selector
from analyzers.results.memory import Memory
from analyzers.results.rows import CheckpointRow
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import MalformedError, SettingsError
from zeus_stream.settings import Settings, read_back

_log = logging.getLogger(__name__)


class Restart(Struct, frozen=True):
    """The state that an analyzer starts with."""

    interpreter: Interpreter
    live: LiveSite
    taker: CheckpointTaker
    since: Mapping[str, int] | None
    """By log, the offset from which the archive is replayed; None: since the oldest open run began."""
    key: bytes | None
    """Signs checkpoints; None: they are kept where only analyzers of the site can write."""


def restart(archive: Store, settings: Settings, key: bytes | None) -> Restart:
    """Return an interpreter, and what it is to interpret again.

    ``key``: only a checkpoint that it signed is read; None: any, only analyzers of the site write there.
    Raises SettingsError: there is no such selector or policy. StorageError: the archive cannot be read.
    """
    row = archive.checkpoint(NAME)
    if row is not None:
        try:
            return _go_on(archive, settings, row, key)
        except MalformedError as wrong:
            _log.warning(
                "checkpoint of %s: could not be used: %s The streams of all open runs are replayed instead.",
                datetime.fromtimestamp(row.wall_ns // 10**9, UTC).isoformat(), wrong,
            )  # fmt: skip
    memory = archive.memory()
    interpreter = _interpreter_of(archive, settings, memory)
    taker = CheckpointTaker(archive.starts, memory.interpreted, whole=False)
    return Restart(interpreter, LiveSite(), taker, None, key)


def _go_on(archive: Store, settings: Settings, row: CheckpointRow, key: bytes | None) -> Restart:
    """Return what goes on from a checkpoint. Raises MalformedError."""
    if key is not None:
        verify(row, key)
    if row.code != state_classes.version():
        raise MalformedError("its classes consist of other parts by now.")
    since = dict(zip(row.log_ids, row.offsets, strict=True))
    memory = archive.memory(since, row.sessions)
    if any(memory.interpreted.get(log_id, -1) < offset for log_id, offset in since.items()):
        raise MalformedError("the archive does not reach as far: a part of it was lost or set aside.")
    try:
        state, of_live = zlib.decompress(row.state), zlib.decompress(row.live)
    except zlib.error as wrong:
        raise MalformedError("state: could not be read: it is damaged.") from wrong
    interpreter = _interpreter_of(archive, settings, memory)
    live, selector = LiveSite(), selectors.parse(settings.select)

    def select(text: str) -> Selector | None:
        return selector if text == settings.select else selectors.parse_archived(text)

    machine_state.restore(interpreter.site, state, select)
    machine_state.restore_live(live, of_live, monotonic_ns())
    return Restart(interpreter, live, CheckpointTaker(archive.starts, since, whole=True), since, key)


def _interpreter_of(archive: Store, settings: Settings, memory: Memory) -> Interpreter:
    """Return an interpreter that goes on where the archive ends. Raises SettingsError."""
    selector = selectors.parse(settings.select)
    return Interpreter(
        RunSettings.of(settings, selector, archive.starts),
        memory,
        (settings.policy, registry.parse(settings.policy)),
        shared_jobs=frozenset(settings.shared_jobs),
        began_under=settings_of_begun(memory, settings, selector),
        pending=Pending(),
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
