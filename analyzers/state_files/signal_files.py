"""Signals as CSV files: prices, carbon intensities, a load to draw; one file each in the folder ``signals``.

    # name=price unit=EUR/kWh source="Day-ahead, bidding zone DE-LU" licence="CC BY 4.0"
    at,value
    2026-01-01T00:00+01:00,0.2134

A value holds until the next row; the last one as long as the one before it. The only row of a file holds
without an end.
"""

import csv
import io
import re
import shlex
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.resources import files
from itertools import pairwise
from math import isfinite
from pathlib import Path

from analyzers.results.signal_rows import SignalRow
from zeus_stream.errors import RefusedError, SettingsError, StorageError, explaining
from zeus_stream.paths import rewrite

NAMES = ("price", "carbon", "load")
MAX_ROWS = 200_000
CARBON_UNIT = "gCO2e/kWh"
TABLE_SOURCE = "Ember (2025), Energy Institute (2025), processed by Our World in Data"
TABLE_LICENCE = "CC BY 4.0"
LOAD_UNIT = "W"
_UNITS = {
    "price": re.compile(r"[A-Z]{3}/kWh"),
    "carbon": re.compile(re.escape(CARBON_UNIT)),
    "load": re.compile(LOAD_UNIT),
}
_KEYS = ("name", "unit", "source", "licence", "place", "year", "imported")
_FLAT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Z]{3})(?:/kWh)?\s*")


def parse(text: str, file: str, imported_ns: int) -> list[SignalRow]:
    """Return the rows of a file, which errors name. Raises SettingsError: the sentence names the line."""
    lines = text.splitlines()
    about = _about(lines[0] if lines else "", file)
    if lines[1:2] != ["at,value"]:
        raise _wrong(file, 2, "expected the head at,value")
    found: list[tuple[int, float]] = []
    for number, line in enumerate(csv.reader(lines[2:]), start=3):
        if not line:
            continue
        if len(found) >= MAX_ROWS:
            raise _wrong(file, number, f"there are more than {MAX_ROWS} rows")
        at_ns, value = _row(line, file, number)
        if found and at_ns <= found[-1][0]:
            raise _wrong(file, number, "it is not later than the row before it: values overlap")
        found.append((at_ns, value))
    if not found:
        raise _wrong(file, 3, "there is no value")
    begins = [at_ns for at_ns, _ in found]
    ends: list[int | None] = [later for _, later in pairwise(begins)]
    ends.append(None if len(found) == 1 else 2 * begins[-1] - begins[-2])
    return [
        SignalRow(
            name=about["name"],
            unit=about["unit"],
            begin_ns=at_ns,
            end_ns=end_ns,
            value=value,
            place=about.get("place", ""),
            year=int(about["year"]) if "year" in about else None,
            source=about["source"],
            licence=about.get("licence", ""),
            imported_ns=int(about.get("imported", imported_ns)),
        )
        for (at_ns, value), end_ns in zip(found, ends, strict=True)
    ]


def _about(line: str, file: str) -> dict[str, str]:
    example = '# name=price unit=EUR/kWh source="where it is from"'
    try:
        words = shlex.split(line.removeprefix("#"))
    except ValueError as wrong:
        raise _wrong(file, 1, f"{wrong}; expected {example}") from wrong
    about = {key: value for key, equals, value in (word.partition("=") for word in words) if equals}
    if not line.startswith("#") or not {"name", "unit", "source"} <= set(about) or set(about) - set(_KEYS):
        raise _wrong(file, 1, f"expected {example}")
    if about["name"] not in NAMES:
        raise _wrong(
            file, 1, f"the name is {about['name']!r}, expected {', '.join(NAMES[:-1])} or {NAMES[-1]}"
        )
    if not _UNITS[about["name"]].fullmatch(about["unit"]):
        units = {
            "carbon": CARBON_UNIT,
            "load": LOAD_UNIT,
            "price": "a currency a kilowatt hour, such as EUR/kWh",
        }
        expected = units[about["name"]]
        raise _wrong(file, 1, f"the unit is {about['unit']!r}, expected {expected}")
    for key in ("year", "imported"):
        if not about.get(key, "0").isdecimal():
            raise _wrong(file, 1, f"{key} is {about[key]!r}, expected a number")
    return about


