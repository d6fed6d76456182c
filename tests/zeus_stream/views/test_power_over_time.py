"""Power of a site by run: every joule is in one layer, and savings are where the limit chosen is in force."""

import re
from typing import Any

import pytest
from msgspec.structs import replace

from tests.zeus_stream.screens.live_snapshots import NOW_NS, a_gpu
from zeus_stream.screens.svg.frontier_chart import ChartedChoice, frontier_chart, trial_points
from zeus_stream.views.gpu_view import gpu_of_live, strips_of
from zeus_stream.views.quantity import Quantity, in_one_unit, with_half
from zeus_stream.views.saving import Saving
from zeus_stream.views.search import as_believed, eta_of, trials_of_rows
from zeus_stream.views.site_view import power_of_rows
from zeus_stream.views.waste import waste_parts

SAVING = Saving(
    level="200 W", found="250 W, the limit found", kept=False, applied=True, energy=Quantity(20.0, "%"),
    time=Quantity(3.0, "%"), saved=Quantity(1.0, "J"),
)  # fmt: skip


def part(
    gpu: str,
    bucket: int,
    energy_j: float,
    limit_w: float | None = 250.0,
    *,
    run: str = "",
    own_s: float = 2.0,
) -> dict[str, Any]:
    return {
        "gpu": gpu, "bucket": bucket, "run": run, "energy_j": energy_j, "own_s": own_s, "covered_s": 2.0,
        "limit_w": limit_w,
    }  # fmt: skip


def test_every_joule_is_in_one_layer_and_savings_are_where_the_limit_is_in_force() -> None:
    run = {"run": "r", "job": "j"}
    rows = [
        part("a", 0, 60, own_s=1.8), part("a", 0, 40, run="r", own_s=0.2), part("a", 1, 400, run="r"),
        part("a", 2, 320, 200.0, run="r"), part("b", 2, 60),
    ]  # fmt: skip
    power = power_of_rows(rows, [run], 0, 2.0, 3, {"r": SAVING}, {2: 80.0})
    assert [(layer.run, layer.watts) for layer in power.layers] == [
        ("r", (20.0, 200.0, 160.0)), ("", (30.0, 0.0, 30.0))
    ]  # fmt: skip
    assert sum(layer.energy.known or 0 for layer in power.layers) == sum(row["energy_j"] for row in rows)
    assert power.layers[0].power.known == pytest.approx((40 + 400 + 320) / 4.2), (
        "while it ran: not whole buckets"
    )
    assert list(power.saved_w) == [0.0, 0.0, 40.0]
    assert power.saved.known == 80.0, "the hatched area is the joules that its steps saved"
    assert power.limit_w == (250.0, 250.0, 450.0)


def test_a_limit_that_is_not_known_leaves_a_hole_in_the_line_of_limits() -> None:
    power = power_of_rows([part("a", 0, 100), part("b", 0, 100, None)], [], 0, 2.0, 1, {}, {})
    assert power.limit_w == (None,)


def test_a_gpu_that_rests_and_is_read_rarely_keeps_its_limit() -> None:
    rows = [part("B", 1, 500.0, 200.0), part("A", 1, 68.0, None), part("A", 0, 68.0), part("B", 0, 500.0)]
    assert power_of_rows(rows, [], 0, 2.0, 2, {}, {}).limit_w == (500.0, 450.0)


def test_of_a_gpu_that_nobody_reads_the_limit_is_not_known() -> None:
    """It may have been given back: the chart had the one before for as long as no collector ran."""
    rows = [part("A", at, 68.0, None if at else 250.0) for at in range(9)]
    assert power_of_rows(rows, [], 0, 2.0, 9, {}, {}).limit_w == (*[250.0] * 7, None, None)


