"""Sensor cards of simulated and of recorded GPUs, and simulated GPUs of cards."""

import json
from pathlib import Path

import msgspec
import pytest

from collectors.devices.nvml_bus import NvmlBus
from collectors.devices.recorded import RecordedBus
from collectors.devices.sensor_card import SCHEMA, SensorCard, make_card, read_card, read_closely
from collectors.devices.simulated_spec import parse
from tests.collectors.devices.test_recorded import MS, STEP, Time, simulated
from tests.gpu.stand_in import StandIn
from zeus_stream.cli.doctor import try_limits
from zeus_stream.errors import SettingsError

W = 1000


def card_of(text: str, seconds: int = 5) -> SensorCard:
    time = Time()
    (device,) = simulated(text, time).discover()
    reads = read_closely(device, time.now_ns + seconds * 1000 * MS, time.sleep, 0.001, time.now)
    return make_card(device.describe(), reads)


def test_the_card_of_a_simulated_gpu_has_its_period_its_quantum_and_no_failure() -> None:
    card = card_of("simulated:v100,phase_ms=7")
    assert card.counter is not None
    assert card.counter.period_ms == pytest.approx(20, rel=0.01)
    assert card.counter.jitter_ms < 1
    assert card.counter.quantum == 680
    assert (card.power, card.failed_reads, card.least_power_mw) == (None, 0, 34 * W)
    assert card.counter_to_power == pytest.approx(1, rel=0.01)
    assert (card.requested_mw, card.enforced_mw, card.sets) == (250 * W, 250 * W, None)
    lines = card.lines()
    assert len(lines) == 10
    assert "every 20.0 ms" in lines[3]


def test_a_card_is_json_of_its_schema_and_makes_a_simulated_gpu_with_that_sensor(tmp_path: Path) -> None:
    card = card_of("simulated:a40,period_ms=50,jitter_ms=2")
    path = tmp_path / "card.json"
    path.write_bytes(msgspec.json.encode(card))
    assert read_card(path) == card
    assert set(json.loads(path.read_text())) == set(SCHEMA["$defs"]["SensorCard"]["properties"])
    (spec,) = parse(f"simulated:{path}")
    assert spec.key == "a40"
    assert spec.period_ms == pytest.approx(50, rel=0.02)
    assert 0 < spec.jitter_ms < 5
    again = card_of(f"simulated:{path}")
    assert again.counter is not None
    assert again.counter.period_ms == pytest.approx(50, rel=0.02)
    path.write_text("{}")
    with pytest.raises(SettingsError, match="is no sensor card"):
        parse(f"simulated:{path}")


def test_the_card_of_the_recorded_rtx_3090_has_no_counter_and_its_power_every_100_ms() -> None:
    time = Time()
    (device,) = RecordedBus(STEP, time.now).discover()
    card = make_card(
        device.describe(), read_closely(device, time.now_ns + 9000 * MS, time.sleep, 0.001, time.now)
    )
    assert card.counter is None
    assert card.power is not None
    assert card.power.period_ms == pytest.approx(100, rel=0.03)
    assert card.counter_to_power is None


def test_limits_that_are_tried_show_how_a_driver_rounds_and_are_given_back(
    stand_in: StandIn, nvml_bus: NvmlBus, tmp_path: Path
) -> None:
    gpu = stand_in.gpus[0]
    gpu.requested_mw, gpu.round_mw = 220 * W, 5 * W
    device = nvml_bus.discover()[0]
    found = try_limits(device, tmp_path)
    assert found is not None
    assert found.asked_mw == (219 * W, 217_500, 215 * W, 210 * W)
    assert found.rounding_mw in (2_500, 1_000)
    assert found.restored_mw == gpu.requested_mw == 220 * W
    assert not list(tmp_path.glob("*.json")), "its restore record is cleared"
    gpu.fail("nvmlDeviceSetPowerManagementLimit", 4)
    refused = try_limits(device, tmp_path)
    assert refused is not None
    assert (refused.asked_mw, "CAP_SYS_ADMIN" in refused.reason) == ((), True)
    assert gpu.requested_mw == 220 * W
