"""Whatever becomes of the collector, a training gives the same numbers and exit code, and no step waits."""

import tempfile
from collections.abc import Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.processes.training import (
    State,
    absent,
    deaf,
    full,
    healthy,
    killed_halfway,
    replaced_halfway,
    run,
    stopped_from_the_start,
    stopped_halfway,
    unusable,
    wedged,
)

LONGEST_S = 30.0
"""A step takes 10 ms, on a busy machine more. A wait for who does not answer would be for ever."""


@cache
def without_us(kind: str) -> tuple[int, Mapping[str, Any]]:
    """Return exit code and numbers of the training with telemetry switched off."""
    code, told, _ = run(kind, Path(tempfile.gettempdir()), ZEUS_STREAM_OFF="1")
    return code, told


PLAIN = (
    healthy, absent, stopped_from_the_start, stopped_halfway, killed_halfway, replaced_halfway, wedged, deaf,
    full, unusable,
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        *(("plain", state) for state in PLAIN),
        *product(("workers", "ranks", "threads"), (healthy, stopped_from_the_start)),
    ],
)
def test_a_loss_curve_is_the_same_bit_by_bit_and_no_step_waits(
    zeus_dir: Path, kind: str, state: State
) -> None:
    with state(zeus_dir) as halfway:
        code, told, err = run(kind, zeus_dir, halfway if kind == "plain" else None)
    expected_code, expected = without_us(kind)
    assert code == expected_code == 0
    assert (told["losses"], told["weights"]) == (expected["losses"], expected["weights"])
    assert len(told["losses"]) == (2 if kind == "ranks" else 120)
    assert told["longest_s"] < LONGEST_S
    assert "Traceback" not in err


@pytest.mark.parametrize(("kind", "code"), [("fails", 1), ("exits", 7)])
def test_a_script_ends_as_it_would_without_us(zeus_dir: Path, kind: str, code: int) -> None:
    with stopped_from_the_start(zeus_dir):
        ended, told, err = run(kind, zeus_dir, steps=10)
    assert ended == code
    assert len(told["losses"]) == 20
    assert err.count("Traceback") == (kind == "fails")
