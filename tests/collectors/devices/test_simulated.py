from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.devices.simulated import SimulatedBus, SimulatedDevice
from collectors.devices.simulated_spec import Spec, parse
from tests.simulation.scheduled_loads import ScheduledLoads
from zeus_stream.errors import LostError, RefusedError, RetryError
from zeus_stream.protocol.fields import UNLOCKED
from zeus_stream.simulated_gpu.shared_memory import Board, LimitChange, Load

MS = 1_000_000
START_NS = 10**12


@dataclass
class Lab:
    """One simulated GPU in arithmetic time."""

    options: str = ""
    now_ns: int = START_NS
    schedule: ScheduledLoads = field(
        default_factory=lambda: ScheduledLoads(first=LimitChange(START_NS, 250_000))
    )

    def __post_init__(self) -> None:
        (spec,) = parse(f"simulated:v100{self.options}")
        self.model = spec.model
        self.gpu = SimulatedDevice(spec, 0, self.schedule, lambda: self.now_ns, self.sleep)

    def sleep(self, duration_s: float) -> None:
        self.now_ns += round(duration_s * 1e9)

    def at(self, since_ms: float) -> None:
        self.now_ns = START_NS + round(since_ms * MS)

    def load(self, begin_ms: float, until_ms: float, workload: str = "imagenet") -> None:
        self.schedule.pending.append(
            Load(START_NS + round(begin_ms * MS), START_NS + round(until_ms * MS), workload)
        )

    def energy_mj(self) -> int:
        energy_mj = self.gpu.sample().energy_mj
        assert energy_mj is not None
        return energy_mj


def test_the_counter_holds_the_truth_up_to_its_last_refresh() -> None:
    lab = Lab(",phase_ms=0,noise=0.02")
    lab.load(10, 300)
    lab.at(119)
    assert lab.energy_mj() == int(lab.gpu.energy_mj(START_NS, START_NS + 100 * MS))
    lab.at(120)
    assert lab.energy_mj() == int(lab.gpu.energy_mj(START_NS, START_NS + 120 * MS))


def test_power_is_the_mean_of_the_window_before_the_last_refresh() -> None:
    lab = Lab(",phase_ms=0,window_ms=10")
    lab.load(35, 60)
    busy_mw = lab.model.workloads["imagenet"].power_mw(250_000)
    lab.at(59)
    sample = lab.gpu.sample()
    assert sample.power_mw == (busy_mw + lab.model.idle_mw) // 2
    assert sample.utilization_pct == 50


def test_a_locked_clock_shows_at_work_as_far_as_the_limit_lets_it() -> None:
    lab = Lab(",phase_ms=0")
    lab.load(0, 1000)
    lab.at(500)
    limited_mhz = lab.gpu.sample().clock_mhz
    lab.gpu.set_control("graphics_clock", 1380)
    assert lab.gpu.sample().clock_mhz == limited_mhz
    lab.gpu.set_control("graphics_clock", 600)
    assert lab.gpu.sample().clock_mhz == lab.gpu.locked_mhz("graphics_clock") == 600
    lab.gpu.set_control("graphics_clock", UNLOCKED)
    assert lab.gpu.sample().clock_mhz == limited_mhz


