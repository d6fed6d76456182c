"""Connections that never show a key, to the SQL port of an analyzer that may open few files."""

import socket
import time
from contextlib import ExitStack
from pathlib import Path

from tests.processes.under_fire import victim
from tests.waiting import until
from tests.zeus_stream.transport.test_access import free_port
from zeus_stream.transport.endpoints import PORTS

CONNECTIONS = 3_000
FILES = 1_000


def test_3000_idle_connections_to_the_sql_port_do_not_end_the_analyzer(zeus_dir: Path) -> None:
    port = free_port()
    arguments = ("-m", "zeus_stream", "analyze", "--select", "none", "--listen", f"127.0.0.1:{port}")
    with victim(zeus_dir, *arguments, ready="query", files=FILES) as running, ExitStack() as held:
        address = ("127.0.0.1", port + PORTS["query"])
        until(lambda: running.rows("analyzer"))
        for _ in range(CONNECTIONS):
            assert running.alive
            try:
                held.enter_context(socket.create_connection(address, timeout=10))
            except OSError:  # it does not listen for a moment
                time.sleep(0.001)
        assert running.alive
        until(lambda: running.rows("analyzer"))
        held.close()
        assert running.rows("analyzer")["other hosts", "query"] == f"tcp://127.0.0.1:{port + PORTS['query']}"
