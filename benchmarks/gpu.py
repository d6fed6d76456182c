"""Everything that a real GPU can settle in ten minutes, in one folder with a page to read (page.md).

python -m benchmarks.gpu FOLDER [--observe] [--seconds 10] [--only STAGE ...] [--stand-in]

1. doctor: what each field answers, what does not, permission.
2. The sensor card: cost of a read, what the driver makes of limits, how long a set takes. The card is kept.
3. At rest: refreshes of counter and power, as a recording (`zeus-stream record`).
4. Under square loads of 1000 to 10 ms: the same, and whether the counter sees all of the time.
5. Short steps without a collector, with one at rest, and while it reads closely: median, p99, worst.
6. Steps of equal work, measured by a run that sets nothing: their intervals, and their scatter.
7. A training with a searched limit; once a limit is set, everything is killed: what the limit is then, and
   what `zeus-stream restore` makes of it.

Every recording is a device (`--device recorded:FOLDER/square-50`) and may be attached to an issue. A load
needs torch with CUDA or ROCm; without it, 4 and 6 are left out. ``--observe`` changes nothing: 7 is left
out, and 1 and 2 set nothing. ``--stand-in`` plays it on a library that stands in for NVML. `make gpu`
(OBSERVE=1) calls it.
"""

import argparse
import csv
import importlib.util
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.harness import ROOT, environment, machine, process, stand_in_gpus, wait_for
from collectors.device import Device, Sample
from collectors.devices.cards.sensor_card import Read, make_card, read_card
from collectors.devices.recorded import record
from collectors.devices.registry import open_bus
from tests.directories import short_directory
from zeus_stream.cli.sensor_doctor import square_load, torch_load
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import RefusedError, UnsupportedError, ZeusStreamError

SQUARES_MS = (1000, 370, 50, 25, 12, 10)
STEPS = 1000
CALL = "from benchmarks.gpu import *; {}"
NO_TORCH = "Left out: no torch that sees this GPU."
SEARCH_S = 90
STEPS_MS = (590, 200, 50, 30, 12)
_EQUAL = """
WITH steps AS (FROM windows WHERE kind = 'step' AND run = (SELECT arg_max(run, began_at) FROM runs))
SELECT concat_ws(' | ', '| ' || count(*), round(median(duration_s) * 1e3, 1), round(avg(energy_j), 2),
    round(median(energy_p97_5_j - energy_p2_5_j) / 2 / avg(energy_j) * 100, 1),
    round(stddev(energy_j) / avg(energy_j) * 100, 1),
    (SELECT arg_max(seen, t_hi_ns) FROM readings) || ' |')
FROM steps
"""


# ---- what runs in a process of its own: a driver's library is loaded once ----------------------------------


def write_recording(path: str, seconds: float) -> None:
    """Record the GPUs, and write down when that began (CLOCK_MONOTONIC)."""
    folder = Path(path)
    stamps: list[int] = []

    def now() -> int:
        stamps.append(monotonic_ns())
        return stamps[-1]

    with closing(open_bus("nvml", folder.parent)) as bus:
        record(bus.discover(), folder, monotonic_ns() + round(seconds * 1e9), time.sleep, 0.001, now)
    (folder / "begun_ns").write_text(str(stamps[0]))


def short_steps(*, measured: bool) -> None:
    """Print durations of short steps, us: median, p99 and worst."""
    import zeus_stream

    rows = np.ones((96, 96))

    def step() -> None:
        np.matmul(rows, rows)

    if can_load():
        import torch

        matrix = torch.randn(512, 512, device="cuda")

        def step() -> None:
            torch.mm(matrix, matrix)
            torch.cuda.synchronize()

    took_ns = []
    for _ in zeus_stream.steps(range(STEPS)) if measured else range(STEPS):
        before_ns = time.perf_counter_ns()
        step()
        took_ns.append(time.perf_counter_ns() - before_ns)
        time.sleep(0.001)
    print(*np.percentile(np.array(took_ns[100:]) / 1e3, (50, 99, 100)).round(1))


def steps_for(seconds: float) -> Iterator[int]:
    """Yield steps for a while."""
    import zeus_stream

    until_s = time.monotonic() + seconds
    yield from zeus_stream.steps(itertools.takewhile(lambda _: time.monotonic() < until_s, itertools.count()))


def equal_steps(step_ms: float, seconds: float) -> None:
    """Take steps of equal work, of about so many milliseconds."""
    import torch

    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def work(products: int) -> float:
        begin_s = time.monotonic()
        for _ in range(products):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize()
        return time.monotonic() - begin_s

    work(500)
    products = max(round(step_ms / work(1000)), 1)
    for _ in steps_for(seconds):
        work(products)


