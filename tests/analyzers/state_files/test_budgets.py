import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from analyzers.power_budget.allocation import in_force
from analyzers.state_files import budgets
from zeus_stream.errors import RefusedError, SettingsError, StorageError
from zeus_stream.protocol.notes import Budget

NOW = datetime.fromisoformat("2026-05-01T12:30").astimezone()
NOW_NS = budgets.nanoseconds(NOW)
HOUR_NS = 3_600_000_000_000


def of(group: str = "rack1", limit_mw: int = 1_200_000, set_ns: int = NOW_NS, hours: int = 2) -> Budget:
    return Budget(
        group=group,
        limit_mw=limit_mw,
        gpus=("h:0",),
        set_ns=set_ns,
        begin_ns=set_ns,
        end_ns=set_ns + hours * HOUR_NS,
        ramp_ns=10_000_000_000,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("18:00", "2026-05-01T18:00"),
        ("9:05", "2026-05-02T09:05"),
        ("12:30", "2026-05-02T12:30"),
        ("2026-06-01T08:00", "2026-06-01T08:00"),
        ("2026-06-01T08:00+00:00", "2026-06-01T08:00+00:00"),
    ],
)
def test_a_time_of_day_is_the_next_one_here(text: str, expected: str) -> None:
    assert budgets.moment(text, NOW) == datetime.fromisoformat(expected).astimezone()


@pytest.mark.parametrize("text", ["25:00", "noon", "", "2026-13-01T00:00"])
def test_what_is_no_time_is_named(text: str) -> None:
    with pytest.raises(SettingsError, match=r"it is no time. Write 18:00"):
        budgets.moment(text, NOW)


def test_what_was_stored_is_read(tmp_path: Path) -> None:
    path = tmp_path / "state" / "budgets.json"
    listed = (
        of(),
        Budget(
            group="all",
            limit_mw=500_000,
            gpus=(),
            set_ns=NOW_NS,
            begin_ns=NOW_NS,
            end_ns=budgets.NEVER_NS,
            ramp_ns=0,
            before_mw=700_000,
        ),
    )
    budgets.store(path, listed)
    assert budgets.load(path, {}) == listed
    assert budgets.load(tmp_path / "none.json", {}) == ()


LOAD = (
    '# name=load unit=W source="test"\nat,value\n2026-05-01T00:00+00:00,900\n2026-05-01T01:00+00:00,400.5\n'
)


def test_a_budget_that_follows_a_signal_has_the_values_that_its_file_has_now(tmp_path: Path) -> None:
    path, signal = tmp_path / "budgets.json", tmp_path / "load.csv"
    signal.write_text(LOAD, encoding="utf-8")
    first = round(datetime.fromisoformat("2026-05-01T00:00+00:00").timestamp()) * 10**9
    new = replace(
        of(limit_mw=900_000), targets=budgets.load_targets(signal), follows=str(signal), ramp_mw_s=500,
        first=("prod-*",),
    )  # fmt: skip
    assert new.targets == ((first, 900_000), (first + HOUR_NS, 400_500))
    budgets.store(path, (new,))
    assert budgets.load(path, {}) == (new,)
    assert f"rack1: follows {signal} for h:0" in budgets.says(new, NOW_NS)
    signal.write_text(LOAD.replace(",900", ",800"), encoding="utf-8")
    assert budgets.load(path, {})[0].targets[0] == (first, 800_000)
    signal.unlink()
    with pytest.raises(StorageError, match=r"load.csv: could not be read"):
        budgets.load(path, {})


@pytest.mark.parametrize(
    "text", [LOAD.replace("load", "price"), LOAD.replace("=W", "=kW"), LOAD.replace("400.5", "-1")]
)
def test_what_is_no_load_is_not_followed(tmp_path: Path, text: str) -> None:
    (tmp_path / "load.csv").write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=r"load.csv"):
        budgets.load_targets(tmp_path / "load.csv")


def test_a_person_may_write_no_more_than_the_watts(tmp_path: Path) -> None:
    path = tmp_path / "budgets.json"
    path.write_text('{"rack1": {"watts": 1200, "gpus": ["gpu7:all"]}}', encoding="utf-8")
    (read,) = budgets.load(path, {})
    assert (read.group, read.limit_mw, read.gpus) == ("rack1", 1_200_000, ("gpu7:all",))
    assert in_force([read], NOW_NS)[0].way == 1


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"a": {}}',
        '{"a": {"watts": -5}}',
        '{"a": {"watts": 5, "until": "soon"}}',
        '{"": {"watts": 5}}',
        '{"a": {"watts": 5, "follow": "load.csv"}}',
    ],
)
def test_a_file_that_makes_no_sense_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "budgets.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StorageError, match=r"budgets.json: the power budgets could not be read.*Mend it"):
        budgets.load(path, {})


