"""What is remembered for whom."""

from itertools import product
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.power_limit.profiles import (
    MAX_ALIKE,
    Identity,
    Profile,
    identity_of,
    learned,
    of_rows,
    recall,
    trials,
)
from analyzers.power_limit.selectors import Trial
from analyzers.results.limit_rows import AtLimit
from analyzers.results.rows import ProfileRow
from analyzers.state_files import forgotten_profiles
from tests.empty_archive import archive_at
from zeus_stream.errors import StorageError
from zeus_stream.settings import Settings

WHO = Identity(
    job="nightly",
    gpu_model="Model X",
    driver="550.1",
    gpus=2,
    world_size=2,
    batch_size=64,
    least_limit_w=100.0,
    highest_limit_w=300.0,
)
LIMITS = (AtLimit(300.0, 12, 1.5, 400.25, "first", 1), AtLimit(200.0, 12, 1.75, 300.125, "first", 1))


def profile(session: str, at_ns: int, *, who: Identity = WHO, whole: bool = True, round_: int = 1) -> Profile:
    return tuple(
        ProfileRow(
            session=session,
            run=f"run-{session}",
            round=round_,
            **asdict(who),
            power_limit_w=at.power_limit_w,
            steps=at.steps,
            duration_s=at.duration_s,
            energy_j=at.energy_j,
            measured_run=at.run,
            measured_round=at.round,
            measured_wall_ns=at_ns,
            chosen_limit_w=200.0 if whole else None,
        )
        for at in LIMITS
    )


identities = st.builds(
    Identity,
    job=st.sampled_from(["nightly", "weekly"]),
    gpu_model=st.sampled_from(["Model X", "Model Y"]),
    driver=st.sampled_from(["550.1", "560.2"]),
    gpus=st.sampled_from([1, 2]),
    world_size=st.sampled_from([1, 2]),
    batch_size=st.sampled_from([None, 32, 64]),
    least_limit_w=st.sampled_from([None, 100.0]),
    highest_limit_w=st.sampled_from([250.0, 300.0]),
)
profiled = st.builds(
    profile,
    st.sampled_from("abcdef"),
    st.integers(1, 1_000),
    who=identities,
    whole=st.booleans(),
    round_=st.integers(1, 3),
)


def known(profiles: list[Profile], who: Identity) -> tuple[Profile, ...]:
    """Return what is kept of a workload when these were learned in this order."""
    kept: tuple[Profile, ...] = ()
    for each in profiles:
        if identity_of(each).workload == who.workload:
            kept = learned(kept, each)
    return kept


@given(st.lists(profiled, max_size=30, unique_by=lambda each: each[0].measured_wall_ns), identities)
def test_a_run_recalls_its_own_workload_and_nothing_else(profiles: list[Profile], who: Identity) -> None:
    found = recall(known(profiles, who), who)
    last = {
        (each[0].session, each[0].round): each
        for each in profiles
        if identity_of(each).workload == who.workload
    }
    assert (found is None) == (not last)
    if found is None:
        return
    assert found in last.values()
    exact = [each for each in last.values() if identity_of(each) == who]
    best = [each for each in exact or last.values() if each[0].chosen_limit_w is not None]
    if exact and best:
        assert found == max(best, key=lambda each: each[0].measured_wall_ns)
    elif exact:
        assert found == max(exact, key=lambda each: each[0].measured_wall_ns)
    elif best:
        assert found[0].chosen_limit_w is not None


@given(st.lists(profiled, max_size=60), identities)
def test_what_is_kept_is_bounded_and_each_round_once(profiles: list[Profile], who: Identity) -> None:
    kept = known(profiles, who)
    assert len(kept) <= MAX_ALIKE
    assert len({(each[0].session, each[0].round) for each in kept}) == len(kept)


