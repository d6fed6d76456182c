"""Zeus's selectors: the golden choices on published profiles, and its rules for arguments."""

import csv
import inspect
import json
import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from analyzers.power_limit.selectors import parse
from zeus_stream.zeus import (
    Energy,
    GlobalPowerLimitOptimizer,
    MaxSlowdownConstraint,
    OptimumSelector,
    PowerLimitMeasurement,
    PowerMonitor,
    TemperatureMonitor,
    Time,
    ZeusCost,
    ZeusMonitor,
)
from zeus_stream.zeus.monitor.power import energy_between
from zeus_stream.zeus.monitor.readings import PowerReading
from zeus_stream.zeus.optimizer.profile_file import read_profile, write_profile

PROFILES = Path(__file__).parents[2] / "data" / "a40_profiles"
ETAS = (0.0, 0.25, 0.5, 0.75, 1.0)
FACTORS = (1.0, 1.1, 1.2, 1.5, 2.0, 3.0)


def measurements(file: str) -> list[PowerLimitMeasurement]:
    with (PROFILES / file).open(encoding="utf-8") as rows:
        return [
            PowerLimitMeasurement(
                int(row["window_name"].rpartition("_")[2]),
                float(row["gpu0_energy"]),
                float(row["elapsed_time"]),
            )
            for row in csv.DictReader(rows)
        ]


@pytest.mark.parametrize(
    ("file", "energy", "time", "costs", "slowdowns"),
    [
        (
            "A40+bert-base-uncased+gpu0.csv",
            200,
            275,
            (275, 275, 275, 200, 200),
            (275, 250, 200, 175, 150, 125),
        ),
        ("A40+resnet18+gpu0.csv", 175, 175, (175, 175, 175, 175, 175), (175, 175, 150, 150, 125, 100)),
        ("A40+resnet50+gpu0.csv", 175, 300, (300, 225, 200, 200, 175), (300, 200, 175, 175, 150, 100)),
        ("A40+shufflenetv2+gpu0.csv", 150, 300, (300, 300, 150, 150, 150), (300, 150, 150, 125, 125, 100)),
    ],
)
def test_choices_are_those_of_zeus_on_published_profiles(
    file: str, energy: int, time: int, costs: Sequence[int], slowdowns: Sequence[int]
) -> None:
    measured = measurements(file)
    assert Energy().select(measured) == energy
    assert Time().select(measured) == time
    assert [ZeusCost(eta).select(measured) for eta in ETAS] == list(costs)
    assert [MaxSlowdownConstraint(factor).select(measured) for factor in FACTORS] == list(slowdowns)


@pytest.mark.parametrize("selector", [Energy(), Time(), ZeusCost(0.25, 8), MaxSlowdownConstraint(1.15)])
def test_the_analyzer_knows_each_selector_by_its_text(selector: OptimumSelector) -> None:
    found = parse(selector.text)
    assert found is not None
    assert found.text == selector.text


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: ZeusCost(1.5), "eta_knob must be between 0 and 1"),
        (lambda: ZeusCost(0.5, 0), "world_size"),
        (lambda: MaxSlowdownConstraint(0.9), "greater than or equal to 1.0"),
        (lambda: PowerLimitMeasurement(100, 0.0, 1.0), "above 0"),
    ],
)
def test_arguments_out_of_range_are_refused(wrong: object, says: str) -> None:
    assert callable(wrong)
    with pytest.raises(ValueError, match=says):
        wrong()


def test_a_profile_is_read_as_it_was_written_and_a_broken_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    measured = (PowerLimitMeasurement(200, 40.5, 2.0), PowerLimitMeasurement(100, 30.0, 3.5))
    write_profile(path, measured)
    assert read_profile(path) == measured
    assert json.loads(path.read_text())["measurements"][0] == {
        "power_limit": 200,
        "energy": 40.5,
        "time": 2.0,
    }
    path.write_text('{"measurements": [{"power_limit": 200}]}')
    with pytest.raises(ValueError, match="could not be read as a profile"):
        read_profile(path)
    path.write_text('{"measurements": []}')
    with pytest.raises(ValueError, match="no measurements"):
        read_profile(path)


def test_energy_between_two_instants_has_its_edges_and_nothing_is_extrapolated() -> None:
    """Zeus's own integration gives 0 J for a constant power, and adds 1 kJ where power changes."""
    power = [
        PowerReading(0.0, 100.0, None, None),
        PowerReading(10.0, 100.0, None, None),
        PowerReading(12.0, 300.0, None, None),
    ]
    assert energy_between(power, 1.0, 9.0) == pytest.approx(800)
    assert math.isnan(energy_between(power, 1.0, 13.0))
    counter = [
        PowerReading(0.0, 100.0, 0.0, None),
        PowerReading(1.0, 100.0, 90.0, None),
        PowerReading(2.0, 100.0, 190.0, None),
    ]
    assert energy_between(counter, 0.5, 1.5) == pytest.approx(95)


@pytest.mark.skipif(find_spec("zeus") is None, reason="zeus 0.16 is not installed here")
def test_signatures_are_those_of_zeus() -> None:
    from zeus import monitor  # type: ignore[import-not-found, unused-ignore]
    from zeus.optimizer import power_limit  # type: ignore[import-not-found, unused-ignore]

    for ours in (ZeusMonitor, PowerMonitor, TemperatureMonitor):
        compare(ours, getattr(monitor, ours.__name__))
    for chooser in (GlobalPowerLimitOptimizer, Energy, Time, ZeusCost, MaxSlowdownConstraint):
        compare(chooser, getattr(power_limit, chooser.__name__))


def compare(ours: type, theirs: type) -> None:
    """Each public method of theirs is ours, with the same parameters and defaults."""
    for name, method in inspect.getmembers(theirs, inspect.isfunction):
        if name.startswith("_") and name != "__init__":
            continue
        mine = inspect.signature(getattr(ours, name)).parameters.values()
        reference = inspect.signature(method).parameters.values()
        assert [(each.name, each.default) for each in mine] == [
            (each.name, each.default) for each in reference
        ], name
