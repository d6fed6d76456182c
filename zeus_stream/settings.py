"""Settings: defaults, then ``zeus-stream.toml``, then the environment, then flags; decoded once.

A setting ``profile_steps`` is the flag ``--profile-steps``, the variable ``ZEUS_STREAM_PROFILE_STEPS``
and the key ``profile_steps``.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

from zeus_stream.errors import SettingsError
from zeus_stream.records import record

FILE = "zeus-stream.toml"
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


def _setting(
    default: Any,
    text: str,
    section: Section = "common",
    *,
    least: float | None = None,
    most: float | None = None,
) -> Any:
    about = {"help": text, "section": section, "least": least, "most": most}
    return field(default=default, metadata=about)


@record(kw_only=True)
class Settings:
    """Every setting. The help texts are those of the command line and of the reference."""

    dir: Path | None = _setting(
        None, "Directory for sockets, log, archive and state.  [a directory of the user]"
    )
    group: str | None = _setting(
        None, "Group of users that may also send commands and follow the feed.", "hosts"
    )
    host: str | None = _setting(
        None, "Name of this host in the log and the archive.  [the host name]", "hosts"
    )
    listen: str | None = _setting(
        None, "HOST:PORT for other hosts that have a key. The next two ports are used too.", "hosts"
    )
    device: str = _setting(
        "nvml", "Devices to sample: nvml, amd, cpu, or simulated:MODELxCOUNT, such as simulated:v100x4."
    )
    cpu: str = _setting("auto", "Measure CPUs and DRAM beside the GPUs: auto (if they can be read), on, off.")
    observe: bool = _setting(
        default=False, text="Only measure. Refuse every change of a power limit or a clock."
    )
    poll_ms: float = _setting(
        0.0,
        "Time between two reads of an energy counter, ms. 0: a fifth of its refresh period.",
        "expert",
        least=0,
        most=1000,
    )
    heartbeat_ms: int = _setting(
        500, "Longest time between two stored readings, ms.", "expert", least=10, most=60_000
    )
    log_mb: int = _setting(
        256,
        "Size of the collector's log, MB. The oldest frames are deleted first.",
        "resources",
        least=1,
        most=1_000_000,
    )
    log_hours: float = _setting(
        24.0, "Age at which frames of the log are deleted, hours.", "resources", least=0.01, most=10_000
    )
    nice: int = _setting(
        0,
        "Niceness of a service: below 0 it gets the processor before data loaders do. That takes root or"
        " CAP_SYS_NICE.",
        "resources",
        least=-20,
        most=19,
    )
    trust_uid: tuple[int, ...] = _setting(
        (), "User ids whose runs may command GPUs without a check of their processes.", "expert"
    )
    broker: str | None = _setting(
        None, "NATS servers that take the log of each host, such as nats://b1:4222,nats://b2:4222.  [none]",
        "hosts",
    )  # fmt: skip
    site: str = _setting("site", "Name of the site at the broker. Two sites need two names.", "hosts")
    broker_credentials: str | None = _setting(
        None, "File with the credential of this process at the broker.  [none]", "hosts"
    )
    shards: int = _setting(
        0, "Analyzers of a site share its jobs, in so many parts. 0: one analyzer decides on all jobs.",
        "hosts", least=0, most=1024,
    )  # fmt: skip
    lease_database: str | None = _setting(
        None, "PostgreSQL that says which analyzer decides on which part, such as 'host=db dbname=zeus'.",
        "hosts",
    )  # fmt: skip
    broker_replicas: int = _setting(
        1, "Copies that the broker keeps of each message.", "hosts", least=1, most=5
    )
    follow: tuple[str, ...] = _setting(
        (), "Collectors to follow: directories and HOST:PORT, or broker for every host at the broker."
        "  [the collector of this host]", "hosts",
    )  # fmt: skip
    analyzer: str | None = _setting(
        None, "HOST:PORT of the analyzer to ask.  [the analyzer of this host]", "hosts"
    )
    archive: Path | None = _setting(None, "The DuckDB file.  [energy.duckdb in the state directory]")
    select: str = _setting(
        "cost:0.5",
        "What to optimize: energy, time, cost:ETA, edp:N, slowdown:FACTOR, MODULE:FUNCTION, none;"
        " script: as each script asks, else none.",
    )
    policy: str = _setting(
        "adaptive", "Policy for the batch size of recurring jobs: adaptive, reference, default.", "search"
    )
    search: str = _setting(
        "adaptive", "adaptive: measure few power limits. exhaustive: measure every one.", "search"
    )
    profile_only: bool = _setting(
        default=False,
        text="Measure every power limit, return to the one found, and report what the best would save.",
        section="search",
    )
    per_gpu: bool = _setting(
        default=False, text="Lower the limit of single GPUs that wait for a slower GPU of the job.",
        section="search",
    )  # fmt: skip
    control: str = _setting(
        "power_limit",
        "What is set: power_limit, graphics_clock, both. A pipeline gets a clock for each instruction.",
        "search",
    )
    slowdown: float = _setting(
        1.0, "Duration of a pipeline's iterations to plan for, relative to the highest clocks.", "search",
        least=1, most=10,
    )  # fmt: skip
    pipeline_iterations: int = _setting(
        30, "Iterations of a pipeline measured at each clock.", "search", least=2, most=150
    )
    switching_ms: float = _setting(
        10.0, "Time that a change of a clock takes, ms.", "expert", least=0, most=10_000
    )
    stride_w: float = _setting(25.0, "Distance between two power limits, W.", "search", least=1, most=1000)
    wait_steps: int = _setting(
        1, "Steps before the first power limit is measured.", "search", least=0, most=100_000
    )
    warmup_steps: int = _setting(
        10, "Exhaustive search: steps after a change of limit that do not count.", "search",
        least=0, most=100_000,
    )  # fmt: skip
    profile_steps: int = _setting(
        40, "Exhaustive search and later checks: least number of steps at each limit.", "search",
        least=1, most=100_000,
    )  # fmt: skip
    settle_ms: int = _setting(
        300, "Exhaustive search: time after a change of limit that does not count, ms.", "search",
        least=0, most=60_000,
    )  # fmt: skip
    refreshes: int = _setting(
        10, "Least number of counter refreshes measured at each limit.", "search", least=0, most=10_000
    )
    profiling_share: float = _setting(
        0.05, "Largest share of a run's steps for searches after the first.", "search", least=0, most=1
    )
    lease_ms: int = _setting(
        1500, "The limit found returns when the analyzer is silent for this long, ms.", "expert",
        least=200, most=60_000,
    )  # fmt: skip
    window_timeout_ms: int = _setting(
        5000, "Longest wait for the readings of a window, ms.", "expert", least=10, most=3_600_000
    )
    pue: float = _setting(
        0.0, "Power usage effectiveness of the site, for costs: total power over that of GPUs. 0: not known.",
        least=0, most=10,
    )  # fmt: skip
    budget_groups: Groups = _setting((), "Named groups of GPUs for power budgets.")
    shared_jobs: tuple[str, ...] = _setting(
        (), "Jobs that recur and are shared by all users. Any other belongs to the user who named it first."
    )
    query_rows: int = _setting(
        1_000_000, "Largest number of rows of an answer.", "resources", least=1, most=10_000_000
    )
    query_seconds: float = _setting(
        30.0, "Longest time for a query, s.", "resources", least=0.01, most=86_400
    )
    keep_readings_days: float = _setting(
        7.0, "Age at which readings are removed from the archive, days. 0: never.", "resources",
        least=0, most=100_000,
    )  # fmt: skip
    keep_seconds_days: float = _setting(
        14.0, "Age at which energy by second is removed, days. 0: never.", "resources", least=0, most=100_000
    )
    keep_steps_days: float = _setting(
        90.0, "Age at which the steps of a run and their events are removed, days. 0: never.", "resources",
        least=0, most=100_000,
    )  # fmt: skip
    keep_minutes_days: float = _setting(
        400.0, "Age at which energy by minute is removed, days. 0: never.", "resources", least=0, most=100_000
    )
    memory_mb: int = _setting(
        256, "Memory of DuckDB, MB. The analyzer itself needs more.", "resources", least=64, most=10_000_000
    )


def load(flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None = None) -> Settings:
    """Return the settings.

    Args:
        flags: by name; None means that the flag was not given.
        environ: the environment.
        file: the settings file; None means ``zeus-stream.toml`` in the working directory, if it exists.

    Raises:
        SettingsError: the sentence names the source, the key and the values it accepts.
    """
    values: dict[str, Any] = {}
    path = file or Path(FILE)
    if file is not None or path.exists():
        values |= _checked(_read(path), f"{path}")
    names = {f"ZEUS_STREAM_{name.upper()}": name for name in (f.name for f in fields(Settings))}
    values |= _checked(
        {names[key]: value for key, value in environ.items() if key in names and value}, "environment"
    )
    values |= _checked({key: value for key, value in flags.items() if value is not None}, "command line")
    return Settings(**values)


def spelled(settings: Settings) -> dict[str, str]:
    """Return every setting that has a value, in the form of the environment."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    groups = ";".join(f"{name}={','.join(gpus)}" for name, gpus in settings.budget_groups)
    return {
        name: ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        for name, value in values.items()
        if value is not None
    } | {"budget_groups": groups}


def read_back(values: Mapping[str, str], source: str) -> Settings:
    """Return the settings that `spelled` wrote. Raises SettingsError, which names ``source``."""
    return Settings(**_checked({name: value for name, value in values.items() if value}, source))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as wrong:
        raise SettingsError(
            f"{path}: could not read the settings: {wrong}. Correct the file, or name another with --config."
        ) from wrong


def _checked(given: Mapping[str, Any], source: str) -> dict[str, Any]:
    known = {f.name: f for f in fields(Settings)}
    hints = get_type_hints(Settings)
    checked: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            raise SettingsError(
                f"{source}: could not set {key}: there is no such setting."
                f" The settings are {', '.join(known)}."
            )
        try:
            checked[key] = _convert(value, hints[key])
        except (ValueError, TypeError, AttributeError) as wrong:
            raise SettingsError(
                f"{source}: {key} = {value!r}: expected {_expectation(hints[key])}."
            ) from wrong
        least, most = known[key].metadata["least"], known[key].metadata["most"]
        if least is not None and not least <= checked[key] <= most:
            raise SettingsError(f"{source}: {key} = {value!r}: expected {least:g} to {most:g}.")
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
