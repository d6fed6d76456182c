"""Files of signals, and the table of countries."""

from pathlib import Path

import pytest

from analyzers.state_files.signal_files import flat_price, load, of_country, parse, store
from zeus_stream.errors import RefusedError, SettingsError, StorageError

HEAD = '# name=price unit=EUR/kWh source="Day ahead" licence="CC BY 4.0"\nat,value\n'
FIRST = "2026-01-01T00:00+01:00,0.25\n"
AT_NS = 1_767_222_000 * 10**9


def test_a_value_holds_until_the_next_and_the_last_as_long_as_the_one_before() -> None:
    rows = parse(HEAD + FIRST + "2026-01-01T01:00+01:00,0.5\n2026-01-01T03:00+01:00,-0.1\n", "f", 7)
    hour_ns = 3600 * 10**9
    assert [(row.begin_ns, row.end_ns, row.value) for row in rows] == [
        (AT_NS, AT_NS + hour_ns, 0.25),
        (AT_NS + hour_ns, AT_NS + 3 * hour_ns, 0.5),
        (AT_NS + 3 * hour_ns, AT_NS + 5 * hour_ns, -0.1),
    ]
    assert {(row.unit, row.source, row.licence, row.imported_ns) for row in rows} == {
        ("EUR/kWh", "Day ahead", "CC BY 4.0", 7)
    }


def test_the_only_value_holds_without_an_end() -> None:
    (row,) = parse(HEAD + FIRST, "f", 7)
    assert row.end_ns is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1: .* expected # name=price"),
        ("at,value\n" + FIRST, "line 1: .* expected # name=price"),
        ("# name=price unit=EUR/kWh\nat,value\n" + FIRST, "line 1: .* expected # name=price"),
        (
            HEAD.replace("price", "water") + FIRST,
            "line 1: .* the name is 'water', expected price, carbon or load",
        ),
        (
            HEAD.replace("EUR/kWh", "EUR/MWh") + FIRST,
            "line 1: .* a currency a kilowatt hour, such as EUR/kWh",
        ),
        (HEAD.replace("name=price", "name=carbon") + FIRST, "line 1: .* expected gCO2e/kWh"),
        (HEAD.replace("Day ahead", 'Day "ahead') + FIRST, "line 1"),
        (HEAD.replace("at,value", "time,value") + FIRST, "line 2: .* expected the head at,value"),
        (HEAD, "line 3: .* there is no value"),
        (HEAD + FIRST + FIRST, "line 4: .* not later than the row before it: values overlap"),
        (HEAD + FIRST + "2026-01-01T01:00,1\n", r"line 4: .* no offset from UTC; write 2026"),
        (HEAD + FIRST + "noon,1\n", "line 4: .* expected a time and a number, found 'noon,1'"),
        (HEAD + FIRST + "2026-01-01T01:00+01:00,nan\n", "line 4: .* nan is no number"),
        (HEAD + FIRST + "2026-01-01T01:00+01:00\n", "line 4: .* expected a time and a number"),
    ],
)
def test_what_is_wrong_is_named_by_its_line(text: str, says: str) -> None:
    with pytest.raises(SettingsError, match=rf"f.csv, {says}"):
        parse(text, "f.csv", 7)


def test_a_stored_signal_is_read_back(tmp_path: Path) -> None:
    rows = parse(HEAD + FIRST + "2026-01-01T01:00+01:00,0.5\n", "f", 7)
    country = [of_country("deu", 8)]
    store(tmp_path / "signals", rows)
    store(tmp_path / "signals", country)
    assert load(tmp_path / "signals") == [*country, *rows]
    assert load(tmp_path / "none") == []
    (tmp_path / "signals" / "price.csv").write_text("x")
    with pytest.raises(StorageError, match=r"price\.csv: could not be read: .*line 1"):
        load(tmp_path / "signals")


def test_a_country_has_its_figure_with_year_source_and_licence() -> None:
    row = of_country("DE", 8)
    assert (row.place, row.year, row.unit, row.licence) == ("Germany", 2024, "gCO2e/kWh", "CC BY 4.0")
    assert row.value == pytest.approx(344.1, abs=0.1)
    assert "Our World in Data" in row.source
    assert of_country("deu", 8) == row


def test_no_country_is_guessed() -> None:
    with pytest.raises(
        RefusedError, match="could not find the country 'Europe': the table has ISO 3166 codes"
    ):
        of_country("Europe", 8)


def test_a_flat_price_has_a_currency() -> None:
    assert flat_price("0.30 EUR") == flat_price("0.30EUR/kWh") == (0.3, "EUR")
    for text in ("0.30", "EUR", "-1EUR", "0.30 eur", "30 EUR/MWh"):
        with pytest.raises(SettingsError, match=r"--price .*: could not be understood\. Write 0\.30EUR"):
            flat_price(text)
