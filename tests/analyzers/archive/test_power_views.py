"""Views of the power of many GPUs together: how it swings, and how well it follows a load signal."""

from collections.abc import Callable
from datetime import datetime, timedelta
from math import cos, pi
from operator import itemgetter
from random import Random

import duckdb
import pyarrow as pa
import pytest

from zeus_stream.views.site_view import SWINGS, SwingsView, swings_of_rows

BEGAN = datetime(2026, 1, 1, 7, 0)  # noqa: DTZ001  (a column without a zone is UTC)
LASTS_S = 130


def begin(tables: duckdb.DuckDBPyConnection, gpus: tuple[str, ...], began_s: float = 0.0) -> None:
    """Store a run of some GPUs that has ended, and the GPUs."""
    ended_at = BEGAN + timedelta(seconds=LASTS_S)
    tables.execute(
        "INSERT INTO sessions BY NAME"
        " SELECT 'run' AS run, $1 AS gpus, 1 AS ended_ns, $2::TIMESTAMP AS ended_at,"
        " $3::TIMESTAMP AS began_at",
        [list(gpus), ended_at, BEGAN + timedelta(seconds=began_s)],
    )
    for gpu in gpus:
        tables.execute("INSERT INTO gpus BY NAME SELECT $1 AS gpu", [gpu])
        tables.execute(
            "INSERT INTO minutes BY NAME SELECT $1 AS gpu, $2::TIMESTAMP AS began_at",
            [gpu, ended_at - timedelta(minutes=1)],
        )


def read(
    tables: duckdb.DuckDBPyConnection, gpu: str, period_s: float, energy_j: Callable[[float], float],
    seen: str = "changed", lost_s: tuple[float, float] = (0.0, 0.0),
) -> None:  # fmt: skip
    """Store readings of a GPU: each some ms late, and none in a stretch in which its collector was away."""
    rng, at_s = Random(gpu), 0.0
    rows: list[tuple[int, int, int]] = []
    while (at_s := at_s + period_s) < LASTS_S:
        late_s = at_s + rng.uniform(0, 0.003)
        if not lost_s[0] < late_s < lost_s[1]:
            power_mw = (energy_j(late_s + 1e-4) - energy_j(late_s)) * 1e7
            rows.append((round(late_s * 1e6), round(energy_j(late_s) * 1000), round(power_mw)))
    readings = pa.table(dict(zip(("at_us", "energy_mj", "power_mw"), zip(*rows, strict=True), strict=True)))
    counter = "energy_mj" if seen == "changed" else "NULL"
    tables.register("read_now", readings)
    tables.execute(
        f"INSERT INTO readings BY NAME SELECT '{gpu}' AS gpu, {counter} AS energy_mj,"  # noqa: S608
        f" power_mw, '{seen}' AS seen, TIMESTAMP '{BEGAN}' + to_microseconds(at_us) AS read_at FROM read_now"
    )


def wave(mean_w: float, swing_w: float, hz: float, phase: float = 0.0) -> Callable[[float], float]:
    """Return the energy of a sine around a mean."""
    turn = 2 * pi * hz
    return lambda t_s: mean_w * t_s + swing_w / turn * (cos(phase) - cos(turn * t_s + phase))


def swings(tables: duckdb.DuckDBPyConnection, run: str = "'run'") -> SwingsView | None:
    return swings_of_rows(tables.sql(SWINGS.format(run=run)).to_arrow_table().to_pylist())


def largest(view: SwingsView) -> tuple[float, float]:
    return max(view.points, key=itemgetter(1))