def test_limits_are_compared_with_the_one_found_and_have_words() -> None:
    def trial(limit_w: float, step_j: float, *, number: int = 2, confirms: bool = False) -> dict[str, Any]:
        return {
            "round": number, "power_limit_w": limit_w, "clock_mhz": None, "steps": 40, "step_j": step_j,
            "step_s": 0.1, "cost_j": None, "confirms": confirms,
        }  # fmt: skip

    rows = [  # round 1 chose another limit
        trial(200.0, 4.0, number=1),
        trial(250.0, 10.0),
        trial(200.0, 9.0),
        trial(150.0, 9.5),
        trial(200.0, 9.1, confirms=True),
    ]
    within = {
        (2, 250.0): {"energy_within_j": 0.12, "step_within_s": 0.0},
        (2, 200.0): {"energy_within_j": 0.045, "step_within_s": 0.0004},
    }
    views = trials_of_rows(rows, within, 250.0, {2: 200.0})
    assert [(view.level, view.mark, view.old) for view in views] == [
        ("200 W", "", True), ("250 W", "found", False), ("200 W", "chosen", False),
        ("200 W", "confirmed", False), ("150 W", "", False),
    ]  # fmt: skip
    assert with_half(views[2].energy_change) == "-10.0 ± 1.4 %", "0.9 x (0.5, 1.2, drift of 0.83 %)"
    assert views[4].energy_change.interval is None, "that of 150 W is not known"
    assert with_half(views[1].energy_change) == "0 %"
    points = trial_points(views)
    assert [(each.role, each.old) for each in points if each.name == "200 W"] == [
        ("", True), ("chosen", False), ("confirmed", False)
    ]  # fmt: skip
    drawn = frontier_chart(points, ("ms", "J"), "words")
    assert drawn.count('class="point old"') == drawn.count('class="point confirmed"') == 1
    assert drawn.count("200 W") == 3 + 2, "five titles and labels: that of an old point has no label"


def test_a_round_that_has_decided_shows_what_its_search_believed() -> None:
    """A busy host delayed steps at 200 W: their mean is 12 % longer; the choice states 5 %, and its row."""
    decided = {
        "run": "r", "trials_run": "r", "selector": "cost:0.5", "power_limit_w": 200.0,
        "default_limit_w": 250.0, "applied": True, "saved_j": 1.0, "steps_at_limit": 1, "reason": "",
        "energy_saved_percent": 15.0,
        "energy_saved_low_percent": 14.0, "energy_saved_high_percent": 16.0, "time_added_percent": 5.0,
        "time_added_low_percent": 4.0, "time_added_high_percent": 6.0,
    }  # fmt: skip
    measured = [(250.0, 10.0, 0.1), (225.0, 9.5, 0.101), (200.0, 8.8, 0.112), (200.0, 8.6, 0.107)]
    rows = [
        {"round": 1, "power_limit_w": limit_w, "clock_mhz": None, "steps": 40, "step_j": step_j,
         "step_s": step_s, "cost_j": 0.5 * step_j + (30.0 if at == 1 else 50.0) * step_s, "confirms": at == 3}
        for at, (limit_w, step_j, step_s) in enumerate(measured)
    ]  # fmt: skip
    believed = {
        (1, limit_w): {"step_j": step_j, "step_s": step_s, "chosen_limit_w": 200.0}
        for limit_w, step_j, step_s in ((250.0, 10.0, 0.1), (225.0, 9.4, 0.1), (200.0, 8.5, 0.105))
    }
    within = {(1, 200.0): {"energy_within_j": 0.1, "step_within_s": 0.001}}
    views = as_believed(rows, within, believed, decided)
    found, other, chosen, confirmed = views
    assert (found.mark, other.mark, chosen.mark, confirmed.mark) == ("found", "", "chosen", "confirmed")
    assert chosen.energy_change.interval == (-16.0, -14.0)
    assert chosen.time_change == Quantity(5.0, "%", 4.0, 6.0, absent=chosen.time_change.absent)
    assert with_half(other.energy_change) == "-6.0 %"
    assert chosen.cost.known == pytest.approx(0.5 * 8.5 + 50.0 * 0.105), "as the cost that decides"
    assert other.cost.known == pytest.approx(0.5 * 9.4 + 50.0 * 0.1), "of one round, all are weighed alike"
    assert with_half(confirmed.time_change) == "+7.0 %", "one visit, as measured: its scatter is not known"
    unset = as_believed(rows[1:], within, {}, {**decided, "applied": False, "would_save_j": 1.0})
    assert unset[1].energy_change.interval == (-16.0, -14.0), "of a run that ended within its search as well"


