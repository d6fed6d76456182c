"""Workload power profiles (NVML, Blackwell): read, leased, recorded and restored, on a stand-in driver."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import duckdb
import pynvml
import pytest

from collectors.controls.lease_messages import Limits
from collectors.controls.restore import Restorer
from collectors.controls.restore_record import copies, place
from collectors.devices.nvml_bus import NvmlBus
from tests.collectors.controls.left_record import leave
from tests.collectors.test_service import Client, collector
from tests.environment import ZEUS_STREAM, run
from tests.gpu.stand_in import Gpu, StandIn
from tests.waiting import eventually
from zeus_stream.protocol.fields import POWER_PROFILES, spell_profiles
from zeus_stream.protocol.notes import ControlApplied, ControlLeaseEnded, ControlRefused, PowerProfiles
from zeus_stream.protocol.queries import AskStatus

MAX_Q, COMPUTE, TRAINING = 1 << 1, 1 << 2, 1 << 7
KNOWN = MAX_Q | COMPUTE | TRAINING


@pytest.fixture
def gpu(stand_in: StandIn) -> Gpu:
    """A GPU for which an administrator has requested a profile."""
    gpu = stand_in.gpus[0]
    gpu.profiles, gpu.requested_profiles = KNOWN, MAX_Q
    return gpu


@pytest.fixture
async def client(gpu: Gpu, nvml_bus: NvmlBus, zeus_dir: Path) -> AsyncIterator[Client]:
    """An analyzer with a run on that GPU."""
    async with collector(nvml_bus, zeus_dir) as analyzer:
        await analyzer.start_run(gpus=(gpu.uuid.decode(),))
        yield analyzer


async def request(client: Client, command: str, bits: int, gpu: Gpu) -> Any:
    return await client.lock(command, bits, gpu=gpu.uuid.decode(), control="power_profile")


def test_a_profile_has_the_number_that_nvml_gives_it() -> None:
    for bit, name in enumerate(POWER_PROFILES):
        assert getattr(pynvml, f"NVML_POWER_PROFILE_{name.upper()}") == bit
    assert len(POWER_PROFILES) == pynvml.NVML_POWER_PROFILE_MAX
    assert spell_profiles(MAX_Q | TRAINING) == "max_q+llm_training"
    assert spell_profiles(0) == "none"


@pytest.mark.anyio
async def test_a_profile_is_leased_shown_and_given_back_and_one_that_was_found_returns(
    client: Client, gpu: Gpu, zeus_dir: Path
) -> None:
    record = place(zeus_dir / "restore", gpu.uuid.decode(), "power_profile")
    applied = await request(client, "c1", TRAINING, gpu)
    assert isinstance(applied, ControlApplied)
    assert (applied.value, gpu.requested_profiles) == (TRAINING, TRAINING), "the one found is not left beside"
    assert f'"found_bits": {MAX_Q}, "confirmed_bits": {TRAINING}' in record.read_text()
    status, _ = await client.request(AskStatus())
    rows = {name: value for section, name, value in status.rows if gpu.uuid.decode() in section}
    assert rows["power profile"].startswith("llm_training, found max_q, enforced ")
    assert "run r of anna" in rows["power profile: lease"]
    refused = await request(client, "c2", 1 << 13, gpu)
    assert isinstance(refused, ControlRefused)
    assert "could not request the power profile hpc: the GPU has no power profile hpc" in refused.reason
    released = await client.release("c3", gpu.uuid.decode(), "power_profile")
    assert (released.value, gpu.requested_profiles) == (MAX_Q, MAX_Q)
    await eventually(lambda: not record.exists())


@pytest.mark.anyio
async def test_no_profile_may_be_asked_for_too(client: Client, gpu: Gpu) -> None:
    assert (await request(client, "c1", 0, gpu)).value == gpu.requested_profiles == 0
    await client.release("c2", gpu.uuid.decode(), "power_profile")
    assert gpu.requested_profiles == MAX_Q


@pytest.mark.anyio
async def test_a_profile_of_another_program_ends_the_lease_stays_and_is_logged(
    client: Client, gpu: Gpu
) -> None:
    await request(client, "c1", TRAINING, gpu)
    gpu.requested_profiles = COMPUTE
    (ended,) = await client.wait_for(ControlLeaseEnded)
    assert (ended.control, ended.cause, ended.value) == ("power_profile", "other_program", COMPUTE)
    assert "somebody else set the power profile compute, which stays" in ended.reason
    assert gpu.requested_profiles == COMPUTE
    seen = await client.wait_for(PowerProfiles)
    assert (seen[0].requested, seen[0].enforced) == (MAX_Q, MAX_Q)
    assert (seen[-1].requested, seen[-1].enforced) == (COMPUTE, COMPUTE)


@pytest.mark.anyio
async def test_a_driver_without_permission_refuses_and_keeps_what_was_found(client: Client, gpu: Gpu) -> None:
    for call in ("Set", "Clear"):
        gpu.fail(f"nvmlDeviceWorkloadPowerProfile{call}RequestedProfiles", pynvml.NVML_ERROR_NO_PERMISSION)
    refused = await request(client, "c1", TRAINING, gpu)
    assert (refused.cause, "CAP_SYS_ADMIN" in refused.reason) == ("permission", True)
    assert gpu.requested_profiles == MAX_Q


def test_a_profile_whose_record_is_damaged_stays_until_the_default_is_wanted(
    gpu: Gpu, nvml_bus: NvmlBus, tmp_path: Path
) -> None:
    uuid, gpu.requested_profiles = gpu.uuid.decode(), TRAINING
    leave(tmp_path, uuid, Limits(MAX_Q, confirmed=TRAINING), "power_profile")
    for path in copies(place(tmp_path, uuid, "power_profile")):
        path.write_text("{")
    (proposed,) = Restorer(nvml_bus, tmp_path, by="test").restore()
    assert (proposed.left, gpu.requested_profiles) == (True, TRAINING)
    assert "the power profile none, with `zeus-stream restore --default`" in proposed.says
    Restorer(nvml_bus, tmp_path, by="test", default=True).restore()
    assert gpu.requested_profiles == 0


def test_a_gpu_says_its_profiles_seldom_and_one_without_says_none(
    nvml_bus: NvmlBus, stand_in: StandIn
) -> None:
    first, second = nvml_bus.discover()
    assert first.describe().power_profiles == 0
    gpu = stand_in.gpus[1]
    gpu.profiles, gpu.requested_profiles = KNOWN, COMPUTE | TRAINING
    assert second.describe().power_profiles == KNOWN
    assert second.read_control("power_profile") == COMPUTE | TRAINING
    sample = second.sample()
    assert (sample.requested_profiles, sample.enforced_profiles) == (COMPUTE | TRAINING, COMPUTE)
    calls = gpu.calls
    second.sample()
    assert gpu.calls == calls + 1, "they cost no call of their own with each sample"
    second.set_control("power_profile", MAX_Q)
    assert second.sample().requested_profiles == MAX_Q, "what we have set shows at once"
    assert first.sample().requested_profiles is None


SCRIPT = """
import time
import zeus_stream

