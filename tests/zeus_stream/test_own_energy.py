import pytest
from msgspec.structs import replace

from zeus_stream.own_energy import OwnEnergy, own_energy
from zeus_stream.protocol.notes import OwnUse

USE = OwnUse(
    t_ns=60_000_000_000,
    wall_ns=1_700_000_060_000_000_000,
    took_ns=60_000_000_000,
    service="collector",
    host="h",
    cpu_ns=3_000_000_000,
    host_cpu_ns=30_000_000_000,
    processors=8,
    host_energy_mj=2_400_000,
    reason="",
)


def test_a_service_has_its_share_of_all_processors_and_of_those_at_work() -> None:
    """3 of 480 processor seconds there were, and of 30 that were used."""
    assert own_energy(USE, 2400.0) == OwnEnergy(15.0, 240.0)


@pytest.mark.parametrize(
    ("use", "host_j"),
    [
        pytest.param(USE, None, id="no counter of the CPUs can be read"),
        pytest.param(replace(USE, host_cpu_ns=None), 2400.0, id="the kernel does not say what the host used"),
        pytest.param(replace(USE, host_cpu_ns=0), 2400.0, id="less than a tick was used"),
    ],
)
def test_no_energy_is_invented(use: OwnUse, host_j: float | None) -> None:
    assert own_energy(use, host_j) is None


def test_a_service_never_has_more_than_the_host() -> None:
    """Ticks of 10 ms are counted at other moments for a process than for the host."""
    energy = own_energy(replace(USE, cpu_ns=31_000_000_000), 2400.0)
    assert energy is not None
    assert energy.low_j <= energy.high_j == 2400.0
