"""Messages of services to systemd: ready, alive, stopping."""

from socket import AF_UNIX, SOCK_DGRAM, socket

import pytest

from tests.zeus_stream.conftest import SIMULATED, Cli
from zeus_stream.cli.service_commands import watchdog_s


def test_a_service_says_when_it_is_ready_alive_and_stopping(zeus: Cli) -> None:
    with socket(AF_UNIX, SOCK_DGRAM) as door:
        door.bind(address := str(zeus.directory / "notify"))
        door.settimeout(60)
        said: list[bytes] = []
        wanted = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "3000000"}
        with zeus.start("collect", "--device", SIMULATED, **wanted) as collector:
            while not {b"READY=1", b"WATCHDOG=1"} <= {*said}:
                said.append(door.recv(100))
            collector.terminate()
            while b"STOPPING=1" not in said:
                said.append(door.recv(100))
    assert collector.returncode == 0
    assert said.index(b"READY=1") < said.index(b"STOPPING=1")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, None), ({"WATCHDOG_USEC": "30000000"}, 30.0), ({"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}, None)],
)
def test_the_watchdog_of_another_process_is_not_served(
    environment: dict[str, str], expected: float | None
) -> None:
    assert watchdog_s(environment) == expected
