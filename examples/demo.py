"""Watch zeus-stream find the power limit of a training, and see what that saves.

    make demo                      one simulated A40
    make demo DEVICE=nvml          the GPUs of this machine, only measured; SET_LIMITS=1 sets power limits

Start a collector, an analyzer and `train_digits.py`, as a person would from three shells. Show the archive
while the training runs, and the result at the end: in the terminal, and in demo-out/.
"""

import argparse
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from demo_plots import ETA, Row, save_picture, terminal_plot
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from zeus_stream.cli.screens.report_files import ReportFiles
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import UnreachableError, ZeusStreamError
from zeus_stream.package_version import VERSION
from zeus_stream.paths import Places, places
from zeus_stream.questions.run_questions import last_run
from zeus_stream.screens.html.document import run_report
from zeus_stream.screens.text.run_cost import saving_facts
from zeus_stream.screens.text.tables import write
from zeus_stream.transport.client import Connection, status
from zeus_stream.views.saving import saving_of_row

EPOCHS = 16
"""On two cores with a load of 10 the demo takes 66 s; with 20 epochs and a load of 13 it took 93 s."""
WORK_MS = 60
"""GPU work of a step. Longer than what a busy machine adds to a step, so that limits do not tie."""
STRIDE_W = 50
"""Distance of the power limits: so far apart that one is clearly the best."""
TRAINING = Path(__file__).with_name("train_digits.py")
STARTS_S, STOPS_S, CLOSES_S = 20, 10, 10
LIVE_S, LINE_S = 0.4, 3.0
"""Time between two updates: on a terminal, and in a log."""
BAR = 14
"""Width of a full bar, in characters."""
ARCHIVE = "demo.duckdb"
FROM_HERE = """\
more of this archive        {program} sql --archive {archive} @epochs
the GPUs of this machine    {program} doctor
your own training           {program} run -- {python} train.py
the one line in it          for batch in zeus_stream.steps(loader):
this run as a page          {page}"""

