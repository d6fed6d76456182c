"""Settings: defaults, then ``zeus-stream.toml``, then the environment, then flags; decoded once.

A setting ``profile_steps`` is the flag ``--profile-steps``, the variable ``ZEUS_STREAM_PROFILE_STEPS``
and the key ``profile_steps``.
"""

import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from errno import EACCES
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from msgspec import Struct
from msgspec.structs import asdict

from zeus_stream import plugins
from zeus_stream.errors import SettingsError, without_passwords

FILE = "zeus-stream.toml"
PREFIX = "ZEUS_STREAM_"
OTHER_VARIABLES = (
    "BATCH_SIZE", "BOUNDARY", "FLUSH_S", "GPUS", "INHERITED", "JOB", "LAKE", "OFF", "QUIET", "RUN", "START",
    "STOP_AT",
)  # fmt: skip
"""Variables of the environment, without `PREFIX`, that are no settings."""
_YES = {"1", "true", "yes", "on"}
_NO = {"0", "false", "no", "off"}
_GPUS = re.compile(r"GPU-[^\s,;:=]+|(?!GPU-)[^\s,;:=]+(:(\d+|all))?")
_GROUP = re.compile(r"[^\s,;=][^,;=]{0,199}")

Groups = tuple[tuple[str, tuple[str, ...]], ...]
"""Names of groups, each with its GPUs: UUIDs ``GPU-...``, ``HOST:INDEX`` (PCI order), or ``HOST:all``."""


Section = Literal["common", "search", "hosts", "resources", "expert"]
SECTIONS: Mapping[Section, str] = {
    "common": "Common options",
    "search": "Search for the power limit and the batch size",
    "hosts": "Other users and hosts",
    "resources": "Limits of resources",
    "expert": "Expert options",
}
"""Headings under which ``--help`` and the reference list the settings, in this order."""


