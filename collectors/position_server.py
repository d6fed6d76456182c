"""Positions of training processes on their pipelines: each moves the plan of its GPU, on this host only.

A message of 13 bytes says which instruction begins or ends. The kernel says who connected. It counts for the
GPUs that a session of this process uses, and for no plan that the analyzer has not authorized
(`frequency_plan`).
Anybody may send: what fits no plan is dropped and counted.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio

from collectors.controls.frequency_plan import (
    ChangeClock,
    EndPlan,
    FollowedPlan,
    PlanEvent,
    PositionReached,
    TimePassed,
    activate,
    authorize,
    step_plan,
)
from collectors.controls.lease_messages import Outcome
from collectors.controls.supervisor import Supervisor
from collectors.ingest.sessions import PublisherSession
from zeus_stream.clock import monotonic_ns
from zeus_stream.protocol.commands import SetControl
from zeus_stream.protocol.notes import ControlApplied
from zeus_stream.protocol.pipelines import POSITION, SetPlan, describe_misfit
from zeus_stream.transport.listening.connection_limits import ConnectionLimits, ConnectionSlot
from zeus_stream.transport.listening.socket_file import Accepted, SocketFile

TURN_S = 0.05
"""Between two looks at what only time brings, while a plan is there."""
MAX_MESSAGES = 64
"""Taken of one process at a time; then others have their turn."""
PAUSE_S = 0.001
"""After MAX_MESSAGES."""
MAX_PENDING = 1_000
"""Plans whose outcome is waited for; the oldest is forgotten."""


class PositionServer:
    """All plans of the host."""

    def __init__(
        self,
        path: Path,
        limits: ConnectionLimits,
        guards: Supervisor,
        sessions: Callable[[], tuple[PublisherSession, ...]],
    ) -> None:
        """Open the socket at ``path``, in a directory that this process has claimed."""
        self._guards, self._sessions, self._limits = guards, sessions, limits
        self._file = SocketFile(path, 0o666, kind=socket.SOCK_SEQPACKET)
        self._bell = anyio.Event()
        """Rings when a plan is there whose time has to pass."""
        self._pending: dict[str, SetPlan] = {}
        """By command: plans whose lease was asked for."""
        self._plans: dict[str, FollowedPlan] = {}
        """By GPU."""
        self.dropped = 0
        """Messages that no plan waited for."""

    @property
    def plans(self) -> tuple[FollowedPlan, ...]:
        return tuple(self._plans.values())

    def command(self, plan: SetPlan, objection: str | None) -> None:
        """Ask for the lease that a plan needs; the outcome comes as that of a `SetControl`."""
        wrong = describe_misfit(plan)
        guard = self._guards.guard(plan.gpu)
        known = () if guard is None else guard.description.graphics_clocks_mhz
        if wrong is None and known and (strange := set(plan.clocks_mhz) - set(known)):
            wrong = f"{min(strange)} MHz is none of the GPU's {len(known)} clocks"
        if wrong is None:
            if len(self._pending) >= MAX_PENDING:
                del self._pending[next(iter(self._pending))]
            self._pending[plan.command] = plan
        ask = SetControl(
            command=plan.command,
            owner=plan.owner,
            incarnation=plan.incarnation,
            fence=plan.fence,
            run=plan.run,
            gpu=plan.gpu,
            control="graphics_clock",
            value=max(plan.clocks_mhz),
            lease_ms=plan.lease_ms,
        )
        self._guards.command(ask, objection if wrong is None else f"{wrong}. Send another plan")

    def settle(self, outcome: Outcome) -> None:
        """Take in the outcome of a command: with its lease, a plan is authorized."""
        plan = self._pending.pop(outcome.command, None)
        if isinstance(outcome, ControlApplied) and outcome.control == "graphics_clock":
            before = self._plans.pop(outcome.gpu, None)  # any other command ends it
            if plan is not None:
                now_ns = monotonic_ns()
                self._plans[plan.gpu] = (
                    authorize(plan, now_ns) if before is None else activate(before, plan, now_ns)
                )
                self._bell.set()

    async def serve(self) -> None:
        """Follow positions until cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._keep_time)
                while True:
                    await anyio.wait_readable(self._file.socket)
                    for accepted in self._file.accept_all():
                        opened = accepted.socket
                        place = self._limits.enter(accepted.uid, partial(_shut, opened))
                        if place is None:
                            opened.close()
                        else:
                            tasks.start_soon(self._follow, accepted, place)
                    await anyio.lowlevel.checkpoint()  # while more wait, others have their turn
        finally:
            self._file.close()

    async def _follow(self, accepted: Accepted, place: ConnectionSlot) -> None:
        """Take in the positions of one process until it is gone."""
        connection = accepted.socket
        try:
            while True:
                await anyio.wait_readable(connection)
                for _ in range(MAX_MESSAGES):
                    try:
                        data = connection.recv(POSITION.size + 1)
                    except BlockingIOError:
                        break
                    if not data:
                        return
                    self._limits.settle(place)
                    if not self._plans or len(data) != POSITION.size:
                        self.dropped += 1
                    else:
                        self._move((accepted.pid, accepted.uid), PositionReached(*POSITION.unpack(data)))
                else:
                    await anyio.sleep(PAUSE_S)
        except ConnectionError:
            return
        finally:
            self._limits.leave(place)
            connection.close()

    async def _keep_time(self) -> None:
        """Let time pass for the plans that are there."""
        while True:
            if not self._plans:
                self._bell = anyio.Event()
                await self._bell.wait()
            self._pass_time()
            due_ns = min((plan.raise_at_ns for plan in self.plans if plan.raise_at_ns), default=2**62)
            bell = self._bell = anyio.Event()
            with anyio.move_on_after(min(max((due_ns - monotonic_ns()) / 1e9, 0.0), TURN_S)):
                await bell.wait()

    def _move(self, sender: tuple[int, int], reached: PositionReached) -> None:
        """Move the plans of the sender's GPUs."""
        moved = False
        for session in self._sessions():
            if (session.pid, session.uid) == sender and not session.over:
                for gpu in session.gpus:
                    if gpu in self._plans and self._plans[gpu].plan.run == session.run:
                        self._step(gpu, reached)
                        moved = True
        self.dropped += not moved

    def _pass_time(self) -> None:
        users = {
            (session.run, gpu) for session in self._sessions() if not session.over for gpu in session.gpus
        }
        for gpu, followed in tuple(self._plans.items()):
            if not self._holds_clock(gpu, followed.plan.run):
                del self._plans[gpu]  # its lease is over, which unlocked the clock
            elif (followed.plan.run, gpu) not in users:
                del self._plans[gpu]
                self._guards.end_plan(gpu, "the process that it was for has ended")
            else:
                self._step(gpu, TimePassed())

    def _step(self, gpu: str, event: PlanEvent) -> None:
        if not self._holds_clock(gpu, self._plans[gpu].plan.run):
            del self._plans[gpu]
            return
        self._plans[gpu], todo = step_plan(self._plans[gpu], event, monotonic_ns())
        if self._plans[gpu].raise_at_ns is not None:
            self._bell.set()
        for instruction in todo:
            match instruction:
                case ChangeClock():
                    self._guards.change_clock(gpu, instruction)
                case EndPlan(reason):
                    del self._plans[gpu]
                    self._guards.end_plan(gpu, reason)

    def _holds_clock(self, gpu: str, run: str) -> bool:
        """Tell whether a run has the graphics clock of a device under a lease that goes on."""
        guard = self._guards.guard(gpu)
        guarding = None if guard is None else guard.controls.get("graphics_clock")
        if guarding is None or (lease := guarding.state.lease) is None:
            return False
        return lease.run == run and not lease.over(monotonic_ns()) and guarding.state.limits.changed


def _shut(connection: socket.socket) -> None:
    """End a connection: the task that reads it finds it ended, and closes it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
