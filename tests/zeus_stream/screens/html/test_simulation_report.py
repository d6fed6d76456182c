"""The page of a report draws what it is given, and says what is the same."""

import re
from typing import Any

import pytest

from analyzers.simulation.recorded_jobs import (
    sweep,
    world,
)
from analyzers.simulation.traces import read
from zeus_stream.screens.html.simulation_report import page
from zeus_stream.screens.svg.simulation_charts import front, paths


def rows(*players: tuple[str, float]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of one world, with the energy of each player."""
    common = {"world": "v100 squad", "gpu": "v100", "workload": "squad", "drift": "none", "overlap": 0.0}
    common |= {"eta": 0.5, "beta": 2.0}
    setting = {"cost_window": 0}
    return {
        "regret": [
            {**common, "player": player, "recurrence": at, "regret": at * energy, "cost": energy}
            for player, energy in players
            for at in range(3)
        ],
        "paths": [
            {**common, "player": player, "recurrence": at, "batch_size": 32}
            for player, _ in players
            for at in range(3)
        ],
        "against": [
            {**common, **setting, "player": player, "energy": energy, "time": 1.0, "energy_of_all": energy}
            for player, energy in players
        ],
        "frontier": [
            {**common, **setting, "player": player, "energy": energy, "time": 1.0}
            for player, energy in players
        ],
        "cluster": [],
        "sweep": [],
    }


def test_players_with_equal_results_are_drawn_once_and_named() -> None:
    text = page(rows(("zeus", 0.9), ("reference", 0.9), ("adaptive", 0.8)))
    assert "drawn once: reference = zeus.</p>" in text
    assert "</svg>reference = zeus</span>" in text
    assert "</svg>zeus</span>" not in text
    assert "<title>reference = zeus</title>" in text


def test_players_with_other_results_are_not_called_equal() -> None:
    text = page(rows(("zeus", 0.9), ("reference", 0.91)))
    assert "drawn once" not in text
    assert " = " not in text


def test_a_sweep_has_every_configuration_relative_to_the_default() -> None:
    traces = read()
    made = world(traces, "v100", traces.workloads["cifar100"])
    found = sweep([made, made])
    assert len(found) == len(made.competing) * len(made.limits_w)
    (default,) = (row for row in found if row["default"])
    assert (default["batch_size"], default["limit_w"]) == (1024, 250)
    assert (default["energy"], default["time"], default["cost"]) == (1, 1, 1)
    least = min(found, key=lambda row: row["energy"])
    assert least["energy"] == pytest.approx(1 - 0.7468, abs=2e-4)  # as published
    cheapest = min(found, key=lambda row: row["cost"])
    assert (cheapest["batch_size"], cheapest["limit_w"], cheapest["best_limit"]) == (128, 100, True)


def test_tries_of_one_size_are_drawn_at_their_own_limits() -> None:
    """A grid tries a size at every limit; drawn at the best one it would be a single column."""
    recorded = [
        {"gpu": "v100", "workload": "squad", "batch_size": 32, "limit_w": limit_w, "cost": 1.0 + at}
        for at, limit_w in enumerate((250, 200, 150))
    ]
    where = {"world": "v100 squad", "gpu": "v100", "workload": "squad", "drift": "none", "overlap": 0.0}
    tried = [
        {**where, "player": "grid", "recurrence": at, "batch_size": 32, "limit_w": limit_w}
        for at, limit_w in enumerate((250, 200, 150))
    ]
    (chart,) = paths(tried, recorded, {"grid": 0})
    (dots,) = re.findall(r'class="dots" d="([^"]+)"', str(chart))
    assert len(set(re.findall(r"M([\d.]+)", dots))) == 3


def test_a_front_has_what_nothing_beats_in_both() -> None:
    assert front([(3, 1), (1, 3), (2, 2), (2, 3), (3, 3), (1, 4)]) == [(1, 3), (2, 2), (3, 1)]