class SettingHelp(Struct, frozen=True):
    """The help text of a setting, its section, and its range."""

    text: str
    section: Section = "common"
    least: float | None = None
    most: float | None = None
    secret: bool = False
    """It may have a password: the command line may not have one."""


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of one host. The help texts are those of the command line and of the reference."""

    # fmt: off
    dir: Annotated[Path | None, SettingHelp(
        "Directory for sockets, log, archive and state.  [a directory of the user]"
    )] = None
    group: Annotated[str | None, SettingHelp(
        "Group of users that may also send commands and follow the feed.", "hosts"
    )] = None
    host: Annotated[str | None, SettingHelp(
        "Name of this host in the log and the archive.  [the host name]", "hosts"
    )] = None
    listen: Annotated[str | None, SettingHelp(
        "HOST:PORT for other hosts that have a key. The next two ports are used too.", "hosts"
    )] = None
    kubelet: Annotated[Path | None, SettingHelp(
        "Socket on which the kubelet says which pod has which GPU."
        "  [/var/lib/kubelet/pod-resources/kubelet.sock, if it is there]", "hosts"
    )] = None
    device: Annotated[str, SettingHelp(
        "Devices to sample: nvml, amd, cpu, recorded:DIR or simulated:MODELxCOUNT, as simulated:v100x4."
    )] = "nvml"
    cpu: Annotated[str, SettingHelp(
        "Measure CPUs and DRAM beside the GPUs: auto (if they can be read), on, off."
    )] = "auto"
    meters: Annotated[tuple[str, ...], SettingHelp(
        "Meters of the whole host or site, such as wall=ipmi 3%: redfish, ipmi, snmp, cray, file, command.",
        secret=True
    )] = ()
    observe: Annotated[bool, SettingHelp(
        "Only measure. Refuse every change of a power limit or a clock."
    )] = False
    set_command: Annotated[str, SettingHelp(
        "Command that sets a power limit or a clock, where the collector may not. {control}, {gpu} and"
        " {value} are replaced.  [the driver is asked]", "expert"
    )] = ""
    energy_unit: Annotated[str, SettingHelp(
        "Unit of energies for people: J, Wh, or auto: J, kJ, and from 1 kWh on kWh."
    )] = "auto"
    log_mb: Annotated[int, SettingHelp(
        "Size of the collector's log, MB. The oldest frames are deleted first.", "resources", 1, 1_000_000
    )] = 256
    log_hours: Annotated[float, SettingHelp(
        "Age at which frames of the log are deleted, hours.", "resources", 0.01, 10_000
    )] = 24.0
    nice: Annotated[int, SettingHelp(
        "Niceness of a service: below 0 it gets the processor before data loaders do. That takes root or"
        " CAP_SYS_NICE.", "resources", -20, 19
    )] = 0
    trust_uid: Annotated[tuple[int, ...], SettingHelp(
        "User ids whose runs may command GPUs without a check of their processes.", "expert"
    )] = ()
    follow: Annotated[tuple[str, ...], SettingHelp(
        "Collectors to follow: directories and HOST:PORT, or broker for every host at the broker.  [the"
        " collector of this host]", "hosts"
    )] = ()
    analyzer: Annotated[str | None, SettingHelp(
        "HOST:PORT of the analyzer to ask.  [the analyzer of this host]", "hosts"
    )] = None
    archive: Annotated[Path | None, SettingHelp(
        "The DuckDB file.  [energy.duckdb in the state directory]"
    )] = None
    select: Annotated[str, SettingHelp(
        "What to optimize: energy, time, cost:ETA, edp:N, slowdown:FACTOR, MODULE:FUNCTION, none;"
        " script: as each script asks, else none."
    )] = "cost:0.5"
    policy: Annotated[str, SettingHelp(
        "Policy for the batch size of recurring jobs: adaptive, reference, default.", "search"
    )] = "adaptive"
    search: Annotated[str, SettingHelp(
        "adaptive: measure few power limits. exhaustive: measure every one.", "search"
    )] = "adaptive"
    profile_only: Annotated[bool, SettingHelp(
        "Measure every power limit, return to the one found, and report what the best would save.", "search"
    )] = False
    per_gpu: Annotated[bool, SettingHelp(
        "Lower the limit of single GPUs that wait for a slower GPU of the job.", "search"
    )] = False
    control: Annotated[str, SettingHelp(
        "What is set: power_limit, graphics_clock, both. A pipeline gets a clock for each instruction.",
        "search"
    )] = "power_limit"
    power_profile: Annotated[str, SettingHelp(
        "Workload power profiles that GPUs have while a run searches (Blackwell): max_q, compute+max_q.",
        "search"
    )] = ""
    slowdown: Annotated[float, SettingHelp(
        "Duration of a pipeline's iterations to plan for, relative to the highest clocks.", "search", 1, 10
    )] = 1.0
    pipeline_iterations: Annotated[int, SettingHelp(
        "Iterations of a pipeline measured at each clock.", "search", 2, 150
    )] = 30
    pipeline_clocks: Annotated[int, SettingHelp(
        "Clocks at which a pipeline is measured at most.", "expert", 2, 100
    )] = 9
    pipeline_lowest: Annotated[float, SettingHelp(
        "Lowest clock at which a pipeline is measured, as a share of the highest.", "expert", 0.1, 1
    )] = 0.45
    switching_ms: Annotated[float, SettingHelp(
        "Time that a change of a clock takes at least, ms.", "expert", 0, 10_000
    )] = 10.0
    clock_changes_per_s: Annotated[float, SettingHelp(
        "Changes of a GPU's clock a second that a pipeline's plan may need; fewer where calls are slow.",
        "expert", 0, 20
    )] = 20.0
    stride_w: Annotated[float, SettingHelp("Distance between two power limits, W.", "search", 1, 1000)] = 25.0
    wait_steps: Annotated[int, SettingHelp(
        "Steps before the first power limit is measured.", "search", 0, 100_000
    )] = 1
    warmup_steps: Annotated[int, SettingHelp(
        "Exhaustive search: steps after a change of limit that do not count.", "search", 0, 100_000
    )] = 10
    profile_steps: Annotated[int, SettingHelp(
        "Exhaustive search and later checks: least number of steps at each limit.", "search", 1, 100_000
    )] = 40
    settle_ms: Annotated[int, SettingHelp(
        "Exhaustive search: time after a change of limit that does not count, ms.", "search", 0, 60_000
    )] = 300
    refreshes: Annotated[int, SettingHelp(
        "Least number of counter refreshes measured at each limit.", "search", 0, 10_000
    )] = 10
    profiling_share: Annotated[float, SettingHelp(
        "Largest share of a run's steps for searches after the first.", "search", 0, 1
    )] = 0.05
    lease_ms: Annotated[int, SettingHelp(
        "The limit found returns when the analyzer is silent for this long, ms.", "expert", 200, 60_000
    )] = 1500
    pue: Annotated[float, SettingHelp(
        "Power usage effectiveness of the site, for costs: total power over that of GPUs. 0: not known.",
        least=0, most=10
    )] = 0.0
    budget_groups: Annotated[Groups, SettingHelp("Named groups of GPUs for power budgets.")] = ()
    shared_jobs: Annotated[tuple[str, ...], SettingHelp(
        "Jobs that recur and are shared by all users. Any other belongs to the user who named it first."
    )] = ()
    query_rows: Annotated[int, SettingHelp(
        "Largest number of rows of an answer.", "resources", 1, 10_000_000
    )] = 1_000_000
    query_seconds: Annotated[float, SettingHelp(
        "Longest time for a query, s.", "resources", 0.01, 86_400
    )] = 30.0
    keep_readings_days: Annotated[float, SettingHelp(
        "Age at which readings are removed from the archive, days. 0: never.", "resources", 0, 100_000
    )] = 7.0
    keep_seconds_days: Annotated[float, SettingHelp(
        "Age at which energy by second is removed, days. 0: never.", "resources", 0, 100_000
    )] = 14.0
    keep_steps_days: Annotated[float, SettingHelp(
        "Age at which the steps of a run and their events are removed, days. 0: never.",
        "resources", 0, 100_000
    )] = 90.0
    keep_minutes_days: Annotated[float, SettingHelp(
        "Age at which energy by minute is removed, days. 0: never.", "resources", 0, 100_000
    )] = 400.0
    memory_mb: Annotated[int, SettingHelp(
        "Memory of DuckDB, MB. The analyzer itself needs more.", "resources", 128, 10_000_000
    )] = 256  # the waste of a run of 1,000,000 steps fits into 128, and not into 96
    # fmt: on


S = TypeVar("S", bound=Struct)


@cache
def kinds() -> tuple[type[Struct], ...]:
    """Return the structs of settings: those of one host, and those of a site."""
    return Settings, plugins.find(plugins.SITE_SETTINGS)


@cache
def list_settings() -> Mapping[str, SettingHelp]:
    """Return text, section and range of each setting, by its name."""
    hints = {
        name: hint for kind in kinds() for name, hint in get_type_hints(kind, include_extras=True).items()
    }
    return {name: get_args(hints[name])[1] for kind in kinds() for name in kind.__struct_fields__}


@cache
def types() -> Mapping[str, Any]:
    """Return the type of each setting, by its name."""
    return {name: hint for kind in kinds() for name, hint in get_type_hints(kind).items()}


def load(flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None = None) -> Settings:
    """Return the settings of one host. Arguments and errors are those of `read`."""
    return make(Settings, read(flags, environ, file))


def make(kind: type[S], values: Mapping[str, Any]) -> S:
    """Return a struct of settings with those of the values that are its own."""
    return kind(**{name: value for name, value in values.items() if name in kind.__struct_fields__})


def read(flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None = None) -> dict[str, Any]:
    """Return the settings that are given, checked, by name. A flag that is None was not given.

    ``file`` None: ``zeus-stream.toml`` in the working directory, if there is one. Raises SettingsError.
    """
    values: dict[str, Any] = {}
    path, known = file or Path(FILE), list_settings()
    if file is not None or os.path.lexists(path):
        values |= _checked(_read(path, named=file is not None), f"{path}")
    names = {f"{PREFIX}{name.upper()}": name for name in known}
    if wrong := misspelled(environ):
        raise SettingsError(wrong)
    values |= _checked(
        {names[key]: value for key, value in environ.items() if key in names and value}, "environment"
    )
    given = {key: value for key, value in flags.items() if value is not None}
    for name in given.keys() & known.keys():
        if known[name].secret:
            refuse_password(f"--{name.replace('_', '-')}", str(given[name]), f"ZEUS_STREAM_{name.upper()}")
    return values | _checked(given, "command line")


def spelled(settings: Struct) -> dict[str, str]:
    """Return every setting that has a value, in the form of the environment."""
    values = asdict(settings)
    if groups := values.pop("budget_groups", ()):
        values["budget_groups"] = ";".join(f"{name}={','.join(gpus)}" for name, gpus in groups)
    return {
        name: ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        for name, value in values.items()
        if value is not None
    }


def refuse_password(option: str, value: str, variable: str) -> None:
    """Raise SettingsError if the value of an option of the command line has a password in it."""
    if without_passwords(value) != value:
        raise SettingsError(
            f"{option}: could not take a password from the command line: every user of this host sees it in"
            f" the list of processes. Set {variable} in the environment, or name a file of credentials."
        )


def read_back(values: Mapping[str, str], source: str) -> Settings:
    """Return the settings that `spelled` wrote, also in another version: those that are gone are left out.

    Raises SettingsError, which names ``source``.
    """
    known = list_settings()
    there = {name: value for name, value in values.items() if value and name in known}
    return Settings(**_checked(there, source))


def _read(path: Path, *, named: bool) -> dict[str, Any]:
    """Return the content of a file. One that only lies in the working directory may be another user's."""
    try:
        with open(path, "rb", opener=None if named else _open_without_waiting) as file:
            state = os.fstat(file.fileno())
            if not named and not stat.S_ISREG(state.st_mode):
                raise OSError(EACCES, "it is no regular file")  # noqa: TRY301  (reported below)
            if not named and state.st_uid not in (0, os.geteuid()):
                raise OSError(EACCES, f"it belongs to user {state.st_uid}")  # noqa: TRY301
            return tomllib.load(file)
    except (OSError, ValueError) as wrong:
        why = wrong.strerror if isinstance(wrong, OSError) else wrong
        raise SettingsError(
            f"{path}: could not read the settings: {why}. Correct the file, or name one with --config."
        ) from wrong


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file; a FIFO does not wait for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def misspelled(environ: Mapping[str, str]) -> str | None:
    """Return a sentence about a variable that is almost one of ours. None: there is none.

    Others may begin as ours do: Kubernetes sets some.
    """
    known = {PREFIX + name.upper() for name in (*list_settings(), *OTHER_VARIABLES)}
    for variable in environ:
        if variable.startswith(PREFIX) and variable not in known and (close := closest(variable, known)):
            return f"environment: could not set {variable}: there is no such variable. Did you mean {close}?"
    return None


