import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ["tests.gpu.fixtures"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def zeus_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A setup of its own, at a path short enough for Unix sockets; no other setting leaks in."""
    directory = Path(tempfile.mkdtemp(prefix="zs-"))
    monkeypatch.setenv("ZEUS_STREAM_DIR", str(directory))
    yield directory
    shutil.rmtree(directory)
