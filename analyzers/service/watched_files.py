"""Files of the administrator that the analyzer looks at while it runs."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio

from analyzers.dispatch.own_log import OwnLog
from analyzers.interpreter.interpreter import Calibrated, Interpreter, ProfilesForgotten
from analyzers.power_budget.allocation import in_force
from analyzers.results.signal_rows import SignalRow
from analyzers.state_files import budgets, calibrations, forgotten_profiles, signal_files
from zeus_stream.clock import anchor, monotonic_ns, to_next_s
from zeus_stream.errors import StorageError
from zeus_stream.paths import Places
from zeus_stream.protocol.notes import Budget, BudgetsSet

_log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Between two looks at a file."""


async def publish_budgets(
    path: Path,
    groups: Mapping[str, tuple[str, ...]],
    own_log: OwnLog,
) -> None:
    """Put into our own log which budgets hold, as the file and the time of day have it.

    Args:
        path: of the file.
        groups: GPUs by name of a group.
        own_log: takes the notes.
    """
    known, trouble = 0, ""
    listed: tuple[Budget, ...] | None = None
    published: tuple[Budget, ...] | None = None if own_log.begun else ()
    while True:
        now = changed(path)
        if now != known or listed is None or any(budget.targets for budget in listed):
            known = now
            try:
                listed, trouble = budgets.load(path, groups), ""
            except StorageError as wrong:
                if str(wrong) != trouble:
                    _log.warning("%s", wrong)
                trouble = str(wrong)
        if listed is not None and (holding := in_force(listed, anchor().wall_ns)) != published:
            published = holding
            await own_log.state("budgets", BudgetsSet(monotonic_ns(), holding))
        await anyio.sleep(to_next_s(LOOK_S))


async def follow_signals(folder: Path, store: Callable[[Sequence[SignalRow]], Awaitable[None]]) -> None:
    """Store the signals of a folder, now and whenever one of its files is replaced."""

    async def take() -> None:
        if rows := signal_files.load(folder):
            await store(rows)

    await watch(folder, None, take)


Take = Callable[[Interpreter], None]


def take_all(where: Places, interpreter: Interpreter) -> list[tuple[Path, int, Take]]:
    """Have the interpreter take calibrations and what was forgotten. Return what `watch_all` watches."""

    def take_gains(known: Interpreter) -> None:
        known.handle(Calibrated(calibrations.load(where.gains)), 0)

    def take_forgotten(known: Interpreter) -> None:
        known.handle(ProfilesForgotten(forgotten_profiles.load(where.forgotten)), 0)

    watched: list[tuple[Path, int, Take]] = [
        (file, changed(file), take)
        for file, take in ((where.gains, take_gains), (where.forgotten, take_forgotten))
    ]
    for _, _, take in watched:
        take(interpreter)
    return watched


async def watch_all(
    watched: Sequence[tuple[Path, int, Take]], run: Callable[[Take], Awaitable[None]]
) -> None:
    """Have the interpreter take these files again whenever they change. ``run``: gives work to it."""
    async with anyio.create_task_group() as tasks:
        for file, known, take in watched:
            tasks.start_soon(watch, file, known, partial(run, take))


async def watch(path: Path, known: int | None, take: Callable[[], Awaitable[None]]) -> None:
    """Take what is in a file whenever it changes. ``known``: when the file that was taken last changed."""
    while True:
        if (now := changed(path)) != known:
            known = now
            try:
                await take()
            except StorageError as wrong:
                _log.warning("%s", wrong)
        await anyio.sleep(to_next_s(LOOK_S))


def changed(path: Path) -> int:
    """Return when a file was last changed, 0 if it is not there."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
