"""Run the benchmarks that a machine of two cores can, and write docs/figures.md: ``make figures``.

    python -m benchmarks.figures [--only step_cost windows] [--repeats 3] [--limit 600]

Each benchmark runs several times, and is ended at its time limit with all that it started. A section of the
page has its date, commit, machine and load, and the median of each figure with its spread. A benchmark that
fails keeps its section of an earlier run, and the page names it. The exit code is the number of failures.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from benchmarks.figures.page import (
    Place,
    Quote,
    Table,
    between,
    merged,
    quoted,
    read_tables,
    sections,
    write_tables,
)
from benchmarks.harness import ROOT, machine, options

PAGE = ROOT / "docs" / "figures.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


@dataclass(frozen=True)
class Benchmark:
    """One command, and the runs that its spread is taken from."""

    module: str
    arguments: tuple[str, ...] = ()
    repeats: int = 3
    """1: it repeats by itself, or its figures are exact."""

    @property
    def name(self) -> str:
        """Return the last part of the module's name: the heading of its section."""
        return self.module.rpartition(".")[2]


BENCHMARKS = (
    Benchmark("benchmarks.cost.step_cost", ("--steps", "500")),
    Benchmark("benchmarks.windows", ("--runs", "2", "--loads", "clean", "noisy"), repeats=1),
    Benchmark("benchmarks.load.latency"),
    Benchmark("benchmarks.load.throughput", repeats=1),
    Benchmark("benchmarks.cost.own_cost"),
    Benchmark("benchmarks.web"),
    Benchmark("benchmarks.faults.restore", ("--trials", "5"), repeats=1),
    Benchmark("benchmarks.pipeline.groupings", ("--seeds", "200", "206"), repeats=1),
    Benchmark("benchmarks.pipeline.published", repeats=1),
    Benchmark(
        "benchmarks.pipeline.live",
        ("--iterations", "110", "--work-ms", "60", "--profiled", "4"),
        repeats=1,
    ),
    Benchmark("benchmarks.load.retention", repeats=1),
    Benchmark("benchmarks.noise.bench_drift", ("--sessions", "600", "--seed", "77"), repeats=1),
    Benchmark("benchmarks.noise", ("--tables", "search", "--worlds", "8", "--seed", "5"), repeats=1),
)
OF_STEP = {"load": "clean", "counter, ms": "100", "step, ms": "100"}
QUOTES = (
    Quote(
        "step_cost",
        "A step costs the training thread {ours}, with Zeus 0.16 {peer}.",
        {
            "ours": Place("A step in the training thread", {"tool": "zeus-stream", "GPUs": "1"}, "p50"),
            "peer": Place("A step in the training thread", {"tool": "Zeus 0.16", "GPUs": "1"}, "p50"),
        },
    ),
    Quote(
        "windows",
        "The energy of a step of 100 ms is off by {ours} % on average; reads at its two ends, by {peer} %.",
        {
            "ours": Place("Energy of single steps", OF_STEP, "shaped"),
            "peer": Place("Energy of single steps", OF_STEP, "direct reads"),
        },
    ),
    Quote(
        "latency",
        "A new limit is on the device {p50} after the step that decides it, in 99 of 100 cases within {p99}.",
        {"p50": Place("Step begin to limit", {}, "p50"), "p99": Place("Step begin to limit", {}, "p99")},
    ),
)
HEAD = """# Figures

<!-- Written by `make figures`. Do not edit. -->

`make figures` ran these benchmarks and wrote this page. `make figures FIGURES="step_cost windows"` renews
some of its sections. Figures are medians; least and most of the runs stand in brackets. A peer stands beside
ours where it was measured in the same run. [Figures of longer runs](explanation/figures.md) has more.
"""


def run_once(command: list[str], limit_s: float) -> tuple[str, str]:
    """Return what a command printed, and why it failed; empty: it did not. It leaves no process behind."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ |= {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        printed, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            printed, errors = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, errors = process.communicate()
        return printed, f"it did not end within {limit_s:.0f} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it has started and not ended
    if process.returncode:
        return printed, f"exit code {process.returncode}: {(errors or printed).strip()[-600:]}"
    return printed, ""


def measured(benchmark: Benchmark, repeats: int, limit_s: float) -> tuple[str, str]:
    """Return the section of a benchmark, and why there is none. ``limit_s`` is for all of its runs."""
    command = [benchmark.module, *benchmark.arguments]
    load_before, began_s = os.getloadavg()[0], time.monotonic()
    runs: list[list[Table]] = []
    for _ in range(min(repeats, benchmark.repeats)):
        left_s = began_s + limit_s - time.monotonic()
        printed, why = run_once([sys.executable, "-m", *command], max(1.0, left_s))
        if why and not runs:
            return "", why
        if why:
            break  # the runs before it count
        runs.append(read_tables(printed))
    if not any(runs):
        return "", "it printed no table"
    about = (
        f"`python -m {' '.join(command)}`, {datetime.now(UTC):%Y-%m-%d}, commit {commit()}, {len(runs)} runs"
        f" in {time.monotonic() - began_s:.0f} s, load {load_before:.1f} before and"
        f" {os.getloadavg()[0]:.1f} after. {machine()}."
    )
    return f"{about}\n\n{write_tables(merged(runs))}", ""


def commit() -> str:
    """Return the commit that is measured, with ``+`` if files differ from it."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], check=False, cwd=ROOT, capture_output=True, text=True
    )
    return found.stdout.strip() or "unknown"


def write_page(found: dict[str, str], failed: list[str]) -> None:
    """Write the page, and the sentences that README quotes."""
    sentences = quoted(QUOTES, found)
    parts = [HEAD]
    if sentences:
        parts.append("In short:\n\n" + "\n".join(f"- {each}" for each in sentences) + "\n")
    if failed:
        parts.append("Not measured in the latest run: " + ", ".join(f"`{name}`" for name in failed) + ".\n")
    order = [each.name for each in BENCHMARKS]
    known = sorted(found, key=lambda name: order.index(name) if name in order else len(order))
    parts += [f"## `{name}`\n\n{found[name]}" for name in known]
    PAGE.write_text("\n".join(parts), encoding="utf-8")
    if len(sentences) == len(QUOTES):
        readme = between(README.read_text(encoding="utf-8"), BEGIN, END, f" {' '.join(sentences)} ")
        README.write_text(readme, encoding="utf-8")


def main() -> int:
    """Run the benchmarks that were asked for."""
    choices = {"only": [each.name for each in BENCHMARKS]}
    given = options(__doc__, choices, only=[str], repeats=3, limit=600.0)
    found = sections(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    failed: list[str] = []
    for benchmark in BENCHMARKS:
        if given.only and benchmark.name not in given.only:
            continue
        print(f"{benchmark.name} ...", flush=True)
        section, why = measured(benchmark, given.repeats, given.limit)
        if why:
            failed.append(benchmark.name)
            print(f"{benchmark.name}: could not be measured: {why}", flush=True)
        else:
            found[benchmark.name] = section
        write_page(found, failed)  # after each: what ends this command loses one benchmark at most
    print(f"{PAGE.relative_to(ROOT)} is written. {len(failed)} failed: {failed}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
