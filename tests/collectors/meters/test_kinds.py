"""Each kind of meter against a stand-in: a service of Redfish, commands on the path, files."""

import json
import ssl
import subprocess
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from collectors.meters import program_meters
from collectors.meters.metered_bus import MeteredBus
from tests.collectors.devices.arithmetic import ArithmeticBus
from zeus_stream.errors import DeviceError, LostError, PermissionMissingError, RetryError

IPMITOOL = """#!/bin/sh
[ "$*" = "dcmi power reading" ] || { echo "unknown: $*" >&2; exit 1; }
cat <<END

    Instantaneous power reading:                   412 Watts
    Minimum during sampling period:                 98 Watts
    IPMI timestamp:                           Thu Nov 26 20:00:00 2026
    Power reading state is:                   activated
END
"""
SNMPGET = """#!/bin/sh
[ "$*" = "-Oqv -t 2 -r 1 pdu4 1.3.6.1.4.1.318.1" ] || { echo "unknown: $*" >&2; exit 1; }
echo 41
"""


Figures = tuple[int | None, int | None]
"""Energy, mJ, and power, mW."""


def read(setting: str) -> Figures:
    """Read a meter as a collector does."""
    (device,) = MeteredBus(ArithmeticBus(0), [f"wall={setting}"], "host").discover()
    counts_energy = device.describe().counts_energy
    sample = device.sample()
    assert counts_energy is (sample.energy_mj is not None)
    return sample.energy_mj, sample.power_mw


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Install a command."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def install(name: str, script: str) -> None:
        (tmp_path / name).write_text(script, encoding="ascii")
        (tmp_path / name).chmod(0o755)

    return install


def test_ipmi_gives_the_power_of_now(installed: Callable[[str, str], None]) -> None:
    installed("ipmitool", IPMITOOL)
    assert read("ipmi") == (None, 412_000)


def test_snmp_gives_the_figure_in_the_unit_of_the_setting(installed: Callable[[str, str], None]) -> None:
    installed("snmpget", SNMPGET)
    assert read("snmp:pdu4 1.3.6.1.4.1.318.1 10W") == (None, 410_000)


def test_a_command_that_is_not_installed_is_a_meter_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LostError, match="ipmitool: could not be run: it is not installed"):
        read("ipmi")


def test_a_command_that_fails_is_asked_again_and_says_why(installed: Callable[[str, str], None]) -> None:
    installed("ipmitool", "#!/bin/sh\necho 'Could not open device at /dev/ipmi0' >&2; exit 1\n")
    with pytest.raises(RetryError, match="Could not open device at /dev/ipmi0"):
        read("ipmi")
    with pytest.raises(RetryError, match="has no number"):
        read("command:echo none")


def test_any_command_is_a_meter() -> None:
    assert read("command:echo 'total 1.25 kWh' kWh") == (4_500_000_000, None)


def test_a_cray_counts_the_joules_of_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = tmp_path / "energy"
    counter.write_text("81234567 J 1700000000000000 us\n", encoding="ascii")
    monkeypatch.setattr(program_meters, "CRAY", counter)
    assert read("cray") == (81_234_567_000, None)


def test_a_file_has_the_unit_of_the_setting(tmp_path: Path) -> None:
    (tmp_path / "power1_input").write_text("212500000\n", encoding="ascii")
    assert read(f"file:{tmp_path}/power1_input uW") == (None, 212_500)


@pytest.mark.parametrize(
    ("file", "wrong", "why"),
    [("none", LostError, "it is not there"), ("", RetryError, "Is a directory")],
)
def test_a_file_that_cannot_be_read_says_why(
    tmp_path: Path, file: str, wrong: type[DeviceError], why: str
) -> None:
    with pytest.raises(wrong, match=why):
        read(f"file:{tmp_path / file}")


def test_a_file_of_others_needs_a_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)  # root may read every file
    with pytest.raises(PermissionMissingError, match="Let the collector's user read it"):
        read(f"file:{tmp_path}/wall")


class Service(BaseHTTPRequestHandler):
    """A baseboard controller."""

    resources: Mapping[str, Any] = {}

    def do_GET(self) -> None:
        secret = self.headers.get("Authorization", "").removeprefix("Basic ")
        if b64decode(secret) != b"reader:a b":
            self.send_error(401)
        elif self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/redfish/v1/Chassis/1/Power")
            self.end_headers()
        elif self.path in self.resources:
            body = json.dumps(self.resources[self.path]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        else:
            self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def redfish(resources: Mapping[str, Any], context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve resources on this machine; give ``HOST:PORT``."""
    handler = type("OneService", (Service,), {"resources": resources})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


POWER = {"PowerControl": [{"PowerConsumedWatts": 344}, {"PowerConsumedWatts": 100.5}]}


@pytest.mark.parametrize(
    ("content", "reading"),
    [
        pytest.param(POWER, (None, 444_500), id="Power: feeds add up"),
        pytest.param({"PowerWatts": {"Reading": 374}}, (None, 374_000), id="power of a chassis"),
        pytest.param(
            {"PowerWatts": {"Reading": 374}, "EnergyJoules": {"Reading": 12_000.5}},
            (12_000_500, None), id="a counter is better than a power",
        ),
        pytest.param(
            {"PowerWatts": {"Reading": 374}, "EnergykWh": {"Reading": None}},
            (None, 374_000), id="a figure that is null is none",
        ),
        pytest.param(
            {"Reading": 2.5, "ReadingUnits": "kW.h"}, (9_000_000_000, None), id="a sensor"
        ),
    ],
)  # fmt: skip
def test_redfish_gives_the_best_figure_of_a_resource(content: Any, reading: Figures) -> None:
    with redfish({"/redfish/v1/Chassis/1/Power": content}) as place:
        assert read(f"redfish:http://reader:a%20b@{place}/redfish/v1/Chassis/1/Power") == reading


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("reader:wrong@{place}/redfish/v1/Chassis/1/Power", "401"),
        ("reader:a%20b@{place}/redfish/v1/none", "404"),
        ("reader:a%20b@{place}/moved", "302"),
        ("reader:a%20b@{place}/redfish/v1", "it has none of EnergyJoules"),
    ],
)
def test_redfish_without_a_figure_says_why_and_never_the_password(address: str, why: str) -> None:
    resources = {"/redfish/v1/Chassis/1/Power": POWER, "/redfish/v1": {"Name": "Root"}}
    with redfish(resources) as place, pytest.raises(RetryError, match=why) as wrong:
        read(f"redfish:http://{address.format(place=place)}")
    assert str(wrong.value).startswith(f"{place}/"), "with its port"
    assert "wrong" not in str(wrong.value)
    assert "a%20b" not in str(wrong.value)


def test_redfish_checks_the_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=bmc",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with redfish({"/power": POWER}, context) as place:
        address = f"redfish:https://reader:a%20b@{place}/power"
        with pytest.raises(RetryError, match="certificate"):
            read(address)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert read(address) == (None, 444_500)
