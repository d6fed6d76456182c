"""Settings: defaults < ``zeus-stream.toml`` < environment < flags, decoded once into one frozen value.

A setting ``profile_steps`` is the flag ``--profile-steps``, the variable ``ZEUS_STREAM_PROFILE_STEPS``
and the key ``profile_steps``.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from zeus_stream.errors import SettingsError

FILE = "zeus-stream.toml"
_YES = {"1", "true", "yes", "on"}
_NO = {"0", "false", "no", "off"}
_GPUS = re.compile(r"GPU-[^\s,;:=]+|(?!GPU-)[^\s,;:=]+(:(\d+|all))?")
_GROUP = re.compile(r"[^\s,;=][^,;=]{0,199}")

Groups = tuple[tuple[str, tuple[str, ...]], ...]
"""Names of groups, each with its GPUs: UUIDs ``GPU-...``, ``HOST:INDEX`` (PCI order) and ``HOST:all``."""


def _setting(default: Any, text: str, *, least: float | None = None, most: float | None = None) -> Any:
    return field(default=default, metadata={"help": text, "least": least, "most": most})


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set. The help texts are those of the command line."""

    dir: Path | None = _setting(
        None, "Directory for sockets, log, archive and state, instead of the usual places."
    )
    group: str | None = _setting(None, "Group that may also send commands and follow the feed.")
    host: str | None = _setting(
        None, "Name of this host in the log and the archive; the system's own if not given."
    )
    listen: str | None = _setting(
        None,
        "HOST:PORT at which other hosts may come in with a key; it and the two ports after it are used.",
    )
    device: str = _setting(
        "nvml", "Devices to sample: nvml, amd, cpu, or simulated:MODELxCOUNT such as simulated:v100x4."
    )
    cpu: str = _setting(
        "auto", "CPUs and their memory beside the GPUs: auto (real GPUs, where CPUs can be read), on or off."
    )
    observe: bool = _setting(default=False, text="Never change a device, whoever asks.")
    poll_ms: float = _setting(
        0.0, "Time between reads of a counter; 0: a fifth of its period.", least=0, most=1000
    )
    heartbeat_ms: int = _setting(500, "A reading at least this often, changed or not.", least=10, most=60_000)
    log_mb: int = _setting(
        256, "Size of the collector's log; the oldest goes first.", least=1, most=1_000_000
    )
    log_hours: float = _setting(24.0, "Age of the log; the oldest goes first.", least=0.01, most=10_000)
    trust_uid: tuple[int, ...] = _setting(
        (), "Users whose runs may command GPUs that cannot be verified as theirs."
    )
    follow: tuple[str, ...] = _setting(
        (), "Collectors to follow: directories and HOST:PORTs; this host's if none are given."
    )
    analyzer: str | None = _setting(None, "HOST:PORT of the analyzer to ask; this host's if not given.")
    archive: Path | None = _setting(
        None, "The DuckDB file; energy.duckdb in the state directory if not given."
    )
    select: str = _setting(
        "cost:0.5", "energy, time, cost:ETA, slowdown:FACTOR, MODULE:FUNCTION, or none to only measure."
    )
    policy: str = _setting(
        "adaptive",
        "Of batch sizes of jobs that recur: adaptive, reference, or default: always the default size.",
    )
    search: str = _setting("adaptive", "adaptive, or exhaustive: measure every power limit.")
    per_gpu: bool = _setting(
        default=False, text="Lower single GPUs of a job below its power limit where others set the pace."
    )
    stride_w: float = _setting(
        25.0, "Between the power limits tried; the lowest is always among them.", least=1, most=1000
    )
    wait_steps: int = _setting(1, "Steps before the first limit is tried.", least=0, most=100_000)
    warmup_steps: int = _setting(
        10, "Steps not measured after a change of limit (exhaustive search).", least=0, most=100_000
    )
    profile_steps: int = _setting(
        40,
        "Steps measured at each limit (exhaustive search) and each time later, at least.",
        least=1,
        most=100_000,
    )
    settle_ms: int = _setting(
        300, "Time not measured after a change of limit (exhaustive search), at least.", least=0, most=60_000
    )
    refreshes: int = _setting(10, "Counter refreshes measured at each limit, at least.", least=0, most=10_000)
    profiling_share: float = _setting(
        0.05, "Of a run's steps, that profiling it again may take when it has changed.", least=0, most=1
    )
    lease_ms: int = _setting(
        1500, "A limit returns when its analyzer is silent for this long.", least=200, most=60_000
    )
    window_timeout_ms: int = _setting(
        5000, "Wait at most this long for the readings of a window.", least=10, most=3_600_000
    )
    budget_groups: Groups = _setting(
        (), "Groups of GPUs that power budgets are about, by name: hosts, HOST:INDEXes and UUIDs."
    )
    query_rows: int = _setting(1_000_000, "Rows one query may return.", least=1, most=10_000_000)
    query_seconds: float = _setting(30.0, "Time one query may take.", least=0.01, most=86_400)
    memory_mb: int = _setting(
        256, "Memory DuckDB may use; what the analyzer itself needs comes on top.", least=64, most=10_000_000
    )


def load(flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None = None) -> Settings:
    """Return the settings. ``file``: else ``zeus-stream.toml`` in the working directory, if there is one.

    Raises:
        SettingsError: naming the source, the key and what it may be.
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
    """Return every setting that has a value, as the environment would have it."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    groups = ";".join(f"{name}={','.join(gpus)}" for name, gpus in settings.budget_groups)
    return {
        name: ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        for name, value in values.items()
        if value is not None
    } | {"budget_groups": groups}


def read_back(values: Mapping[str, str], source: str) -> Settings:
    """Return the settings that were `spelled` so. Raises SettingsError, naming ``source``."""
    return Settings(**_checked({name: value for name, value in values.items() if value}, source))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as wrong:
        raise SettingsError(
            f"{path}: could not be read: {wrong}. Correct the file, or name another."
        ) from wrong


def _checked(given: Mapping[str, Any], source: str) -> dict[str, Any]:
    known = {f.name: f for f in fields(Settings)}
    hints = get_type_hints(Settings)
    checked: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            raise SettingsError(
                f"{source}: {key}: there is no such setting. The settings are {', '.join(known)}."
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
    """Return ``value`` as ``hint`` from TOML (typed) or from the environment and flags (text)."""
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
    """Return ``NAME=GPU,GPU;NAME=GPU`` as names and lists."""
    pairs = [part.split("=") for part in text.split(";") if part.strip()]
    return {name.strip(): gpus for name, gpus in pairs}


def _gpus(name: str, listed: object) -> tuple[str, ...]:
    """Return the GPUs of a group. Raises ValueError or TypeError: they are none."""
    words = [word.strip() for word in listed.split(",")] if isinstance(listed, str) else listed
    if (
        not isinstance(words, list)
        or not words
        or not _GROUP.fullmatch(name)
        or not all(map(_GPUS.fullmatch, words))
    ):
        raise ValueError
    return tuple(word if ":" in word or word.startswith("GPU-") else f"{word}:all" for word in words)
