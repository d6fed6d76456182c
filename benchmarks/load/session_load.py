"""The steps of many sessions, sent to a running collector as their publishers would: the load of a busy host.

    python -m benchmarks.load.session_load DIRECTORY GPU... [--name a] [--sessions 50] [--rate 200]

Each session has a run of its own, and sends a batch every `BATCH_S` until the file ``stop-load`` is in
DIRECTORY. What is not acknowledged is kept and sent again, also to a collector that was started again. At its
end it writes ``load-NAME.json``: by session, the number of events that were acknowledged.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.query import read_own
from benchmarks.harness import ROOT
from collectors.devices.simulated_spec import parse
from zeus_stream.clock import anchor, boot_id, monotonic_ns
from zeus_stream.paths import Places, endpoint
from zeus_stream.protocol import codec
from zeus_stream.protocol.events import Ack, Batch, Event, RunEnded, RunStarted, StepBoundary
from zeus_stream.settings import Settings

S = 1_000_000_000
BATCH_S = 0.5
AGAIN_S = 2.0
"""Without an acknowledgement for so long, a batch is sent again."""
MOST = 500
"""Events of a batch."""
FLUSH_S = 600.0
"""At the end, for what is not acknowledged yet."""
SENT_S = FLUSH_S + 60.0
"""Until its processes have ended then."""
OF_PROCESS = 50
"""Sessions of one process: a collector takes 64 of one process."""


class Steps:
    """The events of one session: those that are not acknowledged, and those that are due."""

    def __init__(self, name: str, gpu: str, rate: int) -> None:
        self.session = f"{name}-{os.getpid()}"
        self.acknowledged = 0
        self._step_ns = S // rate
        self._began_ns = self._due_ns = monotonic_ns()
        self._steps = 0
        self._waiting: list[Event] = [_started(name, gpu, self._began_ns)]
        self._sent: tuple[int, float] | None = None
        """Sequence of the batch on its way, and when it was sent."""

    def tick(self, now_ns: int) -> None:
        """Take in the steps that are due."""
        while self._due_ns <= now_ns:
            ended_ns = self._due_ns - self._step_ns // 50 if self._steps else None
            self._waiting.append(StepBoundary(self._steps, ended_ns, self._due_ns))
            self._steps += 1
            self._due_ns += self._step_ns

    def end(self) -> None:
        self._waiting.append(RunEnded(monotonic_ns()))

    @property
    def over(self) -> bool:
        return not self._waiting

    def batch(self, now_s: float) -> Batch | None:
        """Return what is to be sent now, if anything."""
        on_its_way = self._sent is not None and self._sent[0] == self.acknowledged
        if not self._waiting or (on_its_way and self._sent is not None and now_s < self._sent[1] + AGAIN_S):
            return None
        self._sent = self.acknowledged, now_s
        return Batch(self.session, self.acknowledged, tuple(self._waiting[:MOST]))

    def take(self, ack: Ack) -> None:
        done = ack.next_sequence - self.acknowledged
        if done < 0:
            raise RuntimeError(f"session {self.session}: {-done} acknowledged events are not in the log")
        del self._waiting[:done]
        self.acknowledged += done


def _started(name: str, gpu: str, t_ns: int) -> RunStarted:
    clocks = anchor()
    return RunStarted(
        t_ns=t_ns,
        job="load",
        run=f"load-{name}-{os.getpid()}",
        rank=0,
        world_size=1,
        gpus=(gpu,),
        pid=os.getpid(),
        boot_id=boot_id(),
        wall_ns=clocks.wall_ns,
        wall_error_ns=clocks.error_ns,
    )


def send(directory: Path, all_steps: dict[str, Steps], over: Callable[[], bool]) -> None:
    """Send until it is over, and what waits then."""
    until_s: float | None = None
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    channel = context.socket(zmq.DEALER)
    for option, value in ((zmq.LINGER, 0), (zmq.IMMEDIATE, 1), (zmq.RECONNECT_IVL, 50)):
        channel.setsockopt(option, value)
    channel.connect(endpoint(Places(directory, directory).publish))
    try:
        while until_s is None or (time.monotonic() < until_s and any(not s.over for s in all_steps.values())):
            now_s = time.monotonic()
            if until_s is None and over():
                until_s = now_s + FLUSH_S
                for steps in all_steps.values():
                    steps.end()
            for steps in all_steps.values():
                if until_s is None:
                    steps.tick(monotonic_ns())
                if (batch := steps.batch(now_s)) is not None and channel.poll(0, zmq.POLLOUT):
                    channel.send(codec.encode(batch))
            while (left_s := now_s + BATCH_S - time.monotonic()) > 0 and channel.poll(round(left_s * 1000)):
                ack = codec.decode(channel.recv_multipart()[-1], Ack)
                all_steps[ack.session].take(ack)
    finally:
        context.destroy(linger=0)


@contextmanager
def session_load(where: Path, gpus: int, sessions: int, rate: int) -> Iterator[None]:
    """Send the steps of many sessions until the end of the block, and then what waits."""
    uuids = [
        spec.uuid(index, socket.gethostname()) for index, spec in enumerate(parse(f"simulated:v100x{gpus}"))
    ]
    running = []
    for number, count in enumerate(parts_of(sessions)):
        command = [sys.executable, "-m", "benchmarks.load.session_load", str(where), *uuids]
        flags = ["--name", f"p{number}-", "--sessions", str(count), "--rate", str(rate)]
        running.append(subprocess.Popen([*command, *flags], cwd=ROOT))
    try:
        yield
        (where / "stop-load").touch()
        for each in running:
            if code := each.wait(SENT_S):
                raise AssertionError(f"the load ended with {code}: not all of it was acknowledged")
    finally:
        for each in running:
            each.kill()


def parts_of(sessions: int) -> list[int]:
    """Return how many sessions each process of the load has."""
    whole, rest = divmod(sessions, OF_PROCESS)
    return [OF_PROCESS] * whole + [rest] * bool(rest)


def loaded(where: Path, sessions: int) -> tuple[list[tuple[str, str]], list[str]]:
    """Compare what the load knows to be acknowledged with what is archived."""
    if not sessions:
        return [], []
    known: dict[str, int] = {}
    for file in where.glob("load-*.json"):
        known |= json.loads(file.read_text(encoding="utf-8"))
    archive = DuckdbFile.open_read_only(where / "energy.duckdb", Settings())
    with archive.reading() as reader:
        stored = read_own(
            reader, "SELECT session, count(DISTINCT sequence) AS n FROM events GROUP BY session"
        )
    archive.close()
    found = {row["session"]: row["n"] for row in stored.to_pylist()}
    lost = sum(max(0, count - found.get(session, 0)) for session, count in known.items())
    rows = [(f"events of {sessions} more sessions", f"{sum(known.values())} acknowledged, {lost} lost")]
    return rows, [f"{lost} events of the load were lost."] if lost else []


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.session_load")
    parser.add_argument("directory", type=Path)
    parser.add_argument("gpus", nargs="+")
    parser.add_argument("--name", default="a")
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--rate", type=int, default=200)
    chosen = parser.parse_args()
    made = [
        Steps(f"{chosen.name}{n}", chosen.gpus[n % len(chosen.gpus)], chosen.rate)
        for n in range(chosen.sessions)
    ]
    all_steps = {each.session: each for each in made}
    send(chosen.directory, all_steps, (chosen.directory / "stop-load").exists)
    known = {name: each.acknowledged for name, each in all_steps.items()}
    (chosen.directory / f"load-{chosen.name}.json").write_text(json.dumps(known), encoding="utf-8")
    return 0 if all(each.over for each in made) else 1


if __name__ == "__main__":
    sys.exit(main())
