"""Connections without a byte, by programs of another user that are there before the service starts."""

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.environment import free_port
from tests.processes.under_fire import analyzer, collector, train
from tests.waiting import until
from zeus_stream.transport.endpoints import PORTS

OTHER_USER = 65_534
ATTACKERS = 3
STEPS = 100
"""Of a training beside the flood: one second."""
CUT = {
    "of this host": ("sockets", "connections refused or closed for others"),
    "of the network": ("other hosts", "cut before they showed a key"),
}
"""By where connections come from, how many did not stay, in the status of a collector."""
ATTACK = """
import encodings.idna, errno, os, socket, sys, time
if os.geteuid() == 0:
    os.setgroups([])
    os.setuid(int(sys.argv[1]))
held, parent = [], os.getppid()
while os.getppid() == parent:  # the kernel tells no process that changed its user that its parent has ended
    for place in sys.argv[2:]:
        family, address = socket.AF_UNIX, place
        if place.isdigit():
            family, address = socket.AF_INET, ("127.0.0.1", int(place))
        try:
            connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            if connection.connect_ex(address) in (0, errno.EINPROGRESS):
                held.append(connection)
        except OSError:
            for each in held:
                each.close()
            held.clear()
    time.sleep(0.001)  # some thousands a second of all together are a flood, and leave others the processor
"""


@contextmanager
def flood(*places: Path | int) -> Iterator[None]:
    """Connect to these sockets and ports, also before they are there, until the end of the block."""
    command = [sys.executable, "-c", ATTACK, str(OTHER_USER), *map(str, places)]
    running = [subprocess.Popen(command, env={}, stdin=subprocess.DEVNULL) for _ in range(ATTACKERS)]
    try:
        yield
        assert all(each.poll() is None for each in running)
    finally:
        for each in running:
            each.kill()
            each.wait()


@pytest.mark.parametrize(
    ("files", "doors"),
    [(256, "of this host"), (65_536, "of this host"), (256, "of the network")],
)
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
        for run in ("first", "second"):  # over a new connection each, which is kept while it trains
            trained = train(zeus_dir, run, STEPS)
            assert (trained.returncode, trained.stderr) == (0, ""), "its events were acknowledged"
        until(lambda: int(running.rows("collector")[CUT[doors]]) > min(files, 1_024))
        assert running.alive


def test_connections_to_the_sql_port_do_not_end_an_analyzer_of_few_files(zeus_dir: Path) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    with (
        flood(port + PORTS["query"]),
        analyzer(zeus_dir, "--select", "none", "--listen", address, files=1_000) as running,
    ):
        until(lambda: int(running.rows("analyzer")["other hosts", "cut before they showed a key"]) > 3_000)
        assert running.alive
