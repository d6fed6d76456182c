import csv
import io
import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from rich.text import Text

from zeus_stream.protocol.queries import Status
from zeus_stream.screens.text.tables import Check, Form, decimals, figure, print_checks, print_status, write

TABLE = pa.table(
    {
        "steps": [1, None, 30_000],
        "energy_j": [12_345.678, float("nan"), 0.001],
        "name": ["validation", '[bold]"quoted", comma', None],
        "began_at": pa.array([datetime(2026, 1, 2, 3, 4, 5, 678_900, UTC)] * 3, pa.timestamp("us", "UTC")),
        "gpus": [["GPU-a", "GPU-b"], None, []],
        "body": [b"\x01\xff", None, b""],
        "total": pa.array([Decimal(1), None, Decimal("2.5")], pa.decimal128(38, 1)),
        "took": pa.array([timedelta(seconds=3), None, None]),
        "shared": [True, False, None],
    }
)


HOSTILE = pa.table({"\x1b]0;name\x07[red]": ["run\x1b[2J\r", "\x9b31m\x08\n"]})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def buffer(self) -> io.BytesIO:
        raise AssertionError("bytes for a program were written to a terminal")


def written(table: pa.Table, form: Form) -> bytes:
    out = io.BytesIO()
    text = io.TextIOWrapper(out, encoding="utf-8")
    write(table, form, text)
    text.detach()
    return out.getvalue()


def test_csv_keeps_every_row_and_leaves_missing_values_empty() -> None:
    first, second, third = csv.DictReader(io.StringIO(written(TABLE, "csv").decode()))
    assert first == {
        "steps": "1",
        "energy_j": "12345.678",
        "name": "validation",
        "began_at": "2026-01-02 03:04:05.678900Z",
        "gpus": '["GPU-a", "GPU-b"]',
        "body": "01ff",
        "total": "1.0",
        "took": "0:00:03",
        "shared": "true",
    }
    assert (second["steps"], second["gpus"], second["body"], second["took"]) == ("", "", "", "")
    assert second["name"] == '[bold]"quoted", comma'
    assert third["steps"] == "30000"


def test_json_is_one_array_in_which_nan_is_null() -> None:
    def never(constant: str) -> None:
        raise AssertionError(constant)

    first, second, third = json.loads(written(TABLE, "json"), parse_constant=never)
    assert first["gpus"] == ["GPU-a", "GPU-b"]
    assert first["began_at"] == "2026-01-02T03:04:05.678900+00:00"
    assert first["shared"] is True
    assert first["body"] == "01ff"
    assert (first["total"], third["total"]) == (1, 2.5)
    assert second["energy_j"] is None
    assert second["steps"] is None
    assert third["name"] is None


def test_arrow_is_the_same_table_again() -> None:
    equal_to_itself = TABLE.drop_columns(["energy_j"])  # which NaN is not
    assert pa.ipc.open_stream(written(equal_to_itself, "arrow")).read_all().equals(equal_to_itself)


@pytest.mark.parametrize("form", ["csv", "json", "table"])
def test_a_name_that_occurs_twice_loses_no_column(form: Form) -> None:
    twice = pa.Table.from_arrays([pa.array([17]), pa.array([42])], names=["n", "n"])
    text = written(twice, form).decode()
    assert "n_2" in text
    assert "17" in text
    assert "42" in text


@pytest.mark.parametrize("form", ["csv", "json", "table"])
def test_no_rows_is_an_answer(form: Form) -> None:
    empty = {"csv": '"steps","name"\n', "json": "[]\n"}
    text = written(TABLE.select(["steps", "name"]).slice(0, 0), form).decode()
    assert text == empty.get(form, text)
    assert text.strip()


def test_numbers_line_up_on_the_right_and_nothing_is_folded_when_piped() -> None:
    lines = written(TABLE, "table").decode().splitlines()
    assert len(lines) == 2 + TABLE.num_rows
    end = lines[0].index("steps") + len("steps")
    assert [line[:end].split()[-1] for line in lines[2:]] == ["1", "-", "30000"]
    assert lines[2][:end].endswith("1")
    assert '[bold]"quoted", comma' in lines[3]


def test_a_table_wider_than_the_terminal_becomes_a_block_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("TERM", "xterm")
    wide, narrow = Terminal(), Terminal()
    write(TABLE, "table", wide)
    write(TABLE.select(["steps", "name"]), "table", narrow)
    wide_lines, narrow_lines = (
        [Text.from_ansi(line).plain for line in out.getvalue().splitlines()] for out in (wide, narrow)
    )
    assert max(map(len, wide_lines)) <= 70
    assert sum("energy_j" in line for line in wide_lines) == TABLE.num_rows
    assert sum("name" in line for line in narrow_lines) == 1


def test_people_are_shown_a_bounded_part_and_told_so() -> None:
    text = written(pa.table({"n": range(5_000)}), "table").decode()
    assert "The first 1000 of 5000 rows" in text
    assert len(text.splitlines()) < 1_010


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([12_345.678, 0.5], ["12346", "0"]),
        ([12_345.678, 0.001], ["12346", "0.001"]),
        ([1.23456789, None], ["1.2346", "-"]),
        ([0.0, float("nan")], ["0", "-"]),
        ([0.000123456], ["0.00012346"]),
        ([-250.0, 3.14159], ["-250.00", "3.14"]),
        ([float("inf"), 1.0], ["inf", "1.0000"]),
    ],
)
def test_a_column_shows_five_digits_of_its_largest_value(values: list[Any], shown: list[str]) -> None:
    places = decimals(values)
    assert [figure(value, places) for value in values] == shown


def test_a_status_names_each_section_once() -> None:
    out = io.StringIO()
    rows = (("GPU-1", "limit", "250 W"), ("GPU-1", "power", "[20] W"), ("log", "size", "2 MB"))
    print_status("collector", Status(rows), out)
    assert out.getvalue().count("GPU-1") == 1
    assert "power  [20] W" in out.getvalue()


def test_a_failed_check_shows_its_cure() -> None:
    out = io.StringIO()
    print_checks([Check("fails", "driver", "There is none.", "Install it."), Check("works", "a", "b")], out)
    assert out.getvalue().index("There is none.") < out.getvalue().index("Install it.")


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_a_terminal_receives_no_control_character_of_names_and_values(form: Form) -> None:
    out = Terminal()
    write(HOSTILE, form, out)
    print_status("analyzer", Status((("\x1b[1A", "run\x07", "\x9b2J"),)), out)
    ours = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())  # colours are ours
    assert ours.replace("\n", "").isprintable()
    assert "[red]" in ours


def test_a_program_receives_every_character() -> None:
    assert json.loads(written(HOSTILE, "json")) == HOSTILE.to_pylist()
    assert b"run\x1b[2J\r" in written(HOSTILE, "csv")


def test_a_text_that_a_spreadsheet_would_run_is_no_formula_in_csv() -> None:
    """A run named ``=HYPERLINK(...)`` was a formula in the files of ``sql`` and ``export``."""
    columns = {"=run": ["=1+1", "@x", "\t=1", None], "energy_j": [-1.0, 2.0, 3.0, 4.0]}
    lines = written(pa.table(columns), "csv").decode().splitlines()
    assert lines == ['"\'=run","energy_j"', '"\'=1+1",-1', '"\'@x",2', '"\'\t=1",3', ",4"]
    kinds = pa.table({"kind": pa.array(["=a", "b"]).dictionary_encode()})
    assert written(kinds, "csv").decode().splitlines() == ['"kind"', '"\'=a"', '"b"']
