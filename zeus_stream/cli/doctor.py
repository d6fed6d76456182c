"""Check everything that zeus-stream needs on this machine, and name the cure of each fault.

Nothing is changed. Whether a limit can be set, the driver is asked by setting the one in force again, under a
restore record, while no collector runs.
"""

import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from collectors.controls.lease_messages import Limits, SetFailed
from collectors.controls.restore_record import RestoreRecord, RestoreRecordFile
from collectors.controls.value_changes import change
from collectors.device import Bus, Description, Device, Sample
from collectors.devices.cards.known_cards import known_card
from collectors.devices.rapl import POWERCAP, RaplBus
from collectors.meters.metered_bus import open_meters
from zeus_stream.clock import boot_id
from zeus_stream.errors import (
    DeviceError,
    LostError,
    SettingsError,
    StorageError,
    ZeusStreamError,
)
from zeus_stream.paths import OWN, ROOT_RUN, Places, endpoint, holder
from zeus_stream.protocol.fields import of_host, spell_profiles
from zeus_stream.screens.text.tables import Check
from zeus_stream.service_packages import ANALYZER, absent_packages, install_command
from zeus_stream.settings import Settings
from zeus_stream.transport import keys
from zeus_stream.transport.client import Connection, ask_now, status
from zeus_stream.transport.endpoints import parse, source

PACKAGES = ("anyio", "click", "msgpack", "nvidia-ml-py", "pyzmq", "rich")
CAP_SYS_ADMIN = 21
PACKAGED = Path("/var/lib/zeus-stream-analyzer")
"""Where the analyzer of the package runs, as its unit says."""
ROOM_MB = 1_024
"""Free space for the archive, beside the log, below which the check warns."""
SHARES = ("analyzer", "site")
"""A row in the status of an analyzer of shards."""
NO_GPU = "Without an NVIDIA GPU, try it on simulated ones: --device simulated:v100x1."


def examine(
    settings: Settings, where: Places, open_bus: Callable[[], Bus], powercap: Path = POWERCAP
) -> list[Check]:
    """Return all checks. ``open_bus`` opens the GPUs; ``powercap`` has the counters of CPUs."""
    at_analyzer = _place_of_analyzer(where)
    return [
        *_versions(),
        *_directories(settings, where),
        *_sockets(where),
        *_other_hosts(settings, where),
        *_devices(settings, where, open_bus),
        *_cpus(settings, powercap),
        *_meters(settings),
        _process(where, "collector", "collect"),
        _process(at_analyzer, "analyzer", "analyze"),
        _archive(settings, at_analyzer),
    ]


def _place_of_analyzer(where: Places) -> Places:
    """Return where the analyzer of a setup runs: that of the package has a directory of its own."""
    packaged = Places(PACKAGED, PACKAGED)
    runs = [holder(place.run / "analyzer.lock") is not None for place in (where, packaged)]
    return packaged if where.run == ROOT_RUN and runs == [False, True] else where


def _meters(settings: Settings) -> Iterator[Check]:
    """Read each meter once."""
    try:
        meters = open_meters(settings.meters, "here")
    except SettingsError as wrong:
        yield _wrong("meters", wrong)
        return
    for meter in meters:
        name = f"meter {meter.name}"
        try:
            sample = meter.sample()
        except DeviceError as wrong:
            yield _wrong(name, wrong)
            continue
        counts = sample.energy_mj is not None
        shown = f"{(sample.energy_mj or 0) / 1000:g} J" if counts else _watts(sample.power_mw)
        yield Check("works", name, f"It {'counts' if counts else 'shows'} {shown}.")


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
        cure = f"Install them: {install_command('services')}."
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
            yield Check("fails", name, says, OWN)
        elif there != directory:
            yield Check("works", name, f"{directory} does not exist yet and will be created.")
        elif found.st_uid != os.geteuid():
            says = f"{directory} belongs to user {found.st_uid}, not to this one."
            yield Check("fails", name, says, OWN)
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


