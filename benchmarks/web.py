"""Cost of the web page: bytes, time to the first and the last byte of a run page, power over time.

    python -m benchmarks.web             1 M readings of 8 GPUs (3.5 h), 1 M steps of one run
    python -m benchmarks.web --readings 10000000

The run is asked while it is open, then as the product stores a run that ended. Beside it there are 1,000 runs
of 500 steps, for the page of waste. The archive is made by SQL. The server reads it as a file, in a process
of its own; the client is this one.
"""

import gzip
import http.client
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

import duckdb
from msgspec.structs import replace

from benchmarks.harness import environment, options, table
from tests.directories import short_directory

GPUS = 8
PERIOD_NS = 100_000_000
STEPS = 1_000_000
RUNS = 1000
RUN_STEPS = 500
TIMES = 7

READINGS = """
INSERT INTO readings BY NAME SELECT '{log}' AS log_id, n AS "offset", n // {gpus} * {period_ns} AS logged_ns,
    'GPU-' || n % {gpus} AS gpu, logged_ns AS t_lo_ns, logged_ns + 1000000 AS t_hi_ns,
    n // {gpus} * 20000 AS energy_mj, 200000 AS power_mw, 300000 AS limit_mw, 'changed' AS seen,
    '{host}' AS host,
    make_timestamp(({booted_ns} + logged_ns) // 1000) AS read_at
FROM range({readings}) AS r(n)
"""
WINDOWS = """
INSERT INTO windows
SELECT windows.* REPLACE (n AS index, n * {step_ns} AS begin_ns, (n + 1) * {step_ns} AS end_ns)
FROM windows, range(1, {steps}) AS r(n) WHERE kind = 'step'
"""
ENDED = """
INSERT INTO windows
SELECT windows.* REPLACE ('run' AS kind, 0 AS index, 0 AS begin_ns, {length_ns} AS end_ns,
    {steps} * energy_j AS energy_j)
FROM windows WHERE kind = 'step' AND run = 'run-1' AND index = 0
"""
OTHERS = """
INSERT INTO {table} SELECT one.* REPLACE (run || '-' || n AS run{session})
FROM (FROM {table} WHERE run = 'run-1' {few}) AS one, range({runs}) AS r(n)
"""
MINUTES = """
INSERT INTO minutes BY NAME SELECT gpu, host, date_trunc('minute', read_at) AS began_at,
    0.001 * (max(energy_mj) - min(energy_mj)) AS energy_j, 59.9 AS covered_s, 200 AS peak_w, 300 AS limit_w
FROM readings GROUP BY ALL
"""


def make(path: Path, readings: int) -> int:
    """Make an archive with a run that is open; return its length, ns."""
    from analyzers.archive.duckdb_file import DuckdbFile
    from analyzers.results.rows import Derived
    from tests.analyzers import archives
    from zeus_stream.settings import Settings

    gpus = tuple(f"GPU-{n}" for n in range(GPUS))
    length_ns = readings // GPUS * PERIOD_NS
    archive = DuckdbFile.open(path, Settings())
    run = replace(archives.RUN, gpus=gpus, began_ns=0, ended_ns=length_ns, began_wall_ns=archives.BOOTED_NS)
    window = replace(archives.window("step", 0, 0, 1, archives.A), gpu=gpus[0])
    rows: list[Derived] = [
        run,
        *(replace(archives.GPU, gpu=gpu, index=n) for n, gpu in enumerate(gpus)),
        archives.trial(0, 300.0),
    ]
    rows += [archives.trial(1, 200.0), archives.DECISION, window]
    archive.put([list(archives.frames())[:1]], rows, {archives.LOG: 1})
    archive.close()
    with duckdb.connect(path) as file:
        for sql in (READINGS, WINDOWS, MINUTES, "UPDATE logs SET logged_ns = {length_ns}"):
            file.execute(
                sql.format(
                    log=archives.LOG, host=archives.HOST, booted_ns=archives.BOOTED_NS, gpus=GPUS,
                    period_ns=PERIOD_NS, readings=readings, steps=STEPS, step_ns=length_ns // STEPS,
                    length_ns=length_ns,
                )
            )  # fmt: skip
    return length_ns


