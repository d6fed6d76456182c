"""Checks before anything is started: settings, the program, the directories, the archive."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from zeus_stream.cli.running.child_services import VERBS
from zeus_stream.errors import SettingsError, StorageError
from zeus_stream.own_services import KEEPER, say
from zeus_stream.paths import Places, endpoint, holder, prepare
from zeus_stream.settings import Settings

_MAGIC = slice(8, 12)
"""Where a DuckDB file has its name."""


def check(settings: Settings, command: Sequence[str], where: Places) -> None:
    """Check what the services or the start of a command would refuse. Raises SettingsError, StorageError."""
    check_settings(settings)
    if command and shutil.which(command[0]) is None:
        raise SettingsError(
            f"{command[0]}: could not be started: there is no such program."
            " Give the command as you would without zeus-stream, after `--`."
        )
    running = [name for name in VERBS if holder(where.run / f"{name}.lock") is not None]
    if not running:
        _check_directories(where)
    if "analyzer" not in running:
        _check_archive(settings.archive or where.archive)


def check_settings(settings: Settings) -> None:
    """Check the settings of both services. Raises SettingsError."""
    from analyzers.batch_size.registry import maker_of
    from analyzers.power_limit.run_settings import RunSettings
    from analyzers.power_limit.selectors import parse as parse_selector
    from collectors.devices.registry import open_bus

    RunSettings.of(settings, parse_selector(settings.select))
    maker_of(settings.policy)
    open_bus(settings.device, Path(), cpu=settings.cpu, set_command=settings.set_command).close()


def say_ignored(given: Mapping[str, Sequence[str]], absent: Sequence[str], where: Places) -> None:
    """Print each option without effect: all services that read it run already, none is ``absent``."""
    cure = "Give it where that is started."
    if holder(where.run / KEEPER) is not None:
        cure = "It ends some seconds after the last script that uses it: try again then."
    for option, readers in given.items():
        if readers and not set(readers) & set(absent):
            services = " and the ".join(readers)
            say(f"{option} has no effect: the {services} runs already. {cure}")


def _check_directories(where: Places) -> None:
    umask = os.umask(0)
    try:
        prepare(where)
    finally:
        os.umask(umask)  # the command has that of its user
    for path in (where.publish, where.position, where.control, where.query):
        endpoint(path)


def _check_archive(path: Path) -> None:
    cure = "Name another file with --archive."
    try:
        if path.exists():
            with path.open("r+b") as file:
                head = file.read(_MAGIC.stop)
            if head and head[_MAGIC] != b"DUCK":
                raise StorageError(f"{path}: could not be opened: it is no DuckDB database. {cure}")
        elif not os.access(path.parent, os.W_OK | os.X_OK):
            why = "this user cannot write there" if path.parent.is_dir() else "there is no such directory"
            raise StorageError(f"{path}: could not be made: {why}. {cure}")
    except OSError as wrong:
        raise StorageError(f"{path}: could not be opened: {wrong.strerror}. {cure}") from wrong