def _row(line: list[str], file: str, number: int) -> tuple[int, float]:
    try:
        at_text, value_text = line
        at, value = datetime.fromisoformat(at_text), float(value_text)
        if at.tzinfo is None:
            raise _wrong(file, number, f"{at_text} has no offset from UTC; write 2026-01-01T00:00+00:00")
        if not isfinite(value):
            raise _wrong(file, number, f"{value_text} is no number")
        return round(at.timestamp()) * 10**9, value
    except (ValueError, OverflowError) as wrong:
        raise _wrong(file, number, f"expected a time and a number, found {','.join(line)!r}") from wrong


def _wrong(file: str, line: int, why: str) -> SettingsError:
    return SettingsError(f"{file}, line {line}: could not read the signal: {why}. Correct the file.")


def of_country(code: str, imported_ns: int) -> SignalRow:
    """Return the yearly carbon intensity of a country (ISO 3166) from the table that is shipped.

    Raises RefusedError: the table has no such country.
    """
    text = files("analyzers.state_files").joinpath("published", "carbon_intensity.csv").read_text("utf-8")
    rows = [row for row in csv.DictReader(io.StringIO(text)) if code.upper() in (row["code"], row["alpha2"])]
    if not rows:
        raise RefusedError(
            f"signals: could not find the country {code!r}: the table has ISO 3166 codes, such as DEU or DE."
            " Correct the code, or import a file."
        )
    (row,) = rows
    return SignalRow(
        name="carbon",
        unit=CARBON_UNIT,
        begin_ns=0,
        end_ns=None,
        value=float(row["g_co2e_per_kwh"]),
        place=row["country"],
        year=int(row["year"]),
        source=TABLE_SOURCE,
        licence=TABLE_LICENCE,
        imported_ns=imported_ns,
    )


def flat_price(text: str) -> tuple[float, str]:
    """Return amount and currency of ``0.30 EUR`` (a kilowatt hour). Raises SettingsError."""
    if (found := _FLAT.fullmatch(text)) is None:
        raise SettingsError(f"--price {text}: could not be understood. Write 0.30EUR, for a kilowatt hour.")
    return float(found[1]), found[2]


def store(folder: Path, rows: Iterable[SignalRow]) -> Path:
    """Write the rows of one signal into the folder, in place of those it had. Raises StorageError."""
    rows = list(rows)
    first = rows[0]
    keys = {
        "name": first.name,
        "unit": first.unit,
        "source": first.source,
        "licence": first.licence,
        "place": first.place,
        "imported": str(first.imported_ns),
    } | ({} if first.year is None else {"year": str(first.year)})
    head = "# " + " ".join(shlex.quote(f"{key}={value}") for key, value in keys.items())
    lines = [f"{_utc(row.begin_ns)},{row.value!r}" for row in rows]
    target = folder / f"{first.name}.csv"
    with explaining(StorageError, f"{target}: could not be written", "Make room."):
        rewrite(target, "\n".join([head, "at,value", *lines]) + "\n")
    return target


def _utc(t_ns: int) -> str:
    return datetime.fromtimestamp(t_ns // 10**9, UTC).isoformat()


def load(folder: Path) -> list[SignalRow]:
    """Return the rows of all signals of a folder; none if it is not there. Raises StorageError."""
    rows: list[SignalRow] = []
    for path in sorted(folder.glob("*.csv")):
        try:
            rows += parse(path.read_text(encoding="utf-8"), str(path), path.stat().st_mtime_ns)
        except (OSError, UnicodeDecodeError, SettingsError) as wrong:
            raise StorageError(f"{path}: could not be read: {wrong}") from wrong
    return rows