@given(st.lists(st.integers(1, 120), min_size=1, max_size=20), st.sampled_from(["", ",kind=boxcar"]))
def test_the_counter_of_a_sampled_gpu_never_falls(waits_ms: list[int], kind: str) -> None:
    lab = Lab(f",noise=0.1,jitter_ms=4{kind}")
    seen = at_ms = 0
    for wait_ms in waits_ms:
        lab.load(at_ms, at_ms + wait_ms // 2)
        at_ms += wait_ms
        lab.at(at_ms)
        energy_mj = lab.energy_mj()
        assert energy_mj >= seen
        seen = energy_mj


def test_a_limit_takes_effect_when_its_slow_setter_returns() -> None:
    lab = Lab(",set_ms=50")
    lab.load(0, 1000, "squad")
    lab.at(100)
    lab.gpu.set_control("power_limit", 100_000)
    assert lab.now_ns == START_NS + 150 * MS
    lab.at(200)
    squad = lab.model.workloads["squad"]
    true_mj = lab.gpu.energy_mj(START_NS + 100 * MS, START_NS + 200 * MS)
    assert true_mj == 0.05 * (squad.power_mw(250_000) + squad.power_mw(100_000))
    assert lab.gpu.sample().limit_mw == lab.gpu.read_control("power_limit") == 100_000


def test_a_gpu_with_power_readings_only_says_so() -> None:
    lab = Lab(",power_only=1")
    assert not lab.gpu.describe().counts_energy
    assert lab.gpu.sample().energy_mj is None


@pytest.mark.parametrize(("fault", "error"), [("lost", LostError), ("timeout", RetryError)])
def test_a_fault_lasts_exactly_as_long_as_it_was_ordered_to(fault: str, error: type[Exception]) -> None:
    lab = Lab(f",fault={fault}@5-8")
    lab.at(4999)
    lab.gpu.sample()
    for now_ms in (5000, 7999):
        lab.at(now_ms)
        with pytest.raises(error, match=r"^GPU-.*: could not be read: .*\. It is "):
            lab.gpu.sample()
    lab.at(8000)
    lab.gpu.sample()


def test_a_call_blocks_until_the_end_of_a_hang() -> None:
    lab, healthy = Lab(",fault=hang@1-3"), Lab()
    lab.at(999)
    lab.gpu.sample()
    assert lab.now_ns == START_NS + 999 * MS
    for one in (lab, healthy):
        one.load(0, 4000)
    lab.at(1200)
    hung_mj = lab.energy_mj()
    assert lab.now_ns == START_NS + 3000 * MS
    healthy.at(3000)
    assert hung_mj == healthy.energy_mj(), "it shows the value of its end"
    lab.gpu.sample()
    assert lab.now_ns == START_NS + 3000 * MS


def test_time_that_a_gpu_was_lost_is_in_its_counter_when_it_returns() -> None:
    lab, healthy = Lab(",fault=lost@1-2"), Lab()
    for one in (lab, healthy):
        one.load(0, 3000)
        one.at(3000)
    assert lab.energy_mj() == healthy.energy_mj()


def test_a_counter_reset_starts_over_once() -> None:
    lab = Lab(",fault=reset@10,phase_ms=0")
    lab.at(9_990)
    before = lab.energy_mj()
    lab.at(10_100)
    after = lab.energy_mj()
    assert after == lab.model.idle_mw // 10 < before
    lab.at(10_200)
    assert lab.energy_mj() == 2 * after


def test_the_truth_is_refused_for_times_nobody_knows() -> None:
    lab = Lab()
    lab.at(10)
    with pytest.raises(RefusedError, match="nothing is known before"):
        lab.gpu.energy_mj(START_NS - 1, START_NS + 1)


def test_a_lower_limit_shows_in_clock_power_and_temperature() -> None:
    lab = Lab()
    lab.load(0, 10_000)
    lab.at(1000)
    free = lab.gpu.sample()
    lab.gpu.set_control("power_limit", 100_000)
    lab.at(2000)
    capped = lab.gpu.sample()
    assert (capped.power_mw or 0) < (free.power_mw or 0)
    assert (capped.clock_mhz or 0) < (free.clock_mhz or 0)
    assert (capped.temperature_c or 0) < (free.temperature_c or 0)


@pytest.mark.parametrize(("away_s", "counted_s"), [(3, 4), (601, 1)])
def test_the_counter_runs_on_while_no_collector_does_unless_the_gpu_was_off(
    tmp_path: Path, away_s: int, counted_s: int
) -> None:
    now_ns = START_NS

    def board(gpu: str, spec: Spec) -> Board:
        return Board(tmp_path, gpu, spec.key, spec.model.default_limit_mw, START_NS)

    def start() -> tuple[SimulatedBus, SimulatedDevice]:
        bus = SimulatedBus(parse("simulated:v100,phase_ms=0"), board, lambda: now_ns)
        return bus, bus.discover()[0]

    bus, gpu = start()
    now_ns += 10**9
    gpu.sample()
    gpu.set_control("power_limit", 150_000)
    bus.close()
    now_ns += away_s * 10**9
    bus, gpu = start()
    sample = gpu.sample()
    assert sample.energy_mj == counted_s * 34_000
    assert sample.requested_mw == 150_000
    bus.close()


def test_a_locked_clock_lowers_the_draw_from_then_on() -> None:
    lab = Lab(",phase_ms=0")
    lab.load(0, 1000)
    lab.at(400)
    lab.gpu.set_control("graphics_clock", 600)
    lab.at(800)
    before = lab.gpu.energy_mj(START_NS, START_NS + 400 * MS)
    after = lab.gpu.energy_mj(START_NS + 400 * MS, START_NS + 800 * MS)
    work = lab.model.workloads["imagenet"]
    assert after / before == pytest.approx(work.power_mw(250_000, 600) / work.power_mw(250_000))
    assert after < 0.8 * before
