"""The use of our own services: from their records to the rows, the view and the line of the report."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.interpreter.interpreter import Interpreter, Logged
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.rows import OwnUseRow, Row
from tests.analyzers.archives import RUN, SECOND, A, asked, window
from tests.zeus_stream.test_own_cost import USE
from zeus_stream.protocol.frames import Frame
from zeus_stream.protocol.notes import Notes, OwnUse
from zeus_stream.quoting import quoted
from zeus_stream.views.costs import OWN_USE, own_use_facts

Ask = Callable[[Sequence[Row]], list[dict[str, Any]]]
ENDED = replace(RUN, ended_ns=50 * SECOND, ended_how="ended")
BEGAN_NS, ENDED_NS = RUN.began_wall_ns, RUN.began_wall_ns + 50 * SECOND - RUN.began_ns
NO_RAPL = "no collector of this host can read its CPUs"


@pytest.fixture
def ask(archive: DuckdbFile) -> Ask:
    """Store rows, and return those of the view for the run."""

    def answer(rows: Sequence[Row]) -> list[dict[str, Any]]:
        archive.put([], rows)
        return asked(archive, OWN_USE.format(run=quoted(RUN.run)))

    return answer


def row(service: str, begin_ns: int, end_ns: int, cpu_s: float, host_j: float | None = 1000.0) -> OwnUseRow:
    seconds = (end_ns - begin_ns) / 1e9
    use = replace(
        USE, service=service, host=RUN.host, wall_ns=end_ns, took_ns=end_ns - begin_ns,
        cpu_ns=round(cpu_s * 1e9), host_cpu_ns=round(seconds * 1e9), processors=4,
        host_energy_mj=None if host_j is None else round(host_j * 1000), reason="" if host_j else NO_RAPL,
    )  # fmt: skip
    return taken(Interpreter(RunSettings(selector=None)), use)


def taken(interpreter: Interpreter, use: OwnUse) -> OwnUseRow:
    """Return the row that a record gives."""
    frame = Frame(log_id="log", offset=0, host="host", t_ns=1, topic="", body=b"")
    (made,) = interpreter.handle(Logged(frame, Notes((use,))), 1).rows
    assert isinstance(made, OwnUseRow)
    return made


def test_an_analyzer_has_the_power_that_the_collector_of_its_host_has_read() -> None:
    handle = partial(taken, Interpreter(RunSettings(selector=None)))
    analyzer = replace(USE, service="analyzer", host_energy_mj=None, reason=NO_RAPL)
    assert (handle(analyzer).energy_high_j, handle(analyzer).reason) == (None, NO_RAPL)
    assert handle(USE).energy_high_j == 240.0
    short = handle(replace(analyzer, took_ns=30_000_000_000))
    assert (short.host_energy_j, short.energy_low_j, short.reason) == (1200.0, 15.0, "")
    assert handle(replace(analyzer, host="other")).energy_low_j is None


def test_a_report_has_the_share_of_both_services_in_the_energy_measured(ask: Ask) -> None:
    """A record that reaches over the run counts by the part within it."""
    half_ns = (BEGAN_NS + ENDED_NS) // 2
    seconds = (ENDED_NS - BEGAN_NS) / 1e9
    measured = window("run", 0, 10, 50, A)
    rows: list[Row] = [
        ENDED,
        measured,
        row("collector", BEGAN_NS - (half_ns - BEGAN_NS), half_ns, 2.0),
        row("collector", half_ns, ENDED_NS, 1.0),
        row("analyzer", BEGAN_NS, ENDED_NS, 3.0),
        row("analyzer", ENDED_NS, ENDED_NS + SECOND, 1.0),
    ]
    collector, analyzer = ask(rows)
    assert collector["cpu_s"] == pytest.approx(2.0)
    assert analyzer["core_percent"] == pytest.approx(100 * 3 / seconds)
    assert measured.energy_j is not None
    assert analyzer["share_high_percent"] == pytest.approx(100 * 1000 * 3 / seconds / measured.energy_j)
    assert analyzer["share_low_percent"] == pytest.approx(analyzer["share_high_percent"] / 4)
    [(name, text)] = own_use_facts([collector, analyzer])
    assert name == "zeus-stream itself"
    assert text.startswith("12.5 % of a core (analyzer 7.5 %, collector 5.0 %), ")
    assert text.endswith(" % of the energy measured")


def test_without_a_counter_there_is_processor_time_alone(ask: Ask) -> None:
    found = ask([ENDED, window("run", 0, 10, 50, A), row("analyzer", BEGAN_NS, ENDED_NS, 3.0, None)])
    assert own_use_facts(found) == [
        ("zeus-stream itself", "7.5 % of a core (analyzer 7.5 %), energy unknown")
    ]


def test_records_of_less_than_half_of_a_run_say_nothing_of_it(ask: Ask) -> None:
    assert ask([ENDED, row("analyzer", BEGAN_NS, BEGAN_NS + (ENDED_NS - BEGAN_NS) // 3, 3.0)]) == []
    assert own_use_facts([]) == []


def test_where_the_energy_of_a_run_is_missing_so_is_the_share(ask: Ask) -> None:
    missing = replace(window("run", 0, 10, 50, A), energy_j=None)
    [(_, text)] = own_use_facts(ask([ENDED, missing, row("analyzer", BEGAN_NS, ENDED_NS, 3.0)]))
    assert text.endswith("energy unknown")