TRIALS = """
SELECT power_limit_w, 1000 * sum(duration_s) / sum(steps) AS step_ms,
    sum(energy_j) / sum(steps) AS energy_per_step_j, sum(energy_j) / sum(duration_s) AS average_power_w,
    sum(cost) / sum(steps) AS cost_per_step_j, avg(temperature_c) AS temperature_c
FROM trials WHERE NOT confirms AND round = (SELECT min(round) FROM trials)
GROUP BY power_limit_w ORDER BY power_limit_w DESC
"""
SPANS = """
SELECT power_limit_w, began_ns, ended_ns FROM trials
WHERE NOT confirms AND round = (SELECT min(round) FROM trials) ORDER BY number
"""
NOW = """
SELECT (SELECT count(*) FROM epochs) AS epochs, (SELECT count(*) FROM steps) AS steps,
    (SELECT sum(energy_j) FROM steps) AS energy_j,
    (SELECT 1 / avg(duration_s) FROM (FROM steps ORDER BY step DESC LIMIT 40)) AS steps_per_s,
    (SELECT value FROM metrics WHERE name = 'accuracy' ORDER BY t_ns DESC LIMIT 1) AS accuracy
"""
GPU = """
SELECT power_mw / 1000 AS power_w, limit_mw / 1000 AS limit_w
FROM readings WHERE power_mw IS NOT NULL ORDER BY t_hi_ns DESC LIMIT 1
"""
SAVING = "FROM savings"
CLOSED = "FROM windows WHERE kind = 'run'"
POWER = """
SELECT min(t_hi_ns) AS t_ns, avg(power_mw) / 1000 AS power_w, max(limit_mw) / 1000 AS limit_w
FROM readings WHERE power_mw IS NOT NULL AND gpu = (SELECT min(gpu) FROM readings WHERE power_mw IS NOT NULL)
GROUP BY t_hi_ns // 200_000_000 ORDER BY t_ns
"""
QUESTIONS = {
    "How long is a step at each power limit, and what does it cost?": """\
SELECT power_limit_w, count(*) AS steps, 1000 * median(duration_s) AS median_ms,
    1000 * quantile_cont(duration_s, 0.99) AS p99_ms, avg(energy_j) AS energy_j
FROM steps WHERE power_limit_w IS NOT NULL
GROUP BY power_limit_w ORDER BY power_limit_w DESC""",
    "What does a validation cost?": """\
SELECT name, count(*) AS times, avg(duration_s) AS seconds, avg(energy_j) AS joules,
    avg(energy_p97_5_j - energy_p2_5_j) / 2 AS plus_minus
FROM windows WHERE kind = 'window' AND NOT of_host(gpu) GROUP BY name""",
    "How many joules for which accuracy?": """\
SELECT epoch, 100 * value AS accuracy_percent, sum(energy_j) OVER (ORDER BY epoch) AS joules_so_far
FROM epochs JOIN (
    SELECT value, row_number() OVER (ORDER BY t_ns) - 1 AS epoch FROM metrics WHERE name = 'accuracy'
) USING (epoch)
QUALIFY epoch IN (0, 1, 4, 9, 15) ORDER BY epoch""",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Find the power limit of a training, and what it saves.")
    parser.add_argument("--device", default="simulated:a40x1", help="as in `zeus-stream collect`")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="directory for the results")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    console = Console(highlight=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        with setup(options.device, options.out) as analyzer:
            train(analyzer, options, console)
            report(analyzer, options.out, console)
    except KeyboardInterrupt:
        console.print("\nInterrupted: everything is stopped, and power limits are as they were found.")
        sys.exit(130)
    except ZeusStreamError as wrong:
        sys.exit(f"demo: {wrong}")


def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """End the demo; what is then stopped and restored is not to be interrupted again."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


# ---- a collector, an analyzer and a training


@contextmanager
def setup(device: str, out: Path) -> Iterator[Connection]:
    """Run collector and analyzer while the block runs; their sockets need a short path."""
    with tempfile.TemporaryDirectory(prefix="zs-demo-") as directory:
        os.environ["ZEUS_STREAM_DIR"] = directory
        if device == "nvml" and os.environ.get("SET_LIMITS") != "1":
            os.environ["ZEUS_STREAM_OBSERVE"] = "1"
        where = places(os.environ)
        zeus_stream = (sys.executable, "-m", "zeus_stream")
        archive = out / ARCHIVE  # of this demo alone, so that its queries need no WHERE
        for old in (archive, archive.with_suffix(".duckdb.wal")):
            old.unlink(missing_ok=True)
        analysis = ("--archive", str(archive), "--select", f"cost:{ETA}", "--stride-w", str(STRIDE_W))
        with (
            running((*zeus_stream, "collect", "--device", device), out / "collector.log") as collector,
            running((*zeus_stream, "analyze", *analysis), out / "analyzer.log") as analyzer,
        ):
            wait_for("collector", where, collector, out)
            wait_for("analyzer", where, analyzer, out)
            yield Connection(where)


@contextmanager
def running(command: Sequence[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a command while the block runs, out of reach of a Ctrl-C, which is for this process."""
    with log.open("wb") as words:
        process = subprocess.Popen(  # noqa: S603  (our own commands)
            command, stdout=words, stderr=words, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOPS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(name: str, where: Places, process: "subprocess.Popen[bytes]", out: Path) -> None:
    end_ns = monotonic_ns() + STARTS_S * 10**9
    while process.poll() is None and monotonic_ns() < end_ns:
        try:
            status(where, name, timeout_s=0.5)
        except UnreachableError:
            time.sleep(0.02)
        else:
            return
    words = (out / f"{name}.log").read_text(encoding="utf-8").strip()
    raise UnreachableError(f"{name}: could not start: it does not answer. Its output: {words or 'none'}.")


def train(analyzer: Connection, options: argparse.Namespace, console: Console) -> None:
    """Run the training to its end, and show the archive while it runs."""
    gpu = "simulated" if options.device.startswith("simulated") else "torch"
    if gpu == "torch" and importlib.util.find_spec("torch") is None:
        console.print("PyTorch is not installed, so the GPU stays idle, and its idle power is measured.")
        gpu = "none"
    amount = ("--epochs", str(options.epochs), "--work-ms", str(WORK_MS))
    command = (sys.executable, str(TRAINING), *amount, "--gpu", gpu)
    log = options.out / "training.log"
    begin_ns = monotonic_ns()
    live = Live(console=console, transient=True) if console.is_terminal else None
    with running(command, log) as training, live or nullcontext():
        while training.poll() is None:
            now, elapsed_s = look(analyzer), (monotonic_ns() - begin_ns) / 1e9
            if live is not None:
                live.update(panel(now, options.epochs, elapsed_s))
            else:
                console.print(line(now, options.epochs, elapsed_s), soft_wrap=True)
            time.sleep(LIVE_S if live is not None else LINE_S)
    if training.returncode:
        raise UnreachableError(f"training: failed with exit code {training.returncode}. See {log}.")
    end_ns = monotonic_ns() + CLOSES_S * 10**9
    while not analyzer.sql(CLOSED).num_rows and monotonic_ns() < end_ns:
        time.sleep(0.05)


# ---- while it trains


@dataclass(frozen=True, slots=True)
class Now:
    """The state of the archive at one moment."""

    totals: Row
    gpu: Row
    trials: Sequence[Row]
    saving: Row | None
    """None until there is a decision."""


def look(analyzer: Connection) -> Now:
    (totals,) = analyzer.sql(NOW).to_pylist()
    gpus, savings = analyzer.sql(GPU).to_pylist(), analyzer.sql(SAVING).to_pylist()
    trials = analyzer.sql(TRIALS).to_pylist()
    return Now(totals, gpus[0] if gpus else {}, trials, savings[0] if savings else None)


def shown(value: float | None, form: str, unit: str) -> str:
    return "-" if value is None else f"{value:{form}} {unit}"


def phase(now: Now) -> str:
    if now.saving is not None and now.saving["power_limit_w"] is not None:
        return f"chosen: {now.saving['power_limit_w']:g} W"
    if now.saving is not None:
        return str(now.saving["reason"])
    return f"measuring power limit {len(now.trials) + 1}" if now.totals["steps"] else "starting"


def line(now: Now, epochs: int, elapsed_s: float) -> str:
    return (
        f"{elapsed_s:4.0f} s  epoch {now.totals['epochs']}/{epochs}"
        f"  {shown(now.totals['steps_per_s'], '.1f', 'steps/s')}"
        f"  power {shown(now.gpu.get('power_w'), '.0f', 'W')}"
        f"  limit {shown(now.gpu.get('limit_w'), '.0f', 'W')}  {phase(now)}"
    )


def panel(now: Now, epochs: int, elapsed_s: float) -> RenderableType:
    head, figures = Table.grid(padding=(0, 3)), Table.grid(padding=(0, 3))
    accuracy = now.totals["accuracy"]
    head.add_row(
        f"{elapsed_s:.0f} s",
        f"epoch {now.totals['epochs']}/{epochs}",
        ProgressBar(total=epochs, completed=now.totals["epochs"], width=BAR),
        f"accuracy {shown(None if accuracy is None else 100 * accuracy, '.1f', '%')}",
    )
    figures.add_row(
        Text(shown(now.totals["steps_per_s"], ".1f", "steps/s"), style="bold"),
        Text.assemble("power ", (shown(now.gpu.get("power_w"), ".0f", "W"), "bold")),
        Text.assemble("limit ", (shown(now.gpu.get("limit_w"), ".0f", "W"), "bold")),
        Text.assemble("so far ", (shown(now.totals["energy_j"], ",.0f", "J"), "bold")),
        Text(phase(now), style="cyan"),
    )
    return Group(head, figures, Text(), trials_table(now.trials, now.saving))


def trials_table(trials: Sequence[Row], saving: Row | None) -> Table:
    """Return the trials, their costs as bars; the chosen limit stands out."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("limit", "ms/step", "J/step", "average", "at", "cost/step"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    dearest = max((trial["cost_per_step_j"] or 0 for trial in trials), default=0)
    for trial in trials:
        is_chosen = saving is not None and trial["power_limit_w"] == saving["power_limit_w"]
        cost_j = trial["cost_per_step_j"]
        table.add_row(
            f"{trial['power_limit_w']:g} W",
            f"{trial['step_ms']:.2f}",
            f"{trial['energy_per_step_j']:.3f}",
            f"{trial['average_power_w']:.1f} W",
            shown(trial["temperature_c"], ".0f", "°C"),
            shown(cost_j, ".3f", "J"),
            ("█" * round(BAR * cost_j / dearest) if cost_j else "") + (" chosen" if is_chosen else ""),
            style="bold green" if is_chosen else "",
        )
    return table


# ---- when it has trained


def report(analyzer: Connection, out: Path, console: Console) -> None:
    now = look(analyzer)
    console.rule("Measured at each power limit", style="dim")
    console.print(trials_table(now.trials, now.saving))
    console.print()
    if now.saving is None:
        console.print("The training was too short to choose a power limit.")
    else:
        facts = Table.grid(padding=(0, 3))
        saving = saving_of_row(now.saving)
        for name, text in () if saving is None else saving_facts(saving):
            facts.add_row(Text(name, style="bold"), Text(text))
        console.print(facts)
    if now.saving is not None and now.saving["power_limit_w"] is not None:
        console.print()
        console.print(Text(terminal_plot(now.trials, now.saving, min(console.width, 96))), soft_wrap=True)
        spans, power = (analyzer.sql(query).to_pylist() for query in (SPANS, POWER))
        save_picture(now.trials, now.saving, spans, power, out / "frontier.png")
        console.print(f"A picture of this, and of power over time: {out / 'frontier.png'}")
    console.print()
    console.rule("The same in SQL", style="dim")
    for question, query in QUESTIONS.items():
        console.print(Text(question, style="bold"))
        console.print(Text(query, style="dim"), soft_wrap=True)
        write(analyzer.sql(query), "table", sys.stdout)
        console.print()
    console.rule("Next", style="dim")
    here = {"archive": out / ARCHIVE, "program": program("zeus-stream"), "python": program("python")}
    made = run_report(analyzer.sql, last_run(analyzer.sql) or "", VERSION, {})
    here["page"] = ReportFiles(out / "report.html", None, None).write(made)[0] if made else "it has no run"
    console.print(FROM_HERE.format(**here), soft_wrap=True)


def program(name: str) -> str:
    """Return the command that starts a program of this environment: its name if PATH has the same one."""
    ours = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if not ours.exists() or (found is not None and Path(found).samefile(ours)):
        return name
    return os.path.relpath(ours) if ours.is_relative_to(Path.cwd()) else str(ours)


if __name__ == "__main__":
    main()
