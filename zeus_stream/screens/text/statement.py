"""The energy of a job as a statement: SPDX 3.0.1 with the AI profile, or Markdown for a model card.

Only what was measured is in the sum. What is missing is named beside it; nothing is estimated.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pyarrow as pa
from msgspec import Struct

from zeus_stream.errors import RefusedError
from zeus_stream.quoting import quoted
from zeus_stream.views.costs import JOULES_PER_KWH
from zeus_stream.views.quantity import figure

CONTEXT = "https://spdx.org/rdf/3.0.1/spdx-context.jsonld"
NAMESPACE = "https://spdx.org/spdxdocs/zeus-stream"
_JOB = "SELECT * FROM job_energy WHERE job = {job}"
_GPUS = """
SELECT coalesce(name, 'unknown model') AS model, count(*) AS gpus
FROM (SELECT DISTINCT unnest(gpus) AS gpu FROM sessions WHERE job = {job} AND world_size > 0)
LEFT JOIN gpus USING (gpu)
GROUP BY model ORDER BY gpus DESC, model
"""
_LIMITS = """
SELECT coalesce(string_agg(DISTINCT estimator, ', ' ORDER BY estimator), 'none') AS estimators
FROM windows WHERE job = {job} AND kind = 'run' AND NOT of_host(gpu)
"""
_SEAL = """
SELECT format('zeus-seal:{}:{}:{}:{}:{}:{}', archive_id, number, hash, sealed_ns, public_key, signature)
    AS seal
