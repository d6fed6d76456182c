"""The cost of looking: the screen in a terminal, and the live answer of the analyzer.

    synthetic site --AskNow--> zeus-stream top, 160 columns   time to the first screen, CPU, memory
    real services  --AskNow--> 20 watchers, one look a second CPU of the analyzer

python -m benchmarks.screens [--only top|answer|watchers] [--seconds 20]
"""

import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fcntl import ioctl
from math import sin
from pathlib import Path

import anyio
from msgspec.structs import replace

from benchmarks.harness import (
    cpu_seconds,
    directory,
    environment,
    memory_mb,
    options,
    services,
    spread,
    table,
)
from benchmarks.load.sessions import found_gpu
from tests.zeus_stream.screens.live_snapshots import SNAPSHOT, a_gpu
from zeus_stream.live.answer import LiveAnswers, encoded
from zeus_stream.live.latest import Latest
from zeus_stream.protocol.snapshots import Snapshot
from zeus_stream.transport import sockets
from zeus_stream.transport.async_client import AsyncClient
from zeus_stream.transport.listening.listener import Listener

WATCHERS = 20
LAST = b"help"
"""The last word of the foot: once it is drawn, the screen is whole."""
KEYS = b"\x1b[?2004h"
"""Textual asks for pasted text: from here on it takes keys."""


# ---- a site that answers, of any size


def site(gpus: int) -> Snapshot:
    """Return a site of so many GPUs now: all of them have another power each second."""
    now_s = time.time()
    rows = tuple(
        a_gpu(number % 8, f"node{number // 8}", gpu=f"GPU-{number}", run="asr-9a73",
              power_mw=round(150_000 + 40_000 * sin(now_s + number)), energy_mj=round(now_s * 1000))
        for number in range(gpus)
    )  # fmt: skip
    totals = replace(SNAPSHOT.totals, gpus=gpus, gpus_there=gpus)
    return replace(SNAPSHOT, wall_ns=round(now_s * 1e9), gpus=rows, totals=totals)


@contextmanager
def answering(where: Path, gpus: int) -> Iterator[None]:
    """Answer AskNow at the query socket of a setup, as an analyzer does."""
    from zeus_stream.protocol import codec
    from zeus_stream.protocol.events import No
    from zeus_stream.protocol.queries import Query
    from zeus_stream.protocol.snapshots import AskNow

    answers, stop = LiveAnswers(lambda _: site(gpus)), threading.Event()

    async def serve() -> None:
        context = sockets.context()
        channel = Listener(where / "query")
        try:
            while not stop.is_set():
                with anyio.move_on_after(0.2):
                    for message in await channel.receive():
                        correlation, payload = message.parts
                        asked = codec.decode(payload, AskNow, Query)
                        reply = codec.encode(No("no archive: a benchmark"))
                        if isinstance(asked, AskNow):
                            reply = answers.answer(asked, time.monotonic_ns())
                        channel.send(message.sender, correlation, reply)
        finally:
            channel.close()
            context.destroy(linger=0)

    thread = threading.Thread(target=anyio.run, args=(serve,))
    thread.start()
    try:
        while not (where / "query").exists():
            time.sleep(0.01)
        yield
    finally:
        stop.set()
        thread.join()


class Screen:
    """``zeus-stream top`` in a terminal."""

    def __init__(self, where: Path) -> None:
        self.master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 160, 0, 0))
        environ = environment(where, TERM="xterm-256color")
        self._seen = b""
        self.began = time.monotonic()
        command = [sys.executable, "-m", "zeus_stream", "top"]
        self.process = subprocess.Popen(command, env=environ, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)

    def first_s(self) -> tuple[float, float]:
        """Return the seconds from the command to the whole screen, and until it takes keys."""
        return self._until(LAST), self._until(KEYS)

    def _until(self, text: bytes) -> float:
        while text not in self._seen:
            assert time.monotonic() - self.began < 60, self._seen[-500:]
            if select.select([self.master], [], [], 0.05)[0]:
                self._seen += os.read(self.master, 1 << 16)
        return time.monotonic() - self.began

    def read(self, seconds: float) -> int:
        """Read what is drawn for some time; return the bytes."""
        until, count = time.monotonic() + seconds, 0
        while (left := until - time.monotonic()) > 0:
            if select.select([self.master], [], [], left)[0]:
                count += len(os.read(self.master, 1 << 16))
        return count

    def close(self) -> None:
        """End it by its key."""
        os.write(self.master, b"q")
        with suppress(OSError):  # the other end is closed once it has ended
            self.read(2)
        self.process.kill()
        self.process.wait()
        os.close(self.master)