def closest(word: str, known: Iterable[str], alike: float = 0.85) -> str | None:
    """Return the known word that another one is almost. ``alike``: least share of common letters, 0 to 1."""
    from difflib import get_close_matches  # noqa: PLC0415  (of errors only)

    return next(iter(get_close_matches(word, sorted(known), 1, alike)), None)


def _checked(given: Mapping[str, Any], source: str) -> dict[str, Any]:
    hints, known = types(), list_settings()
    checked: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            close = closest(key, known)
            more = f"Did you mean {close}?" if close else f"The settings are {', '.join(known)}."
            raise SettingsError(f"{source}: could not set {key}: there is no such setting. {more}")
        try:
            checked[key] = _convert(value, hints[key])
        except (ValueError, TypeError, AttributeError) as wrong:
            raise SettingsError(
                f"{source}: {key} = {value!r}: expected {_expectation(hints[key])}."
            ) from wrong
        least, most = known[key].least, known[key].most
        if least is not None and most is not None and not least <= checked[key] <= most:
            raise SettingsError(f"{source}: {key} = {value!r}: expected {least:g} to {most:,}.")
    return checked


def _expectation(hint: Any) -> str:
    return {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a text",
        tuple[int, ...]: "whole numbers, separated by commas",
        tuple[str, ...]: "texts, separated by commas",
        Groups: "names, each with a list of hosts, HOST:INDEXes or UUIDs (GPU-...)",
    }.get(hint, "a path" if hint == Path | None else "a text")


