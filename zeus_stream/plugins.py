"""The seams of zeus-stream, by name: what other packages bring, and what is imported only on demand.

`from zeus_stream.plugins import Device` gives a name of `SEAMS`, in a checkout and in a wheel, which
hides ``collectors`` and ``analyzers``. Names that are not here may change with any version.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from zeus_stream.errors import SettingsError
from zeus_stream.service_packages import import_services_first

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

T = TypeVar("T")

DEVICE = "collectors.device:Device"
"""A device whose power is measured, and may be set: a GPU, a CPU, a power strip.

Bring one as an entry point of the group ``zeus_stream.devices``; its object is a `DeviceKind`. The kind
opens a `Bus`, whose `discover` returns every device there is now. `describe` says once what a device is
and can do (`Description`), `sample` reads counter, power and limits (`Sample`), `set_control` requests a
limit or a clock. A device is called from one thread at a time and may block. It reads no clock: the
collector stamps before and after each call. A value that it does not have is None, never 0. Errors are
those of `zeus_stream.errors`: lost, retry, unsupported, no permission, refused. Tests that hold for every
device are in `tests/conformance`. docs/how-to/add-a-device.md has a whole one.
"""
SELECTOR = "analyzers.power_limit.selectors:Selector"
"""A choice of one of the power limits that were measured.

Bring one as an entry point of the group ``zeus_stream.selectors``: a function that returns a function. It
takes the text after the colon of ``--select NAME:TEXT``, None without it. The returned one takes the trials
and the number of GPUs of the job, and returns the limit in mW of one of the trials. A trial has `limit_mw`,
`energy_mj` and `step_mj` of all GPUs, `duration_ns`, `step_ns` and `steps`. The function has no state: the
same trials give the same limit, also when an archive is interpreted again years later. What it raises stops
no training; the run is measured on, and the decision names the error. Every limit is measured once for it,
because the search does not know what it minimizes. docs/how-to/add-a-selector.md has a whole one.
"""
EXPORTER = "zeus_stream.screens.results.registry:Exporter"
"""A connection that sends results to another system.

Bring one as an entry point of the group ``zeus_stream.exporters``. Its object is an `ExporterKind`, which
makes the exporter from the text after the colon of ``zeus-stream forward NAME:TEXT``. `export` takes rows
in the order in which they were stored, as records of `analyzers/results`. A later row of the same key
replaces an earlier one. If the other system does not answer, raise OSError: the same rows are given again
later. After a start of the analyzer rows may come again, so send them under their keys. `report_missed`
says that results were lost here. One thread calls, one call at a time; an exporter may block, and nothing
but its own rows waits for it. docs/how-to/add-an-exporter.md has a whole one.
"""
STORE = "analyzers.archive.store:Store"
"""A store of what an analyzer received and what it derived from it.

A file of DuckDB and the store of a shard are two; `tests/conformance/test_store.py` holds for each. `put`
takes frames, rows, and the offset to which each log is interpreted. It stores all of it or nothing, so
nothing is lost or stored twice, whatever is killed. `position` says where the log of a host goes on.
`replay`, `memory` and `checkpoint` give a start what it needs: frames to be interpreted again, earlier
profiles and tries, the last state. `query` answers SQL in a process that can do no harm; `prune` removes what
is old; `close` ends. Every method may raise StorageError, with a sentence that names the cure. What could not
be put may be handed over again. A store is used by one thread at a time. None is found by entry point: a
store is part of a service.
"""
LOG = "collectors.log.store:LogStore"
"""A log of the frames of one host: the truth about what was measured and done there.

SQLite is one, and a log in memory for tests another; `tests/conformance/test_log.py` holds for each.
`append` gives each frame the next offset and stores it before it returns. `fetch` returns frames from an
offset on, in order; what was forgotten is missing, and the reader records a gap. `prune` forgets the
oldest frames beyond a number of bytes or an age. `sessions` gives a restarted collector the sessions that
were open. A log has an id, another one after it was lost: offsets of two ids are never compared. Feeds,
brokers and stores follow a log by id and offset, so that each frame arrives once. For one thread. Methods
may raise StorageError. None is found by entry point: a log is part of the collector.
"""
ROSTER = "analyzers.service.analyzer:Roster"
"""A task that decides which collectors an analyzer follows and commands.

It is given the analyzer, and calls `join` with each collector to be followed. `join` returns a scope, which
it cancels to leave that collector. It runs until it is cancelled. Without one, an analyzer follows the
collectors that ``--follow`` names. A site brings two (`ROSTERS`): every host that announces itself at the
broker, and the hosts of the jobs of some shards. A collector that joins is followed from where the store has
its log, or from its oldest frame. Frames that left its log become a row of ``gaps``. A roster holds no state
that matters: after a restart it finds the same hosts again.
"""
SEAMS: Mapping[str, str] = {
    "Bus": "collectors.device:Bus",
    "Description": "collectors.device:Description",
    "Device": DEVICE,
    "DeviceKind": "collectors.devices.registry:DeviceKind",
    "DeviceMemory": "collectors.device:DeviceMemory",
    "Exporter": EXPORTER,
    "ExporterKind": "zeus_stream.screens.results.registry:ExporterKind",
    "Log": LOG,
    "Roster": ROSTER,
    "Sample": "collectors.device:Sample",
    "Selector": SELECTOR,
    "Store": STORE,
    "Trial": "analyzers.power_limit.selectors:Trial",
}

# ---- what a site adds to the processes of a host: the one way into its packages, held by an import contract

SITE_SETTINGS = "zeus_stream.broker.site_settings:SiteSettings"
HOST_AT_BROKER = "collectors.broker.host_at_broker:HostAtBroker"
SITE_STATUS = "analyzers.shards.site_status:site_status"
ROSTERS: Mapping[str, str] = {
    "broker": "analyzers.shards.broker_roster:analyze_at_broker",
    "shards": "analyzers.shards.sharded_analyzer:analyze_shards",
}
"""Analyzers, by the hosts that they follow: all at the broker, or those of some shards of the site."""


def __getattr__(name: str) -> Any:
    """Return the object of a seam."""
    if name not in SEAMS:
        raise AttributeError(f"zeus_stream.plugins has no {name}: its names are {', '.join(SEAMS)}.")
    import_services_first()
    return find(SEAMS[name])


def find(place: str) -> Any:
    """Return the object at a place: a module, a colon, and a name in it."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def registered(group: str) -> "EntryPoints":
    """Return what distributions bring to a group."""
    from importlib.metadata import entry_points  # 25 ms, and a process that names only ours needs none

    return entry_points(group=group)


def names(group: str) -> list[str]:
    """Return the names that distributions bring to a group, in order."""
    return sorted({point.name for point in registered(group)})


def load(group: str, name: str, kind: type[T], what: str, guide: str) -> T | None:
    """Return the entry point of a group by name; None: nothing brings it. Raises SettingsError."""
    for point in registered(group).select(name=name):
        try:
            found = point.load()
        except Exception as wrong:
            raise SettingsError(
                f"{what} {name!r}: could not be loaded: {point.value}: {wrong!r}. Mend or remove its package."
            ) from wrong
        if not isinstance(found, kind):
            raise SettingsError(
                f"{what} {name!r}: could not be used: {point.value} is no {kind.__name__}. See {guide}."
            )
        return found
    return None
