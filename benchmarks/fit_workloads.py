# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy", "scipy", "zeus-stream"]
#
# [tool.uv.sources]
# zeus-stream = { path = "..", editable = true }
# ///
"""Fit zeus_stream/simulated_gpu/workloads.json to the published tables of time and power under power limits.

    uv run benchmarks/fit_workloads.py [--write]

The fit minimizes relative errors of four things at every measured limit: draw, time, energy and cost at
eta 0.5. The last two follow from the first two; they are weighed in because the simulator exists to have
its best limit found. Residuals and what the best limit under the model costs in the table are printed.
"""

import csv
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict
from scipy.optimize import least_squares  # type: ignore[import-untyped]  # scipy ships no types

from analyzers.simulation.traces import PUBLISHED
from zeus_stream.simulated_gpu.workloads import Workload

ROOT = Path(__file__).resolve().parent.parent
STARTS = 24
SEED = 2023

SOURCE = "Zeus NSDI'23 artifact, summary_power_*.csv: duration and average power of one epoch"
SCALED_SOURCE = (
    "not measured: limits, idle draw and clocks are nameplate; the workloads are the V100's, with draw scaled"
    " to the limit and time as on the V100"
)

TARGETS = {
    "cifar100": (1024, "adadelta"),
    "imagenet": (256, "adadelta"),
    "librispeech": (192, "adamw"),
    "movielens-1m": (1024, "adam"),
    "sentiment140": (128, "adamw"),
    "squad": (32, "adamw"),
}
"""Default batch size and optimizer of each workload in the artifact. Where a GPU has no row of this size, its
largest size below it is taken."""

MODELS: dict[str, dict[str, Any]] = {
    "v100": {
        "name": "Tesla V100-PCIE-16GB",
        "period_ms": 20.0,
        "window_ms": 10.0,
        "idle_clock_mhz": 135,
        "max_clock_mhz": 1380,
    },
    "a40": {
        "name": "NVIDIA A40",
        "period_ms": 100.0,
        "window_ms": 100.0,
        "idle_clock_mhz": 210,
        "max_clock_mhz": 1740,
    },
    "p100": {
        "name": "Tesla P100-PCIE-16GB",
        "period_ms": 20.0,
        "window_ms": 10.0,
        "idle_clock_mhz": 405,
        "max_clock_mhz": 1328,
    },
    "rtx6000": {
        "name": "Quadro RTX 6000",
        "period_ms": 100.0,
        "window_ms": 100.0,
        "idle_clock_mhz": 300,
        "max_clock_mhz": 2100,
    },
}

SCALED: dict[str, dict[str, Any]] = {
    "a100": {
        "name": "NVIDIA A100-SXM4-40GB",
        "period_ms": 100.0,
        "window_ms": 25.0,
        "idle_clock_mhz": 210,
        "max_clock_mhz": 1410,
        "min_limit_mw": 100_000,
        "max_limit_mw": 400_000,
        "default_limit_mw": 400_000,
        "idle_mw": 55_000,
    },
    "h100": {
        "name": "NVIDIA H100 80GB HBM3",
        "period_ms": 100.0,
        "window_ms": 25.0,
        "idle_clock_mhz": 345,
        "max_clock_mhz": 1980,
        "min_limit_mw": 200_000,
        "max_limit_mw": 700_000,
        "default_limit_mw": 700_000,
        "idle_mw": 70_000,
    },
}
"""Models that nobody published a table of: `SCALED_SOURCE`."""


NOT_FITTED = ("top_limit_mw", "top_clock_mhz", "clock_share", "slower")

OPTIMA: dict[str, tuple[float, ...]] = {
    "v100": (1140 / 1380, 1095 / 1380, 690 / 1380, 540 / 1380),
    "a100": (810 / 1410, 945 / 1410, 735 / 1410, 870 / 1410),
    "h100": (840 / 1785, 1320 / 1785, 825 / 1785, 1515 / 1785),
}
"""Clock of the least energy-delay product, relative to the highest, of four models' inference
(llama, stable diffusion, ViT, Whisper): mertside/ai-inference-energy (MIT)."""


class Table(Struct, frozen=True):
    """One workload as measured; all of shape (limits,), limits rising."""

    network: str
    batch_size: int
    limit_mw: Sequence[int]
    time_s: Sequence[float]
    power_mw: Sequence[float]


def read(gpu: str) -> list[dict[str, str]]:
    """Return the rows of one GPU's table."""
    with (PUBLISHED / f"summary_power_{gpu}.csv").open(encoding="ascii") as file:
        return list(csv.DictReader(file))


