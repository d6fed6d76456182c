"""NVML through the real nvidia-ml-py, over a library of our own (tests/gpu/nvml_stand_in.c)."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import count, pairwise
from pathlib import Path

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.device import DeviceMemory, ReadOnlyDevice, Sample, memory_of, sleeps
from collectors.devices.nvml import PATIENT, NvmlDevice
from collectors.devices.nvml_bus import NvmlBus
from collectors.devices.nvml_calls import QUANTITIES
from tests.gpu.stand_in import Gpu, StandIn
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import (
    DeviceError,
    LostError,
    PermissionMissingError,
    RefusedError,
    RetryError,
    UnsupportedError,
)
from zeus_stream.protocol.fields import UNLOCKED

MEANINGS: dict[int, type[DeviceError]] = {
    **dict.fromkeys(range(1, 31), RetryError),  # what nobody expects is tried again
    pynvml.NVML_ERROR_UNKNOWN: RetryError,
    4242: RetryError,  # a code of a driver to come
    **dict.fromkeys(
        (
            pynvml.NVML_ERROR_INVALID_ARGUMENT,
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            pynvml.NVML_ERROR_NOT_FOUND,
            pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            pynvml.NVML_ERROR_CORRUPTED_INFOROM,
            pynvml.NVML_ERROR_FREQ_NOT_SUPPORTED,
            pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            pynvml.NVML_ERROR_DEPRECATED,
        ),
        UnsupportedError,
    ),
    **dict.fromkeys(
        (pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_OPERATING_SYSTEM), PermissionMissingError
    ),
    **dict.fromkeys(
        (
            pynvml.NVML_ERROR_UNINITIALIZED,
            pynvml.NVML_ERROR_INSUFFICIENT_POWER,
            pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
            pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
            pynvml.NVML_ERROR_GPU_IS_LOST,
            pynvml.NVML_ERROR_RESET_REQUIRED,
            pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            pynvml.NVML_ERROR_GPU_NOT_FOUND,
        ),
        LostError,
    ),
}

FIELDS = ("field 83", "field 186", "field 190", "field 192")
CALLS = (
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetPowerManagementLimit",
)


@pytest.fixture
def gpu(stand_in: StandIn) -> Gpu:
    """What the first device shall say."""
    return stand_in.gpus[0]


@pytest.fixture
def device(nvml_bus: NvmlBus) -> NvmlDevice:
    """The first device, described."""
    first, _ = nvml_bus.discover()
    first.describe()
    return first


@pytest.fixture
def soon_found(stand_in: StandIn) -> Iterator[NvmlDevice]:
    """The first device, described. Once it is lost, no other process looks for it first."""
    with closing(NvmlBus(now=count(0, 10**12).__next__, look=lambda: None)) as bus:
        first, _ = bus.discover()
        first.describe()
        yield first
        stand_in.heal()


def test_a_gpu_says_what_it_is(nvml_bus: NvmlBus, stand_in: StandIn) -> None:
    stand_in.gpus[1].mig = 1
    first, second = (device.describe() for device in nvml_bus.discover())
    assert first.gpu == "GPU-00000000-0000-4000-8000-000000000000"
    assert (first.index, second.index) == (0, 1)
    assert first.name == "Tesla V100-PCIE-16GB"
    assert first.driver == "550.54.15"
    assert first.counts_energy
    assert (first.min_limit_mw, first.max_limit_mw, first.default_limit_mw) == (100_000, 250_000, 250_000)
    assert first.graphics_clocks_mhz == (1380, 1372, 135)
    assert first.memory_clocks_mhz == (), "a V100 names its memory clock, but cannot lock it"
    assert (first.mig, second.mig) == (False, True)


def test_a_gpu_without_settable_limits_clocks_or_mig_says_so(device: NvmlDevice, gpu: Gpu) -> None:
    for call in (
        "nvmlDeviceGetPowerManagementLimitConstraints",
        "nvmlDeviceGetPowerManagementDefaultLimit",
        "nvmlDeviceGetSupportedMemoryClocks",
        "nvmlDeviceGetMigMode",
    ):
        gpu.fail(call, pynvml.NVML_ERROR_NOT_SUPPORTED)
    described = device.describe()
    assert described.min_limit_mw is described.max_limit_mw is described.default_limit_mw is None
    assert described.graphics_clocks_mhz == described.memory_clocks_mhz == ()
    assert not described.mig
    with pytest.raises(UnsupportedError):
        device.set_control("power_limit", 200_000)


def test_a_divided_gpu_names_its_tenants(device: NvmlDevice, gpu: Gpu) -> None:
    gpu.set_tenants("MIG-aaaa", "MIG-bbbb")
    described = device.describe()
    assert (described.mig, described.tenants) == (True, ("MIG-aaaa", "MIG-bbbb"))
    gpu.fail("nvmlDeviceGetMaxMigDeviceCount", pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert device.describe().tenants == ()
    gpu.mig = 0
    gpu.heal()
    assert device.describe().tenants == ()


NO_GPU_SCOPE = (
    "field 83",
    "field 186",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetPowerUsage",
)


def test_a_module_is_read_where_the_gpu_alone_cannot_be_and_says_so(device: NvmlDevice, gpu: Gpu) -> None:
    gpu.module_power_mw = 600_000  # above 1.5 x the GPU's highest limit: the CPU is in it
    assert device.describe().scope == "gpu"
    assert device.sample().power_mw == 40_000
    for call in NO_GPU_SCOPE:
        gpu.fail(call, pynvml.NVML_ERROR_NOT_SUPPORTED)
    described = device.describe()
    assert (described.scope, described.counts_energy) == ("module", False)
    sample = device.sample()
    assert (sample.power_mw, sample.energy_mj) == (600_000, None)
    assert (sample.limit_mw, sample.requested_mw) == (250_000, 250_000)
    gpu.heal()
    assert device.describe().scope == "gpu"
    assert device.sample().power_mw == 40_000


@pytest.mark.parametrize(
    ("silent", "module_power_mw", "counts"), [(NO_GPU_SCOPE, 0, False), (NO_GPU_SCOPE[1::2], 600_000, True)]
)
def test_a_module_that_says_nothing_or_need_not_is_left_alone(
    device: NvmlDevice, gpu: Gpu, silent: tuple[str, ...], module_power_mw: int, *, counts: bool
) -> None:
    gpu.module_power_mw = module_power_mw
    for call in silent:
        gpu.fail(call, pynvml.NVML_ERROR_NOT_SUPPORTED)
    described = device.describe()
    assert (described.scope, described.counts_energy) == ("gpu", counts)
    assert device.sample().power_mw is None


def test_a_passing_failure_is_not_taken_for_a_missing_ability(device: NvmlDevice, gpu: Gpu) -> None:
    for call in (
        "nvmlDeviceGetPowerManagementLimitConstraints",
        "nvmlDeviceGetSupportedGraphicsClocks",
        "field 83",
    ):
        gpu.fail(call, pynvml.NVML_ERROR_TIMEOUT)
        with pytest.raises(RetryError):
            device.describe()
        gpu.heal()


def test_a_sample_is_one_driver_call_and_exact(device: NvmlDevice, gpu: Gpu) -> None:
    device.sample()
    gpu.energy_mj, gpu.power_mw = 2**40 + 7, 123_456
    gpu.requested_mw, gpu.ceiling_mw = 200_000, 150_000
    calls = gpu.calls
    assert device.sample() == Sample(
        energy_mj=2**40 + 7,
        power_mw=123_456,
        limit_mw=150_000,
        requested_mw=200_000,
        clock_mhz=1380,
        temperature_c=35,
        utilization_pct=0,
    )
    assert gpu.calls == calls + 1


def test_temperature_clock_and_utilization_are_asked_at_every_thirtieth_sample(
    device: NvmlDevice, gpu: Gpu
) -> None:
    device.sample()
    gpu.temperature_c = 70
    seen = [device.sample().temperature_c for _ in range(30)]
    assert seen == [35] * 29 + [70]


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_NOT_SUPPORTED]
)
def test_a_temperature_that_cannot_be_read_costs_no_energy_reading(
    device: NvmlDevice, gpu: Gpu, code: int
) -> None:
    gpu.fail("nvmlDeviceGetTemperature", code)
    sample = device.sample()
    assert sample.temperature_c is None
    assert sample.clock_mhz == 1380
    assert sample.energy_mj == 1_000_000


@pytest.mark.parametrize(
    ("call", "ask"),
    [
        ("nvmlDeviceGetPowerManagementLimit", lambda device: device.read_control("power_limit")),
        (
            "nvmlDeviceGetPowerManagementLimitConstraints",
            lambda device: device.set_control("power_limit", 200_000),
        ),
        ("nvmlDeviceSetPowerManagementLimit", lambda device: device.set_control("power_limit", 200_000)),
        ("nvmlDeviceSetGpuLockedClocks", lambda device: device.set_control("graphics_clock", 1372)),
        ("nvmlDeviceResetGpuLockedClocks", lambda device: device.set_control("graphics_clock", UNLOCKED)),
        ("nvmlDeviceSetMemoryLockedClocks", lambda device: device.set_control("memory_clock", 877)),
        ("nvmlDeviceResetMemoryLockedClocks", lambda device: device.set_control("memory_clock", UNLOCKED)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_error_of_a_call_becomes_what_to_do_about_it(
    soon_found: NvmlDevice, gpu: Gpu, call: str, ask: Callable[[NvmlDevice], object]
) -> None:
    device = soon_found
    for code, meaning in MEANINGS.items():
        gpu.fail(call, code)
        with pytest.raises(DeviceError) as raised:
            ask(device)
        assert type(raised.value) is meaning, pynvml.NVMLError(code)
        assert device.lost == (meaning is LostError)
        gpu.heal()
        device.describe()


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_does_not_answer_is_asked_for_by_the_older_call(
    soon_found: NvmlDevice, gpu: Gpu, field: str
) -> None:
    device = soon_found
    whole = device.sample()
    for code, meaning in MEANINGS.items():
        gpu.fail(field, code)
        for _ in range(PATIENT - 1 if meaning is RetryError else meaning is LostError):
            with pytest.raises(DeviceError) as raised:
                device.sample()
            assert type(raised.value) is meaning, pynvml.NVMLError(code)
        if meaning is not LostError:
            assert device.sample() == whole, "the older call says the same"
        gpu.heal()
        device.describe()
        assert device.sample() == whole


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount_v2"])
def test_every_error_of_the_driver_becomes_what_to_do_about_it(
    nvml_bus: NvmlBus, stand_in: StandIn, call: str
) -> None:
    for code, meaning in MEANINGS.items():
        stand_in.fail(call, code)
        with pytest.raises(DeviceError) as raised:
            nvml_bus.discover()
        assert type(raised.value) is meaning, pynvml.NVMLError(code)
        stand_in.heal()
        assert len(nvml_bus.discover()) == 2
        nvml_bus.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(fields=st.sets(st.sampled_from(range(4))), calls=st.sets(st.sampled_from(range(4))))
def test_a_figure_is_none_exactly_where_neither_its_field_nor_its_call_has_it(
    device: NvmlDevice, gpu: Gpu, fields: set[int], calls: set[int]
) -> None:
    for which in fields:
        gpu.fail(FIELDS[which], pynvml.NVML_ERROR_NOT_SUPPORTED)
    for which in calls:
        gpu.fail(CALLS[which], pynvml.NVML_ERROR_NOT_SUPPORTED)
    described = device.describe()
    device.sample()
    asked = gpu.calls
    sample = device.sample()
    figures = (sample.energy_mj, sample.power_mw, sample.limit_mw, sample.requested_mw)
    truths = (1_000_000, 40_000, 250_000, 250_000)
    absent = fields & calls
    assert figures == tuple(None if which in absent else truth for which, truth in enumerate(truths))
    assert described.counts_energy == (0 not in absent)
    assert gpu.calls - asked == (len(fields) < 4) + len(fields - calls), "what is not there is not asked for"
    gpu.heal()


def test_a_driver_without_the_field_call_is_read_by_the_older_calls(device: NvmlDevice, gpu: Gpu) -> None:
    whole = device.sample()
    gpu.fail("nvmlDeviceGetFieldValues", pynvml.NVML_ERROR_NOT_SUPPORTED)
    device.describe()
    assert device.sample() == whole


@pytest.mark.parametrize("power_mw", [375_001, 2**32 - 1])
def test_a_power_that_cannot_be_is_left_out_and_the_next_read_may_succeed(
    device: NvmlDevice, gpu: Gpu, power_mw: int
) -> None:
    gpu.power_mw = power_mw
    assert device.sample()[:3] == (1_000_000, None, 250_000)
    gpu.power_mw = 375_000
    assert device.sample().power_mw == 375_000
    gpu.power_mw = 0
    assert device.sample().power_mw == 0, "as a GPU that sleeps says"


PASSING_OR_NOT = (
    pynvml.NVML_ERROR_UNKNOWN,
    21,  # no data
    27,  # not ready
    pynvml.NVML_ERROR_NO_PERMISSION,
)


@pytest.mark.parametrize("code", PASSING_OR_NOT)
@pytest.mark.parametrize("which", range(4))
def test_a_quantity_that_never_answers_costs_no_other_and_is_named_once(
    nvml_bus: NvmlBus, gpu: Gpu, caplog: pytest.LogCaptureFixture, which: int, code: int
) -> None:
    first, _ = nvml_bus.discover()
    gpu.fail(FIELDS[which], code)
    gpu.fail(CALLS[which], code)
    for _ in range(PATIENT - 1):
        with suppress(RetryError):
            first.describe()
    described = first.describe()
    truths = (1_000_000, 40_000, 250_000, 250_000)
    wanted = tuple(None if place == which else truth for place, truth in enumerate(truths))
    assert all(first.sample()[:4] == wanted for _ in range(50))
    [sentence] = described.unanswered
    assert QUANTITIES[which].name in sentence
    assert [message for message in caplog.messages if "seldom" in message] == [
        f"{sentence} It is left out, and asked for again seldom."
    ]
    gpu.heal()
    assert any(first.sample()[:4] == truths for _ in range(700)), "it is asked for again"


@pytest.mark.parametrize("code", PASSING_OR_NOT)
@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceGetName",
        "nvmlSystemGetDriverVersion",
        "nvmlDeviceGetPowerManagementLimitConstraints",
        "nvmlDeviceGetPowerManagementDefaultLimit",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetSupportedMemoryClocks",
        "nvmlDeviceGetSupportedGraphicsClocks",
        "nvmlDeviceGetArchitecture",
    ],
)
def test_a_gpu_that_does_not_say_all_of_what_it_is_is_measured(
    nvml_bus: NvmlBus, stand_in: StandIn, call: str, code: int
) -> None:
    first, _ = nvml_bus.discover()
    (stand_in if call.startswith("nvmlSystem") else stand_in.gpus[0]).fail(call, code)
    for _ in range(PATIENT - 1):
        with suppress(RetryError):
            first.describe()
    assert len(first.describe().unanswered) == 1
    assert first.sample().energy_mj == 1_000_000


def test_a_look_that_hung_does_not_start_nvml_again_under_the_gpus_that_work(
    stand_in: StandIn,
) -> None:
    """A dead GPU may hang whoever starts NVML: that look is given up, and says nothing."""

    def hangs() -> None:
        raise subprocess.TimeoutExpired("look", 60)

    bus = NvmlBus(now=lambda: 0, look=hangs)
    first, second = bus.discover()
    stand_in.gpus[1].lost = 1
    with pytest.raises(LostError):
        second.sample()
    before = stand_in.gpus[0].calls
    assert bus.discover() == (first,)
    assert stand_in.gpus[0].calls == before
    bus.close()


def test_a_gpu_that_stays_lost_is_looked_for_ever_more_seldom(stand_in: StandIn) -> None:
    now_s, looks = 0, []

    def look() -> frozenset[str]:
        looks.append(now_s)
        return frozenset(gpu.uuid.decode() for gpu in stand_in.gpus[:2] if not gpu.lost)

    bus = NvmlBus(now=lambda: now_s * 10**9, look=look)
    first, second = bus.discover()
    stand_in.gpus[1].lost = 1
    with pytest.raises(LostError):
        second.sample()
    before = stand_in.gpus[0].calls
    for passed_s in range(2000):
        now_s = passed_s
        assert bus.discover() == (first,)
    assert stand_in.gpus[0].calls == before, "the GPU that works waits for nothing"
    assert looks == [0, 3, 9, 21, 45, 93, 189, 381, 681, 981, 1281, 1581, 1881]
    stand_in.gpus[1].lost = 0
    now_s = 2181
    assert bus.discover() == (first, second)
    bus.close()


def test_a_gpu_that_opens_and_does_not_answer_starts_nvml_ever_more_seldom(stand_in: StandIn) -> None:
    """Each start of NVML holds up the GPUs that work."""
    now_s, looks = 0, list[int]()
    with closing(NvmlBus(now=lambda: now_s * 10**9, look=lambda: looks.append(now_s))) as bus:
        _, second = bus.discover()
        for call in ("nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerManagementLimitConstraints"):
            stand_in.gpus[1].fail(call, pynvml.NVML_ERROR_RESET_REQUIRED)
        for passed_s in range(100):
            now_s = passed_s
            with pytest.raises(LostError):
                second.describe()
    assert looks == [1, 4, 10, 22, 46, 94]


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED])
def test_a_gpu_that_opens_and_does_not_answer_is_not_back(stand_in: StandIn, code: int) -> None:
    stand_in.gpus[1].fail("nvmlDeviceGetFieldValues", code)
    found = subprocess.run(
        [sys.executable, "-m", "collectors.devices.nvml_bus"], check=True, capture_output=True, text=True
    )
    assert found.stdout == stand_in.gpus[0].uuid.decode()


def test_a_limit_is_set_and_read_back_even_where_another_limiter_holds_it_lower(
    device: NvmlDevice, gpu: Gpu
) -> None:
    gpu.ceiling_mw = 150_000
    device.set_control("power_limit", 200_000)
    assert device.read_control("power_limit") == 200_000
    assert (device.sample().limit_mw, device.sample().requested_mw) == (150_000, 200_000)


def test_a_memory_clock_is_locked_and_let_go_from_ampere_on(device: NvmlDevice, gpu: Gpu) -> None:
    with pytest.raises(UnsupportedError, match="could not lock the memory clock at 877 MHz"):
        device.set_control("memory_clock", 877)
    gpu.architecture = pynvml.NVML_DEVICE_ARCH_AMPERE
    assert device.describe().memory_clocks_mhz == (877,)
    device.set_control("memory_clock", 877)
    assert (gpu.locked_memory_mhz, gpu.locked_mhz) == (877, 0)
    with pytest.raises(RefusedError, match="could not lock the memory clock at 878 MHz"):
        device.set_control("memory_clock", 878)
    device.set_control("memory_clock", UNLOCKED)
    assert gpu.locked_memory_mhz == 0


def test_samples_of_power_are_those_since_an_instant_on_the_clock_of_the_host(
    device: NvmlDevice, gpu: Gpu
) -> None:
    assert device.power_samples(0) == (), "it keeps none"
    gpu.samples_us = 20_000
    before_ns = monotonic_ns()
    kept = device.power_samples(0)
    assert len(kept) == 120
    assert {power_mw for _, power_mw in kept} == {40_000}
    apart_ns = [later.t_ns - earlier.t_ns for earlier, later in pairwise(kept)]
    assert all(abs(each - 20_000_000) <= 1_000 for each in apart_ns)
    assert before_ns - 21_000_000 <= kept[-1].t_ns <= monotonic_ns() + 1_000_000
    newer = device.power_samples(kept[-3].t_ns)
    assert abs(newer[0].t_ns - kept[-2].t_ns) < 1_000_000, "each is given once"
    gpu.fail("nvmlDeviceGetSamples", 999)
    assert device.power_samples(0) == (), "the counter is read on"


def test_linux_says_whether_a_gpu_is_suspended_and_asking_does_not_wake_it(
    stand_in: StandIn, tmp_path: Path
) -> None:
    with closing(NvmlBus(pci=tmp_path)) as bus:
        first, _ = bus.discover()
        first.describe()
        assert not sleeps(first), "a host without such power management"
        status = tmp_path / "0000:a0:00.0" / "power" / "runtime_status"
        status.parent.mkdir(parents=True)
        calls = stand_in.gpus[0].calls
        for state in ("active", "suspended"):
            status.write_text(f"{state}\n")
            assert sleeps(ReadOnlyDevice(first)) == (state == "suspended")
        assert stand_in.gpus[0].calls == calls


def test_processes_are_pids_or_none_where_they_may_not_be_seen(device: NvmlDevice, gpu: Gpu) -> None:
    gpu.set_processes(17, 4711)
    assert device.processes() == (17, 4711)
    gpu.fail("nvmlDeviceGetComputeRunningProcesses_v3", pynvml.NVML_ERROR_NO_PERMISSION)
    assert device.processes() is None


def test_memory_is_that_of_the_gpu_and_of_the_processes_listed_last(device: NvmlDevice, gpu: Gpu) -> None:
    gpu.set_processes(17, 4711, used_bytes=5 << 30)
    device.processes()
    assert memory_of(device) == DeviceMemory(5 << 30, 16 << 30, {17: 5 << 30})
    assert memory_of(ReadOnlyDevice(device)) == memory_of(device)
    gpu.fail("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert memory_of(device) is None


def test_a_driver_before_510_names_its_processes_by_the_older_call(device: NvmlDevice, gpu: Gpu) -> None:
    gpu.set_processes(17, 4711)
    gpu.fail("nvmlDeviceGetComputeRunningProcesses_v3", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    assert device.processes() == (17, 4711)
    gpu.fail("nvmlDeviceGetComputeRunningProcesses_v2", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    assert device.processes() is None


def test_an_empty_process_list_proves_nothing_in_a_container(stand_in: StandIn) -> None:
    assert stand_in.gpus[0].pid_count == 0
    read = "from collectors.devices.nvml_bus import NvmlBus; print(NvmlBus().discover()[0].processes())"
    done = subprocess.run(
        ["unshare", "--pid", "--fork", sys.executable, "-c", read],
        check=False,
        capture_output=True,
        text=True,
    )
    if "unshare failed" in done.stderr:
        pytest.skip("This user may not make a pid namespace.")
    assert done.stdout.strip() == "None", done.stderr


def test_a_lost_gpu_ends_alone_and_is_not_asked_again(nvml_bus: NvmlBus, stand_in: StandIn) -> None:
    first, second = nvml_bus.discover()
    stand_in.gpus[0].lost = 1
    with pytest.raises(LostError, match="GPU is lost"):
        first.sample()
    calls = stand_in.gpus[0].calls
    for _ in range(3):
        with pytest.raises(LostError):
            first.sample()
    assert stand_in.gpus[0].calls == calls
    assert second.sample().energy_mj == 1_000_000


@pytest.mark.parametrize("gone", ["lost", "off the bus"])
def test_a_lost_gpu_comes_back_as_the_same_device_when_it_describes_itself(
    nvml_bus: NvmlBus, stand_in: StandIn, gone: str
) -> None:
    first, second = nvml_bus.discover()
    stand_in.gpus[0].lost = 1
    with pytest.raises(LostError):
        first.sample()
    stand_in.gpus[0].present = gone == "lost"
    with pytest.raises(LostError):
        first.describe()
    assert second.describe().index == 1, "NVML is not started again for a GPU that is not back"
    stand_in.gpus[0].lost, stand_in.gpus[0].present = 0, 1
    with pytest.raises(LostError):
        first.sample()
    assert first.describe().index == 0
    assert first.sample().energy_mj == 1_000_000
    assert nvml_bus.discover() == (first, second)
    assert second.describe().index == 1


def test_a_gpu_that_is_not_there_when_nvml_starts_anew_is_lost_too(
    nvml_bus: NvmlBus, stand_in: StandIn
) -> None:
    first, second = nvml_bus.discover()
    stand_in.gpus[0].lost = 1
    with pytest.raises(LostError):
        first.sample()
    stand_in.gpus[0].lost = stand_in.gpus[1].present = 0
    first.describe()
    with pytest.raises(LostError, match="taken up again when it returns"):
        second.sample()


def test_a_gpu_that_cannot_be_opened_at_the_start_is_warned_of_once_and_taken_up_later(
    nvml_bus: NvmlBus, stand_in: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    stand_in.gpus[0].lost = 1
    for _ in range(3):
        assert [device.describe().index for device in nvml_bus.discover()] == [1]
    [warning] = caplog.messages
    assert warning.startswith("NVIDIA driver: could not open GPU 0: GPU is lost.")
    stand_in.gpus[0].lost = 0
    assert [device.describe().index for device in nvml_bus.discover()] == [0, 1]


def test_a_host_whose_gpus_are_all_lost_at_the_start_is_waited_for(
    nvml_bus: NvmlBus, stand_in: StandIn
) -> None:
    for gpu in stand_in.gpus:
        gpu.lost = 1
    with pytest.raises(LostError, match="could not open GPU 0"):
        nvml_bus.discover()
    for gpu in stand_in.gpus:
        gpu.lost = 0
    assert len(nvml_bus.discover()) == 2


def test_a_host_whose_only_gpus_may_not_be_opened_says_why(nvml_bus: NvmlBus, stand_in: StandIn) -> None:
    for gpu in stand_in.gpus:
        gpu.fail("nvmlDeviceGetHandleByIndex_v2", pynvml.NVML_ERROR_OPERATING_SYSTEM)
    with pytest.raises(PermissionMissingError, match="cgroup"):
        nvml_bus.discover()


def test_a_driver_that_is_not_loaded_is_waited_for(nvml_bus: NvmlBus, stand_in: StandIn) -> None:
    away = stand_in.path.rename(stand_in.path.with_suffix(".away"))
    with pytest.raises(LostError, match=r"could not start NVML: Driver Not Loaded\. Load the NVIDIA driver"):
        nvml_bus.discover()
    away.rename(stand_in.path)
    assert len(nvml_bus.discover()) == 2


def test_a_driver_that_is_unloaded_and_loaded_again_brings_all_devices_back(
    nvml_bus: NvmlBus, stand_in: StandIn
) -> None:
    devices = nvml_bus.discover()
    away = stand_in.path.rename(stand_in.path.with_suffix(".away"))
    stand_in.fail("nvmlShutdown", pynvml.NVML_ERROR_UNINITIALIZED)
    for gpu in stand_in.gpus:
        gpu.fail("nvmlDeviceGetFieldValues", pynvml.NVML_ERROR_UNINITIALIZED)
    for device in devices:
        with pytest.raises(LostError):
            device.sample()
        with pytest.raises(LostError, match="Driver Not Loaded"):
            device.describe()
    away.rename(stand_in.path)
    for gpu in stand_in.gpus:
        gpu.heal()
        gpu.energy_mj = 5
    assert [device.describe().index for device in devices] == [0, 1]
    assert [device.sample().energy_mj for device in devices] == [5, 5]


def test_a_host_without_the_driver_library_says_so(tmp_path: Path) -> None:
    tmp_path.joinpath("libnvidia-ml.so.1").write_text("not a library")
    read = "from collectors.devices.nvml_bus import NvmlBus; NvmlBus().discover()"
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", read], env=environment, check=False, capture_output=True, text=True
    )
    assert "LostError: NVIDIA driver: could not start NVML: NVML Shared Library Not Found." in done.stderr


@pytest.mark.sweep
def test_finding_a_lost_gpu_disturbs_no_sample_of_another(nvml_bus: NvmlBus, stand_in: StandIn) -> None:
    first, second = nvml_bus.discover()
    done = threading.Event()
    samples: list[Sample] = []
    failures: list[DeviceError] = []

    def sample_on() -> None:
        while not done.is_set():
            try:
                samples.append(first.sample())
            except DeviceError as error:
                failures.append(error)

    thread = threading.Thread(target=sample_on)
    thread.start()
    try:
        rounds = 0
        while rounds < 4 or (len(samples) <= 100 and thread.is_alive() and not failures):
            rounds += 1
            stand_in.gpus[1].lost = 1
            with pytest.raises(LostError):
                second.sample()
            stand_in.gpus[1].lost = 0
            second.describe()
    finally:
        done.set()
        thread.join()
    assert failures == []
    assert len(samples) > 100


@pytest.mark.sweep
def test_a_driver_call_that_does_not_end_puts_off_the_search_for_a_lost_gpu(stand_in: StandIn) -> None:
    bus = NvmlBus(patience_s=0.01, look=lambda: None)
    first, second = bus.discover()
    stand_in.gpus[1].lost = 1
    with pytest.raises(LostError):
        second.sample()
    stand_in.gpus[1].lost = 0
    calls = stand_in.gpus[0].calls
    stand_in.gpus[0].latency_us = 2_000_000
    thread = threading.Thread(target=first.read_control, args=("power_limit",))
    thread.start()
    while stand_in.gpus[0].calls == calls:
        assert thread.is_alive()
    with pytest.raises(RetryError, match="has not ended"):
        second.describe()
    thread.join()
    stand_in.gpus[0].latency_us = 0
    assert second.describe().index == 1
    bus.close()
