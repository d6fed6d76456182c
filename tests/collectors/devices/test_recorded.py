"""What a driver answered is written down, and answered again at the same times."""

import json
from pathlib import Path

import anyio
import pytest

from benchmarks.cards import Time
from collectors.devices.recorded import RecordedBus, record
from collectors.devices.simulated import SimulatedBus
from collectors.devices.simulated_spec import Spec, parse
from tests.collectors.test_service import PATIENCE_S, changes_of, collector
from tests.simulation.scheduled_loads import ScheduledLoads
from zeus_stream.errors import LostError, RetryError, SettingsError, UnsupportedError
from zeus_stream.protocol.fields import UNLOCKED
from zeus_stream.simulated_gpu.shared_memory import LimitChange

MS = 1_000_000
STEP = Path(__file__).parents[2] / "data" / "rtx3090_step"


def simulated(text: str, time: Time) -> SimulatedBus:
    """Return simulated GPUs at rest, in that time."""

    def surroundings(_gpu: str, spec: Spec) -> ScheduledLoads:
        return ScheduledLoads(first=LimitChange(time.now_ns - 10**9, spec.model.default_limit_mw, UNLOCKED))

    return SimulatedBus(parse(text), surroundings, time.now, time.sleep, "host")


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Four seconds of two simulated GPUs; the second answers nothing for a while, and is then lost."""
    time = Time()
    bus = simulated("simulated:v100,phase_ms=7+v100,seed=2,fault=timeout@1-2,fault=lost@3", time)
    count = record(bus.discover(), tmp_path / "rec", time.now_ns + 4000 * MS, time.sleep, 0.001, time.now)
    assert count > 300
    bus.close()
    return tmp_path / "rec"


def test_a_recording_gives_the_answers_and_the_errors_of_then(recording: Path) -> None:
    time = Time()
    first, second = RecordedBus(recording, time.now).discover()
    begun_ns = time.now_ns
    assert first.describe().name == "Tesla V100-PCIE-16GB"
    energies_mj = []
    for _ in range(390):
        energies_mj.append(first.sample().energy_mj)
        time.sleep(0.01)
    grown_mj = {
        after - before
        for before, after in zip(energies_mj, energies_mj[2:], strict=False)
        if before is not None and after is not None
    }
    assert grown_mj == {680}, "34 W and a refresh every 20 ms"
    for at_ms, error in ((500, None), (1500, RetryError), (3500, LostError), (4500, LostError)):
        later = Time()
        again = RecordedBus(recording, later.now).discover()[1]
        later.now_ns += at_ms * MS
        if error is None:
            assert again.sample().energy_mj is not None
        else:
            with pytest.raises(error):
                again.sample()
    time.now_ns = begun_ns + 10_000 * MS
    with pytest.raises(LostError, match="its recording is over"):
        first.sample()
    with pytest.raises(UnsupportedError, match="it is a recording"):
        second.set_control("power_limit", 200_000)


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="could not be read as a recording"):
        RecordedBus(tmp_path)


@pytest.mark.anyio
async def test_a_recorded_gpu_goes_through_the_collector(recording: Path, zeus_dir: Path) -> None:
    described = json.loads((recording / "devices.json").read_text())
    renamed = [each | {"gpu": f"GPU-000{place}"} for place, each in enumerate(described)]
    (recording / "devices.json").write_text(json.dumps(renamed))
    async with collector(RecordedBus(recording), zeus_dir, 2) as client:
        with anyio.fail_after(PATIENCE_S):
            while len(changes := changes_of(await client.frames(), 0)) < 30:
                await anyio.sleep(0.05)
    assert set(changes["energy_mj"][1:] - changes["energy_mj"][:-1]) <= {680 * n for n in range(1, 200)}


def test_power_readings_beside_a_meter_are_a_recording() -> None:
    time = Time()
    (gpu,) = RecordedBus(STEP, time.now).discover()
    assert not gpu.describe().counts_energy
    assert gpu.describe().name == "NVIDIA GeForce RTX 3090", "so what is known of its sensor counts"
    seen_mw = set()
    for _ in range(1000):
        seen_mw.add(gpu.sample().power_mw)
        time.sleep(0.006)
    assert len(seen_mw) > 50
    assert gpu.sample().energy_mj is None
