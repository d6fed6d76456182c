"""Statements of a job whose energy is known, read by SPDX's own library where it is installed."""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.sandbox.bounded_queries import Queries
from analyzers.results.rows import Row
from tests.analyzers.archive.test_waste import AGAIN, CLOSED, EPOCH, KILLED, STEPS, WHOLE, later, resumed
from tests.analyzers.archives import GPU, SECOND
from tests.empty_archive import archive_at
from tests.zeus_stream.conftest import Ran
from zeus_stream.errors import RefusedError
from zeus_stream.protocol.queries import Query
from zeus_stream.screens.text.statement import Statement, markdown, spdx, state
from zeus_stream.settings import Settings

Stated = Callable[..., Statement]
KWH = 3.6e6


@pytest.fixture
def stated(tmp_path: Path) -> Iterator[Stated]:
    archive = DuckdbFile.open(archive_at(tmp_path / "energy.duckdb"), Settings())
    queries = Queries(archive, Settings())

    def answer(sql: str) -> pa.Table:
        _, parts = queries.answer(Query(sql, 1000, 10_000))
        return pa.ipc.open_stream(b"".join(parts)).read_all()

    def statement(rows: Sequence[Row], job: str = "train") -> Statement:
        archive.put([], rows, {}, replaying=False)
        return state(answer, job, "0.1.0")

    yield statement
    queries.stop()
    archive.close()


def test_all_attempts_of_a_job_are_in_the_statement(stated: Stated) -> None:
    statement = stated([GPU, KILLED, AGAIN, *STEPS, EPOCH, WHOLE, *resumed(2)])
    text = markdown(statement)
    assert f"**{2 * 4580 / KWH:.4g} kWh** (9,160 J)" in text
    assert "| Runs, attempts | 1, 2 |" in text
    assert "| GPUs | 1 x Model X |" in text
    assert "| From, to | 2026-01-01 00:00 UTC, 2026-01-01 00:02 UTC |" in text
    assert "estimator counter" in text
    assert "Missing" not in text


def test_a_small_energy_is_not_0(stated: Stated) -> None:
    little = replace(WHOLE, energy_j=0.3245, energy_p2_5_j=0.3, energy_p97_5_j=0.4)
    assert "(0.3245 J)" in markdown(stated([GPU, CLOSED, little]))


def test_large_energies_have_no_exponent(stated: Stated) -> None:
    kwh = {"energy_j": 12_345.6 * KWH, "energy_p2_5_j": 12_340 * KWH, "energy_p97_5_j": 12_350 * KWH}
    text = markdown(stated([GPU, CLOSED, replace(WHOLE, **kwh)]))
    assert "**12,346 kWh**" in text
    assert "95 % interval: 12,340 to 12,350 kWh" in text


def test_what_is_missing_is_named(stated: Stated) -> None:
    unknown = later(WHOLE, 200, 0, run="run-3", session="c", energy_j=None, quality="no readings")
    third = replace(AGAIN, run="run-3", session="c", began_ns=210 * SECOND, ended_ns=270 * SECOND)
    going = replace(CLOSED, run="run-4", session="d", ended_ns=None, ended_how=None)
    unbounded = replace(WHOLE, energy_low_j=None, energy_high_j=None)
    text = markdown(stated([GPU, CLOSED, unbounded, third, unknown, going]))
    assert (
        "Missing: 1 measurement(s) of a GPU over 0.01667 GPU hours (no readings). The true energy is higher."
        in text
    )
    assert "1 process(es) of the job have not ended" in text
    assert "Hard bounds are not known" in text


def test_without_a_measured_run_there_is_no_statement(stated: Stated) -> None:
    with pytest.raises(RefusedError, match=r"no run of it is closed and measured\. Wait"):
        stated([replace(CLOSED, ended_ns=None, ended_how=None)])
    with pytest.raises(RefusedError, match=r"could not find the job 'it''s'|could not find the job \"it's\""):
        stated([], "it's")


def test_the_spdx_document_has_the_energy_and_its_bounds(stated: Stated) -> None:
    statement = stated([GPU, CLOSED, *STEPS, EPOCH, WHOLE])
    document = json.loads(spdx(statement))
    assert spdx(statement) == spdx(statement)
    by_type = {each["type"]: each for each in document["@graph"]}
    package = by_type["ai_AIPackage"]
    (described,) = package["ai_energyConsumption"]["ai_trainingEnergyConsumption"]
    assert described["ai_energyUnit"] == "kilowattHour"
    assert float(described["ai_energyQuantity"]) == pytest.approx(4580 / KWH, abs=1e-9)
    assert "95 % interval" in package["comment"]
    assert by_type["CreationInfo"]["created"] == "2026-01-01T00:01:10Z"
    assert by_type["SpdxDocument"]["rootElement"] == [package["spdxId"]]


def read_by_spdx(text: str) -> Any:
    """Return the objects of a document as the bindings of SPDX 3.0.1 read and write them.

    They are generated from the published SHACL model, as the published JSON schema is.
    """
    reason = "spdx-python-model is not installed: `pip install spdx-python-model`"
    model = pytest.importorskip("spdx_python_model", reason=reason).v3_0_1
    objects = model.SHACLObjectSet()
    model.JSONLDDeserializer().read(io.BytesIO(text.encode()), objects)
    model.JSONLDSerializer().write(objects, io.BytesIO())  # it refuses what lacks a mandatory property
    assert not objects.missing_ids, "what the document refers to is in it"
    return objects


def test_spdx_reads_the_document(stated: Stated) -> None:
    objects = read_by_spdx(spdx(stated([GPU, CLOSED, *STEPS, EPOCH, WHOLE])))
    kinds = {type(each).__name__ for each in objects.foreach()}
    assert kinds == {
        "CreationInfo", "SoftwareAgent", "SpdxDocument", "ai_AIPackage", "ai_EnergyConsumption",
        "ai_EnergyConsumptionDescription",
    }  # fmt: skip
    (package,) = [each for each in objects.foreach() if type(each).__name__ == "ai_AIPackage"]
    (described,) = package.ai_energyConsumption.ai_trainingEnergyConsumption
    assert float(described.ai_energyQuantity) == pytest.approx(4580 / KWH, abs=1e-9)


@pytest.mark.sweep
def test_the_commands_of_the_guide_run(ran: Ran) -> None:
    job = ran.zeus("sql", "SELECT job FROM job_energy", "--format", "csv").stdout.split()[-1].strip('"')
    card = ran.zeus("statement", job)
    assert card.stdout.startswith("## Training energy"), card.stderr
    assert json.loads(ran.zeus("statement", job, "--spdx").stdout)["@graph"]
    assert "could not find the job" in ran.zeus("statement", "unknown").stderr
