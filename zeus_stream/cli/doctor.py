"""Check everything that zeus-stream needs on this machine, and name the cure of each fault.

Nothing is changed, and a device is asked only what every user may ask.
"""

import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from collectors.device import Bus, Description, Device
from collectors.devices.rapl import POWERCAP, RaplBus
from zeus_stream.errors import DeviceError, LostError, StorageError, ZeusStreamError
from zeus_stream.paths import Places, endpoint, holder
from zeus_stream.protocol.fields import of_host
from zeus_stream.reports.tables import Check
from zeus_stream.service_packages import ANALYZER, absent_packages
from zeus_stream.settings import Settings
from zeus_stream.transport import keys
from zeus_stream.transport.client import Connection, status
from zeus_stream.transport.endpoints import parse, source

PACKAGES = ("anyio", "click", "msgpack", "nvidia-ml-py", "pyzmq", "rich")
CAP_SYS_ADMIN = 21
ROOM_MB = 1_024
"""Free space for the archive, beside the log, below which the check warns."""
NO_GPU = "Without an NVIDIA GPU, try it on simulated ones: --device simulated:v100x1."


def examine(
    settings: Settings, where: Places, open_bus: Callable[[], Bus], powercap: Path = POWERCAP
) -> list[Check]:
    """Return all checks. ``open_bus`` opens the GPUs; ``powercap`` has the counters of CPUs."""
    return [
        *_versions(),
        *_directories(settings, where),
        *_sockets(where),
        *_other_hosts(settings, where),
        *_devices(settings, open_bus),
        *_cpus(settings, powercap),
        _permission(settings),
        *_processes(where),
        _archive(settings, where),
    ]


def _wrong(what: str, error: ZeusStreamError, more: str = "") -> Check:
    """Return an error as a check: its first sentence is the fault, the rest is the cure."""
    says, _, cure = str(error).partition(". ")
    return Check("fails", what, says.removesuffix(".") + ".", f"{cure} {more}".strip())


def _versions() -> Iterator[Check]:
    yield Check("works", "python", f"Python {sys.version.split()[0]} at {sys.executable}.")
    there, absent = [], []
    for package in PACKAGES if _only_collects() else (*PACKAGES, *ANALYZER):
        try:
            there.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            absent.append(package)
    if absent:
        cure = f"Install them: {sys.executable} -m pip install {' '.join(absent)}."
        yield Check("fails", "packages", f"Not installed: {', '.join(absent)}.", cure)
    else:
        only = " A collector runs here; an analyzer needs the extra `services`." if _only_collects() else ""
        yield Check("works", "packages", f"{', '.join(there)}.{only}")


def _only_collects() -> bool:
    """Tell whether this environment has no package of the analyzer: the extra `collector` brings none."""
    return len(absent_packages(ANALYZER)) == len(ANALYZER)


def _directories(settings: Settings, where: Places) -> Iterator[Check]:
    for what, directory, others in (("sockets", where.run, 0o022), ("state", where.state, 0o077)):
        name = f"directory for {what}"
        there = next(parent for parent in (directory, *directory.parents) if parent.exists())
        found = there.stat()
        free_mb = shutil.disk_usage(there).free >> 20
        if not os.access(there, os.W_OK | os.X_OK):
            says = f"{directory}: this user may not write {there}, which belongs to user {found.st_uid}."
            yield Check("fails", name, says, "Set ZEUS_STREAM_DIR to a directory of your own.")
        elif there != directory:
            yield Check("works", name, f"{directory} does not exist yet and will be created.")
        elif found.st_uid != os.geteuid():
            says = f"{directory} belongs to user {found.st_uid}, not to this one."
            yield Check("fails", name, says, "Set ZEUS_STREAM_DIR to a directory of your own.")
        elif found.st_mode & others and where.run != where.state:
            says = f"{directory} is open to others: mode {stat.S_IMODE(found.st_mode):04o}."
            yield Check("warns", name, says, f"chmod go-{'w' if others == 0o022 else 'rwx'} {directory}")
        elif free_mb < settings.log_mb + ROOM_MB:
            says = f"{directory} has {free_mb} MB left; the log may take {settings.log_mb} of them."
            yield Check("warns", name, says, "Make room, set a smaller log_mb, or move ZEUS_STREAM_DIR.")
        else:
            mode = f"{stat.S_IMODE(found.st_mode):04o}"
            yield Check("works", name, f"{directory} is this user's, mode {mode}, {free_mb} MB free.")


def _sockets(where: Places) -> Iterator[Check]:
    longest = max((where.publish, where.control, where.feed, where.query), key=lambda path: len(str(path)))
    try:
        endpoint(longest)
    except ZeusStreamError as wrong:
        yield _wrong("socket paths", wrong)
    else:
        yield Check("works", "socket paths", f"{longest} is short enough for a socket.")


def _other_hosts(settings: Settings, where: Places) -> Iterator[Check]:
    what = "other hosts"
    try:
        allowed, wrong = keys.allowed(where.keys)
        if settings.listen is None:
            yield Check("works", what, "No TCP port is opened: listen is not set.")
        else:
            host, port = parse(settings.listen)
            names = ", ".join(sorted(who.name for who in allowed.values())) or "nobody"
            says = f"Ports {port} to {port + 2} of {host} are opened, to keys only: access for {names}."
            yield Check("works", what, says)
        for sentence in wrong:
            yield _wrong(what, StorageError(sentence))
        for text in settings.follow:
            source(text, where.keys)
            yield Check("works", what, f"The collector at {text} is followed.")
    except ZeusStreamError as error:
        yield _wrong(what, error)


