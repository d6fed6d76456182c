"""Sessions of training processes: what is new in a batch, which GPUs a run may command. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeAlias

from collectors.device import Description
from zeus_stream.errors import MalformedError
from zeus_stream.messages import Batch, Event, RunEnded, RunStarted, Unknown

MAX_SESSIONS = 1_000
MAX_MESSAGES_PER_S = 500
"""Of one process; a publisher sends 50."""
MAX_SENDERS = 1_000
"""Processes whose trouble is counted one by one."""
ALL_GPUS = "index:all"
Peer: TypeAlias = tuple[int | None, int | None]
"""uid and pid of a process, as the kernel says."""


@dataclass(frozen=True, slots=True)
class Session:
    """What the collector knows of one publisher. Outlives the collector in the log."""

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
    """It said that its run ended, or its process is gone."""
    gone: bool = False
    """Its process is gone."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def from_json(text: str) -> Session:
    """Return the session that `Session.to_json` wrote."""
    content = json.loads(text)
    content["asked_gpus"], content["gpus"] = tuple(content["asked_gpus"]), tuple(content["gpus"])
    return Session(**content)


def receive(session: Session, batch: Batch) -> tuple[Session, tuple[Event | Unknown, ...]]:
    """Return the session once the batch is in the log, and the events that are new in it, often all.

    None are new when others should come first: the acknowledgement says which, and a publisher that has
    them no more (another log had them) begins a new session.

    Raises:
        MalformedError: the session does not begin with `RunStarted`, or begins twice.
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


def resolve(asked: Sequence[str], devices: Sequence[Description]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the UUIDs of what a run asked for, in its order, and what could not be found.

    ``index:N`` is a place in PCI order, ``index:all`` every device; a UUID may be shortened as CUDA allows.
    """
    found: dict[str, None] = {}
    unknown = []
    for name in asked:
        matching = [device.gpu for device in devices if _names(name, device)]
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
    return len(name) > len("GPU-") and device.gpu.startswith(name)


@dataclass(frozen=True, slots=True)
class Admission:
    """The collector's word on which GPUs a run works on, and whether it may command them."""

    gpus: tuple[str, ...]
    may_command: bool
    reason: str
    settled: bool
    """Nothing would be gained by looking again."""


def admit(
    session: Session,
    devices: Sequence[Description],
    trusted_uids: frozenset[int],
    owned: Mapping[str, bool | None],
) -> Admission:
    """Return the word on a session.

    Args:
        devices: those there are.
        trusted_uids: users whose word is enough.
        owned: of each GPU, whether the session's process computes on it; None: that cannot be seen.
    """
    gpus, unknown = resolve(session.asked_gpus, devices)
    simulated = {device.gpu for device in devices if device.driver == "simulated"}
    strange = [gpu for gpu in gpus if gpu not in simulated and not owned.get(gpu)]
    may_command = True
    if not gpus:
        may_command, reason = False, "It names no GPU of this host."
    elif session.uid in trusted_uids:
        reason = f"User {session.uid} is trusted."
    elif not strange:
        reason = "Its process computes on them."
    else:
        may_command = False
        reason = (
            f"Unverified: process {session.pid} of user {session.uid} was not seen to compute on"
            f" {', '.join(strange)}. Start the collector with --trust-uid {session.uid} to let it command."
        )
    if unknown:
        reason = f"{reason} Not found on this host: {', '.join(unknown)}."
    return Admission(gpus, may_command, reason[:2000], settled=may_command and not unknown)


@dataclass(frozen=True, slots=True)
class Sender:
    """What one process has sent."""

    second: int = 0
    messages: int = 0
    """In that second."""
    wrong: int = 0
    """Messages that were malformed, not its to send, or too many."""


class Senders:
    """Counts what processes (uid, pid) send and what was wrong with it. Bounded: the oldest is forgotten."""

    def __init__(self) -> None:
        self._senders: dict[Peer, Sender] = {}
        self.wrong_messages = 0

    def may_send(self, peer: Peer, now_ns: int) -> bool:
        """Count a message; False: it is one too many of this process in this second."""
        second = now_ns // 1_000_000_000
        sender = self._of(peer)
        messages = sender.messages + 1 if sender.second == second else 1
        self._senders[peer] = replace(sender, second=second, messages=messages)
        return messages <= MAX_MESSAGES_PER_S

    def wrong(self, peer: Peer) -> bool:
        """Count something wrong with a message; True: it is the first of this process."""
        self.wrong_messages += 1
        sender = self._of(peer)
        self._senders[peer] = replace(sender, wrong=sender.wrong + 1)
        return sender.wrong == 0

    def wrongs(self) -> dict[Peer, int]:
        """Return how many messages of each process something was wrong with."""
        return {peer: sender.wrong for peer, sender in self._senders.items() if sender.wrong}

    def _of(self, peer: Peer) -> Sender:
        if peer not in self._senders and len(self._senders) >= MAX_SENDERS:
            del self._senders[next(iter(self._senders))]
        return self._senders.get(peer, Sender())
