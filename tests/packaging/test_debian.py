"""The .deb of `make packages` on a host that boots: its services under systemd, an upgrade, a removal."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.devices.simulated import SimulatedBus
from tests.directories import short_directory
from tests.packaging.booted_host import NSPAWN, BootedHost, booted_host
from tests.waiting import until

DIST = Path(os.environ.get("DIST", "none"))
BUILT = sorted(DIST.glob("*.deb"))
pytestmark = [
    pytest.mark.skipif(not BUILT, reason="no .deb: `make packages` builds and tests it"),
    pytest.mark.skipif(os.geteuid() != 0 or not NSPAWN.exists(), reason="a host of its own takes root here"),
]
SERVICES = ("collect", "analyze", "web", "metrics")
UNITS = [f"zeus-stream-{name}" for name in SERVICES]
MOST_EXPOSED = {"collect": 3.3, "analyze": 2.0, "web": 2.0, "metrics": 2.0}
COMMAND, PYTHON = "/usr/bin/zeus-stream", "/opt/zeus-stream/bin/python"
OLDER, CONFIGURED = "0.0.9", "/etc/zeus-stream"
DEVICE, FOUND_MW = "simulated:v100x1", 250_000
SETTINGS = f"""
device = "{DEVICE}"
search = "exhaustive"
stride_w = 75
profile_steps = 5
warmup_steps = 1
settle_ms = 0
refreshes = 2
"""
TRAINING = """
import zeus_stream
with zeus_stream.simulated.attach("imagenet") as gpu:
    for _ in zeus_stream.steps(range(1_000_000)):
        gpu.run(0.01)
"""
INSTALL = ("dpkg", "--force-unsafe-io", "--install")
GET = """
import sys, urllib.request
opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())  # it keeps the page's token
print(opener.open(sys.argv[1]).read().decode())
"""


def older(folder: Path) -> Path:
    """Build the package again as an older version, with a file that the newer one lacks."""
    tree = folder / "tree"
    subprocess.run(["dpkg-deb", "--raw-extract", BUILT[0], tree], check=True)
    control = tree / "DEBIAN" / "control"
    text = control.read_text(encoding="utf-8")
    control.write_text(re.sub("(?m)^Version: .*", f"Version: {OLDER}", text), encoding="utf-8")
    (tree / "opt/zeus-stream/stale").touch()
    built = folder / "older.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, built], check=True)
    return built


@pytest.fixture(scope="module")
def host() -> Iterator[BootedHost]:
    """A host with an older version of the package, its services, and a training."""
    with booted_host() as booted:
        with short_directory() as folder:
            shutil.copy(older(folder), booted.path("/root/older.deb"))
        shutil.copy(BUILT[0], booted.path("/root/newer.deb"))
        booted.run(*INSTALL, "/root/older.deb")
        booted.path(f"{CONFIGURED}/zeus-stream.toml").write_text(SETTINGS, encoding="utf-8")
        booted.path("/root/train.py").write_text(TRAINING, encoding="utf-8")
        booted.run("systemctl", "enable", "--now", *UNITS)
        booted.run("systemd-run", "--unit=training", PYTHON, "-P", "/root/train.py")
        yield booted


def limit_mw(host: BootedHost) -> int | None:
    """Return the power limit that is in force at the host's GPU."""
    (gpu,) = SimulatedBus.parse(DEVICE, host.path("/run/zeus-stream")).discover()
    return gpu.read_control("power_limit")


def wait_for_a_limit(host: BootedHost) -> None:
    """Wait until a limit of ours is in force."""
    until(lambda: (limit_mw(host) or FOUND_MW) < FOUND_MW)


def started(host: BootedHost) -> list[str]:
    """Return when each service became ready, if all are active."""
    states = host.ask("systemctl", "show", "--property=ActiveState", "--value", *UNITS).stdout.split()
    assert states == ["active"] * len(UNITS), states
    shown = host.run("systemctl", "show", "--property=ActiveEnterTimestampMonotonic", "--value", *UNITS)
    return shown.split()


def test_every_service_is_active_and_answers_under_its_restrictions(host: BootedHost) -> None:
    assert all(int(each) for each in started(host))
    wait_for_a_limit(host)
    assert "zeus_stream_gpu_energy_joules_total{" in host.run(
        "/usr/bin/python3", "-c", GET, "http://127.0.0.1:9464/metrics"
    )
    analyzer = "ZEUS_STREAM_DIR=/var/lib/zeus-stream-analyzer"
    address = host.run("env", analyzer, COMMAND, "web", "--url").split()[-1]
    assert "<html" in host.run("/usr/bin/python3", "-c", GET, address)
    measured = "SELECT count(*) > 0 AS so FROM steps WHERE energy_j > 0"
    until(lambda: "true" in host.run("env", analyzer, COMMAND, "sql", measured, "--format", "csv"))
    for name, most in MOST_EXPOSED.items():
        shown = host.ask("systemd-analyze", "security", "--no-pager", f"zeus-stream-{name}").stdout
        (exposure,) = re.findall(r"exposure level for \S+: ([\d.]+)", shown)
        assert float(exposure) <= most, name
    assert host.path("/usr/share/man/man1/zeus-stream.1").exists()


def test_a_collector_that_hangs_is_ended_by_the_watchdog_and_limits_return(host: BootedHost) -> None:
    wait_for_a_limit(host)
    before, _, *_ = started(host)
    host.run("systemctl", "kill", "--kill-whom=main", "--signal=STOP", UNITS[0])
    until(lambda: limit_mw(host) == FOUND_MW)
    until(lambda: host.ask("systemctl", "is-active", UNITS[0]).returncode == 0 and started(host)[0] != before)
    assert "watchdog" in host.run("journalctl", "--no-pager", f"--unit={UNITS[0]}").lower()
    wait_for_a_limit(host)  # the training goes on


def test_limits_return_when_collector_and_watchdog_are_killed_together(host: BootedHost) -> None:
    wait_for_a_limit(host)
    host.run("systemctl", "kill", "--kill-whom=all", "--signal=KILL", UNITS[0])
    until(lambda: limit_mw(host) == FOUND_MW)
    wait_for_a_limit(host)


def test_an_upgrade_keeps_settings_and_starts_every_service_again(host: BootedHost) -> None:
    wait_for_a_limit(host)
    before = started(host)
    host.run(*INSTALL, "/root/newer.deb")
    assert host.path(f"{CONFIGURED}/zeus-stream.toml").read_text(encoding="utf-8") == SETTINGS
    assert not host.path("/opt/zeus-stream/stale").exists()
    assert not set(before) & set(started(host))
    wait_for_a_limit(host)
    assert "Report it" not in host.run("journalctl", "--no-pager", "--unit=zeus-stream-*")


def test_a_removal_restores_limits_and_leaves_archive_and_settings(host: BootedHost) -> None:
    wait_for_a_limit(host)
    host.run("dpkg", "--remove", "zeus-stream")
    assert limit_mw(host) == FOUND_MW
    assert not host.path("/opt/zeus-stream").exists()
    assert not [*host.path("/lib/systemd/system").glob("zeus-stream-*")]
    assert host.path("/var/lib/zeus-stream-analyzer/energy.duckdb").exists()
    assert host.path(f"{CONFIGURED}/zeus-stream.toml").exists()
    host.run("dpkg", "--purge", "zeus-stream")
    assert not host.path(CONFIGURED).exists()
    assert host.path("/var/lib/zeus-stream-analyzer/energy.duckdb").exists()