def _devices(settings: Settings, open_bus: Callable[[], Bus]) -> Iterator[Check]:
    try:
        bus = open_bus()
    except ZeusStreamError as wrong:
        yield _wrong("devices", wrong)
        return
    try:
        devices = bus.discover()
    except ZeusStreamError as wrong:
        yield _wrong("driver", wrong, NO_GPU)
    else:
        if not devices:
            yield Check("fails", "devices", f"There is no device under {settings.device}.", NO_GPU)
        for device in devices:
            yield _device(device)
    finally:
        bus.close()


def _device(device: Device) -> Check:
    try:
        description = device.describe()
        requested_mw = device.sample().requested_mw
    except DeviceError as wrong:
        return _wrong("device", wrong)
    what = description.name if of_host(description.gpu) else f"GPU {description.index}"
    says = f"{_portrait(description)}; limit requested {_watts(requested_mw)}. {description.gpu}"
    if description.mig:
        cure = "Energy is that of the whole GPU: measure while one tenant runs, or turn MIG off."
        names = ", ".join(description.tenants) or "none"
        return Check("warns", what, f"{says}: MIG is on, instances: {names}.", cure)
    if description.scope == "module":
        cure = "Compare limits on it as usual; compare it with no GPU whose CPU is not in its figures."
        return Check("warns", what, f"{says}: its figures are of the module, CPU included.", cure)
    return Check("works", what, says)


def _cpus(settings: Settings, powercap: Path) -> Iterator[Check]:
    if settings.cpu == "off" or settings.device == "cpu":
        return
    what = "CPUs"
    try:
        names = ", ".join(device.describe().name for device in RaplBus("here", powercap).discover())
        yield Check("works", what, f"Sampled beside real GPUs: {names}.")
    except LostError as wrong:
        if settings.cpu == "on":
            yield _wrong(what, wrong)
        else:
            yield Check("works", what, "This host has no counter for them; only GPUs are sampled.")
    except DeviceError as wrong:
        says, _, cure = str(wrong).partition(". ")
        yield Check("warns", what, f"{says}.", cure)


def _portrait(found: Description) -> str:
    source = "energy counter" if found.counts_energy else "power readings only"
    limits = (
        "no power limit to set"
        if found.min_limit_mw is None
        else f"limits {_watts(found.min_limit_mw)} to {_watts(found.max_limit_mw)}"
        f" (default {_watts(found.default_limit_mw)})"
    )
    return f"{found.name}, driver {found.driver}, {source}, {limits}"


def _watts(milliwatts: int | None) -> str:
    return "unknown" if milliwatts is None else f"{milliwatts / 1000:g} W"


def _permission(settings: Settings) -> Check:
    what = "permission to set limits"
    if settings.observe:
        cure = "Unset ZEUS_STREAM_OBSERVE (and observe in zeus-stream.toml) to let limits be set."
        return Check("warns", what, "The collector only observes: it refuses every change.", cure)
    if settings.device.startswith("simulated:"):
        return Check("works", what, "Simulated GPUs need none.")
    if _capable():
        return Check("works", what, "This process has CAP_SYS_ADMIN.")
    says = "This process has no CAP_SYS_ADMIN: it measures, and reports what limits would save."
    return Check("warns", what, says, "Run the collector as root or with CAP_SYS_ADMIN.")


def _capable() -> bool:
    """Tell whether this process has CAP_SYS_ADMIN: bit 21 of its effective capabilities."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    effective = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> CAP_SYS_ADMIN & 1)


def _processes(where: Places) -> Iterator[Check]:
    for process, verb in (("collector", "collect"), ("analyzer", "analyze")):
        pid = holder(where.run / f"{process}.lock")
        if pid is None:
            cure = f"Start it with `zeus-stream {verb}`, or let `zeus-stream run -- COMMAND` do it."
            yield Check("warns", process, f"None runs in {where.run}.", cure)
            continue
        try:
            status(where, process)
        except ZeusStreamError as wrong:
            yield _wrong(process, wrong, f"See process {pid}, and start the {process} again.")
        else:
            yield Check("works", process, f"Process {pid} runs and answers.")


def _archive(settings: Settings, where: Places) -> Check:
    if _only_collects():
        return Check("works", "archive", "It is where the analyzer runs: this environment has none.")
    from analyzers.archive.query import read_file

    path = settings.archive or where.archive
    count = "SELECT count(*) AS runs FROM runs"
    try:
        if settings.archive is None and holder(where.run / "analyzer.lock") is not None:
            runs = Connection(where).sql(count)
        elif not path.exists():
            return Check("works", "archive", f"{path} does not exist yet; the analyzer will create it.")
        else:
            runs = read_file(path, count, settings)
    except ZeusStreamError as wrong:
        return _wrong("archive", wrong)
    [number] = runs["runs"].to_pylist()
    return Check("works", "archive", f"{path} opens and holds {number} run{'' if number == 1 else 's'}.")
