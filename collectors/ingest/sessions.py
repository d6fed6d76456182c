"""Sessions of training processes: what is new in a batch and allowed, which GPUs a run may command. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from collectors.device import Description
from zeus_stream.errors import MalformedError
from zeus_stream.protocol.events import Batch, Event, JobAllocation, RunEnded, RunStarted, StepBoundary
from zeus_stream.protocol.fields import BUDGET, Unknown, of_host
from zeus_stream.protocol.notes import Pod

MAX_SESSIONS = 1_000
MAX_PROCESS_SESSIONS = 64
MAX_MESSAGES_PER_S = 500
"""Of one process; a publisher sends 50."""
MAX_BYTES_PER_S = 8_000_000
"""Of one process; a publisher that catches up sends 1.5 MB."""
PROCESSES_OF_USER = 20
"""A user may send as much as so many processes."""
MAX_SENDERS = 1_000
"""Processes whose trouble is counted one by one."""
NAME_NS = 1_000_000_000
"""Between two processes that are named for their trouble."""
AHEAD_NS = 1_000_000_000
"""An event may be so far ahead of the collector's clock, which is the same clock."""
ALL_GPUS = "index:all"
Peer: TypeAlias = tuple[int | None, int | None]
"""uid and pid of a process, as the kernel says."""
K = TypeVar("K")
V = TypeVar("V")


class PublisherSession(Struct, frozen=True, kw_only=True):
    """The state of one publisher. Outlives the collector in the log."""

    session: str
    next_sequence: int = 0
    uid: int | None = None
    pid: int | None = None
    started_ticks: int | None = None
    boot_id: str = ""
    job: str = ""
    run: str = ""
    asked_gpus: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    may_command: bool = False
    over: bool = False
    """It reported the end of its run, or its process is gone."""
    gone: bool = False
    """Its process is gone."""
    first_offset: int = 0
    """Of the log: that of its first event, or one a little before."""
    last_offset: int = 0
    """Of the log: the one after its last event, or a little later. 0: not over, or not known."""
    process_known: bool = True
    """The process of its pid can have made its connection: same user, and no younger than the connection."""
    allocation: bool = False
    """It is an allocation of a batch system to its user. It has no process."""
    cgroup: str | None = None
    pod: Pod | None = None

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()


def from_json(text: str) -> PublisherSession:
    """Return the session that `PublisherSession.to_json` wrote."""
    return msgspec.json.decode(text, type=PublisherSession)


def receive(session: PublisherSession, batch: Batch) -> tuple[PublisherSession, tuple[Event | Unknown, ...]]:
    """Return the session once the batch is in the log, and the events that are new in it, often all.

    None are new when others should come first, as the acknowledgement says. Raises MalformedError: the
    session does not begin with `RunStarted`, or begins twice.
    """
    known = session.next_sequence - batch.sequence
    events = batch.events[known:] if known >= 0 else ()
    for place, event in enumerate(events, start=session.next_sequence):
        if isinstance(event, RunStarted) != (place == 0):
            raise MalformedError(
                f"session {session.session}: could not be logged: event {place} is {type(event).__name__}."
                " A session has one RunStarted, at its beginning."
            )
        match event:
            case RunStarted():
                session = replace(session, job=event.job, run=event.run, asked_gpus=event.gpus)
            case RunEnded():
                session = replace(session, over=True)
            case _:
                pass
    return replace(session, next_sequence=session.next_sequence + len(events)), events


def allocation_of(batch: Batch, peer: Peer, own_uid: int) -> PublisherSession | None:
    """Return the session of an allocation that begins with this batch, or None.

    Raises MalformedError: neither root nor the collector's own user sends it.
    """
    match batch.events[:1]:
        case (RunStarted(allocation=JobAllocation(uid=uid)),) if peer[0] in (0, own_uid):
            return PublisherSession(session=batch.session, uid=uid, pid=0, allocation=True)
        case (RunStarted(allocation=JobAllocation()),):
            raise MalformedError(
                f"session {batch.session}: could not be logged: user {peer[0]} may report no allocation."
                " Let the prolog of the batch system do it, as root."
            )
        case _:
            return None