FROM seals, meta ORDER BY number DESC LIMIT 1
"""


class Statement(Struct, frozen=True):
    """The energy of one job: its row of ``job_energy``, the models of its GPUs, and how it was measured."""

    job: Mapping[str, Any]
    gpus: tuple[tuple[str, int], ...]
    """Model and number."""
    estimators: str
    version: str
    """Of zeus-stream."""
    seal: str = ""
    """The last of the archive; empty: there is none."""


def state(answer: Callable[[str], pa.Table], job: str, version: str) -> Statement:
    """Return the statement of a job. Raises RefusedError: nothing of it was measured, or a run goes on."""
    rows = answer(_JOB.format(job=quoted(job))).to_pylist()
    if not rows:
        known = answer("SELECT job FROM job_energy ORDER BY job LIMIT 20")["job"].to_pylist()
        raise RefusedError(
            f"statement: could not find the job {job!r}: the archive has {', '.join(known) or 'no job'}."
            " Name one of them, or another archive with --archive. If its shard was taken over, it is in the"
            " lake: ask that with --analyzer HOST:PORT of `zeus-stream serve-sql`."
        )
    (row,) = rows
    if row["energy_j"] is None:
        raise RefusedError(
            f"statement: could not state the energy of {job!r}: no run of it is closed and measured."
            " Wait for its end, or look at `zeus-stream report`."
        )
    models = answer(_GPUS.format(job=quoted(job))).to_pylist()
    (how,) = answer(_LIMITS.format(job=quoted(job))).to_pylist()
    seals = answer(_SEAL).to_pylist()
    gpus = tuple((each["model"], each["gpus"]) for each in models)
    return Statement(row, gpus, how["estimators"], version, seals[0]["seal"] if seals else "")


def remarks(statement: Statement) -> list[str]:
    """Return what a reader has to know of the figure: its bounds, what it covers and what is missing."""
    job = statement.job
    texts = [f"95 % interval: {_kwh(job['energy_p2_5_j'])} to {_kwh(job['energy_p97_5_j'])} kWh."]
    if job["energy_low_j"] is None or job["energy_high_j"] is None:
        texts.append("Hard bounds are not known: a GPU has no energy counter that sees all of the time.")
    else:
        texts.append(
            f"Hard bounds by the counters: {_kwh(job['energy_low_j'])} to {_kwh(job['energy_high_j'])} kWh."
        )
    texts.append(
        "It is the energy of the GPUs as their sensors report it."
        " CPUs, memory, cooling and losses are not in it."
    )
    if job["missing"]:
        hours = job["missing_gpu_s"] / 3600
        texts.append(
            f"Missing: {job['missing']} measurement(s) of a GPU over {_four_digits(hours)} GPU hours"
            f" ({job['quality']}). The true energy is higher."
        )
    elif job["quality"] != "ok":
        texts.append(f"Remarks of the measurement: {job['quality']}.")
    if job["open"]:
        texts.append(f"{job['open']} process(es) of the job have not ended: their energy is not in it.")
    if job["shared"]:
        texts.append("Another run used one of the GPUs at the same time: its energy is included.")
    if statement.seal:
        texts.append(f"Seal of the archive, for `zeus-stream verify`: {statement.seal}")
    return texts


def markdown(statement: Statement) -> str:
    """Return a section for a model card."""
    job = statement.job
    gpus = ", ".join(f"{number} x {model}" for model, number in statement.gpus)
    rows = (
        (
            "Energy of all runs and restarts",
            f"**{_kwh(job['energy_j'])} kWh** ({figure(job['energy_j'], 'J')})",
        ),
        ("Runs, attempts", f"{job['runs']}, {job['attempts']}"),
        ("GPUs", gpus),
        ("GPU hours", _four_digits(job["gpu_s"] / 3600)),
        ("From, to", f"{_day(job['began_at'])}, {_day(job['ended_at'])}"),
        ("Measured by", f"zeus-stream {statement.version}, estimator {statement.estimators}"),
    )
    lines = ["## Training energy", "", f"Job `{job['job']}`.", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, text in rows]
    lines += ["", *(f"- {text}" for text in remarks(statement))]
    return "\n".join(lines) + "\n"


def spdx(statement: Statement) -> str:
    """Return an SPDX 3.0.1 document: an AI package with the energy of its training; reproducible."""
    job = statement.job
    name = str(uuid5(NAMESPACE_URL, f"{job['job']} {job['began_at']} {job['ended_at']} {job['energy_j']!r}"))
    base = f"{NAMESPACE}/{name}"
    created = _utc(job["ended_at"] or job["began_at"])
    common = {"creationInfo": "_:creation"}
    quantity = f"{job['energy_j'] / JOULES_PER_KWH:.9f}".rstrip("0").rstrip(".")
    graph: list[dict[str, Any]] = [
        {
            "type": "CreationInfo",
            "@id": "_:creation",
            "specVersion": "3.0.1",
            "created": created,
            "createdBy": [f"{base}#measured-by"],
        },
        {
            "type": "SoftwareAgent",
            "spdxId": f"{base}#measured-by",
            "name": f"zeus-stream {statement.version}",
            **common,
        },
        {
            "type": "ai_AIPackage",
            "spdxId": f"{base}#model",
            "name": job["job"],
            "comment": " ".join(remarks(statement)),
            "ai_energyConsumption": {
                "type": "ai_EnergyConsumption",
                "ai_trainingEnergyConsumption": [
                    {
                        "type": "ai_EnergyConsumptionDescription",
                        "ai_energyQuantity": quantity,
                        "ai_energyUnit": "kilowattHour",
                    }
                ],
            },
            **common,
        },
        {
            "type": "SpdxDocument",
            "spdxId": f"{base}#document",
            "name": f"Training energy of {job['job']}",
            "profileConformance": ["core", "ai"],
            "rootElement": [f"{base}#model"],
            **common,
        },
    ]
    return json.dumps({"@context": CONTEXT, "@graph": graph}, ensure_ascii=False, indent=2) + "\n"


def _kwh(joules: float) -> str:
    return _four_digits(joules / JOULES_PER_KWH)


def _four_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _day(at: datetime | None) -> str:
    return "not ended" if at is None else f"{at:%Y-%m-%d %H:%M} UTC"


def _utc(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"
