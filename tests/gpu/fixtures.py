"""Fixtures of every test that wants NVIDIA GPUs where there are none."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from collectors.devices.nvml_bus import NvmlBus
from tests.gpu.stand_in import StandIn, build, compiler, load


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for libnvidia-ml.so.1, built once and loaded into this process."""
    if compiler() is None:
        pytest.skip("There is no C compiler (cc) to build the stand-in for libnvidia-ml with.")
    library = build(tmp_path_factory.mktemp("nvml"))
    load(library)
    return library


@pytest.fixture
def stand_in(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Two V100s at rest, for this process and those it starts."""
    host = StandIn(tmp_path / "gpus", count=2)
    for name, value in host.environment(nvml_library).items():
        monkeypatch.setenv(name, value)
    return host


@pytest.fixture
def nvml_bus(stand_in: StandIn) -> Iterator[NvmlBus]:
    """The bus of those GPUs, asked for nothing yet. Its clock runs fast: it looks for lost ones at once."""
    bus = NvmlBus(now=count(0, 10**12).__next__)
    yield bus
    stand_in.heal()
    bus.close()
