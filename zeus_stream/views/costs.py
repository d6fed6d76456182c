"""Money, carbon and the use of zeus-stream itself, as text: rows of views, or a price of the question."""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from zeus_stream.views.quantity import ends, figure, percent

JOULES_PER_KWH = 3.6e6
COSTS = "FROM costs WHERE run = {run} ORDER BY name"
"""Money and carbon of a run, by the signals that are imported."""
SIGNALS_NOW = """
SELECT name, value AS factor, split_part(unit, '/', 1) AS unit, unit AS factor_unit, place, year, source,
    (SELECT nullif(value::DOUBLE, 0) FROM settings
        WHERE name = 'pue' AND start = (SELECT max(start) FROM settings)) AS pue
FROM signals WHERE (name, imported_ns) IN (SELECT (name, max(imported_ns)) FROM signals GROUP BY name)
    AND value IS NOT NULL AND name <> 'load' AND begins_at <= now() AT TIME ZONE 'UTC'
    AND coalesce(ends_at, 'infinity') > now() AT TIME ZONE 'UTC' ORDER BY name
"""
"""Cost of a kilowatt hour now, in money and carbon, by the imported signals."""
OWN_USE = """
SELECT service, host, cpu_s, core_percent, energy_low_j, energy_high_j, share_low_percent, share_high_percent,
    reason
FROM own_use_of_runs WHERE run = {run} ORDER BY service DESC, host
"""


def at_price(energy_j: float | None, price: tuple[float, str]) -> dict[str, Any]:
    """Return the row of a price that is given with the question: amount and currency of a kilowatt hour."""
    value, currency = price
    known = energy_j is not None
    return {
        "name": "price",
        "unit": currency,
        "amount": None if energy_j is None else energy_j / JOULES_PER_KWH * value,
        "factor": value,
        "factor_unit": f"{currency}/kWh",
        "pue": None,
        "place": "",
        "year": None,
        "source": "--price",
        "licence": "",
        "basis": "GPUs only" if known else "energy of a GPU is missing",
    }


def costs_now(energy_j: float | None, signals: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what an energy costs at the values of now: rows of `SIGNALS_NOW` with an ``amount``."""
    if energy_j is None or not isfinite(energy_j):
        return []
    kwh = energy_j / JOULES_PER_KWH
    return [{**row, "amount": kwh * row["factor"] * (row["pue"] or 1.0)} for row in signals]


def cost_facts(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return amount, factor, year and source of each signal: names and texts."""
    return [
        (row["name"], f"{amount} {source}" if row["amount"] is not None else amount)
        for row, (amount, source) in ((row, cost_words(row)) for row in rows)
    ]


def money(energy_j: float | None, prices: Iterable[Mapping[str, Any]]) -> str:
    """Return what an energy costs; empty: no price is known. ``prices``: of `SIGNALS_NOW` or ``costs``."""
    price = next((row for row in prices if row["name"] == "price" and row["factor"]), None)
    if price is None or energy_j is None or not isfinite(energy_j):
        return ""
    amount = energy_j / JOULES_PER_KWH * price["factor"] * (price["pue"] or 1.0)
    return f"{_amount(amount)} {price['unit']}"


def cost_words(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return an amount of money or carbon, of ``costs`` or ``forecast_costs``; and its factor and source."""
    if row["amount"] is None or not isfinite(row["amount"]):
        return f"not known: {row['basis']}" if row.get("basis") else "not known", ""
    scale, _ = _unit(row)
    low, high = row.get("amount_p2_5"), row.get("amount_p97_5")
    span = "" if low is None or high is None else ends(low, high, scale)
    sure = f" (95 %: {span})" if span else ""
    of = " ".join(str(word) for word in (row.get("place"), row.get("year")) if word)
    measured = " by meters" if str(row.get("basis", "")).endswith("by meters") else ""
    pue = f", PUE {row['pue']:.4g}{measured}" if row["pue"] else ", GPUs only"
    factor = f"{row['factor']:.6g} {row['factor_unit']}{f' ({of})' if of else ''}"
    return f"{amount_words(row)}{sure}", f"at {factor}{pue}; source: {row['source']}"


def amount_words(row: Mapping[str, Any]) -> str:
    """Return an amount of money or carbon with its unit: of a row with ``amount``, which is known."""
    scale, unit = _unit(row)
    return f"{_amount(row['amount'] / scale)} {unit}"


def _unit(row: Mapping[str, Any]) -> tuple[int, str]:
    """Return the unit in which an amount is shown, and by what it is divided."""
    return (1000, "kgCO2e") if row["unit"] == "gCO2e" and row["amount"] >= 1000 else (1, row["unit"])


def _amount(value: float) -> str:
    """Return an amount with three digits: a factor of a minute or an hour supports no more."""
    return figure(value, digits=3)


def own_use_facts(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the line, as name and text; none while there are no records of that time."""
    return [
        (name, f"{share} of a core ({parts}), {energy}") for name, share, parts, energy in own_use_parts(rows)
    ]


def own_use_parts(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Return name, share of a core, that of each service, and energy; none without records of that time."""
    if not rows:
        return []
    cores: dict[str, float] = {}
    for row in rows:
        cores[row["service"]] = cores.get(row["service"], 0.0) + row["core_percent"]
    parts = ", ".join(f"{service} {percent(share)}" for service, share in sorted(cores.items()))
    return [("zeus-stream itself", percent(sum(cores.values())), parts, _energy(rows))]


def _energy(rows: Sequence[Mapping[str, Any]]) -> str:
    if any(row["share_low_percent"] is None for row in rows):  # the view has the reason
        return "energy unknown"
    low, high = (sum(row[f"share_{bound}_percent"] for row in rows) for bound in ("low", "high"))
    span = ends(low, high)
    return f"{span} % of the energy measured" if span else f"{percent(high)} of the energy measured"