def may_continue(session: PublisherSession, peer: Peer, own_uid: int) -> bool:
    """Tell whether a process may send events of a session: its own process, or root for an allocation."""
    return peer[0] in (0, own_uid) if session.allocation else (session.uid, session.pid) == peer


def left_behind(ended: PublisherSession, others: Iterable[PublisherSession]) -> list[PublisherSession]:
    """Return a user's open sessions on the GPUs of an allocation that has ended, and of no other open one."""
    of_user = [each for each in others if each.uid == ended.uid and not each.over]
    held = {gpu for each in of_user if each.allocation for gpu in each.gpus}
    given_back = set(ended.gpus) - held
    return [each for each in of_user if not each.allocation and given_back.intersection(each.gpus)]


def check(
    session: PublisherSession, new: Sequence[Event | Unknown], others: Iterable[PublisherSession], now_ns: int
) -> None:
    """Raise MalformedError if a session, as `receive` returned it with ``new``, says what it may not."""
    latest_ns = max(map(_latest_ns, new), default=0)
    if latest_ns > now_ns + AHEAD_NS:
        raise MalformedError(
            f"session {session.session}: could not be logged: an event is {(latest_ns - now_ns) / 1e9:.0f} s"
            " ahead of this host's CLOCK_MONOTONIC. Stamp events with that clock."
        )
    if not any(isinstance(event, RunStarted) for event in new):
        return
    if session.run.startswith(BUDGET):
        raise MalformedError(
            f"session {session.session}: could not be logged: run {session.run}: power budgets have names"
            f" that begin with {BUDGET}. Give this one another name."
        )
    peer = session.uid, session.pid
    of_process = sum(not other.over and (other.uid, other.pid) == peer for other in others)
    if of_process >= MAX_PROCESS_SESSIONS:
        raise MalformedError(
            f"session {session.session}: could not be logged: {of_process} of process {session.pid} are open,"
            f" {MAX_PROCESS_SESSIONS} may be. End some."
        )


def gives_way(sessions: Sequence[PublisherSession], uid: int | None) -> PublisherSession | None:
    """Return the session that ends for one of ``uid``: of the user with most. None: nobody has more."""
    users = Counter(session.uid for session in sessions if not session.over)
    most, count = max(users.items(), key=itemgetter(1), default=(uid, 0))
    if count <= users[uid]:
        return None
    return next(session for session in sessions if session.uid == most and not session.over)


def _latest_ns(event: Event | Unknown) -> int:
    match event:
        case StepBoundary(_, ended_ns, began_ns):
            return max(ended_ns or 0, began_ns or 0)
        case Unknown():
            return 0
        case _:
            return event.t_ns


