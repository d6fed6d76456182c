"""Measure the swings of a site's power while limits and checkpoints are staggered, in virtual time.

    python -m benchmarks.site.staggering [--jobs 16] [--gpus 64] [--seed 1]

Jobs of equal size train synchronously: each step computes, then communicates at less power. In the middle of
two minutes something happens to all of them: at once, at random times within a span, or one after the other.
The spectrum is that of the product (`power_swings_of`), of readings ten times a second. A ramp is the fastest
change of 10-second means, from one to the next.
"""

from collections.abc import Callable
from random import Random

import duckdb
import numpy as np
import pyarrow as pa

from analyzers.archive import schema
from benchmarks.harness import options, table

READ_S, TICK_S, SECONDS = 0.1, 0.01, 120
GPU_W = 280.0
COMPUTING, COMMUNICATING = 0.75, 0.6
"""Share of a step, and power in the rest of it, of that while computing."""
JITTER = 0.03
"""Of a step's duration."""
EVENTS = {
    "limits fall by 10 %": (SECONDS, 0.9, 10.0),
    "limits fall by 10 %, over a minute": (SECONDS, 0.9, 60.0),
    "a search visits a limit that takes 40 %, for 10 s": (10.0, 0.6, 80.0),
    "checkpoints of 5 s, which draw 25 %": (5.0, 0.25, 80.0),
}
"""The duration of an event, s; power in it; and the span over which it is staggered, s."""


def steps_of(rng: Random) -> np.ndarray:
    """Return the power of a job by tick of TICK_S, as a share of that while it computes."""
    period_s, at_s = rng.uniform(0.3, 2.0), rng.uniform(-2.0, 0.0)
    power = np.full(round(SECONDS / TICK_S), COMMUNICATING)
    while at_s < SECONDS:
        lasts_s = period_s * rng.gauss(1, JITTER)
        begin, end = (max(round(each / TICK_S), 0) for each in (at_s, at_s + COMPUTING * lasts_s))
        power[begin:end] = 1.0
        at_s += lasts_s
    return power


def swings(powers_w: list[np.ndarray]) -> tuple[float, float, float]:
    """Return the mean power, W, and the largest amplitudes, W: below 0.5 Hz, and from there on."""
    connection = duckdb.connect()
    schema.make(connection)
    energy_mj = np.cumsum(powers_w, axis=1)[:, :: round(READ_S / TICK_S)] * TICK_S * 1000
    jobs, count = energy_mj.shape
    incoming = {
        "gpu": np.repeat(np.arange(jobs), count),
        "at_s": np.tile(np.arange(count) * READ_S, jobs),
        "energy_mj": energy_mj.astype(np.int64).ravel(),
    }
    connection.register("incoming", pa.table(incoming))
    connection.execute(
        "INSERT INTO readings BY NAME SELECT 'GPU-' || gpu AS gpu, energy_mj, 'changed' AS seen,"
        " TIMESTAMP '2026-01-01' + to_microseconds((at_s * 1e6)::BIGINT) AS read_at FROM incoming"
    )
    connection.execute("INSERT INTO gpus BY NAME SELECT DISTINCT gpu FROM readings")
    connection.execute(
        "INSERT INTO minutes BY NAME SELECT gpu, TIMESTAMP '2026-01-01 00:01' AS began_at FROM gpus"
    )
    rows = connection.execute(
        "SELECT frequency_hz, amplitude_w, mean_w FROM power_swings_of(NULL)"
    ).fetchall()
    low, high = (max(w for hz, w, _ in rows if (hz < 0.5) is slow) for slow in (True, False))
    return rows[0][2], low, high


def main() -> None:
    given = options(__doc__, jobs=16, gpus=64, seed=1)
    rng = Random(given.seed)
    job_w = GPU_W * given.gpus
    plain = [job_w * steps_of(rng) for _ in range(given.jobs)]
    placed: dict[str, Callable[[int, float], float]] = {
        "at once": lambda _, __: 0.0,
        "at random": lambda _, span_s: rng.uniform(0, span_s),
        "one after the other": lambda number, span_s: span_s * number / given.jobs,
    }
    rows = [("nothing happens", "", *figures(plain))]
    for what, (lasts_s, power, span_s) in EVENTS.items():
        for how, place in placed.items():
            happening = [each.copy() for each in plain]
            for number, each in enumerate(happening):
                begin = round((15 + place(number, span_s)) / TICK_S)
                each[begin : begin + round(lasts_s / TICK_S)] *= power
            rows.append((what, how, *figures(happening)))
    head = "what happens | to the jobs | largest swing to 0.5 Hz | from 0.5 Hz | largest ramp in 10 s"
    table(f"{given.jobs} jobs of {given.gpus} GPUs, seed {given.seed}: shares of the mean power", head, rows)


def figures(powers_w: list[np.ndarray]) -> tuple[str, str, str]:
    mean_w, low_w, high_w = swings(powers_w)
    tens = np.add.reduce(powers_w).reshape(SECONDS // 10, -1).mean(axis=1)
    ramp_w = float(np.abs(np.diff(tens)).max())
    low, high, ramp = (f"{100 * each / mean_w:.2f} %" for each in (low_w, high_w, ramp_w))
    return low, high, ramp


if __name__ == "__main__":
    main()
