"""Which processes compute on the GPUs of this host: whose energy is in a run's, and where a run's is not.

The driver lists the processes of a GPU:

    a process of no session on that GPU     its energy is in theirs: `GpuShared`
    a session's process on other GPUs       what was measured is not what it used: a `Lost`, once

A process that the kernel does not show here, as in a container, says neither.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from collectors import processes
from collectors.device import Description
from collectors.ingest.sessions import PublisherSession
from zeus_stream.protocol.fields import of_host
from zeus_stream.protocol.notes import GpuShared, Lost

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
