"""The pytest plugin, by a pytest of its own with services that it starts."""

import subprocess
import sys

import pytest

from tests.zeus_stream.conftest import Cli
from zeus_stream.bench.energy_assertions import EnergyAssertions

TESTS = """
import pytest
from zeus_stream import simulated

@pytest.fixture(scope="session")
def gpu():
    with simulated.attach("imagenet") as gpu:
        yield gpu

def test_below(energy, gpu):
    energy.assert_energy_below(lambda: gpu.run(0.02), joules=1_000)

def test_not_below(energy, gpu):
    energy.assert_energy_below(lambda: gpu.run(0.02), joules=0.1)

def test_regression(energy, gpu):
    energy.assert_no_regression(lambda: gpu.run(0.06), baseline=lambda: gpu.run(0.02), percent=5)

def test_same(energy, gpu):
    energy.assert_no_regression(lambda: gpu.run(0.02), baseline=lambda: gpu.run(0.02), percent=20)
"""


def ask(zeus: Cli, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    (zeus.directory / "test_energy.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "-q", "--rootdir", str(zeus.directory), *arguments, "test_energy.py"],
        env={**zeus.environment, **environment},
        cwd=zeus.directory,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_tests_fail_on_what_is_proven_only(zeus: Cli) -> None:
    quick = ("--energy-rounds", "6", "--energy-seconds", "0.3", "--energy-warmup-s", "1")
    done = ask(zeus, *quick, ZEUS_STREAM_DEVICE="simulated:v100x1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 2 passed" in done.stdout
    assert "that is not below 0.1 J" in done.stdout
    assert "more than 5 % is proven" in done.stdout


def test_where_nothing_is_measured_tests_are_skipped_or_fail_if_an_energy_is_required() -> None:
    with pytest.raises(pytest.skip.Exception, match="no collector and no analyzer run"):
        EnergyAssertions(None, required=False).assert_energy_below(print, joules=1)
    with pytest.raises(pytest.fail.Exception, match="`zeus-stream doctor` says what is missing"):
        EnergyAssertions(None, required=True).assert_no_regression(print, baseline=print)
