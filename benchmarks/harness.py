"""Helpers of the benchmarks: the machine named, a setup of real processes, figures beside their goals."""

import argparse
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.directories import short_directory

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
    known = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.split(":", 1)[1].strip() for line in known if "model name" in line)
    model = next(models, platform.processor())
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


def environment(where: Path, **more: str) -> dict[str, str]:
    """Return the environment of a program of this checkout in a setup."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"ZEUS_STREAM_DIR": str(where), "PYTHONPATH": paths} | more


@contextmanager
def script(
    where: Path, text: str, *arguments: str, python: str | Path = sys.executable, **more: str
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a script in a setup; with the block it ends, and what it started. ``more``: of its environment."""
    command, given = [python, "-c", text, *arguments], environment(where, **more)
    running = subprocess.Popen(command, env=given, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        yield running
    finally:
        os.killpg(running.pid, signal.SIGKILL)
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


def wait_for(condition: Callable[[], object], seconds: float) -> None:
    """Wait until a condition holds. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {condition}")
        time.sleep(0.01)


class Use(Struct, frozen=True):
    """The use of a process and its descendants so far."""

    cpu_s: float
    wake_ups: int


def family(pid: int) -> list[int]:
    """Return a process and all its descendants, such as an analyzer and its store."""
    pids = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        children = task / "children"
        if children.exists():
            pids += [each for child in children.read_text().split() for each in family(int(child))]
    return pids


def used(pid: int) -> Use:
    """Return the use of a process and its descendants. Wake-ups are of threads that have not ended."""
    cpu_ns = wake_ups = 0
    for each in family(pid):
        with suppress(OSError):  # a process that has just ended
            cpu_ns += time.clock_gettime_ns(~each << 3 | 2)  # clock_getcpuclockid(3) of Linux
        for task in Path(f"/proc/{each}/task").glob("*"):
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
                status = (task / "status").read_text()
                wake_ups += int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return Use(cpu_ns / 1e9, wake_ups)


def empty_loop(seconds: float) -> float:
    """Return the share of a core that an empty loop gets now."""
    begin, spent = time.monotonic(), time.process_time()
    while time.monotonic() - begin < seconds:
        pass
    return (time.process_time() - spent) / seconds * 100


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process and its descendants, MB."""
    pages = sum(int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in family(pid))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def stand_in_gpus(count: int = 1, latency_us: int = 50) -> Iterator[dict[str, str]]:
    """Give the environment of a host whose GPUs stand in for real ones: 250 W, counters of 100 ms."""
    from tests.gpu import stand_in

    with short_directory() as where:
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
