from pathlib import Path

from collectors.devices.rapl import RaplBus
from collectors.own_use import OFF, CollectorUse
from tests.gpu.powercap import Powercap


def cpus(directory: Path) -> tuple[Powercap, CollectorUse]:
    powercap = Powercap(directory)
    powercap.package(0)
    powercap.memory(0)
    return powercap, CollectorUse("h", RaplBus("h", directory, powercap.now))


def test_the_energy_is_that_of_packages_and_memory_since_the_last_record(tmp_path: Path) -> None:
    powercap, use = cpus(tmp_path)
    assert use.energy == "not known: the counters of its CPUs were read for the first time"
    powercap.draw(40, 60)
    assert use.record().host_energy_mj == 2 * 40 * 60 * 1000
    powercap.draw(10, 20)
    last = use.record()
    assert (last.host_energy_mj, last.reason) == (2 * 10 * 20 * 1000, "")


def test_a_pause_in_which_the_counter_may_have_started_over_has_no_energy(tmp_path: Path) -> None:
    powercap, use = cpus(tmp_path)
    powercap.draw(40, 3600)
    record = use.record()
    assert record.host_energy_mj is None
    assert "may have started over" in record.reason
    powercap.draw(40, 60)
    assert use.record().host_energy_mj is None
    powercap.draw(40, 60)
    assert use.record().host_energy_mj == 2 * 40 * 60 * 1000


def test_without_a_counter_the_record_says_why(tmp_path: Path) -> None:
    assert (
        "could not find a CPU's energy counter" in CollectorUse("h", RaplBus("h", tmp_path)).record().reason
    )
    off = CollectorUse("h", None)
    assert off.record().reason == OFF
    assert off.energy == f"not known: {OFF}"