GROUPS = {"rack1": ("gpu7:all", "gpu8:0"), "rack2": ("gpu9:all",)}


@pytest.mark.parametrize(
    ("group", "words", "groups", "expected"),
    [
        pytest.param("rack1", (), GROUPS, ("gpu7:all", "gpu8:0"), id="the settings say which"),
        pytest.param("new", ("h:0",), GROUPS, ("h:0",), id="the command line says which"),
        pytest.param("all", (), GROUPS, (), id="nobody asked for a group"),
        pytest.param("rack1", ("h:0",), {}, ("h:0",), id="there are no groups"),
    ],
)
def test_a_budget_is_about_the_group_of_its_name(
    group: str, words: tuple[str, ...], groups: dict[str, tuple[str, ...]], expected: tuple[str, ...]
) -> None:
    assert budgets.members(group, words, groups) == expected


def test_which_gpus_is_said_once_and_a_group_that_there_is_not_is_not_the_whole_site() -> None:
    with pytest.raises(SettingsError, match=r"rack1: .* gpu7:all, gpu8:0. Leave out --gpus and --hosts"):
        budgets.members("rack1", ("h:0",), GROUPS)
    with pytest.raises(SettingsError, match=r"budget rakc1: .* no such group .* one of rack1, rack2, or"):
        budgets.members("rakc1", (), GROUPS)
    with pytest.raises(SettingsError, match=r"budget rack1: .* no such group .* Give --gpus or --hosts"):
        budgets.members("rack1", (), {})


def test_a_budget_that_a_person_wrote_is_about_the_group_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "budgets.json"
    path.write_text('{"rack1": {"watts": 1200}, "rack2": {"watts": 5, "gpus": []}}', encoding="utf-8")
    assert [read.gpus for read in budgets.load(path, GROUPS)] == [("gpu7:all", "gpu8:0"), ()]
    path.write_text('{"rack3": {"watts": 1200}}', encoding="utf-8")
    with pytest.raises(StorageError, match="no such group in the settings"):
        budgets.load(path, GROUPS)


def test_a_budget_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(SettingsError, match="it ends before it begins"):
        budgets.checked(of(hours=-1), "budget")


def test_a_new_one_of_a_group_goes_on_from_the_last() -> None:
    first, other = of(), of("rack2")
    listed = budgets.with_one(budgets.with_one((), first), other)
    new = of(limit_mw=900_000, set_ns=NOW_NS + HOUR_NS)
    rack2, replaced = budgets.with_one(listed, new)
    assert (rack2, replaced.limit_mw, replaced.before_mw) == (other, 900_000, 1_200_000)
    late = of("rack3", set_ns=NOW_NS + 10 * HOUR_NS)
    assert budgets.with_one(listed, late) == (late,), "what is over is left out"


def test_one_that_ends_has_its_ramp_and_one_to_come_is_gone() -> None:
    (ended,) = budgets.without((of(),), "rack1", NOW_NS + HOUR_NS)
    assert ended.end_ns == NOW_NS + HOUR_NS
    to_come = of(set_ns=NOW_NS + HOUR_NS)
    assert budgets.without((to_come,), "rack1", NOW_NS) == ()
    with pytest.raises(RefusedError, match=r"budget rack9: could not be ended.*rack1"):
        budgets.without((of(),), "rack9", NOW_NS)


def test_what_is_said_names_the_gpus_the_times_and_whether_it_holds() -> None:
    told = budgets.says(of(), NOW_NS + HOUR_NS)
    assert told == "rack1: 1200 W for h:0, from 12:30 until 14:30, ramp 10 s: holds."
    assert "2026-05-03" not in told
    then_ns = NOW_NS - 48 * HOUR_NS
    ever = Budget(
        group="all",
        limit_mw=1000,
        gpus=(),
        set_ns=then_ns,
        begin_ns=then_ns,
        end_ns=budgets.NEVER_NS,
        ramp_ns=0,
    )
    assert budgets.says(ever, NOW_NS).startswith("all: 1 W for every GPU of the site, from 2026-04-29")
    assert "until it is ended" in budgets.says(ever, NOW_NS)


def test_the_file_is_made_to_be_read_by_people(tmp_path: Path) -> None:
    path = tmp_path / "budgets.json"
    budgets.store(path, [of()])
    written = json.loads(path.read_text(encoding="utf-8"))["rack1"]
    times = {name: datetime.fromisoformat(written.pop(name)) for name in ("set", "from", "until")}
    assert written == {"watts": 1200.0, "gpus": ["h:0"], "ramp_s": 10.0}
    assert times == {"set": NOW, "from": NOW, "until": NOW + timedelta(hours=2)}
    assert "\n" in path.read_text(encoding="utf-8").strip()
