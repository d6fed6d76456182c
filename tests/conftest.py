from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.directories import short_directory
from tests.patience import PATIENT

pytest_plugins = ["tests.gpu.fixtures", "tests.leftovers"]

settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")
"""How long an example takes says how busy the machine is, not whether a property holds."""
settings.register_profile("same", derandomize=True)
settings.register_profile("new", print_blob=True)
settings.load_profile("same")
"""Properties are tried on the same examples each time; `make fuzz` draws new ones."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def zeus_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A setup of its own, at a path short enough for Unix sockets; no other setting leaks in."""
    with short_directory() as directory:
        monkeypatch.setenv("ZEUS_STREAM_DIR", str(directory))
        for name, value in PATIENT.items():
            monkeypatch.setenv(name, value)
        yield directory