def end(path: Path, length_ns: int) -> None:
    """End the run, and add `RUNS` like it with fewer steps, all as the product stores what ended."""
    from analyzers.archive.rollups.ended_runs import keep_ended

    with duckdb.connect(path) as file:
        file.execute(ENDED.format(length_ns=length_ns, steps=STEPS))
        few = f"AND index < {RUN_STEPS}"
        for table, some in (("windows", few), ("sessions", ""), ("trials", ""), ("decisions", "")):
            has = "session" in [name for name, *_ in file.execute(f"DESCRIBE {table}").fetchall()]
            session = ", session || '-' || n AS session" if has else ""
            file.execute(OTHERS.format(table=table, few=some, session=session, runs=RUNS))
        keep_ended(file, ["run-1", *(f"run-1-{n}" for n in range(RUNS))])


@contextmanager
def served(where: Path, *arguments: str) -> Iterator[str]:
    """Serve the page of a setup in a process of its own; give its address, with the token."""
    command = [sys.executable, "-m", "zeus_stream", "web", "--listen", "127.0.0.1:0", *arguments]
    server = subprocess.Popen(command, env=environment(where), stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        yield next(line for line in server.stderr if "token=" in line).split()[-1]
    finally:
        server.terminate()
        server.wait(20)


def ask(port: int, token: str, path: str) -> tuple[float, float, bytes]:
    """Return ms to the first and to the last byte of the body, and the body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    begin = time.perf_counter()
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    body = answer.read(1)
    first = time.perf_counter()
    body += answer.read()
    last = time.perf_counter()
    connection.close()
    assert answer.status == 200, (path, answer.status, body)
    return 1000 * (first - begin), 1000 * (last - begin), body


def main() -> None:
    given = options(__doc__, readings=1_000_000)
    with short_directory() as where:
        path = where / "bench.duckdb"
        length_ns = make(path, given.readings)
        rows: list[tuple[str, ...]] = []
        for state in ("open", "ended"):
            if state == "ended":
                end(path, length_ns)
            with served(where, "--archive", str(path)) as address:
                port, token = int(address.split(":")[2].split("/")[0]), address.rpartition("=")[2]
                rows += measured(port, token, paths(state, length_ns))
        head = ("page", "first byte, ms", "whole, ms", f"of {TIMES}", "kB", "kB gzip")
        table(
            f"Web page on {given.readings:,} readings and {STEPS:,} steps; whole page goal: 1000 ms",
            head,
            rows,
        )
    from zeus_stream.screens.web.static_files import static_files

    files = static_files().values()
    sizes = [("all", sum(len(file.content) for file in files), sum(len(file.compressed) for file in files))]
    table("Files of the pages", "file | bytes | gzip", sizes)


def paths(state: str, length_ns: int) -> dict[str, str]:
    """Return the addresses to ask, by what they are."""
    from tests.analyzers.archives import BOOTED_NS

    pages = {f"run page, {state}": f"/runs/{quote('run-1')}"}
    if state == "open":
        return pages

    hour_ns = min(3600 * 10**9, length_ns)
    spans = {"power of 1 GPU, 1 h": (1, hour_ns), "power of 8 GPUs, 1 h": (GPUS, hour_ns)}
    spans[f"power of 8 GPUs, {length_ns / 3.6e12:.1f} h"] = (GPUS, length_ns)
    pages |= {"overview": "/", f"waste of {RUNS:,} runs": "/waste", "SQL page": "/sql"}
    for name, (gpus, span_ns) in spans.items():
        asked = [("gpu", f"GPU-{n}") for n in range(gpus)]
        asked += [("from", str(BOOTED_NS)), ("to", str(BOOTED_NS + span_ns)), ("px", "1000")]
        pages[name] = "/api/power?" + urlencode(asked)
    return pages


def measured(port: int, token: str, paths: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Yield a row of the table for each address."""
    for name, path in paths.items():
        ask(port, token, path)
        times = [ask(port, token, path) for _ in range(TIMES)]
        first, last = sorted(each[0] for each in times), sorted(each[1] for each in times)
        body = times[0][2]
        kb, packed_kb = len(body) / 1000, len(gzip.compress(body)) / 1000
        yield (
            name, f"{statistics.median(first):.0f}", f"{statistics.median(last):.0f}",
            f"{last[0]:.0f} to {last[-1]:.0f}", f"{kb:.1f}", f"{packed_kb:.1f}",
        )  # fmt: skip


if __name__ == "__main__":
    main()