@pytest.mark.parametrize(
    "change",
    [
        {"job": "weekly"},
        {"gpu_model": "Model Y"},
        {"gpus": 1},
        {"world_size": 1},
        {"batch_size": 32},
        {"batch_size": None},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_workload_is_not_recalled(change: dict[str, object]) -> None:
    other = replace(WHO, **change)
    assert recall(known([profile("a", 1)], other), other) is None
    assert recall(known([profile("a", 1, who=other)], WHO), WHO) is None


def test_another_driver_or_range_is_recalled_until_something_is_known_of_this_one() -> None:
    other = profile("a", 9, who=replace(WHO, driver="560.2", highest_limit_w=250.0))
    assert recall((other,), WHO) == other
    cut = profile("b", 5, whole=False)
    assert recall(learned((other,), cut), WHO) == cut


def test_a_round_that_was_cut_short_counts_until_a_whole_one_is_known() -> None:
    first, cut, whole = profile("a", 1), profile("b", 2, whole=False), profile("b", 3)
    assert recall((cut,), WHO) == cut
    kept = learned((first,), cut)
    assert recall(kept, WHO) == first
    assert recall(learned(kept, whole), WHO) == whole


def test_after_a_drift_the_newest_round_counts() -> None:
    first, second = profile("a", 1), profile("a", 2, round_=2)
    assert recall(learned((first,), second), WHO) == second


def test_a_round_that_is_heard_again_does_not_outdo_a_newer_one() -> None:
    old, new = profile("a", 1), profile("b", 2)
    kept = learned(learned((old,), new), old)
    assert recall(kept, WHO) == new


def test_what_is_forgotten_is_not_recalled_and_what_is_measured_later_is() -> None:
    kept = learned(learned((), profile("a", 10)), profile("b", 30, whole=False))
    assert recall(kept, WHO, 10) == profile("b", 30, whole=False)
    assert recall(kept, WHO, 30) is None


def test_a_search_gets_each_limit_in_device_units() -> None:
    assert trials(LIMITS) == (
        Trial(300_000, 400_250, 1_500_000_000, 12),
        Trial(200_000, 300_125, 1_750_000_000, 12),
    )


@pytest.mark.sweep
@given(st.lists(profiled, max_size=20, unique_by=lambda each: (each[0].session, each[0].round)))
def test_rows_in_any_order_are_the_profiles_again(profiles: list[Profile]) -> None:
    rows = [row for each in profiles for row in each]
    rows.sort(key=lambda row: (row.power_limit_w, row.round))
    assert sorted(of_rows(rows), key=str) == sorted(profiles, key=str)


def test_the_archive_gives_back_what_was_kept(tmp_path: Path) -> None:
    """The view `profiles` chooses as `learned` and `recall` do."""
    rng = Random(1)
    some = [
        replace(WHO, driver=driver, batch_size=batch_size, least_limit_w=least_w)
        for driver, batch_size, least_w in product(("550.1", "560.2"), (None, 32), (None, 100.0))
    ]
    times = rng.sample(range(1, 10**18), 300)
    all_of_them = [
        profile(f"{n % 200}", at_ns, who=some[n % 200 % 8], whole=rng.random() < 0.5, round_=1 + n // 200)
        for n, at_ns in enumerate(times)
    ]
    archive = DuckdbFile.open(archive_at(tmp_path / "energy.duckdb"), Settings())
    archive.put([], [row for each in all_of_them for row in each], {}, replaying=False)
    archive.close()
    archive = DuckdbFile.open(archive_at(tmp_path / "energy.duckdb"), Settings())
    remembered = of_rows(archive.memory().profiles)
    archive.close()
    assert len(remembered) == 8
    for each in remembered:
        assert each == recall(known(all_of_them, identity_of(each)), identity_of(each))


def test_what_was_forgotten_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "state" / "forgotten.json"
    assert forgotten_profiles.load(path) == {}
    forgotten_profiles.store(path, {"nightly": 5, "wöchentlich": 7})
    assert forgotten_profiles.load(path) == {"nightly": 5, "wöchentlich": 7}
    for damaged in ("[1]", '{"nightly": "today"}', '{"nightly": 1e30}', "{"):
        path.write_text(damaged, encoding="utf-8")
        with pytest.raises(StorageError, match="Move it away"):
            forgotten_profiles.load(path)
