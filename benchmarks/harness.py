"""Helpers of the benchmarks: the machine named, a setup of real processes, figures beside their goals."""

import argparse
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
Rows = list[tuple[str, str]]
"""A quantity, and its figure."""
Found = tuple[Rows, list[str]]
"""Figures, and what is wrong with them, a sentence each."""
PEERS = (
    "zeus==0.16.0",
    "codecarbon==3.3.2",
    "nvitop==1.7.2",
    "lowtime==0.3.0",
    "msgspec",
    "pyzmq",
    "msgpack",
    "numpy",
)


def machine() -> str:
    """Return one line that names the machine: a figure without it says little."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    return f"{model}, {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"


def table(title: str, head: str | Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print figures as a Markdown table under their title and the machine. ``head``: "a | b", or cells."""
    print(f"\n## {title}\n\n{machine()}\n")
    cells = head.split(" | ") if isinstance(head, str) else head
    print("| " + " | ".join(cells) + " |")
    print("|" + "---|" * len(cells))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")


def options(
    doc: str | None, choices: Mapping[str, Iterable[str]] | None = None, **defaults: object
) -> argparse.Namespace:
    """Return the options of a command. The default of each gives its type.

    Args:
        doc: the module's docstring, which explains them.
        choices: the words that an option may have, by name.
        defaults: by name. False is a switch, a type an option of it without a default, a list or tuple an
            option of several values; [int] has none by default.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        flag, allowed = f"--{name.replace('_', '-')}", (choices or {}).get(name)
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, list | tuple):
            known = [each for each in default if not isinstance(each, type)]
            kind = type(known[0]) if known else default[0]
            parser.add_argument(flag, nargs="*", type=kind, default=known, choices=allowed)
        elif isinstance(default, type):
            parser.add_argument(flag, type=default, choices=allowed)
        else:
            parser.add_argument(flag, type=type(default), default=default, choices=allowed)
    return parser.parse_args()


def judged(
    title: str, head: str | Sequence[str], rows: Sequence[Sequence[object]], wrong: Sequence[str]
) -> int:
    """Print figures, and what is wrong with them, a sentence each. Return the exit code."""
    table(title, head, rows)
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return 1 if wrong else 0


def sentences(*found: tuple[str, object]) -> list[str]:
    """Return the sentences about what is wrong, of pairs of a sentence and whether it is so."""
    return [sentence for sentence, bad in found if bad]


def spread(values: Sequence[float], unit: str, digits: int = 1) -> str:
    """Return the median of figures with the least and the greatest, as text."""
    median, *ends = (f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"{median} {unit} ({' to '.join(ends)})"


@contextmanager
def directory() -> Iterator[Path]:
    """Give a setup's directory, short enough for sockets, and remove it."""
    from tests.directories import short_directory

    with short_directory() as made:
        yield made


def environment(where: Path, **more: str) -> dict[str, str]:
    """Return the environment of a program of this checkout in a setup."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"ZEUS_STREAM_DIR": str(where), "PYTHONPATH": paths} | more


@contextmanager
def script(where: Path, text: str, *arguments: str, **more: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a script in a setup, and end it with the block. ``more``: of its environment."""
    running = subprocess.Popen([sys.executable, "-c", text, *arguments], env=environment(where, **more))
    try:
        yield running
    finally:
        running.kill()
        running.wait()


@contextmanager
def process(
    where: Path, *arguments: str, ready: str, environ: Mapping[str, str] | None = None
) -> Iterator[int]:
    """Run ``zeus-stream ARGUMENTS`` in a setup, from when its socket ``ready`` is there; give its pid."""
    command = [sys.executable, "-m", "zeus_stream", *arguments]
    given = environment(where, **(environ or {}))
    running = subprocess.Popen(command, env=given, stderr=subprocess.DEVNULL)
    try:
        wait_for((where / ready).exists, 20)
        yield running.pid
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(20)


@contextmanager
def services(
    where: Path, device: str, *analyze: str, environ: Mapping[str, str] | None = None
) -> Iterator[tuple[int, int]]:
    """Run a collector of simulated GPUs and an analyzer with some options; give their pids."""
    with (
        process(where, "collect", "--device", device, ready="publish", environ=environ) as collector,
        process(where, "analyze", *analyze, ready="query", environ=environ) as analyzer,
    ):
        yield collector, analyzer


def wait_for(condition: Callable[[], object], seconds: float) -> None:
    """Wait until a condition holds. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {condition}")
        time.sleep(0.01)


def cpu_seconds(pid: int) -> float:
    """Return the processor time a process has used, s (user and system, all threads)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(*pids: int) -> float:
    """Return the resident memory of processes, MB."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def with_children(pid: int) -> list[int]:
    """Return a process and its direct children, such as an analyzer and its store."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, listed)]


@contextmanager
def stand_in_gpus(count: int = 1, latency_us: int = 50) -> Iterator[dict[str, str]]:
    """Give the environment of a host whose GPUs stand in for real ones: 250 W, counters of 100 ms."""
    from tests.gpu import stand_in

    with directory() as where:
        host = stand_in.StandIn(where / "host", count)
        for gpu in host.gpus:
            gpu.latency_us = latency_us
            gpu.run(250_000, 100_000_000)
        yield host.environment(stand_in.build(where))


def peer_python() -> Path:
    """Return the Python of the peers' own environment, made on first use from the registry."""
    python = ROOT / ".bench" / "bin" / "python"
    marker = ROOT / ".bench" / ("+".join(PEERS) + ".installed")
    if not marker.exists():
        subprocess.run([sys.executable, "-m", "venv", ROOT / ".bench"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS], check=True)
        marker.touch()
    return python


def sql(where: Path, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query to the analyzer of a setup."""
    from zeus_stream.paths import Places
    from zeus_stream.transport.client import Connection

    answer = Connection(Places(where, where)).sql(query)
    return [tuple(row.values()) for row in answer.to_pylist()]
