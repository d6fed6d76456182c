import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.directories import short_directory
from tests.patience import PATIENT
from zeus_stream.service_packages import collect_seldom

pytest_plugins = ["tests.gpu.fixtures", "tests.leftovers"]

settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")
"""How long an example takes says how busy the machine is, not whether a property holds."""
settings.register_profile("same", derandomize=True)
settings.register_profile("new", print_blob=True)
settings.load_profile("same")
"""Properties are tried on the same examples each time; `make fuzz` draws new ones."""


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    """Give the umask back: a service that a test runs in this process sets its own."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


ROOT = Path(__file__).parent
SWEEPS = (
    "analyzers/archive/",
    "analyzers/batch_size/test_owners.py",
    "analyzers/batch_size/test_tracker.py",
    "analyzers/checkpoints/",
    "analyzers/fleet/test_ownership.py",
    "analyzers/live/",
    "analyzers/measurement/test_counter_kind.py",
    "analyzers/measurement/test_calibration.py",
    "analyzers/measurement/test_late_events.py",
    "analyzers/measurement/test_named_windows.py",
    "analyzers/pipeline/",
    "analyzers/power_limit/test_background_search.py",
    "analyzers/power_limit/test_behind.py",
    "analyzers/power_limit/test_drift.py",
    "analyzers/power_limit/test_host_delays.py",
    "analyzers/power_limit/test_lapses.py",
    "analyzers/power_limit/test_levels.py",
    "analyzers/power_limit/test_look_again.py",
    "analyzers/power_limit/test_profiles.py",
    "analyzers/power_limit/test_ranks.py",
    "analyzers/power_limit/test_search.py",
    "analyzers/power_limit/test_step_costs.py",
    "analyzers/simulation/test_recorded_jobs.py",
    "analyzers/test_commits.py",
    "analyzers/test_interpreted_positions.py",
    "analyzers/test_interpreter.py",
    "analyzers/test_poison.py",
    "analyzers/test_query_server.py",
    "analyzers/test_replay.py",
    "analyzers/test_service.py",
    "collectors/controls/test_odd_drivers.py",
    "collectors/devices/test_third_party.py",
    "collectors/test_peer_worlds.py",
    "collectors/test_service.py",
    "conformance/test_log.py",
    "conformance/test_results_feed.py",
    "conformance/test_store.py",
    "docs/test_language.py",
    "docs/test_troubleshooting.py",
    "frameworks/",
    "fuzz/",
    "packaging/",
    "processes/",
    "scale/",
    "simulation/",
    "test_leftovers.py",
    "test_tidy.py",
    "zeus_stream/bench/test_energy_assertions.py",
    "zeus_stream/bench/test_energy_difference.py",
    "zeus_stream/cli/test_backup_command.py",
    "zeus_stream/cli/test_bench.py",
    "zeus_stream/cli/test_idle_cost.py",
    "zeus_stream/cli/test_main.py",
    "zeus_stream/cli/test_mcp_command.py",
    "zeus_stream/cli/test_measure.py",
    "zeus_stream/cli/test_recurring_jobs.py",
    "zeus_stream/cli/test_run_beside_services.py",
    "zeus_stream/cli/test_run_training.py",
    "zeus_stream/cli/test_simulate.py",
    "zeus_stream/cli/test_slurm.py",
    "zeus_stream/cli/test_sql_shell.py",
    "zeus_stream/cli/test_wait_command.py",
    "zeus_stream/integrations/test_trackers.py",
    "zeus_stream/screens/html/test_document.py",
    "zeus_stream/screens/terminal/test_top_app.py",
    "zeus_stream/screens/text/test_pipeline_report.py",
    "zeus_stream/screens/text/test_report_json.py",
    "zeus_stream/screens/text/test_run_cost.py",
    "zeus_stream/screens/text/test_statement.py",
    "zeus_stream/screens/web/test_job_page.py",
    "zeus_stream/screens/web/test_routes.py",
    "zeus_stream/screens/web/test_security.py",
    "zeus_stream/transport/test_access.py",
    "zeus_stream/transport/test_tcp_port.py",
)
"""Tests of setups, of stores on disk, of many worlds and of all texts, which `make test-fast` leaves out."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave modules of sweeps unread where no sweep runs: each worker of the inner loop would import them."""
    if config.option.markexpr != "not sweep" or not collection_path.is_relative_to(ROOT):
        return None
    below = f"{collection_path.relative_to(ROOT)}{'/' if collection_path.is_dir() else ''}"
    return True if below.startswith(SWEEPS) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the sweeps. Their modules go first, those of whole setups before all: a long one that begins last
    would leave the other workers without work."""
    paths = {item.path for item in items}
    sweeps = {path for path in paths if str(path.relative_to(ROOT)).startswith(SWEEPS)}
    for item in items:
        if item.path in sweeps:
            item.add_marker(pytest.mark.sweep)
    long = {item.path for item in items if item.get_closest_marker("sweep")}
    turn = {path: (ROOT / "processes" not in path.parents, path not in long) for path in paths}
    items.sort(key=lambda item: turn[item.path])


collect_seldom()
"""As the services do: collections took 8 % of the time of `analyzers/test_interpreter.py`."""


def pytest_collection_finish() -> None:
    """Have the garbage collector look no more at what all tests share: it took 4 % of their time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the garbage collector look at all of it again: what DuckDB's modules hold was left at the end."""
    gc.unfreeze()


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