def _convert(value: Any, hint: Any) -> object:
    """Convert a value of TOML (typed) or of the environment and flags (text) to the type ``hint``."""
    if hint is bool:
        if isinstance(value, bool):
            return value
        word = value.lower()
        if word in _YES:
            return True
        if word in _NO:
            return False
        raise ValueError
    if isinstance(value, bool):
        raise TypeError
    if hint is int:
        if isinstance(value, float):
            raise TypeError
        return int(value)
    if hint is float:
        return float(value)
    if hint == tuple[int, ...]:
        parts = value.split(",") if isinstance(value, str) else [value] if isinstance(value, int) else value
        return tuple(int(part) for part in parts)
    if hint == tuple[str, ...]:
        texts: list[str] = value.split(",") if isinstance(value, str) else list(value)
        return tuple(text.strip() for text in texts if text.strip())
    if hint == Groups:
        named = _named(value) if isinstance(value, str) else value
        return tuple((name, _gpus(name, gpus)) for name, gpus in named.items())
    if not isinstance(value, str | Path):
        raise TypeError
    return Path(value) if hint == Path | None else str(value)


def _named(text: str) -> dict[str, str]:
    """Parse ``NAME=GPU,GPU;NAME=GPU`` into names and lists."""
    pairs = [part.split("=") for part in text.split(";") if part.strip()]
    return {name.strip(): gpus for name, gpus in pairs}


def _gpus(name: str, listed: object) -> tuple[str, ...]:
    """Return the GPUs of a group. Raises ValueError or TypeError when the list does not name GPUs."""
    words = [word.strip() for word in listed.split(",")] if isinstance(listed, str) else listed
    if (
        not isinstance(words, list)
        or not words
        or not _GROUP.fullmatch(name)
        or not all(map(_GPUS.fullmatch, words))
    ):
        raise ValueError
    return tuple(word if ":" in word or word.startswith("GPU-") else f"{word}:all" for word in words)
