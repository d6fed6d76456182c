"""Which processes compute on the GPUs of this host: whose energy is in a run's, and where a run's is not.

The driver lists the processes of a GPU:

    a process of no session on that GPU     its energy is in theirs: `GpuShared`
    a session's process on other GPUs       what was measured is not what it used: a `Lost`, once

A process that the kernel does not show here, as in a container, says neither.

A GPU at rest is not asked: what is known of it (`GpuUses`) holds until a process of it has ended, which the
kernel says.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from collectors import processes
from collectors.device import Description, ProcessesSeen
from collectors.ingest.sessions import PublisherSession
from zeus_stream.live.latest import Latest
from zeus_stream.protocol.fields import of_host
from zeus_stream.protocol.notes import MAX_PROCESSES, GpuInUse, GpuProcess, GpuShared, Lost

LOOK_S = 10.0
"""Between two looks: a driver takes milliseconds to list the processes of a GPU."""
ASTRAY_LOOKS = 2
"""In a row: a process begins to compute on one GPU after the other."""


def works_for(pid: int, session: PublisherSession) -> bool:
    """Tell whether a process computes for a session: its own, a descendant, or its user's MPS server."""
    if session.allocation:
        return processes.owner(pid) == session.uid
    own = _own_pid(session)
    return own is not None and (processes.descends(pid, own) or processes.serves(pid, session.uid))


def _own_pid(session: PublisherSession) -> int | None:
    """Return the process of a session. None: it has none, or that is hidden."""
    return session.pid if session.pid and session.process_known and not session.allocation else None


class GpuProcesses:
    """The processes of all GPUs of the host, as they were logged last."""

    def __init__(self, now_ns: int) -> None:
        self._looked_ns = now_ns
        self._others: dict[str, int] = {}
        """By GPU: processes of no session."""
        self._astray: dict[str, int] = {}
        """By session: looks in a row in which its process computed on other GPUs."""

    def wanted(self, sessions: Sequence[PublisherSession], devices: Sequence[Description]) -> tuple[str, ...]:
        """Return the GPUs of which the processes are to be listed now."""
        used = any(not each.over and each.gpus for each in sessions) or any(self._others.values())
        return tuple(each.gpu for each in devices if not of_host(each.gpu)) if used else ()

    def judge(
        self,
        listed: Mapping[str, tuple[int, ...] | None],
        sessions: Sequence[PublisherSession],
        devices: Sequence[Description],
        now_ns: int,
    ) -> Iterator[GpuShared | Lost]:
        """Yield what is new. ``listed``: the processes of each GPU wanted; None: they cannot be seen."""
        there = [each for each in sessions if not each.over and each.gpus]
        seen = {
            gpu: [pid for pid in pids if processes.start_ticks(pid) is not None]
            for gpu, pids in listed.items()
            if pids is not None
        }
        for gpu, pids in seen.items():
            users = [each for each in there if gpu in each.gpus]
            if all(each.allocation or _own_pid(each) for each in users):  # else it may be theirs
                others = sum(not any(works_for(pid, each) for each in users) for pid in pids) if users else 0
                if others != self._others.get(gpu, 0):
                    yield GpuShared(now_ns, gpu, self._looked_ns, others)
                self._others[gpu] = others
        if len(seen) == len(listed):
            places = {each.gpu: each.index for each in devices}
            yield from self._say_astray(seen, there, places, now_ns)
        self._looked_ns = now_ns

    def _say_astray(
        self,
        seen: Mapping[str, list[int]],
        there: Sequence[PublisherSession],
        places: Mapping[str, int],
        now_ns: int,
    ) -> Iterator[Lost]:
        astray = {}
        for each in there:
            if (own := _own_pid(each)) is None:
                continue
            on = {gpu for gpu, pids in seen.items() if any(processes.descends(pid, own) for pid in pids)}
            if not on or on == set(each.gpus):
                continue
            looks = astray[each.session] = self._astray.get(each.session, 0) + 1
            if looks == ASTRAY_LOOKS:
                reason = (
                    f"run {each.run}: its process computes on {_named(on, places)}, and"
                    f" {_named(each.gpus, places)} was measured for it. Name its GPUs with ZEUS_STREAM_GPUS,"
                    " or set CUDA_DEVICE_ORDER=PCI_BUS_ID."
                )
                yield Lost(now_ns, "devices", 1, reason[:2000])
        self._astray = astray


