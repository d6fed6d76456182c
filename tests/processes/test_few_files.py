"""Services that may open few files."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environment import PATIENCE_S, environment
from tests.processes.under_fire import collector, train
from zeus_stream.transport.listening.connection_limits import LEAST_FILES


@pytest.mark.parametrize("files", [24, LEAST_FILES - 1])
@pytest.mark.parametrize("service", [("collect", "--device", "simulated:v100x1"), ("analyze",)])
def test_a_service_that_may_open_too_few_files_says_so(
    zeus_dir: Path, service: tuple[str, ...], files: int
) -> None:
    """A collector with 24 descriptors ended in a traceback, whatever needed the next one."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    done = subprocess.run(
        [sys.executable, "-m", "zeus_stream", *service], env=environment(zeus_dir), capture_output=True,
        text=True, check=False, timeout=PATIENCE_S, preexec_fn=limit,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith(f"zeus-stream: service: could not start: it may open {files} files")
    assert "Traceback" not in done.stderr


def test_the_least_number_of_files_is_enough(zeus_dir: Path) -> None:
    with collector(zeus_dir, files=LEAST_FILES) as running:
        assert train(zeus_dir, "run", 5).returncode == 0
        assert running.alive
