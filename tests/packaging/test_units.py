"""The systemd units give each service what it needs, and little else."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[2] / "packaging" / "systemd"
ANALYZER, COLLECTOR = UNITS / "zeus-stream-analyze.service", UNITS / "zeus-stream-collect.service"
ARCHIVER = UNITS / "zeus-stream-archive.service"
WEB, METRICS = UNITS / "zeus-stream-web.service", UNITS / "zeus-stream-metrics.service"
MOST = {ANALYZER: 2.0, COLLECTOR: 3.3, ARCHIVER: 2.0, WEB: 2.0, METRICS: 2.0}
"""Exposure by `systemd-analyze security`, of 10."""


def directives(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.read_text(encoding="utf-8").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("unit", [ANALYZER, COLLECTOR], ids=lambda unit: unit.stem)
def test_a_unit_is_bounded_in_files_memory_calls_and_addresses(unit: Path) -> None:
    found = directives(unit)
    assert found["UMask"] == ["0077"]
    assert int(found["Nice"][0]) < 0
    assert int(found["CPUWeight"][0]) > 100, "more than the default"
    assert found["NoNewPrivileges"] == ["yes"]
    assert int(found["LimitNOFILE"][0]) >= 65_536
    assert found["MemoryMax"][0].endswith("G")
    assert found["SystemCallFilter"][0] == "@system-service"
    assert set(found["RestrictAddressFamilies"][0].split()) <= {
        "AF_UNIX",
        "AF_INET",
        "AF_INET6",
        "AF_NETLINK",
    }


@pytest.mark.parametrize("unit", MOST, ids=lambda unit: unit.stem)
def test_a_service_that_ends_by_itself_is_started_again(unit: Path) -> None:
    found = directives(unit)
    assert found["Restart"] == ["always"]
    assert 1 <= int(found["RestartSec"][0]) <= 5


def test_an_archiver_is_started_again_for_as_long_as_postgresql_is_away() -> None:
    found = directives(ARCHIVER)
    assert found["StartLimitIntervalSec"] == ["0"], "else systemd gives up after 5 starts in 10 s"
    assert found["CapabilityBoundingSet"] == [""]


def test_the_analyzer_has_a_user_of_its_own_and_no_capability() -> None:
    found = directives(ANALYZER)
    assert (found["User"], found["CapabilityBoundingSet"]) == (["zeus-stream"], [""])
    state = found["StateDirectory"][0]
    assert found["Environment"] == [f"ZEUS_STREAM_DIR=/var/lib/{state}"]
    group = found["Group"][0]
    assert f"--group {group}" in directives(COLLECTOR)["ExecStart"][0], "else it may not command"


def test_the_collector_has_the_capabilities_that_its_work_takes() -> None:
    capabilities = set(directives(COLLECTOR)["CapabilityBoundingSet"][0].split())
    assert capabilities == {"CAP_SYS_ADMIN", "CAP_SYS_NICE", "CAP_CHOWN"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", MOST, ids=lambda unit: unit.stem)
def test_a_unit_is_as_little_exposed_as_it_can_be(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    exposure = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert exposure is not None, done.stderr
    assert float(exposure[1]) <= MOST[unit]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_reads_every_unit_without_a_complaint() -> None:
    done = subprocess.run(["systemd-analyze", "verify", *MOST], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if "is not executable" not in line]
    assert not complaints, "their command is not installed here, and that is all"