for _ in zeus_stream.steps(range(100)):
    time.sleep(0.05)
"""


@pytest.mark.parametrize("profiles", [KNOWN, 0])
def test_a_run_has_the_profile_that_it_wants_in_each_trial_and_what_was_found_returns(
    stand_in: StandIn, zeus_dir: Path, profiles: int
) -> None:
    gpu = stand_in.gpus[0]
    gpu.profiles, gpu.requested_profiles = profiles, COMPUTE & profiles
    gpu.name, gpu.min_limit_mw = b"NVIDIA GeForce RTX 3090", 225_000  # it sees all: no kind is waited for
    gpu.run(150_000, 20_000_000)
    (zeus_dir / "train.py").write_text(SCRIPT)
    wanted = ("--device", "nvml", "--select", "energy", "--power-profile", "max_q")
    training = ("run", "-q", *wanted, "--", sys.executable, "train.py")
    done = run(zeus_dir, *ZEUS_STREAM, *training, cwd=zeus_dir, env={"CUDA_VISIBLE_DEVICES": "0"})
    assert done.returncode == 0, done.stderr
    assert gpu.requested_profiles == COMPUTE & profiles
    with duckdb.connect(str(zeus_dir / "energy.duckdb"), read_only=True) as archive:
        reasons = {reason for (reason,) in archive.sql("SELECT reason FROM decisions").fetchall()}
        trials = archive.sql("SELECT DISTINCT power_profile FROM trials").fetchall()
        asked = "SELECT outcome, reason FROM commands WHERE control = 'power_profile'"
        commands = archive.sql(asked).fetchall()
    refused = "not all of its GPUs have power profiles, and max_q is wanted"
    assert any(refused in reason for reason in reasons) == (not profiles), reasons
    assert trials == ([("max_q",)] if profiles else []), commands
    assert commands == ([("applied", "")] * 2 if profiles else [])
