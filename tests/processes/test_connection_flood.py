"""Connections without a byte, by programs of another user that are there before the collector starts."""

import resource
from pathlib import Path

import pytest

from tests.processes.connection_flood import described, flood, stand_by_apart
from tests.processes.under_fire import PATIENCE_S, collector
from tests.zeus_stream.transport.test_access import free_port
from zeus_stream.transport.endpoints import PORTS

FLOOD_S = 4.0
_MOST = resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@pytest.mark.parametrize("files", [256, 1_024, 65_536])
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


@pytest.mark.parametrize("files", [256, 1_024])
def test_connections_without_a_key_end_no_collector_and_programs_of_its_host_are_served(
    zeus_dir: Path, files: int
) -> None:
    """`test_tcp_port` has beside them those with a key."""
    port = free_port()
    listen = ("--listen", f"127.0.0.1:{port}")
    ports = [port + PORTS[door] for door in ("feed", "control")]
    with flood(*ports), collector(zeus_dir, *listen, files=files) as running:
        known_ms, new_ms = stand_by_apart(zeus_dir / "publish", FLOOD_S, PATIENCE_S)
        assert running.alive
        assert int(running.rows("collector")["other hosts", "cut before they showed a key"]) > files
    print(f"{files} files: {described(known_ms)}; over new connections: {described(new_ms)}")