def tops(seconds: float) -> None:
    """Measure the screen at 8 and at 64 GPUs."""
    rows = []
    for gpus in (8, 64):
        firsts, keys, starts, cpus, most_mb, drawn = [], [], [], [], 0.0, 0
        with directory() as where, answering(where, gpus):
            for _ in range(3):
                screen = Screen(where)
                first_s, keys_s = screen.first_s()
                firsts.append(first_s)
                keys.append(keys_s)
                starts.append(cpu_seconds(screen.process.pid))
                screen.read(2)
                began_s, cpu_s = time.monotonic(), cpu_seconds(screen.process.pid)
                drawn = screen.read(seconds / 3)
                spent_s = cpu_seconds(screen.process.pid) - cpu_s
                cpus.append(100 * spent_s / (time.monotonic() - began_s))
                most_mb = max(most_mb, memory_mb(screen.process.pid))
                screen.close()
        rows.append(
            [
                gpus,
                *(spread(seconds_s, "s", 2) for seconds_s in (firsts, keys, starts)),
                spread(cpus, "%"),
                f"{most_mb:.0f} MB",
                f"{drawn / (seconds / 3) / 1000:.1f} kB/s",
            ]
        )
    head = (
        "GPUs | first screen (goal 1 s) | takes keys | CPU until then | of a core (goal 1 and 2 %) | "
        "memory (goal 50 MB) | drawn"
    )
    table("zeus-stream top, one look a second, every GPU changes: median of 3 (spread)", head, rows)


def answer() -> None:
    """Measure how long an answer takes to make, and to make the second time."""
    rows = []
    for gpus, goal in ((64, "1 ms"), (2000, "20 ms")):
        latest = Latest()
        for number in range(gpus):
            latest.take_note(f"node{number // 8}", found_gpu(0, number))

        def make(latest: Latest = latest) -> bytes:
            return encoded(latest.snapshot(SNAPSHOT, SNAPSHOT.runs, 1))

        took = sorted(_ms(make) for _ in range(15))
        rows.append([gpus, f"{took[0]:.2f} ms ({took[7]:.2f})", goal, f"{len(make()) / 1000:.0f} kB"])
    table(
        "AskNow: an answer made of memory, processor time, least of 15 (median)",
        "GPUs | time | goal | size",
        rows,
    )


def _ms(make: Callable[[], object]) -> float:
    began = time.thread_time()
    make()
    return 1000 * (time.thread_time() - began)


# ---- watchers of real services


@contextmanager
def watching(where: Path, watchers: int) -> Iterator[list[float]]:
    """Have so many watchers look once a second. Give how long each answer took, s."""
    took: list[float] = []
    stop = threading.Event()

    async def watch(place: int) -> None:
        async with AsyncClient(where / "query", "analyzer") as client:
            await anyio.sleep(place / watchers)
            while not stop.is_set():
                began = time.monotonic()
                await client.ask_now(timeout_s=10)
                took.append(time.monotonic() - began)
                await anyio.sleep(1)

    async def all_of_them() -> None:
        async with anyio.create_task_group() as tasks:
            for place in range(watchers):
                tasks.start_soon(watch, place)

    thread = threading.Thread(target=anyio.run, args=(all_of_them,))
    thread.start()
    try:
        yield took
    finally:
        stop.set()
        thread.join()


def watchers(seconds: float) -> None:
    """Measure the analyzer with and without watchers, in turns."""
    spent: dict[int, list[float]] = {0: [], WATCHERS: []}
    took: list[float] = []
    with directory() as where, services(where, "simulated:v100x8") as (_, analyzer):
        time.sleep(3)
        for number in range(6):
            count = WATCHERS if number % 2 else 0
            with watching(where, count) as answers:
                time.sleep(1)
                began_s, cpu_s = time.monotonic(), cpu_seconds(analyzer)
                time.sleep(seconds / 3)
                used = 100 * (cpu_seconds(analyzer) - cpu_s) / (time.monotonic() - began_s)
                spent[count].append(used)
            took += answers
    rows = [[count, spread(used, "%", 2)] for count, used in spent.items()]
    p50, p99 = (1000 * statistics.quantiles(took, n=100)[place] for place in (49, 98))
    table(
        f"An analyzer of 8 GPUs, of a core, in turns (goal: +1 %); answers: {p50:.1f} ms, p99 {p99:.0f} ms",
        ["watchers", "median of 3 (spread)"],
        rows,
    )


def main() -> None:
    given = options(__doc__, choices={"only": ("top", "answer", "watchers")}, only=str, seconds=20.0)
    parts: dict[str, Callable[[], None]] = {
        "top": lambda: tops(given.seconds),
        "answer": answer,
        "watchers": lambda: watchers(given.seconds),
    }
    for name, part in parts.items():
        if given.only in (None, name):
            part()


if __name__ == "__main__":
    main()
