"""The socket of training processes: events into the log, questions to the analyzer.

One task a source, and two for each session: one settles which GPUs its run may command, one waits for
the end of its process.
"""

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct
from msgspec.structs import replace

from collectors import processes
from collectors.controls.supervisor import Supervisor
from collectors.ingest import gpu_processes, kubelet
from collectors.ingest.gpu_processes import GpuProcesses, GpuUses, works_for
from collectors.ingest.pace import BEGINNING_NS, QUESTION_NS, GatherPace, ShortWindows
from collectors.ingest.sessions import (
    MAX_BYTES_PER_S,
    MAX_MESSAGES_PER_S,
    MAX_SESSIONS,
    Admission,
    Peer,
    PublisherSession,
    Senders,
    admit,
    allocation_of,
    check,
    from_json,
    gives_way,
    left_behind,
    may_continue,
    receive,
    resolve,
)
from collectors.ingest.user_budget import UserBudgets
from collectors.log.feed import LogFeed
from collectors.log.store import SessionMemory
from zeus_stream.clock import boot_id, monotonic_ns
from zeus_stream.errors import MalformedError, UnreachableError
from zeus_stream.protocol import codec
from zeus_stream.protocol.events import Ack, Advice, Answer, Ask, AskTry, Batch
from zeus_stream.protocol.fields import BUDGET, MOST_WORDS, names_of_run
from zeus_stream.protocol.frames import Events
from zeus_stream.protocol.notes import Lost, Pod, RunAdmitted, SessionEnded
from zeus_stream.protocol.queries import No
from zeus_stream.transport.channel import Received
from zeus_stream.transport.listening.listener import Listener

MAX_QUESTIONS = 1_000
"""Questions whose asker is remembered; the oldest is forgotten."""
MAX_CONNECTIONS = 10_000
"""Whose first message is remembered; the oldest is forgotten."""
MAX_PROCESS_QUESTIONS = 32
"""Of one process; its oldest is forgotten."""
LAST_WORDS_S = 0.2
"""From the end of a process to the end of its sessions: what it sent last is taken in."""
LOOKS_S = (0.0, 0.5, 1.0, 2.0, *([5.0] * 24))
"""Waits before the looks at whether a run owns its GPUs: its process may not compute on them yet."""
PATIENT_LOOKS = 2
"""Looks that wait in silence for the devices to be found."""
UNHEARD = (
    "its process ended while no collector took in its events, so what it had not sent is lost. Have systemd"
    " start the collector again at once."
)


class UserLimits(Struct, frozen=True):
    """Rights of users: whose commands count, and how much each may write."""

    trusted_uids: frozenset[int]
    budgets: UserBudgets


