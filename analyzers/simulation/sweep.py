"""Energy, time and cost of a training at every recorded batch size and power limit. Pure."""

from collections.abc import Iterable
from typing import Any

from analyzers.simulation.recorded_jobs import (
    World,
)


def sweep(worlds: Iterable[World]) -> list[dict[str, Any]]:
    """Return a row for each configuration at which every recorded run reaches the target.

    Energy, time and cost are means over the runs, relative to the default batch size at the highest limit.
    Of several worlds with the same recordings the first counts; of a pool, each GPU model.
    ``limit_rank`` and ``size_rank`` count from the lowest; ``best_limit`` is that of least cost of the size.
    """
    rows: list[dict[str, Any]] = []
    seen = set[tuple[str, str]]()
    for made in (member for one in worlds for member in one.pool or (one,)):
        if (made.gpu, made.dataset) in seen:
            continue
        seen.add((made.gpu, made.dataset))
        default = made.by_default
        limits = sorted(made.limits_w)
        for rank, batch_size in enumerate(made.competing):
            size = made.sizes[batch_size]
            best = size.limits_w[size.epochs.index(size.best)]
            rows += [
                {
                    "gpu": made.gpu,
                    "workload": made.dataset,
                    "batch_size": batch_size,
                    "size_rank": rank,
                    "limit_w": limit_w,
                    "limit_rank": limits.index(limit_w),
                    "default": (batch_size, limit_w) == (made.job.default, limits[-1]),
                    "default_size": batch_size == made.job.default,
                    "best_limit": limit_w == best,
                    "energy": size.mean_epochs * epoch.energy_j / default.energy_j,
                    "time": size.mean_epochs * epoch.time_s / default.time_s,
                    "cost": size.mean_epochs * epoch.cost_j / default.cost_j,
                }
                for limit_w, epoch in zip(size.limits_w, size.epochs, strict=True)
            ]
    return rows
