"""Worlds of processes that start, connect, end and give their pids to others: whose connection is it?

The kernel's files are written as it writes them, into a directory of the test.
"""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    rule,
)
from msgspec import Struct

from collectors.processes import is_peer

PIDS = st.integers(1, 3)
"""Few, so that they come again."""
UIDS = st.integers(1000, 1002)
NAMES = st.sampled_from(["python", "x) S 1 (y", "a b", "Uid:\\t0", ") 0 0", "\xff"])


class Process(Struct, frozen=True):
    """One process; its number is never another's."""

    number: int
    pid: int
    uid: int
    effective: int
    started_ticks: int


class Connection(Struct, frozen=True):
    """The facts that a collector has of a connection, and its maker."""

    maker: Process
    seen_ticks: int


class Processes(RuleBasedStateMachine):
    """A kernel with few pids. Something happens at each tick."""

    connections = Bundle("connections")

    def __init__(self) -> None:
        super().__init__()
        self.proc = Path(tempfile.mkdtemp(prefix="zs-proc-"))
        self.now_ticks = 100
        self.numbers = 0
        self.living: dict[int, Process] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.proc)

    @initialize(pid=PIDS, uid=UIDS, name=NAMES)
    def first(self, pid: int, uid: int, name: str) -> None:
        self._start(pid, uid, uid, name)

    @rule(pid=PIDS, uid=UIDS, effective=UIDS, name=NAMES)
    def start(self, pid: int, uid: int, effective: int, name: str) -> None:
        """Let a process start: it takes a pid that is free, or becomes so now."""
        self.end(pid)
        self._start(pid, uid, effective, name)

    @rule(pid=PIDS)
    def end(self, pid: int) -> None:
        self.now_ticks += 1
        if self.living.pop(pid, None) is not None:
            shutil.rmtree(self.proc / str(pid))

    @rule(target=connections, late=st.integers(0, 3), data=st.data())
    def connect(self, late: int, data: st.DataObject) -> MultipleResults[Connection]:
        """Let a process that lives connect, which is seen so many ticks later."""
        self.now_ticks += 1 + late
        if not self.living:
            return multiple()
        maker = self.living[data.draw(st.sampled_from(sorted(self.living)))]
        return multiple(Connection(maker, self.now_ticks))

    @rule(connection=connections, effective=UIDS, name=NAMES)
    def succeed(self, connection: Connection, effective: int, name: str) -> None:
        """Let a process of the same user take the pid of one that has connected."""
        self.end(connection.maker.pid)
        self._start(connection.maker.pid, connection.maker.uid, effective, name)

    @rule(connection=consumes(connections))
    def look(self, connection: Connection) -> None:
        self.now_ticks += 1
        maker, there = connection.maker, self.living.get(connection.maker.pid)
        seen = is_peer(maker.pid, maker.uid, connection.seen_ticks, self.proc)
        assert seen == (None if there is None else there.number == maker.number)
        others = {1000, 1001, 1002} - {maker.uid, maker.effective}
        for uid in others if there is maker else ():
            assert is_peer(maker.pid, uid, connection.seen_ticks, self.proc) is False

    def _start(self, pid: int, uid: int, effective: int, name: str) -> None:
        self.now_ticks += 1
        self.numbers += 1
        process = self.living[pid] = Process(self.numbers, pid, uid, effective, self.now_ticks)
        folder = self.proc / str(pid)
        folder.mkdir()
        fields = ["S", "1", *["0"] * 17, str(process.started_ticks), *["0"] * 30]
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n", encoding="utf-8")
        uids = f"{uid}\t{effective}\t{effective}\t{effective}"
        (folder / "status").write_text(f"Name:\t{name}\nPid:\t{pid}\nUid:\t{uids}\n", encoding="utf-8")


TestProcesses = Processes.TestCase
TestProcesses.settings = settings(deadline=None, max_examples=50, stateful_step_count=20)