def _devices(settings: Settings, where: Places, open_bus: Callable[[], Bus]) -> Iterator[Check]:
    devices: tuple[Device, ...] = ()
    try:
        bus = open_bus()
    except ZeusStreamError as wrong:
        yield _measured(where) or _wrong("devices", wrong)
        yield _permission(settings, where, devices)
        return
    try:
        devices = bus.discover()
    except ZeusStreamError as wrong:
        yield _measured(where) or _wrong("driver", wrong, NO_GPU)
        yield _permission(settings, where, devices)
    else:
        if not devices:
            absent = Check("fails", "devices", f"There is no device under {settings.device}.", NO_GPU)
            yield _measured(where) or absent
        for device in devices:
            yield _device(device)
            yield from _sensor(device, where.cards)
        yield _permission(settings, where, devices)
    finally:
        bus.close()


def _measured(where: Places) -> Check | None:
    """Return what a running collector measures, whatever `device` is here. None: nothing, or none answers."""
    if (pid := holder(where.run / "collector.lock")) is None:
        return None
    try:
        now = ask_now(where, process="collector")
    except ZeusStreamError:
        return None  # `_process` names it
    names = [*(gpu.model or gpu.gpu for gpu in now.gpus), *(part.part for part in now.parts)]
    if not names:
        return None
    says = f"Collector {pid} measures {', '.join(names)}. These settings name another device."
    return Check("works", "devices", says)


def _device(device: Device) -> Check:
    try:
        description = device.describe()
        sample = device.sample()
    except DeviceError as wrong:
        return _wrong("device", wrong)
    what = description.name if of_host(description.gpu) else f"GPU {description.index}"
    limits = f"limit requested {_watts(sample.requested_mw)}, enforced {_watts(sample.limit_mw)}"
    says = f"{_portrait(description, sample)}; {limits}. {description.gpu}"
    if sample.energy_mj is None and sample.power_mw is None:
        return Check("fails", what, f"{says}: nothing can be measured.", "Look into the driver's log.")
    if description.unanswered:
        cure = "It is measured without. Look into the driver's log, or update the driver."
        return Check("warns", what, f"{says}: {' '.join(description.unanswered)}", cure)
    if description.mig:
        cure = "Energy is that of the whole GPU: measure while one tenant runs, or turn MIG off."
        names = ", ".join(description.tenants) or "none"
        return Check("warns", what, f"{says}: MIG is on, instances: {names}.", cure)
    if description.scope == "module":
        cure = "Compare limits on it as usual; compare it with no GPU whose CPU is not in its figures."
        return Check("warns", what, f"{says}: its figures are of the module, CPU included.", cure)
    return Check("works", what, says)


def _sensor(device: Device, cards: Path) -> Iterator[Check]:
    """Yield a warning where nothing is known of a GPU's energy counter."""
    try:
        description = device.describe()
    except DeviceError:
        return  # `_device` names it
    real = not of_host(description.gpu) and not description.driver.startswith("simulated")
    if real and description.counts_energy and known_card(cards, description) is None:
        says = "It has no card: it is learned while steps change, and until then their intervals are wide."
        cure = f"Let it be measured once: zeus-stream doctor --sensor {description.index}"
        yield Check("warns", f"sensor of GPU {description.index}", says, cure)


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


def _portrait(found: Description, sample: Sample) -> str:
    source = "neither energy counter nor power readings"
    if found.counts_energy and sample.energy_mj is not None:
        source = "energy counter"
    elif sample.power_mw is not None:
        source = "power readings only"
    limits = (
        "no power limit to set"
        if found.min_limit_mw is None
        else f"limits {_watts(found.min_limit_mw)} to {_watts(found.max_limit_mw)}"
        f" (default {_watts(found.default_limit_mw)})"
    )
    profiles = ""
    if sample.enforced_profiles is not None:
        profiles = f", power profile {spell_profiles(sample.enforced_profiles)}"
    return f"{found.name}, driver {found.driver}, {source}, {limits}{profiles}"


def _watts(milliwatts: int | None) -> str:
    return "unknown" if milliwatts is None else f"{milliwatts / 1000:g} W"


