"""The memory of a host's services while sessions come and go.

    python -m benchmarks.load.churn [--minutes 60] [--sessions 100] [--life 15] [--replayed-hours 0]

As many sessions as given are open at a time, each for so many seconds, with 10 steps a second. After the
first third, in which what is remembered reaches its bounds, the slope of the memory is fitted: resident
memory of the collector, the analyzer and its store, every two seconds. With ``--replayed-hours`` there are no
services: one process interprets and stores that long a churn, four new sessions each 1.1 s, as fast as it
can. The exit code is 1 if a slope is surely above `GOAL`.
"""

import multiprocessing
import os
import socket
import sys
import time
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.process.store_channel import packed, unpacked
from analyzers.archive.process.store_process import CHECKPOINT_BYTES, KEEP_S
from analyzers.interpreter.interpreter import Interpreter, Logged
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.rows import Derived
from benchmarks.harness import directory, memory_mb, options, services, table, with_children
from benchmarks.load.session_load import Steps, parts_of, send
from benchmarks.load.sessions import START_NS, begin
from collectors.devices.simulated_spec import parse
from tests.analyzers.test_churn import GPUS, STEP_NS, STEPS, generation
from zeus_stream.own_cost import collect_seldom, share_one_heap
from zeus_stream.protocol import codec
from zeus_stream.protocol.frames import Body, Frame
from zeus_stream.settings import Settings

GOAL = 0.2
"""MB a minute."""
RATE = 10
LOOK_S = 2.0
MEMORY_MB = 128
"""Memory that DuckDB may have: it is full soon."""
OPTIONS = ("--select", "none", "--memory-mb", str(MEMORY_MB))
BLOCKS = 10
"""Of the samples: their slopes give the interval."""


def _is_past(end_s: float) -> bool:
    return time.monotonic() > end_s


def come_and_go(where: Path, name: str, sessions: int, life_s: float) -> None:
    """Send generations of sessions until killed."""
    device = f"simulated:v100x{GPUS}"
    gpus = [spec.uuid(index, socket.gethostname()) for index, spec in enumerate(parse(device))]
    generation = 0
    while True:
        made = [Steps(f"{name}-{generation}-{n}", gpus[n % GPUS], RATE) for n in range(sessions)]
        send(where, {each.session: each for each in made}, partial(_is_past, time.monotonic() + life_s))
        generation += 1


def slope(at_min: np.ndarray, mb: np.ndarray) -> tuple[float, float]:
    """Return MB a minute and half of its 95 % interval; errors of one block of time are taken as one."""
    x, y = at_min - at_min.mean(), mb - mb.mean()
    found = float((x * y).sum() / (x * x).sum())
    errors = [
        float((a * b).sum())
        for a, b in zip(np.array_split(x, BLOCKS), np.array_split(y - found * x, BLOCKS), strict=True)
    ]
    return found, 2.26 * float(np.sqrt(np.sum(np.square(errors)))) / float((x * x).sum())


def replayed(path: Path, hours: float) -> np.ndarray:
    """Interpret and store a churn of so many hours; return minutes of it and MB then, shape (n, 2)."""
    share_one_heap()
    collect_seldom()
    interpreter, offset = Interpreter(RunSettings(selector=None)), count()
    archive = DuckdbFile.open(path, replace(Settings(), memory_mb=MEMORY_MB), checkpoints=False)
    archive.writer.ended = set()
    generation_ns = (STEPS + 1) * STEP_NS
    keep_each = round(KEEP_S * 1e9 / generation_ns)

    def store(bodies: list[tuple[int, Body]]) -> None:
        rows, received = list[Derived](), list[tuple[Frame, Body]]()
        for t_ns, body in bodies:
            frame = Frame(
                log_id="log",
                offset=next(offset),
                host="host",
                t_ns=t_ns,
                topic="events/host",
                body=codec.encode(body),
            )
            received.append((frame, body))
            rows += interpreter.handle(Logged(frame, body), t_ns).rows
        archive.put([unpacked(packed(received))], rows)

    samples = []
    store([(START_NS, body) for body in begin(GPUS)])
    for number in range(round(hours * 3600e9 / generation_ns)):
        store(list(generation(number, START_NS + number * generation_ns)))
        if number % keep_each == 0:
            archive.keep_ended()
        if archive.wal_bytes() >= CHECKPOINT_BYTES:
            archive.flush()
        samples.append((number * generation_ns / 60e9, memory_mb(os.getpid())))
        if number % 500 == 0:
            print(*(f"{each:.1f}" for each in samples[-1]), file=sys.stderr, flush=True)
    return np.array(samples)


def show(title: str, names: tuple[str, ...], measured: np.ndarray) -> int:
    """Print the slopes of memory after the first third, ``measured``: minutes and MB of each process."""
    later = measured[measured[:, 0] >= measured[-1, 0] / 3]
    found = [slope(later[:, 0], later[:, n]) for n in range(1, len(names) + 1)]
    table(
        title,
        ("process", "MB at the end", "MB a minute", "goal"),
        [
            (name, f"{mb:.0f}", f"{mean:+.2f} ± {half:.2f}", f"< {GOAL}")
            for name, mb, (mean, half) in zip(names, measured[-1, 1:], found, strict=True)
        ],
    )
    return int(any(mean - half > GOAL for mean, half in found))


def main() -> int:
    given = options(__doc__, minutes=60.0, sessions=100, life=15.0, replayed_hours=0.0)
    if given.replayed_hours:
        with directory() as where:
            measured = replayed(where / "energy.duckdb", given.replayed_hours)
        return show(
            f"{given.replayed_hours:g} hours of churn, replayed", ("interpreter and store",), measured
        )
    samples: list[tuple[float, ...]] = []
    with (
        directory() as where,
        services(where, f"simulated:v100x{GPUS}", *OPTIONS) as (host, reader),
    ):
        spawn = multiprocessing.get_context("spawn")
        loads = [
            spawn.Process(target=come_and_go, args=(where, f"p{n}", count, given.life), daemon=True)
            for n, count in enumerate(parts_of(given.sessions))
        ]
        for load in loads:
            load.start()
        begin_s = time.monotonic()
        pids = [host, *with_children(reader)]
        while (passed_s := time.monotonic() - begin_s) < 60 * given.minutes:
            samples.append((passed_s / 60, *map(memory_mb, pids)))
            if len(samples) % 30 == 0:
                print(*(f"{each:.1f}" for each in samples[-1]), file=sys.stderr, flush=True)
            time.sleep(LOOK_S)
        for load in loads:
            load.kill()
            load.join()
    names = ("collector", "analyzer", *(f"its child {n}" for n in range(1, len(pids) - 1)))
    title = f"{given.sessions} sessions of {given.life:g} s at a time, for {given.minutes:g} minutes"
    return show(title, names, np.array(samples))


if __name__ == "__main__":
    sys.exit(main())