def table(rows: list[dict[str, str]], workload: str) -> Table:
    """Return what was measured at the workload's default batch size and optimizer."""
    most, optimizer = TARGETS[workload]
    sizes = {int(row["batch_size"]) for row in rows if row["dataset"] == workload}
    size = max((size for size in sizes if size <= most), default=most)
    wanted = {"dataset": workload, "batch_size": str(size), "optimizer": optimizer}
    found = sorted(
        (row for row in rows if wanted.items() <= row.items()), key=lambda row: int(row["power_limit"])
    )
    if not found:
        raise SystemExit(
            f"{workload}: no row at batch size {size} with {optimizer}: name the nearest in TARGETS."
        )
    return Table(
        found[0]["network"],
        size,
        [int(row["power_limit"]) * 1000 for row in found],
        [float(row["time_per_epoch"]) for row in found],
        [float(row["average_power"]) * 1000 for row in found],
    )


def fit(measured: Table, top_limit_mw: int) -> Workload:
    """Return the best of `STARTS` seeded least-squares fits."""
    least, most = min(measured.power_mw), max(measured.power_mw)
    low = [max(0.8 * most, least), 0.0, 0.5, 0.5, 0.0, 0.0, 0.4 * least, 0.8 * measured.time_s[-1]]
    high = [1.6 * most, 0.999 * least, 2.5, 20.0, 1.5, 5.0, 1.1 * most, 1.2 * measured.time_s[-1]]

    def residuals(parameters: Sequence[float]) -> list[float]:
        return errors(workload(top_limit_mw, parameters), measured)

    rng = np.random.default_rng(SEED)
    tried = [
        least_squares(
            residuals, rng.uniform(low, high), bounds=(low, high), diff_step=1e-3, x_scale=np.array(high)
        )
        for _ in range(STARTS)
    ]
    best = min(tried, key=lambda result: float(result.cost))
    return workload(top_limit_mw, [float(f"{value:.6g}") for value in best.x])


def workload(top_limit_mw: int, parameters: Sequence[float]) -> Workload:
    """Return the curve of these parameters, in the order of the fields."""
    names = Workload.__struct_fields__[1:]
    return Workload(top_limit_mw=top_limit_mw, **dict(zip(names, parameters, strict=True)))


def errors(model: Workload, measured: Table) -> list[float]:
    """Return log ratios of model to measurement: draw, time, energy and cost at every limit."""
    ratios = []
    for limit, time, power in zip(measured.limit_mw, measured.time_s, measured.power_mw, strict=True):
        fitted, drawn = model.epoch_s * model.slowdown(limit), model.power_mw(limit)
        cost = (drawn + model.top_limit_mw) / (power + model.top_limit_mw)
        ratios += [drawn / power, fitted / time, fitted * drawn / time / power, fitted / time * cost]
    return [math.log(ratio) for ratio in ratios]


def percent(model: Workload, measured: Table) -> dict[str, float]:
    """Return mean and largest error, in percent, of draw and time over the measured limits."""
    found = errors(model, measured)
    summary = {}
    for name, part in (("power", found[0::4]), ("time", found[1::4])):
        sizes = [abs(math.expm1(error)) * 100 for error in part]
        summary[f"{name}_mean_pct"] = round(sum(sizes) / len(sizes), 2)
        summary[f"{name}_max_pct"] = round(max(sizes), 2)
    return summary