class PublishServer:
    """All sessions of the host."""

    def __init__(
        self,
        channel: Listener,
        journal: LogFeed,
        guards: Supervisor,
        users: UserLimits,
        pass_on: Callable[[Ask | AskTry, str], bool],
        pace: GatherPace,
    ) -> None:
        """``pass_on`` takes a question about a job to its analyzer; False: there is none."""
        self.run_ended: Callable[[], None] = lambda: None
        """Called when the last session of a run has ended."""
        self.kubelet: Path | None = None
        """The kubelet's pod-resources socket. None: there is none here."""
        self._channel = channel
        self._journal = journal
        self._guards = guards
        self._trusted_uids = users.trusted_uids
        self._pass_on = pass_on
        self.budgets = users.budgets
        self._pace = pace
        self._boot_id = boot_id()
        self._sessions: dict[str, PublisherSession] = {}
        self.begun = 0
        """Sessions that have begun since this collector did."""
        self._questions: dict[str, tuple[bytes, Peer]] = {}
        """Who asked, by question."""
        self._watches: dict[str, anyio.CancelScope] = {}
        """By session: the wait for the end of its process."""
        self._connected_ticks: dict[bytes, int] = {}
        """By connection: when its first message came."""
        self.senders = Senders()
        self.earlier: tuple[PublisherSession, ...] = ()
        """Sessions whose processes had gone before this collector began."""
        self._silent: set[str] = set()
        """Sessions of an earlier collector of which nothing has come since."""
        self._short = ShortWindows()

    @property
    def sessions(self) -> tuple[PublisherSession, ...]:
        return tuple(self._sessions.values())

    async def serve(self, memories: list[SessionMemory]) -> None:
        """Take in what comes, and go on with the sessions of an earlier collector."""
        async with anyio.create_task_group() as tasks:
            known = [(from_json(memory.about), memory.next_sequence) for memory in memories]
            self.earlier = tuple(session for session, _ in known if session.gone)
            for before, next_sequence in known:
                if not before.gone:
                    session = self._placed(replace(before, next_sequence=next_sequence))
                    self._sessions[session.session] = session
                    if not session.over:
                        self._silent.add(session.session)
                    self._pace.hurry(monotonic_ns() + BEGINNING_NS)
                    self._attend(session, tasks)
            tasks.start_soon(self._look_at_processes)
            while True:
                for message in await self._channel.receive():
                    self._receive(message, tasks)

    def gpus_in_use(self) -> set[str]:
        """Return the GPUs that open sessions use, or may: of a session not admitted yet, all it names."""
        return self._gpus_of(self._sessions.values())

    def gpus_of_short_windows(self, now_ns: int) -> set[str]:
        """Return those of them whose sessions have short windows."""
        self._short.count({name: each.next_sequence for name, each in self._sessions.items()}, now_ns)
        return self._gpus_of(each for name, each in self._sessions.items() if name in self._short)

    def _gpus_of(self, sessions: Iterable[PublisherSession]) -> set[str]:
        gpus: set[str] = set()
        for session in sessions:
            if not session.over:
                gpus.update(session.gpus or resolve(session.asked_gpus, self._guards.descriptions)[0])
        return gpus

    def objection(self, run: str, gpu: str) -> str | None:
        """Return why a run may not command a device, or None."""
        if run.startswith(BUDGET):
            return None  # who may command at all may hold a budget
        of_run = [
            session for session in self._sessions.values() if not session.over and run in _names(session)
        ]
        if any(gpu in session.gpus and session.may_command for session in of_run):
            return None
        if not of_run:
            return f"no process of run {run} is here. Command while it runs"
        if not any(gpu in session.gpus for session in of_run):
            return f"run {run} does not use it. Command the GPUs that it uses"
        return f"run {run} is unverified. Start the collector with --trust-uid {of_run[0].uid} to let it"

    def answer(self, answer: Answer | Advice) -> None:
        """Take an analyzer's answer to who asked."""
        if (asked := self._questions.pop(answer.question, None)) is not None:
            self._channel.send(asked[0], codec.encode(answer))

    def _receive(self, message: Received, tasks: TaskGroup) -> None:
        peer = (message.uid, message.pid)
        if message.sender not in self._connected_ticks:
            if len(self._connected_ticks) >= MAX_CONNECTIONS:
                del self._connected_ticks[next(iter(self._connected_ticks))]
            self._connected_ticks[message.sender] = processes.uptime_ticks()
        if not self.senders.may_send(peer, sum(map(len, message.parts)), monotonic_ns()):
            most = f"{MAX_MESSAGES_PER_S} messages or {MAX_BYTES_PER_S / 1e6:g} MB"
            self._wrong(peer, f"more than {most} a second, or than its user may send")
            return
        try:
            match codec.decode(_only(message.parts), Batch, Ask, AskTry):
                case Batch() as batch:
                    self._take_in(batch, sum(map(len, message.parts)), message.sender, peer, tasks)
                case Ask() | AskTry() as ask:
                    self._ask(ask, message.sender, peer)
        except MalformedError as wrong:
            self._wrong(peer, str(wrong))
            self._channel.send(message.sender, codec.encode(No(str(wrong)[:2000])))

    def _wrong(self, peer: Peer, why: str) -> None:
        now_ns = monotonic_ns()
        if self.senders.wrong(peer, now_ns):
            uid, pid = peer
            reason = f"Sent by process {pid} of user {uid}, which is named once: {why}"
            self._journal.say(Lost(now_ns, "messages", 1, reason[:2000]))

    # ---- events ------------------------------------------------------------------------------------

    def _take_in(self, batch: Batch, size: int, sender: bytes, peer: Peer, tasks: TaskGroup) -> None:
        """Log what is new in a batch, then acknowledge what the log has."""
        known = self._sessions.get(batch.session)
        before = known or self._begin(batch, sender, peer)
        if not may_continue(before, peer, os.geteuid()):
            raise MalformedError(f"session {batch.session}: could not be logged: it is another process's.")
        session, new = receive(before, batch)
        if new:
            check(session, new, self._sessions.values(), monotonic_ns())
            if not self.budgets.take(peer[0], size, len(new), monotonic_ns()):
                self._wrong(peer, "more than its user may write in an hour. A larger --log-mb allows more")
                return  # not acknowledged: its publisher keeps it as long as it can
            if known is None and not self._make_room(peer[0]):
                raise MalformedError(
                    f"session {batch.session}: could not be logged: {MAX_SESSIONS} others are open, and no"
                    f" user has more of them than user {peer[0]}. End some of their processes."
                )
            if known is None:
                session = replace(session, first_offset=self._journal.next_offset)
            events = Events(batch.session, before.next_sequence, before.uid, before.pid, new)
            if not self._journal.events(session.job, events, _memory(session)):
                return  # not acknowledged: it comes again
            self._sessions.pop(batch.session, None)  # the least recently active is the first
            self._sessions[batch.session] = session = self._placed(session)
            self._silent.discard(batch.session)
            if known is None:
                self.begun += 1
                self._pace.hurry(monotonic_ns() + BEGINNING_NS)
                self._guards.use(resolve(session.asked_gpus, self._guards.descriptions)[0])
                self._attend(session, tasks)
            if session.over and not before.over:
                self._end_run(session)
        gather_ms = self._pace.gather_ns(monotonic_ns()) // 1_000_000
        self._channel.send(sender, codec.encode(Ack(session.session, session.next_sequence, gather_ms)))

    def _begin(self, batch: Batch, sender: bytes, peer: Peer) -> PublisherSession:
        if (allocated := allocation_of(batch, peer, os.geteuid())) is not None:
            return replace(allocated, boot_id=self._boot_id)
        uid, pid = peer
        ticks = processes.start_ticks(pid) if pid else None
        known = not pid or processes.is_peer(pid, uid, self._connected_ticks[sender]) is not False
        return PublisherSession(
            session=batch.session,
            uid=uid,
            pid=pid,
            started_ticks=ticks,
            boot_id=self._boot_id,
            process_known=known,
        )

    def _placed(self, session: PublisherSession) -> PublisherSession:
        """Return a session, with the place in the log after its last event if it is over."""
        if not session.over or session.last_offset:
            return session
        return replace(session, last_offset=self._journal.next_offset)

    def _make_room(self, uid: int | None) -> bool:
        """Forget the oldest session that is over, if there are too many; or end one of the user with most."""
        if len(self._sessions) < MAX_SESSIONS:
            return True
        first = next((session for session in self._sessions.values() if session.over), None)
        if first is None:
            if (first := gives_way(self.sessions, uid)) is None:
                return False
            reason = f"user {first.uid} has most of {MAX_SESSIONS} sessions, and user {uid} began one"
            self._end_session(first, monotonic_ns(), reason)
        del self._sessions[first.session]
        if (watch := self._watches.pop(first.session, None)) is not None:
            watch.cancel()
        return True

    def _attend(self, session: PublisherSession, tasks: TaskGroup) -> None:
        tasks.start_soon(self._admit, session.session)
        tasks.start_soon(self._see_out, session.session)

    # ---- which GPUs a run may command ----------------------------------------------------------------

    async def _admit(self, name: str) -> None:
        """Give the collector's word on a session, and again when it changes."""
        told: Admission | None = None
        missed = False
        for look, wait_s in enumerate(LOOKS_S):
            await anyio.sleep(wait_s)
            owned = await self._owned(self._sessions.get(name))
            session = self._sessions.get(name)
            if session is None:
                return
            admission = admit(session, self._guards.descriptions, self._trusted_uids, owned)
            if admission != told and (admission.gpus or look >= PATIENT_LOOKS):
                told = admission
                cgroup, pod = await self._find_place(session, admission.gpus)
                if (session := self._sessions.get(name)) is None:
                    return
                self._tell(replace(session, cgroup=cgroup, pod=pod), admission)
            if admission.missing and self._guards.looked and not missed:
                missed = True
                reason = f"run {session.run}: not found on this host: {', '.join(admission.missing)}."
                lost = Lost(monotonic_ns(), "devices", len(admission.missing), reason[:2000])
                self._journal.say(lost)
            if (admission.settled and self._guards.looked) or (told is not None and session.over):
                return

    async def _owned(self, session: PublisherSession | None) -> dict[str, bool | None]:
        """Return of each GPU whether the session's process computes on it; None: that cannot be seen."""
        if session is None or session.uid in self._trusted_uids:
            return {}
        if not session.pid or not session.process_known:
            return {}
        gpus, _ = resolve(session.asked_gpus, self._guards.descriptions)
        seen = {gpu: (await self._guards.processes(gpu)).pids for gpu in gpus}
        return {
            gpu: None if pids is None else any(works_for(pid, session) for pid in pids)
            for gpu, pids in seen.items()
        }

    async def _find_place(
        self, session: PublisherSession, gpus: tuple[str, ...]
    ) -> tuple[str | None, Pod | None]:
        """Return cgroup and pod of a session. An unknown pod is a gap."""
        if session.pod is not None or not session.pid or not session.process_known:
            return session.cgroup, session.pod
        cgroup = processes.cgroup(session.pid)
        if cgroup is None or kubelet.OF_PODS not in cgroup or self.kubelet is None:
            return cgroup, None
        asked = (self.kubelet, session.asked_gpus, gpus, self._guards.descriptions)
        try:
            return cgroup, await anyio.to_thread.run_sync(kubelet.find_pod, *asked)
        except UnreachableError as wrong:
            self._journal.say(Lost(monotonic_ns(), "pods", 1, f"run {session.run}: {wrong}"[:MOST_WORDS]))
            return cgroup, None

    def _tell(self, session: PublisherSession, word: Admission) -> None:
        session = replace(session, gpus=word.gpus, may_command=word.may_command)
        self._sessions[session.session] = session
        self._journal.say(
            RunAdmitted(
                t_ns=monotonic_ns(),
                session=session.session,
                run=session.run,
                gpus=word.gpus,
                may_command=word.may_command,
                reason=word.reason,
                cgroup=session.cgroup,
                pod=session.pod,
            )
        )
        self._journal.remember(_memory(session))

    async def _look_at_processes(self) -> None:
        """Say whose processes compute on the GPUs, and how full their memory is."""
        known, uses = GpuProcesses(monotonic_ns()), GpuUses(self._journal.latest)
        while True:
            await anyio.sleep(gpu_processes.LOOK_S)
            devices = self._guards.descriptions
            wanted = known.wanted(self.sessions, devices) or uses.wanted(devices)
            seen = {gpu: await self._guards.processes(gpu) for gpu in wanted}
            listed = {gpu: each.pids for gpu, each in seen.items()}
            for note in known.judge(listed, self.sessions, self._guards.descriptions, monotonic_ns()):
                self._journal.say(note)
            judge = partial(uses.judge, seen, tuple(self.sessions), monotonic_ns())
            self._journal.say(*await anyio.to_thread.run_sync(judge, abandon_on_cancel=True))

    # ---- the end of processes --------------------------------------------------------------------------

    async def _see_out(self, name: str) -> None:
        """Say so when the session's process is gone."""
        session = self._sessions.get(name)
        ended_ns = monotonic_ns()
        if session is not None and session.boot_id == self._boot_id:
            if not session.pid or not session.process_known:
                return  # in a container that hides it, or another process by now: only RunEnded ends it
            with anyio.CancelScope() as self._watches[name]:
                await processes.ended(session.pid, session.started_ticks)
                ended_ns = monotonic_ns()
                await anyio.sleep(LAST_WORDS_S)
        self._watches.pop(name, None)
        if (session := self._sessions.get(name)) is None:
            return  # forgotten, to make room
        self._end_session(session, ended_ns, f"process {session.pid} has ended")

    def _end_session(self, session: PublisherSession, ended_ns: int, reason: str) -> None:
        """Log that a session is over although it did not say so."""
        was_over = session.over
        if session.session in self._silent:
            self._silent.discard(session.session)
            self._journal.say(Lost(ended_ns, "events", 1, f"session {session.session}: {UNHEARD}"))
        self._journal.say(SessionEnded(ended_ns, session.session, reason))
        ended = self._placed(replace(session, over=True, gone=True))
        self._sessions[session.session] = ended
        self._journal.remember(_memory(ended))
        self._end_run(ended, known=was_over)

    def _end_run(self, ended: PublisherSession, *, known: bool = False) -> None:
        """Let go of what a run has set, once none of its sessions is left. Another user's run is another."""
        of_run = [each for each in self.sessions if (each.run, each.uid) == (ended.run, ended.uid)]
        left = [each for each in of_run if not each.over]
        gpus = frozenset(gpu for each in of_run for gpu in each.gpus)
        for name in _names(ended).difference(*map(_names, left)):
            self._guards.run_gone(name, gpus)
        if not left and not known:
            self.run_ended()
        if ended.allocation:
            for each in left_behind(ended, self.sessions):
                self._end_session(each, monotonic_ns(), f"the job of {ended.run} has ended")

    # ---- questions -------------------------------------------------------------------------------------

    def _ask(self, ask: Ask | AskTry, sender: bytes, peer: Peer) -> None:
        session = self._sessions.get(ask.session)
        if session is None or not may_continue(session, peer, os.geteuid()):
            raise MalformedError(
                f"session {ask.session}: could not be asked about: it is no session of yours."
            )
        pending = [question for question, (_, asker) in self._questions.items() if asker == peer]
        if len(pending) >= MAX_PROCESS_QUESTIONS:
            del self._questions[pending[0]]
        if len(self._questions) >= MAX_QUESTIONS:
            del self._questions[next(iter(self._questions))]
        self._questions[ask.question] = sender, peer
        self._pace.hurry(monotonic_ns() + QUESTION_NS)
        if not self._pass_on(ask, session.job):
            missing = "no analyzer is connected to this collector. Start `zeus-stream analyze`."
            if isinstance(ask, Ask):
                self.answer(Answer(ask.question, None, (), missing))
            else:
                self.answer(Advice(ask.question, None, go_on=True, reason=missing))


def _only(parts: list[bytes]) -> bytes:
    if len(parts) != 1:
        raise MalformedError(f"message: could not be read: {len(parts)} parts, 1 is taken.")
    return parts[0]


def _names(session: PublisherSession) -> frozenset[str]:
    return names_of_run(session.run, session.session, session.uid)


def _memory(session: PublisherSession) -> SessionMemory:
    return SessionMemory(session.session, session.next_sequence, session.to_json())