def train(seconds: float) -> None:
    """Take steps of about 50 ms for a while."""
    loads = can_load()
    if loads:
        import torch

        matrix = torch.randn(4096, 4096, device="cuda")
    for _ in steps_for(seconds):
        end_s = time.monotonic() + 0.05
        while loads and time.monotonic() < end_s:
            torch.mm(matrix, matrix)
            torch.cuda.synchronize()
        time.sleep(max(end_s - time.monotonic(), 0))


def can_load() -> bool:
    """Tell whether there is a torch that sees a GPU."""
    if not importlib.util.find_spec("torch"):
        return False
    import torch

    return bool(torch.cuda.is_available())


def print_limits() -> None:
    with closing(open_bus("nvml", Path(os.environ["ZEUS_STREAM_DIR"]))) as bus:
        print(*(_limit_of(device) for device in bus.discover()))


def _limit_of(device: Device) -> str:
    try:
        limit_mw = device.read_control("power_limit")
    except UnsupportedError:
        limit_mw = None
    return "no limit" if limit_mw is None else f"{limit_mw / 1000:g} W"


# ---- the stages --------------------------------------------------------------------------------------------


class Stages:
    """The stages, each of which returns lines of the page."""

    def __init__(self, options: argparse.Namespace, where: Path, environ: dict[str, str]) -> None:
        self._options, self._where = options, where
        self.folder: Path = options.folder.resolve()
        self._environ = environment(where) | environ
        self._environ["OPENBLAS_NUM_THREADS"] = "1"
        if options.observe:
            self._environ["ZEUS_STREAM_OBSERVE"] = "1"
        self._stand_in = Path(environ["NVML_STAND_IN"]) if options.stand_in else None

    def _run(self, *arguments: object) -> str:
        """Run Python; return what it printed."""
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(
            command, env=self._environ, cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout + (done.stderr if done.returncode else "")

    def _command(self, *arguments: object) -> str:
        return self._run("-m", "zeus_stream", *arguments)

    def _call(self, call: str) -> str:
        """Call a function of this module in a process of its own; return what it printed."""
        return self._run("-c", CALL.format(call)).strip()

    def check_gpu(self) -> None:
        """Raise RefusedError where there is no GPU to meet."""
        if not self._call("print_limits()").endswith((" W", "no limit")):
            raise RefusedError("gpu: could not be met: there is none. See `zeus-stream doctor`.")

    def _can_load(self) -> bool:
        return self._call("print(can_load())") == "True"

    def _record(self, folder: Path) -> None:
        self._call(f"write_recording({str(folder)!r}, {self._options.seconds})")

    def doctor(self) -> Iterator[str]:
        yield from ("```", self._command("doctor").rstrip(), "```")

    def sensor(self) -> Iterator[str]:
        """Print the card; it is kept as JSON as well."""
        sets = [] if self._options.observe else ["--set"]
        text = self._command("doctor", "--sensor", "--json", "--seconds", self._options.seconds, *sets)
        path = self.folder / "card.json"
        path.write_text(text)
        try:
            yield from (f"- {line}" for line in read_card(path).lines())
        except msgspec.DecodeError:
            path.unlink()
            yield text

    def at_rest(self) -> Iterator[str]:
        self._record(self.folder / "rest")
        yield from self._described(self.folder / "rest", [])

    def squares(self) -> Iterator[str]:
        if self._stand_in is None and not self._can_load():
            yield NO_TORCH
            return
        for period_ms in SQUARES_MS:
            folder = self.folder / f"square-{period_ms}"
            with self._square(period_ms, self._options.seconds + 3) as marks_ns:
                self._record(folder)
            with (folder / "marks.csv").open("w", newline="") as file:
                csv.writer(file).writerows([("begin_ns", "end_ns"), *marks_ns])
            yield f"### {period_ms} ms"
            yield from self._described(folder, marks_ns)

    def _square(self, period_ms: int, seconds: float) -> AbstractContextManager[list[tuple[int, int]]]:
        """Give the begins and ends of work, which are there afterwards."""
        if self._stand_in is not None:
            from tests.gpu.square_loads import show_square

            return nullcontext(show_square(self._stand_in, period_ms, seconds))
        return square_load(torch_load(period_ms, seconds), "0")

    def _described(self, folder: Path, marks_ns: Sequence[tuple[int, int]]) -> Iterator[str]:
        """Return what a recording shows of the first GPU."""
        if not (folder / "begun_ns").exists():
            yield "The recording failed: see 1."
            return
        begun_ns = int((folder / "begun_ns").read_text())
        reads = read_recording(folder / "samples-0.csv", begun_ns)
        with closing(open_bus(f"recorded:{folder}", self._where)) as bus:
            card = make_card(bus.discover()[0].describe(), reads, marks_ns=marks_ns)
        yield from (f"- {line}" for line in card.lines()[3:7])

    def short_steps(self) -> Iterator[str]:
        yield from ("| collector | median, us | p99 | worst |", "|---|---|---|---|")
        for _ in range(2):
            yield self._short_steps("none")
            with process(self._where, "collect", ready="publish", environ=self._environ):
                yield self._short_steps("at rest")
                with process(
                    self._where, "analyze", "--select", "none", ready="query", environ=self._environ
                ):
                    yield self._short_steps("reads closely")

    def _short_steps(self, collector: str) -> str:
        found = self._call(f"short_steps(measured={collector == 'reads closely'})")
        return f"| {collector} | {' | '.join(found.split())} |"

    def single_steps(self) -> Iterator[str]:
        """Measure steps of equal work by a run that only observes."""
        if not self._can_load():
            yield NO_TORCH
            return
        yield from (
            "| steps | ms | J | interval, half, % | scatter, % | readings |",
            "|---|---|---|---|---|---|",
        )
        with (
            process(self._where, "collect", "--observe", ready="publish", environ=self._environ),
            process(self._where, "analyze", "--select", "none", ready="query", environ=self._environ),
        ):
            for step_ms in STEPS_MS:
                self._call(f"equal_steps({step_ms}, {self._options.seconds})")
                time.sleep(2)
                yield self._command("sql", "--format", "csv", _EQUAL).splitlines()[-1].strip('"')

    def killed(self) -> Iterator[str]:
        """Kill all once a limit is set; the limit is restored by `zeus-stream restore`."""
        if self._options.observe:
            yield "Left out: nothing is changed."
            return
        found = self._limit()
        training = [sys.executable, "-c", CALL.format(f"train({SEARCH_S})")]
        command = [sys.executable, "-m", "zeus_stream", "run", "-q", "--", *training]
        running = subprocess.Popen(command, env=self._environ, cwd=ROOT, start_new_session=True)
        try:
            wait_for(lambda: self._limit() != found or running.poll() is not None, SEARCH_S)
        except TimeoutError:
            yield f"No limit was set within {SEARCH_S} s."
        during = self._limit()
        kill_all(self._where)
        running.wait()
        time.sleep(2)
        after = self._limit()
        printed = self._command("restore").strip()
        yield f"- limit found: {found}; while the search ran: {during}"
        yield f"- 2 s after SIGKILL of everything: {after}"
        yield f"- after `zeus-stream restore`: {self._limit()} ({printed or 'it printed nothing'})"

    def _limit(self) -> str:
        return self._call("print_limits()")


def kill_all(where: Path) -> None:
    """SIGKILL every process of a setup: those whose environment names its directory."""
    wanted = f"ZEUS_STREAM_DIR={where}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)
        except (OSError, ProcessLookupError):
            continue


def read_recording(path: Path, begun_ns: int) -> list[Read]:
    """Return the reads of a recording in which the answer became another one, on CLOCK_MONOTONIC."""
    reads: list[Read] = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            figures = [int(row[name]) if row.get(name) else None for name in Sample._fields]
            sample = None if row["error"] else Sample(*figures)
            since_ns, t_ns = begun_ns + int(row["since_ns"]), begun_ns + int(row["t_ns"])
            if reads:  # the last read with the answer before
                reads.append(Read(since_ns, since_ns, reads[-1].sample))
            reads.append(Read(t_ns, t_ns, sample))
    return reads


TITLES = {
    "doctor": "1. What the driver answers",
    "sensor": "2. The sensor card",
    "at_rest": "3. At rest",
    "squares": "4. Square loads",
    "short_steps": "5. Short steps",
    "single_steps": "6. Steps of equal work",
    "killed": "7. Everything killed while a limit is set",
}


def write_page(options: argparse.Namespace) -> None:
    """Run all stages, and write the page as they come."""
    with short_directory() as where, ExitStack() as ends:
        environ = ends.enter_context(stand_in_gpus()) if options.stand_in else {}
        stages = Stages(options, where, environ)
        stages.check_gpu()
        stages.folder.mkdir(parents=True)
        with (stages.folder / "page.md").open("w") as page:
            changes = "nothing was changed" if options.observe else "limits were tried and restored"
            print(f"# A GPU met ({changes})\n\n{machine()}", file=page)
            for name in options.only:
                begin = time.monotonic()
                print(f"\n## {TITLES[name]}\n", file=page, flush=True)
                for line in getattr(stages, name)():
                    print(line, file=page, flush=True)
                print(f"{TITLES[name]}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
    print(stages.folder / "page.md")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="new; for the page and all recordings")
    parser.add_argument("--observe", action="store_true", help="change nothing")
    parser.add_argument("--seconds", type=float, default=10, help="of each recording")
    parser.add_argument("--stand-in", action="store_true", help="without a GPU")
    parser.add_argument("--only", nargs="+", choices=TITLES, default=list(TITLES))
    try:
        write_page(parser.parse_args())
    except ZeusStreamError as wrong:
        sys.exit(str(wrong))


if __name__ == "__main__":
    main()