@pytest.mark.parametrize(
    ("selector", "eta"), [("energy", 1.0), ("time", 0.0), ("cost:0.3", 0.3), ("edp:2", None), (None, None)]
)
def test_a_cost_has_a_share_of_energy(selector: str | None, eta: float | None) -> None:
    assert eta_of(selector) == eta


@pytest.mark.parametrize("beside", [(61.4, 25.2), (71.5, 25.0), (63.8, 29.7)])
def test_a_label_does_not_lie_on_another_point_or_label(beside: tuple[float, float]) -> None:
    def point(name: str, ms: float, joules: float, role: str) -> ChartedChoice:
        return ChartedChoice(name=name, time=Quantity(ms, "ms"), energy=Quantity(joules, "J/step"), role=role)

    points = [
        point("300 W", 60.0, 30.0, "found"), point("225 W", 62.4, 25.0, "chosen"),
        point("225 W", *beside, "confirmed"), point("175 W", 75.0, 24.0, ""),
    ]  # fmt: skip
    drawn = frontier_chart(points, ("ms", "J"), "words")
    dots = [tuple(map(float, at)) for at in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', drawn)]
    texts = re.findall(r'class="name" text-anchor="start" x="([\d.]+)" y="([\d.]+)">([^<]+)<', drawn)
    assert "225 W chosen" in [text for *_, text in texts]
    for x, y, text in texts:
        covered = [
            a for a, b in dots if float(x) < a < float(x) + 6.6 * len(text) and abs(b - float(y) + 4) < 6
        ]
        assert not covered, text
    boxes: list[tuple[float, float, float]] = []
    for anchor, x, y, text in re.findall(
        r'text-anchor="(start|end)" x="([\d.]+)" y="([\d.]+)">([^<]+ W[^<]*)<', drawn
    ):
        wide = 6.6 * 16 / 12 * len(text)  # on a phone letters are larger, the chart is not
        left = float(x) - (wide if anchor == "end" else 0)
        assert all(abs(float(y) - b) >= 16 or left + wide <= a or c <= left for a, b, c in boxes), text
        boxes.append((left, float(y), left + wide))


def test_gpus_with_one_trouble_say_it_once() -> None:
    gpus = tuple(gpu_of_live(replace(a_gpu(n), state="silent", age_ms=36_000), NOW_NS) for n in range(8))
    (strip,) = strips_of(gpus)
    assert strip.words == "8 GPUs, no reading for 36 s"


def test_a_change_has_two_decimals_at_most_and_no_interval_is_0() -> None:
    assert with_half(Quantity(-22.1364, "%", -22.1844, -22.0884)) == "-22.14 ± 0.05 %"
    assert with_half(Quantity(-22.1364, "%", -22.1365, -22.1363)) == "-22.14 ± under 0.01 %"


def test_figures_of_one_column_have_one_unit() -> None:
    assert in_one_unit([762_300.0, 98_703.0, None, 12.0], "J") == ["762.3 kJ", "98.7 kJ", "-", "under 0.1 kJ"]
    assert in_one_unit([300.0, 42.0, -1.0, 0.0], "s") == ["5.00 min", "0.70 min", "-", "0 min"]


def test_the_parts_of_an_open_run_have_their_share_of_the_energy_so_far() -> None:
    row = {"cause": "validation", "energy_j": 50.0, "duration_s": 1.0, "share": None}
    assert [str(part.share) for part in waste_parts([row], 200.0)] == ["25.0 %"]
    assert [part.share.absent for part in waste_parts([row])] == ["the run is not closed yet"]
