"""What a collector costs on an idle host."""

import json

import pytest

from tests.zeus_stream.conftest import SIMULATED, Cli
from zeus_stream.cli.bench.idle_cost import describe_cost, idle_cost
from zeus_stream.errors import RefusedError

QUICK = ("bench", "--idle", "--rounds", "6", "--seconds", "1")


def test_simulated_gpus_draw_the_same_with_a_collector(zeus: Cli) -> None:
    done = zeus(*QUICK, "--device", SIMULATED, "--json")
    assert done.returncode == 0, done.stderr
    cost = json.loads(done.stdout)
    assert cost["without_w"] == pytest.approx(34, rel=0.1)
    assert cost["difference_low_w"] <= 0.5
    assert cost["difference_high_w"] >= -0.5
    assert len(cost["devices"]) == 1


def test_what_cannot_be_measured_is_refused_with_a_cure(zeus: Cli) -> None:
    lacking = zeus(*QUICK, "--device", f"{SIMULATED},power_only=1")
    assert lacking.returncode == 1
    assert "no device here counts energy" in lacking.stderr
    both = zeus(*QUICK, "kernels:light", "--device", SIMULATED)
    assert "--idle without one" in both.stderr
    with zeus.serving("collect", "--device", SIMULATED):
        running = zeus(*QUICK, "--device", SIMULATED)
    assert running.returncode == 1
    assert "so no interval is without one. Stop it." in running.stderr


def test_rounds_without_an_energy_are_left_out_and_too_few_are_refused() -> None:
    with pytest.raises(RefusedError, match="2 pairs of rounds"):
        idle_cost(("GPU-1",), [60.0] * 6, [60.0, 60.0, None, 60.0, 60.0, 60.0], 6, 60)
    cost = idle_cost(("GPU-1",), [60.0] * 8, [60.0, 60.0, None, *[60.0] * 5], 8, 60)
    assert "no difference is proven" in describe_cost(cost)
