"""Connections without a byte, by programs of another user that are there before the collector starts."""

import resource
from pathlib import Path

import pytest

from tests.processes.connection_flood import described, flood, stand_by_apart
from tests.processes.under_fire import PATIENCE_S, collector

FLOOD_S = 4.0
_MOST = resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@pytest.mark.parametrize("files", [256, 1_024, 4_096, 65_536])
def test_connections_without_a_byte_end_no_collector_and_keep_nobody_out(zeus_dir: Path, files: int) -> None:
    """libzmq ended the process when it accepted one for which there was no descriptor."""
    if files > _MOST:
        pytest.skip(f"this process may open {_MOST} files")
    zeus_dir.chmod(0o755)
    sockets = [zeus_dir / name for name in ("publish", "position")]
    with flood(*sockets), collector(zeus_dir, files=files) as running:
        known_ms, new_ms = stand_by_apart(zeus_dir / "publish", FLOOD_S, PATIENCE_S)
        assert running.alive
        rows = running.rows("collector")
        assert int(rows["sockets", "connections refused or closed for others"]) > files
    print(f"{files} files: {described(known_ms)}; over new connections: {described(new_ms)}")