def ranking(model: Workload, measured: Table, weight: Callable[[float], float]) -> str:
    """Return the table's best limit, the model's, and what the table says the model's costs more."""
    given = [time * weight(power) for time, power in zip(measured.time_s, measured.power_mw, strict=True)]
    fitted = [model.slowdown(limit) * weight(model.power_mw(limit)) for limit in measured.limit_mw]
    best, chosen = given.index(min(given)), fitted.index(min(fitted))
    watts = [limit // 1000 for limit in measured.limit_mw]
    return f"{watts[best]:3d} -> {watts[chosen]:3d} W ({100 * (given[chosen] / given[best] - 1):+.2f} %)"


def fit_gpu(gpu: str) -> dict[str, Any]:
    """Fit every workload of one GPU model, print how well, and return its entry for the JSON file."""
    rows = read(gpu)
    limits = sorted({int(row["power_limit"]) * 1000 for row in rows})
    workloads = {}
    for name, (_, optimizer) in TARGETS.items():
        measured = table(rows, name)
        fitted = fit(measured, limits[-1])
        residuals = percent(fitted, measured)
        energy = ranking(fitted, measured, lambda power: power)
        cost = ranking(fitted, measured, lambda power: power + limits[-1])
        print(f"{gpu:5s} {name:13s} {residuals}\n{'':19s} energy {energy}   cost(0.5) {cost}")
        kept = asdict(fitted).items()
        parameters = {key: value for key, value in kept if key not in NOT_FITTED}
        workloads[name] = {
            "network": measured.network,
            "batch_size": measured.batch_size,
            "optimizer": optimizer,
            "limits_measured": len(measured.limit_mw),
            "parameters": parameters,
            "residuals": residuals,
        }
    return {
        "source": SOURCE,
        **MODELS[gpu],
        "min_limit_mw": limits[0],
        "max_limit_mw": limits[-1],
        "default_limit_mw": limits[-1],
        "idle_mw": int(min(float(row["average_power"]) for row in rows)) * 1000,
        "workloads": workloads,
    }


def scaled(gpu: str, measured: dict[str, Any]) -> dict[str, Any]:
    """Return a model with the workloads of a measured one, their draw scaled to its highest limit."""
    factor = SCALED[gpu]["max_limit_mw"] / measured["max_limit_mw"]
    workloads = {}
    for name, fitted in measured["workloads"].items():
        powers = {key: value * factor for key, value in fitted["parameters"].items() if key.endswith("_mw")}
        kept = {key: fitted[key] for key in ("network", "batch_size", "optimizer")}
        workloads[name] = {**kept, "parameters": {**fitted["parameters"], **powers}}
    return {"source": SCALED_SOURCE, **SCALED[gpu], "workloads": workloads}


def clock_share(gpu: str, model: dict[str, Any], borrowed: float | None = None) -> dict[str, Any]:
    """Return the share of the time that follows the clock: at it the median best clock is the published one.

    ``borrowed`` is taken where nothing is published. A workload's best slowdown r has the least
    power(r) x r squared; it is at clock share / (r - 1 + share).
    """
    optima = OPTIMA.get(gpu, OPTIMA["v100"])
    wanted = median(optima)
    best = []
    for fitted in model["workloads"].values():
        work = Workload(top_limit_mw=model["max_limit_mw"], **fitted["parameters"], top_clock_mhz=1_000_000)
        stretches = [1 + step / 200 for step in range(600)]  # clock_share is 1: the clock is 1 / stretch
        top = model["max_limit_mw"]
        best.append(min(stretches, key=lambda r: work.power_mw(top, round(1_000_000 / r)) * r * r))
    shares = [step / 100 for step in range(5, 101)]

    def optimum(share: float, stretch: float) -> float:
        return share / (stretch - 1 + share)

    def off(share: float) -> float:
        return abs(math.log(median(optimum(share, stretch) for stretch in best) / wanted))

    share = min(shares, key=off) if gpu in OPTIMA or borrowed is None else borrowed
    spread = [round(optimum(share, stretch), 2) for stretch in best]
    print(f"{gpu:7s} clock share {share:.2f}; best clocks {sorted(spread)}, published {sorted(optima)}")
    lent = "" if gpu in OPTIMA else " of the V100: nobody published the model's own"
    source = (
        f"a shape, not a table: best relative clocks {', '.join(f'{one:.2f}' for one in sorted(optima))}"
        f" (energy-delay product, inference; mertside/ai-inference-energy, MIT){lent};"
        f" the model's workloads have {', '.join(f'{one:.2f}' for one in sorted(spread))}"
    )
    return {"clock_share": share, "clock_source": source}


def main() -> None:
    """Fit all, print all, and with ``--write`` ship it."""
    models: dict[str, Any] = {gpu: fit_gpu(gpu) for gpu in MODELS}
    models |= {gpu: scaled(gpu, models["v100"]) for gpu in SCALED}
    for gpu, model in models.items():
        model.update(clock_share(gpu, model, models["v100"].get("clock_share")))
    fitted = {
        "licence": "Apache-2.0",
        "fitted_by": "benchmarks/fit_workloads.py",
        "idle_mw": "the lowest average draw in the GPU's table, whole watts: it bounds idle draw from above",
        "period_ms, window_ms": "Yang, Adamek, Armour, SC24 (each GPU as its architecture)",
        "name, clocks": "nameplate",
        "models": models,
    }
    if "--write" in sys.argv[1:]:
        text = json.dumps(fitted, indent=2) + "\n"
        (ROOT / "zeus_stream" / "simulated_gpu" / "workloads.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