@pytest.mark.parametrize(
    ("period_s", "hz", "seen"),
    [
        pytest.param(0.1, 0.25, "changed", id="slow, by a counter"),
        pytest.param(0.1, 4.5, "changed", id="near the end of what its readings show"),
        pytest.param(0.02, 17.0, "changed", id="fast"),
        pytest.param(0.1, 0.85, "power", id="without a counter"),
    ],
)
@pytest.mark.parametrize("run", ["'run'", "NULL"])
def test_gpus_in_step_swing_by_the_sum_of_their_amplitudes(
    tables: duckdb.DuckDBPyConnection, period_s: float, hz: float, seen: str, run: str
) -> None:
    begin(tables, ("a", "b", "c"))
    for gpu, swing_w in (("a", 100.0), ("b", 60.0), ("c", 0.0)):
        read(tables, gpu, period_s, wave(300, swing_w, hz), seen)
    view = swings(tables, run)
    assert view is not None
    swings_hz, amplitude_w = largest(view)
    assert swings_hz == pytest.approx(hz, abs=0.026)
    assert amplitude_w == pytest.approx(160, rel=0.03)
    assert "of its mean. Readings every" in view.headline
    assert view.points[-1][0] == pytest.approx(min(20.0, 0.5 / period_s), abs=0.05)
    far = [amplitude for at_hz, amplitude in view.points if abs(at_hz - hz) > 0.3]
    assert max(far) < 8


def test_gpus_in_turn_do_not_swing_together(tables: duckdb.DuckDBPyConnection) -> None:
    begin(tables, ("a", "b"))
    read(tables, "a", 0.1, wave(300, 100, 1.0))
    read(tables, "b", 0.1, wave(300, 100, 1.0, pi))
    view = swings(tables)
    assert view is not None
    assert view.headline.startswith("No swing is above 1 % of its mean.")


def test_a_stretch_that_lacks_readings_is_left_out(tables: duckdb.DuckDBPyConnection) -> None:
    begin(tables, ("a", "b"))
    read(tables, "a", 0.1, wave(300, 100, 1.0))
    read(tables, "b", 0.1, wave(300, 100, 1.0), lost_s=(20, 65))
    view = swings(tables)
    assert view is not None
    assert largest(view)[1] == pytest.approx(200, rel=0.05)


def test_a_run_does_not_swing_by_what_its_gpus_did_before_it(tables: duckdb.DuckDBPyConnection) -> None:
    """Runs of under two minutes began at rest: their first step was their largest swing."""
    begin(tables, ("a",), began_s=85)
    run_j = wave(300, 30, 1.0)
    read(tables, "a", 0.1, lambda t_s: 50 * min(t_s, 85) + run_j(t_s) - run_j(min(t_s, 85)))
    view = swings(tables)
    assert view is not None
    assert largest(view) == pytest.approx((1.0, 30), rel=0.05)
    assert "10.0 % of its mean" in view.headline


def test_without_readings_nothing_is_said(tables: duckdb.DuckDBPyConnection) -> None:
    begin(tables, ("a",))
    assert swings(tables) is None


def test_a_minute_is_outside_if_what_was_drawn_is_more_than_two_percent_off(
    tables: duckdb.DuckDBPyConnection,
) -> None:
    tables.execute(
        "INSERT INTO budgets BY NAME SELECT 'site' AS budget, 5 AS set_ns, ['a', 'b'] AS gpus"
        " UNION ALL BY NAME SELECT 'site' AS budget, 4 AS set_ns, ['z'] AS gpus"
    )
    for minute, drawn_w in enumerate((500.0, 495.0, 480.0, 520.0)):
        began_at = BEGAN + timedelta(minutes=minute)
        for gpu in ("a", "b", "z"):
            tables.execute(
                "INSERT INTO seconds BY NAME SELECT $1 AS gpu, $2::TIMESTAMP AS began_at, $3 AS energy_j,"
                " 59.0 AS covered_s",
                [gpu, began_at, drawn_w / 2 * 59],
            )
        for part in range(6):
            tables.execute(
                "INSERT INTO budget_targets BY NAME SELECT 'site' AS budget, $1::TIMESTAMP AS target_at,"
                " $2 AS target_w, 600.0 AS most_w",
                [began_at + timedelta(seconds=10 * part), 500.0 if minute < 3 else 505.0 + 5 * part],
            )
    found = tables.sql(
        "SELECT drawn_w, target_w, error_w, outside FROM budget_tracking ORDER BY began_at"
    ).fetchall()
    assert found == [
        (pytest.approx(500), 500, pytest.approx(0, abs=1e-9), False),
        (pytest.approx(495), 500, pytest.approx(-5), False),
        (pytest.approx(480), 500, pytest.approx(-20), True),
        (pytest.approx(520), 517.5, pytest.approx(2.5), False),
    ]