def _named(gpus: Collection[str], places: Mapping[str, int]) -> str:
    return "GPU " + ", ".join(map(str, sorted(places[gpu] for gpu in gpus if gpu in places)))


NOTICED = 0.05
"""Of the memory of a GPU: a smaller change is not logged."""
AGAIN_NS = 600_000_000_000
"""Time after which a use that holds is logged again, for a reader that began in the middle of the log."""


class GpuUses:
    """The memory of each GPU and the processes on it, as they were logged last."""

    def __init__(self, latest: Latest) -> None:
        self._latest = latest
        self._logged: dict[str, GpuInUse] = {}
        self._ticks: dict[str, dict[int, int | None]] = {}
        """By GPU that was looked at: when each of its processes started."""

    def wanted(self, devices: Sequence[Description]) -> tuple[str, ...]:
        """Return the GPUs to look at though no run is there: those that compute, are new, or were left."""
        gpus = (each.gpu for each in devices if not of_host(each.gpu))
        return tuple(gpu for gpu in gpus if self._latest.computes(gpu) or self._changed(gpu))

    def _changed(self, gpu: str) -> bool:
        """Tell whether a GPU was not looked at yet, or a process of it has ended since."""
        known = self._ticks.get(gpu)
        return known is None or known != _ticks(known)

    def judge(
        self, seen: Mapping[str, ProcessesSeen], sessions: Sequence[PublisherSession], now_ns: int
    ) -> list[GpuInUse]:
        """Return what is to be logged. Reads files of /proc and names of users, so it may block."""
        found = [_use(gpu, each, sessions, now_ns) for gpu, each in seen.items()]
        for gpu, each in seen.items():
            self._ticks[gpu] = _ticks(each.pids or ())
        news = {use.gpu: use for use in found if not _alike(use, self._logged.get(use.gpu))}
        for gpu, use in self._logged.items():
            if now_ns - use.t_ns >= AGAIN_NS:
                news.setdefault(gpu, replace(use, t_ns=now_ns))
        self._logged |= news
        return list(news.values())


def _ticks(pids: Sequence[int] | Mapping[int, object]) -> dict[int, int | None]:
    return {pid: processes.start_ticks(pid) for pid in pids}


def _use(gpu: str, seen: ProcessesSeen, sessions: Sequence[PublisherSession], now_ns: int) -> GpuInUse:
    memory_of = seen.memory.of if seen.memory else {}
    users = [each for each in sessions if not each.over and gpu in each.gpus]
    pids = sorted(set(seen.pids or ()), key=lambda pid: (-memory_of.get(pid, 0), pid))
    shown = tuple(
        GpuProcess(
            pid=pid,
            user=processes.user_of(pid),
            command=processes.program_of(pid) or None,
            memory_bytes=memory_of.get(pid),
            run=next((each.run for each in users if works_for(pid, each)), None),
        )
        for pid in pids[:MAX_PROCESSES]
    )
    return GpuInUse(
        t_ns=now_ns,
        gpu=gpu,
        memory_bytes=seen.memory.used_bytes if seen.memory else None,
        memory_total_bytes=seen.memory.total_bytes if seen.memory else None,
        processes=None if seen.pids is None else shown,
        left_out=max(0, len(pids) - MAX_PROCESSES),
    )


def _alike(use: GpuInUse, logged: GpuInUse | None) -> bool:
    """Tell whether nothing has changed that is worth a note."""
    if logged is None:
        return use.processes is None and use.memory_bytes is None
    most = NOTICED * (use.memory_total_bytes or 0)
    (bare, memory), (was_bare, memory_was) = _without_memory(use), _without_memory(logged)
    return bare == was_bare and all(
        one == other if one is None or other is None else abs(one - other) <= most
        for one, other in zip(memory, memory_was, strict=True)
    )


def _without_memory(use: GpuInUse) -> tuple[GpuInUse, list[int | None]]:
    """Return a use without what is in use of its memory, and that: of the GPU, then of its processes."""
    each = sorted(use.processes or (), key=lambda process: process.pid)
    bare = None if use.processes is None else tuple(replace(process, memory_bytes=None) for process in each)
    memory = [use.memory_bytes, *(process.memory_bytes for process in each)]
    return replace(use, t_ns=0, memory_bytes=None, processes=bare), memory
