"""The pytest plugin: tests that measure the energy of what they call.

def test_attention(energy):
    energy.assert_energy_below(attention, joules=2.5)
    energy.assert_no_regression(attention_fused, baseline=attention, percent=5)
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from zeus_stream.errors import UnreachableError

if TYPE_CHECKING:
    from zeus_stream.bench.energy_bench import EnergyBench

Function = Callable[[], object]


class EnergyAssertions:
    """Assertions on the energy of functions. The fixture ``energy`` is one."""

    def __init__(self, bench: "EnergyBench | None", *, required: bool) -> None:
        """``bench``: None if nothing can be measured: tests are skipped then, or fail if it is required."""
        self._bench = bench
        self._required = required

    def assert_energy_below(self, function: Function, joules: float) -> None:
        """Fail if it is proven that one call needs more energy than this, J, on average."""
        from zeus_stream.bench.energy_difference import PROOF, mean_energy  # noqa: PLC0415  (plugins load early)

        (energies,) = self._measure(function)
        mean_j, low_j, _ = mean_energy(energies, share=PROOF)
        if low_j > joules:
            pytest.fail(
                f"one call needs {mean_j:.4g} J, and more than {low_j:.4g} J is proven:"
                f" that is not below {joules:g} J.",
                pytrace=False,
            )

    def assert_no_regression(self, function: Function, baseline: Function, percent: float = 5.0) -> None:
        """Fail if it is proven that a function needs so many percent more energy than a baseline."""
        from zeus_stream.bench.energy_difference import compare_rounds  # noqa: PLC0415

        before, after = self._measure(baseline, function)
        change = compare_rounds(before, after)
        if change.exceeds(percent):
            pytest.fail(
                f"{change.percent:+.2f} % energy ({change.low_percent:+.2f} to {change.high_percent:+.2f}):"
                f" more than {percent:g} % is proven.",
                pytrace=False,
            )

    def _measure(self, *functions: Function) -> tuple[tuple[float | None, ...], ...]:
        why = "no collector and no analyzer run, and none could be started"
        if self._bench is not None:
            named = {f"{each.__qualname__} {number}": each for number, each in enumerate(functions)}
            try:
                return tuple(variant.energies_j for variant in self._bench.run(named))
            except UnreachableError as wrong:
                why = str(wrong)
        if self._required:
            pytest.fail(f"energy: {why}. `zeus-stream doctor` says what is missing.", pytrace=False)
        pytest.skip(f"energy: {why}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of a measurement."""
    group = parser.getgroup("zeus-stream", "energy of tests")
    group.addoption("--energy-rounds", type=int, default=10, help="rounds of a measurement [10]")
    group.addoption("--energy-seconds", type=float, default=0.5, help="length of a repeat, s [0.5]")
    group.addoption("--energy-warmup-s", type=float, default=10.0, help="longest warm-up, s [10]")
    group.addoption(
        "--energy-required", action="store_true", help="fail where no energy can be measured, not skip"
    )


@pytest.fixture(scope="session")
def energy(request: pytest.FixtureRequest) -> Iterator[EnergyAssertions]:
    """Assertions on the energy of functions, measured by services that are started if none run."""
    from zeus_stream.bench.energy_bench import BenchPlan, EnergyBench, gpu_temperatures  # noqa: PLC0415
    from zeus_stream.own_services import start  # noqa: PLC0415
    from zeus_stream.training.publisher import Publisher  # noqa: PLC0415
    from zeus_stream.transport.client import connect  # noqa: PLC0415

    option = request.config.getoption
    required = option("--energy-required")
    if not start():
        yield EnergyAssertions(None, required=required)
        return
    rounds = max(6, option("--energy-rounds"))
    plan = BenchPlan(
        rounds=rounds + rounds % 2,
        seconds=option("--energy-seconds"),
        warmup_s=option("--energy-warmup-s"),
        cool_down_s=0.0,
    )
    with Publisher(job="pytest") as publisher:
        yield EnergyAssertions(EnergyBench(publisher, plan, gpu_temperatures(connect())), required=required)