def _permission(settings: Settings, where: Places, devices: Sequence[Device]) -> Check:
    what = "permission to set limits"
    if settings.observe:
        cure = "Unset ZEUS_STREAM_OBSERVE (and observe in zeus-stream.toml) to let limits be set."
        return Check("warns", what, "The collector only observes: it refuses every change.", cure)
    if settings.device.startswith("simulated:"):
        return Check("works", what, "Simulated GPUs need none.")
    if not settings.set_command and not _capable():
        says = "This process has no CAP_SYS_ADMIN: it measures, and reports what limits would save."
        return Check("warns", what, says, "Run the collector as root or with CAP_SYS_ADMIN.")
    if (collector := holder(where.run / "collector.lock")) is not None:
        says = f"Collector {collector} has the GPUs, so no driver was asked."
        return Check("works", what, says)
    asked = 0
    for device in devices:
        try:
            wrong = _try_limit(device, where.records)
        except ZeusStreamError as error:
            return _wrong(what, error)
        if wrong is not None:
            cure = "It is measured only. In a container, give it the GPU's device files and CAP_SYS_ADMIN."
            return Check("warns", what, f"The driver refuses it: {wrong}", cure)
        asked += device.describe().min_limit_mw is not None
    if not asked:
        return Check("warns", what, "No device here has a limit that can be set.", "Measure only.")
    return Check(
        "works", what, f"The driver took the limit in force again, on {asked} of {len(devices)} devices."
    )


def _try_limit(device: Device, records: Path) -> str | None:
    """Set the limit in force again, under a record. Return why the driver refuses; None: it does not."""
    description = device.describe()
    if description.min_limit_mw is None or (limit_mw := device.read_control("power_limit")) is None:
        return None
    with closing(RestoreRecordFile(records, description.gpu, 0.0)) as file:
        if file.read() is not None:
            return f"{description.gpu}: a limit of a killed collector is left. Run `zeus-stream restore`."
        limits = Limits(limit_mw, pending=limit_mw)
        file.write(RestoreRecord(gpu=description.gpu, limits=limits, boot_id=boot_id(), time=""))
        try:
            outcome = change(device, "power_limit", limits)
        finally:
            file.clear()
    return outcome.reason if isinstance(outcome, SetFailed) else None


def _capable() -> bool:
    """Tell whether this process has CAP_SYS_ADMIN: bit 21 of its effective capabilities."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    effective = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> CAP_SYS_ADMIN & 1)


def _process(where: Places, process: str, verb: str) -> Check:
    pid = holder(where.run / f"{process}.lock")
    if pid is None:
        cure = f"Start it with `zeus-stream {verb}`, or let `zeus-stream run -- COMMAND` do it."
        return Check("warns", process, f"None runs in {where.run}.", cure)
    try:
        status(where, process)
    except ZeusStreamError as wrong:
        return _wrong(process, wrong, f"See process {pid}, and start the {process} again.")
    return Check("works", process, f"Process {pid} runs in {where.run}, and answers.")


def _archive(settings: Settings, where: Places) -> Check:
    if _only_collects():
        return Check("works", "archive", "It is where the analyzer runs: this environment has none.")
    from analyzers.archive.query import read_file

    path = settings.archive or where.archive
    count = "SELECT count(*) AS runs FROM sessions"
    try:
        if settings.archive is None and holder(where.run / "analyzer.lock") is not None:
            if any(row[:2] == SHARES for row in status(where, "analyzer").rows):
                return Check("works", "archive", "The analyzer shares a site: each of its shards has one.")
            runs = Connection(where).sql(count)
        elif not path.exists():
            return Check("works", "archive", f"{path} does not exist yet; the analyzer will create it.")
        else:
            runs = read_file(path, count, settings)
    except ZeusStreamError as wrong:
        return _wrong("archive", wrong)
    [number] = runs["runs"].to_pylist()
    return Check("works", "archive", f"{path} opens and holds {number} run{'' if number == 1 else 's'}.")