def resolve(asked: Sequence[str], devices: Sequence[Description]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the UUIDs of what a run asked for, in its order, and what could not be found.

    ``index:N`` is a place in PCI order, ``index:all`` every GPU; behind an index that is not there CUDA shows
    none of the others. A UUID may be shortened as CUDA allows. A MIG instance is its whole GPU. Parts of the
    host are nobody's to name: they are everybody's.
    """
    found: dict[str, None] = {}
    unknown: list[str] = []
    for name in asked:
        if name.startswith("index:") and any(each.startswith("index:") for each in unknown):
            unknown.append(name)
            continue
        matching = [device.gpu for device in devices if not of_host(device.gpu) and _names(name, device)]
        if not matching or (len(matching) > 1 and name != ALL_GPUS):
            unknown.append(name)
        else:
            found.update(dict.fromkeys(matching))
    return tuple(found), tuple(unknown)


def _names(name: str, device: Description) -> bool:
    if name == ALL_GPUS:
        return True
    if name.startswith("index:"):
        return name == f"index:{device.index}"
    if name.startswith(
        "MIG-GPU-"
    ):  # before driver 470: MIG-<UUID of the GPU>/<GPU instance>/<compute instance>
        return name.removeprefix("MIG-").partition("/")[0] == device.gpu
    uuids = device.tenants if name.startswith("MIG-") else (device.gpu,)
    return len(name) > len("GPU-") and any(uuid.startswith(name) for uuid in uuids)


class Admission(Struct, frozen=True):
    """The collector's word on which GPUs a run works on, and whether it may command them."""

    gpus: tuple[str, ...]
    may_command: bool
    reason: str
    settled: bool
    """Nothing would be gained by looking again."""
    missing: tuple[str, ...] = ()
    """It names them, and this host has no such GPU."""


def admit(
    session: PublisherSession,
    devices: Sequence[Description],
    trusted_uids: frozenset[int],
    owned: Mapping[str, bool | None],
) -> Admission:
    """Return the word on a session. ``owned``: whether its process computes on a GPU; None: not seen."""
    gpus, unknown = resolve(session.asked_gpus, devices)
    simulated = {device.gpu for device in devices if device.driver.startswith("simulated")}
    divided = {device.gpu for device in devices if device.mig and len(device.tenants) > 1}
    strange = [gpu for gpu in gpus if gpu not in simulated and (gpu in divided or not owned.get(gpu))]
    may_command = True
    if not gpus:
        may_command, reason = False, "It names no GPU of this host."
    elif session.allocation:
        may_command, reason = False, "A batch system gave them to a job. An allocation is only measured."
    elif session.uid in trusted_uids:
        reason = f"User {session.uid} is trusted."
    elif not strange:
        reason = "Its process computes on them."
    else:
        may_command = False
        alone = ", alone (MIG)" if divided.intersection(strange) else ""
        reason = (
            f"Unverified: process {session.pid} of user {session.uid} was not seen to compute on"
            f" {', '.join(strange)}{alone}."
            f" Start the collector with --trust-uid {session.uid} to let it command."
        )
    if unknown == (ALL_GPUS,):
        reason = "The collector measures no GPU."
    elif unknown:
        reason = f"{reason} Not found on this host: {', '.join(unknown)}."
    settled = (may_command or session.allocation) and not unknown
    return Admission(gpus, may_command, reason[:2000], settled, unknown)


class _Sent(Struct):
    """The messages of one process, or one user, within a second."""

    second: int = 0
    messages: int = 0
    sent_bytes: int = 0

    def within(self, size: int, second: int, share: int) -> bool:
        """Count a message; False: it is one too many in this second."""
        if self.second != second:
            self.second, self.messages, self.sent_bytes = second, 0, 0
        self.messages += 1
        self.sent_bytes += size
        return self.messages <= share * MAX_MESSAGES_PER_S and self.sent_bytes <= share * MAX_BYTES_PER_S


class Senders:
    """Counts what processes (uid, pid) send and what was wrong with it. Bounded: the oldest is forgotten."""

    def __init__(self) -> None:
        self._processes: dict[Peer, _Sent] = {}
        self._users: dict[int | None, _Sent] = {}
        self._wrong: dict[Peer, int] = {}
        self._named: dict[Peer, None] = {}
        self._next_named_ns = 0
        self.wrong_messages = 0

    def may_send(self, peer: Peer, size: int, now_ns: int) -> bool:
        """Count a message of ``size`` bytes; False: its process or its user sends too much now."""
        second = now_ns // 1_000_000_000
        of_process = _of(self._processes, peer, _Sent()).within(size, second, 1)
        return of_process and _of(self._users, peer[0], _Sent()).within(size, second, PROCESSES_OF_USER)

    def wrong(self, peer: Peer, now_ns: int) -> bool:
        """Count something wrong with a message. True: now its process is to be named, which happens once."""
        self.wrong_messages += 1
        self._wrong[peer] = _of(self._wrong, peer, 0) + 1
        if peer in self._named or now_ns < self._next_named_ns:
            return False
        _of(self._named, peer, None)
        self._next_named_ns = now_ns + NAME_NS
        return True

    def wrongs(self) -> dict[Peer, int]:
        """Return how many messages of each process something was wrong with."""
        return dict(self._wrong)


def _of(counted: dict[K, V], key: K, new: V) -> V:
    """Return what is counted for a key; for a new one of too many, the oldest is forgotten."""
    if key not in counted and len(counted) >= MAX_SENDERS:
        del counted[next(iter(counted))]
    return counted.setdefault(key, new)
