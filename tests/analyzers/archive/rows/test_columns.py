"""Readings that cannot be: they are kept as they came, and nothing is made of them."""

import numpy as np
import pytest

from analyzers.interpreter.interpreter import Interpreter
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.readings import READING, well_formed
from analyzers.results.rows import GapRow
from tests.simulation.world import outputs_of
from zeus_stream.protocol.frames import Frame
from zeus_stream.protocol.readings import Readings, Seen

NOW_NS = 10**12


def readings(**figures: int) -> Readings:
    rows = np.zeros(2, READING)
    rows["t_lo_ns"], rows["t_hi_ns"], rows["energy_mj"] = NOW_NS - 2, NOW_NS - 1, (1000, 2000)
    rows["seen"] = Seen.CHANGED
    for name, value in figures.items():
        rows[name][1] = value
    return Readings(("GPU-1",), rows.tobytes())


@pytest.mark.parametrize(
    "figures",
    [
        pytest.param({"t_lo_ns": NOW_NS + 1}, id="begins after its end"),
        pytest.param({"t_lo_ns": -(2**63)}, id="before all time"),
        pytest.param({"t_hi_ns": 2**63 - 1}, id="after all time"),
        pytest.param({"energy_mj": 2**63 - 1}, id="more energy than fits in uJ"),
        pytest.param({"energy_mj": -2}, id="negative energy"),
        pytest.param({"power_mw": 2**31 - 1}, id="two megawatts"),
        pytest.param({"limit_mw": -(2**31)}, id="a negative limit"),
        pytest.param({"gpu": 1}, id="a GPU that is not in the list"),
        pytest.param({"seen": len(Seen)}, id="an unknown kind"),
    ],
)
def test_figures_that_cannot_be_make_a_gap_and_no_more(figures: dict[str, int]) -> None:
    assert well_formed(readings())
    assert not well_formed(readings(**figures))
    interpreter = Interpreter(RunSettings(selector=None))
    (gap,) = outputs_of(
        interpreter,
        Frame(log_id="l", offset=0, host="h", t_ns=NOW_NS, topic="t", body=b""),
        readings(**figures),
    )
    assert isinstance(gap, GapRow)
    assert "cannot be" in gap.reason


def test_readings_of_the_future_do_not_stop_what_follows() -> None:
    interpreter = Interpreter(RunSettings(selector=None))
    (gap,) = outputs_of(
        interpreter,
        Frame(log_id="l", offset=0, host="h", t_ns=NOW_NS, topic="t", body=b""),
        readings(t_hi_ns=2**62),
    )
    assert isinstance(gap, GapRow)
    assert (gap.count, gap.reason) == (2, "they are later than they were logged")
    assert (
        outputs_of(
            interpreter, Frame(log_id="l", offset=1, host="h", t_ns=NOW_NS, topic="t", body=b""), readings()
        )
        == []
    )
