"""The door to JAX, with arrays that have its names, and with JAX where it is."""

import time
from pathlib import Path

import pytest

from tests.environment import run
from tests.zeus_stream.stand_in_collector import Collector
from zeus_stream.protocol.events import StepBoundary
from zeus_stream.training.publisher import Publisher


class Array:
    """Is ready at an instant."""

    def __init__(self, ready_ns: int) -> None:
        self.ready_ns = ready_ns

    def is_ready(self) -> bool:
        return time.monotonic_ns() >= self.ready_ns


def work(seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        pass


def test_steps_end_when_their_outputs_are_ready(collector: Collector) -> None:
    outputs, begun_ns, left_ns = [], [], []
    with Publisher() as pub:
        for _ in pub.steps(range(10)):
            begun_ns.append(time.monotonic_ns())
            outputs.append(Array(begun_ns[-1] + 50_000_000))
            pub.ends_with(outputs[-1])
            work(0.005)
            left_ns.append(time.monotonic_ns())
        begun_ns.append(time.monotonic_ns())
        work(0.1)
    first, *boundaries = collector.seen(StepBoundary)
    assert first.placed == "dispatch"
    assert [boundary.placed for boundary in boundaries] == ["ready"] * 10
    for boundary, output, left, next_begun in zip(boundaries, outputs, left_ns, begun_ns[1:], strict=True):
        assert boundary.ended_ns is not None
        assert boundary.uncertainty_ns is not None
        # On a busy machine an output may be ready before its step is left: then it ends when it is left.
        assert boundary.ended_ns + boundary.uncertainty_ns >= max(output.ready_ns, left)
        assert boundary.ended_ns - boundary.uncertainty_ns <= max(output.ready_ns, next_begun)


def test_what_cannot_say_when_it_is_ready_is_named_once(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    with Publisher() as pub:
        for _ in pub.steps(range(3)):
            pub.ends_with(0.5)
    assert {boundary.placed for boundary in collector.seen(StepBoundary)} == {"dispatch"}
    [said] = [record.getMessage() for record in caplog.records]
    assert said == (
        "zeus-stream: ends_with(): float cannot say when it is ready: it has no is_ready(). Give it an array"
        " of JAX, such as the loss."
    )


REAL = """
import jax, jax.numpy as jnp, zeus_stream
from zeus_stream.training.steps import step_recorder as door
step = jax.jit(lambda x: {"loss": (x @ x).sum(), "none": None})
assert door.ready_output(step(jnp.ones((8, 8)))).shape == ()
assert door.ready_output({"a": [1, 2.0]}) is None
x = jnp.ones((600, 600))
for _ in zeus_stream.steps(range(5)):
    out = step(x)
    zeus_stream.ends_with(out)
jax.block_until_ready(out)
"""


def test_the_real_jax_has_these_names(collector: Collector, zeus_dir: Path) -> None:
    if run(zeus_dir, "-c", "import jax").returncode:
        pytest.skip("jax is not installed here")
    done = run(zeus_dir, "-c", REAL, env={"JAX_PLATFORMS": "cpu"})
    assert (done.returncode, done.stderr) == (0, "")
    _, *boundaries = collector.seen(StepBoundary)
    assert [boundary.placed for boundary in boundaries] == ["ready"] * 5
