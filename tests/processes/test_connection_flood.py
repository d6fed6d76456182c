"""Connections without a byte, by programs of another user that are there before the service starts."""

import resource
from pathlib import Path

import pytest

from tests.environment import PATIENCE_S
from tests.processes.connection_flood import described, flood, stand_by_apart
from tests.processes.under_fire import analyzer, collector
from tests.waiting import until
from tests.zeus_stream.transport.test_access import free_port
from zeus_stream.transport.endpoints import PORTS

FLOOD_S = 4.0
CUT = {
    "of this host": ("sockets", "connections refused or closed for others"),
    "of the network": ("other hosts", "cut before they showed a key"),
}
"""By where connections come from, how many did not stay, in the status of a collector."""


@pytest.mark.parametrize("doors", CUT)
@pytest.mark.parametrize("files", [256, 1_024, 65_536])
def test_connections_without_a_byte_end_no_collector_and_keep_nobody_out(
    zeus_dir: Path, files: int, doors: str
) -> None:
    """libzmq ended the process when it accepted one for which there was no descriptor."""
    if files > resource.getrlimit(resource.RLIMIT_NOFILE)[1]:
        pytest.skip(f"this process may not open {files} files")
    zeus_dir.chmod(0o755)
    port = free_port()
    sockets: tuple[Path | int, ...] = (zeus_dir / "publish", zeus_dir / "position")
    if doors == "of the network":
        sockets = (port + PORTS["feed"], port + PORTS["control"])
    with flood(*sockets), collector(zeus_dir, "--listen", f"127.0.0.1:{port}", files=files) as running:
        known_ms, new_ms = stand_by_apart(zeus_dir / "publish", FLOOD_S, PATIENCE_S)
        assert running.alive
        assert int(running.rows("collector")[CUT[doors]]) > min(files, 1_024)
    print(f"{files} files: {described(known_ms)}; over new connections: {described(new_ms)}")


def test_connections_to_the_sql_port_do_not_end_an_analyzer_of_few_files(zeus_dir: Path) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    with (
        flood(port + PORTS["query"]),
        analyzer(zeus_dir, "--select", "none", "--listen", address, files=1_000) as running,
    ):
        until(lambda: int(running.rows("analyzer")["other hosts", "cut before they showed a key"]) > 3_000)
        assert running.alive
