"""Options that commands share: flags of settings, output formats, and help in groups."""

import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from msgspec.structs import asdict

from zeus_stream.paths import Places, holder, places
from zeus_stream.settings import SECTIONS, Section, Settings, kinds, list_settings, make, read, types
from zeus_stream.views.quantity import show_energy_in

if TYPE_CHECKING:
    import pyarrow as pa

AT_BROKER = ("broker", "site", "broker_credentials")
COLLECTOR = (
    "device", "cpu", "meters", "observe", "log_mb", "log_hours", "trust_uid", "group", "host",
    "listen", *AT_BROKER, "nice",
)  # fmt: skip
RETENTION = ("keep_readings_days", "keep_seconds_days", "keep_steps_days", "keep_minutes_days")
ANALYZER = (
    "archive", "select", "policy", "search", "profile_only", "per_gpu", "control", "power_profile",
    "slowdown",
    "pipeline_iterations", "pipeline_clocks", "pipeline_lowest", "clock_changes_per_s", "stride_w",
    "wait_steps", "warmup_steps", "profile_steps", "lease_ms", "query_seconds", "memory_mb", "pue", "group",
    "follow", "listen", "nice", *AT_BROKER, "shards", "database", *RETENTION,
)  # fmt: skip
QUERY = ("archive", "query_seconds", "analyzer")
FORMATS = ("table", "csv", "json", "arrow")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class Duration(click.ParamType[float]):
    """A length of time in seconds, written 90s, 30m, 12h or 2d; at most a year."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", str(value))
        if found is None or not 0 < float(found[1]) * _UNITS_S[found[2]] <= 366 * 86_400:
            self.fail(f"{value!r} is no length of time: give one such as 90s, 30m, 12h or 2d.", param, ctx)
        return float(found[1]) * _UNITS_S[found[2]]


class SettingOption(click.Option):
    """A flag of a setting, listed in the help under the section of the setting."""

    def __init__(self, *names: Any, section: Section, **more: Any) -> None:
        super().__init__(*names, **more)
        self.section = section


class Command(click.Command):
    """A command whose help lists its options in sections: its own, then those of `SECTIONS`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                title = SECTIONS[parameter.section] if isinstance(parameter, SettingOption) else "Options"
                sections.setdefault(title, []).append(record)
        for title in ("Options", *SECTIONS.values()):
            if title in sections:
                with formatter.section(title):
                    formatter.write_dl(sections[title])


class CommandGroup(Command, click.Group):
    """A group of commands whose options are listed in sections as well."""

    command_class = Command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def settings_options(*names: str, sections: Collection[str] = tuple(SECTIONS)) -> Decorator:
    """Give a command the flags of these settings. Its first argument is the loaded `Settings`.

    If some of them are settings of a site, the second is the loaded `SiteSettings`. ``sections``: whose flags
    its help lists.
    """
    hints, known = types(), list_settings()
    defaults = {name: value for kind in kinds() for name, value in asdict(kind()).items()}
    loaded = [kind for kind in kinds() if kind is Settings or {*kind.__struct_fields__} & {*names}]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        def run(config: Path | None, **given: Any) -> Any:
            flags = {name: given.pop(name) for name in (*names, "dir")}
            values = read(flags, os.environ, config)
            settings, *others = (make(kind, values) for kind in loaded)
            show_energy_in(values.get("energy_unit", defaults["energy_unit"]))
            if values.get("dir") is not None:
                os.environ["ZEUS_STREAM_DIR"] = str(values["dir"])
            return command(settings, *others, **given)

        _take_place(run, command)
        config_option(run)
        for name in reversed((*names, "dir")):
            flag = "--" + name.replace("_", "-")
            switch: dict[str, Any] = (
                {"is_flag": True, "flag_value": True}
                if hints[name] is bool
                else {"metavar": _metavar(hints[name])}
            )
            text, default = known[name].text, defaults[name]
            if default not in (None, False, ()):
                text += f"  [{default}]"
            section = known[name].section
            switch["hidden"] = section not in sections
            click.option(
                flag,
                name,
                default=None,
                help=text,
                cls=SettingOption,
                section=section,
                **switch,
            )(run)
        return run

    return decorate


def _take_place(run: Callable[..., Any], command: Callable[..., Any]) -> None:
    """Give a function the name, the help and the options of the command that it calls."""
    run.__doc__, run.__name__ = command.__doc__, command.__name__
    run.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="Settings file.  [zeus-stream.toml, if it exists]",
    cls=SettingOption,
    section="common",
)


def given_settings() -> dict[str, list[str]]:
    """Return the flags of settings on this command line, each with the services that read it."""
    context = click.get_current_context()
    readers = {"collector": COLLECTOR, "analyzer": ANALYZER}
    return {
        flag.opts[0]: [service for service, names in readers.items() if flag.name in names]
        for flag in context.command.params
        if isinstance(flag, SettingOption)
        and context.get_parameter_source(flag.name or "") is ParameterSource.COMMANDLINE
    }


def _metavar(hint: Any) -> str:
    known: Mapping[Any, str] = {
        int: "N",
        float: "X",
        Path | None: "PATH",
        tuple[int, ...]: "N,N",
        tuple[str, ...]: "TEXT,TEXT",
    }
    return known.get(hint, "TEXT")


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--format`` and ``--json``; it receives the format as ``form``."""

    def run(*arguments: Any, as_json: bool, form: str, **given: Any) -> Any:
        return command(*arguments, form="json" if as_json else form, **given)

    _take_place(run, command)
    json_option(run)
    click.option(
        "--format", "form", type=click.Choice(FORMATS), default="table", help="Format of the output.  [table]"
    )(run)
    return run


json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON for programs.")


def without_numpy_threads() -> None:
    """Have NumPy, not imported yet, start no threads: they cost the analyzer up to half of its time."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def is_file_asked(settings: Settings, where: Places) -> bool:
    """Tell whether the archive file is asked: it is named, or no analyzer is named and none runs."""
    if settings.archive is not None or settings.analyzer is not None:
        return settings.archive is not None
    return holder(where.run / "analyzer.lock") is None


def ask_sql(settings: Settings, query: str) -> "pa.Table":
    """Answer a query: ask the analyzer that runs, or read the archive if none runs.

    Raises RefusedError: a wrong query, too large an answer. UnreachableError, StorageError: no answer.
    """
    without_numpy_threads()
    where = places(os.environ)
    if not is_file_asked(settings, where):
        from zeus_stream.transport.client import Connection, analyzer

        connection = Connection(analyzer(os.environ, settings.analyzer))
        return connection.sql(query, max_rows=settings.query_rows, timeout_s=settings.query_seconds)
    from analyzers.archive.query import read_file
    from analyzers.state_files import signal_files

    return read_file(settings.archive or where.archive, query, settings, signal_files.load(where.signals))
