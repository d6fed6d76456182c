import csv
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from analyzers.power_limit import selectors
from analyzers.power_limit.selectors import Selector, Trial
from zeus_stream.errors import SettingsError

PROFILES = Path(__file__).parents[2] / "data/a40_profiles"
GUIDE = Path(__file__).parents[3] / "docs/how-to/add-a-selector.md"
ASKED = (
    *("energy", "time"),
    *(f"cost:{eta}" for eta in (0, 0.25, 0.5, 0.75, 1)),
    *(f"slowdown:{factor}" for factor in (1.0, 1.1, 1.2, 1.5, 2, 3, 5, 100)),
)
GOLDEN = {
    "bert-base-uncased+gpu0": "200 275 275 275 275 200 200 275 250 200 175 150 125 100 100",
    "resnet18+gpu0,1,2,3": "100 275 275 275 300 300 100 275 125 100 100 100 100 100 100",
    "resnet18+gpu0": "175 175 175 175 175 175 175 175 175 150 150 125 100 100 100",
    "resnet50+gpu0,1,2,3": "100 150 150 150 150 100 100 125 100 100 100 100 100 100 100",
    "resnet50+gpu0": "175 300 300 225 200 200 175 300 200 175 175 150 100 100 100",
    "shufflenetv2+gpu0": "150 300 300 300 150 150 150 300 150 150 125 125 100 100 100",
}


def parsed(text: str) -> Selector:
    selector = selectors.parse(text)
    assert selector is not None
    return selector


def published(name: str) -> tuple[list[Trial], int]:
    """Return a published profile's trials and its number of GPUs."""
    with (PROFILES / f"A40+{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    gpus = [column for column in rows[0] if column.endswith("_energy")]
    trials = [
        Trial(
            1000 * int(row["window_name"].rpartition("_")[2]),
            round(1000 * sum(float(row[gpu]) for gpu in gpus)),
            round(1e9 * float(row["elapsed_time"])),
            40,
        )
        for row in rows
    ]
    return trials, len(gpus)


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("index", range(len(ASKED)), ids=ASKED)
def test_published_profiles_give_the_published_limits(name: str, index: int) -> None:
    trials, gpus = published(name)
    assert parsed(ASKED[index]).choose(trials, gpus) == 1000 * int(GOLDEN[name].split()[index])


def test_trials_of_different_lengths_are_compared_per_step() -> None:
    trials = (Trial(300_000, 40_000, 4_000, 40), Trial(200_000, 60_000, 10_000, 80))
    assert parsed("energy").choose(trials, 1) == 200_000
    assert parsed("time").choose(trials, 1) == 300_000


@pytest.mark.parametrize("text", ["energy", "time", "cost:0.5"])
def test_ties_go_to_the_higher_limit(text: str) -> None:
    trials = (Trial(200_000, 10, 10, 1), Trial(300_000, 10, 10, 1), Trial(100_000, 10, 10, 1))
    assert parsed(text).choose(trials, 1) == 300_000


def test_the_price_of_time_counts_every_gpu_of_the_job() -> None:
    trials = (Trial(300_000, 1_000_000, 1_000_000_000, 1), Trial(100_000, 800_000, 1_500_000_000, 1))
    assert parsed("cost:0.5").choose(trials, 1) == 100_000
    assert parsed("cost:0.5").choose(trials, 4) == 300_000


def highest(trials: Sequence[Trial], gpus: int) -> int:
    assert gpus == 2
    return max(trial.limit_mw for trial in trials)


def none_of_them(trials: Sequence[Trial], gpus: int) -> int:
    return len(trials) + gpus


def failing(trials: Sequence[Trial], gpus: int) -> int:
    return trials[gpus].limit_mw


def test_a_function_of_the_user_chooses() -> None:
    trials = (Trial(200_000, 1, 1, 1), Trial(300_000, 2, 2, 1))
    assert parsed(f"{__name__}:highest").choose(trials, 2) == 300_000


@pytest.mark.parametrize("name", ["none_of_them", "failing"])
def test_a_mistake_in_a_function_of_the_user_is_named(name: str) -> None:
    with pytest.raises(SettingsError, match=rf"{name}.*Correct the function\."):
        parsed(f"{__name__}:{name}").choose((Trial(200_000, 1, 1, 1),), 1)


def test_none_chooses_nothing() -> None:
    assert selectors.parse("none") is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "enregy", "energy:1", "cost", "cost:", "cost:x", "cost:1.1", "cost:nan", "cost:-1"),
        *("slowdown:0.9", "slowdown:inf", "none:1", "no_such_module:f", "math:no_such_function", "math:pi"),
        *(":f", "math:", "..:f"),
    ],
)
def test_what_is_no_selector_is_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(SettingsError, match=r"Choose energy, time, cost:ETA, edp:N, slowdown:FACTOR"):
        selectors.parse(text)


# ---- energy * delay ** N -------------------------------------------------------------------------------


def test_edp_weighs_time_by_its_power() -> None:
    trials = (Trial(300_000, 1_200, 1_000, 1), Trial(200_000, 1_000, 1_150, 1), Trial(100_000, 900, 2_000, 1))
    assert parsed("edp:0").choose(trials, 1) == parsed("energy").choose(trials, 1) == 100_000
    assert parsed("edp:1").choose(trials, 1) == 200_000  # 1200, 1150, 1800
    assert parsed("edp:2").choose(trials, 1) == 300_000  # 1200, 1322, 3600


def test_what_edp_minimizes_is_searched_and_not_measured_limit_by_limit() -> None:
    goal = parsed("edp:2").goal
    assert goal is not None
    trials = (Trial(300_000, 9_000, 3_000_000_000, 3), Trial(200_000, 4_000, 4_000_000_000, 2))
    assert [goal.of(trial, 300_000, 4) for trial in trials] == [3_000, 8_000]


@pytest.mark.parametrize("text", ["edp", "edp:", "edp:x", "edp:-1", "edp:11", "edp:nan"])
def test_an_exponent_is_a_number_from_0_to_10(text: str) -> None:
    with pytest.raises(SettingsError, match=r"N is a number from 0 to 10\. Choose energy, .*edp:N"):
        selectors.parse(text)


# ---- selectors of other packages -----------------------------------------------------------------------


def install(into: Path, name: str, target: str, code: str) -> None:
    """Install a package as an installer does: its module, and metadata with one entry point."""
    module = target.partition(":")[0]
    (into / f"{module}.py").write_text(code)
    info = into / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{selectors.GROUP}]\n{name} = {target}\n")


def guide() -> tuple[str, str, str]:
    """Return module, code and entry point (name = target) of the example in the guide."""
    text = GUIDE.read_text(encoding="utf-8")
    code, toml = re.findall(r"```(?:python|toml)\n(.*?)```", text, re.DOTALL)
    entry = re.search(r'entry-points."zeus_stream.selectors"\]\n(\w+) = "([\w.]+:\w+)"', toml)
    assert entry is not None
    return code, entry.group(1), entry.group(2)


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_the_example_of_the_guide_adds_a_selector(plugins: Path) -> None:
    code, name, target = guide()
    assert len(code.strip().splitlines()) <= 20
    install(plugins, name, target, code)
    trials = (
        Trial(300_000, 60_000, 1_000_000_000, 1),
        Trial(200_000, 50_000, 1_100_000_000, 1),
        Trial(100_000, 40_000, 1_900_000_000, 1),
    )
    cheap_energy, dear_energy = (parsed(f"{name}:{price}") for price in ("0.01", "1000"))
    assert cheap_energy.choose(trials, 1) == 300_000
    assert dear_energy.choose(trials, 1) == 100_000
    assert cheap_energy.goal is None
    with pytest.raises(SettingsError, match=rf"{name}:free.*could not be understood.*Choose .*{name}"):
        selectors.parse(f"{name}:free")


@pytest.mark.parametrize("text", ["energy", "edp:2", "mine", "mine:3"])
def test_an_archived_selector_of_the_registry_or_of_a_package_is_what_it_was(
    text: str, plugins: Path
) -> None:
    install(plugins, "mine", "mine_selectors:make", LEAST_LIMIT)
    trials = (Trial(300_000, 5, 5, 1), Trial(100_000, 9, 9, 1))
    archived = selectors.parse_archived(text)
    assert archived is not None
    assert archived.text == text
    assert archived.choose(trials, 1) == parsed(text).choose(trials, 1)


LEAST_LIMIT = """
def make(value):
    return lambda trials, gpus: min(trial.limit_mw for trial in trials)
"""


def test_an_archived_selector_whose_package_is_gone_says_so_and_runs_no_code() -> None:
    archived = selectors.parse_archived("gone:3")
    assert archived is not None
    with pytest.raises(SettingsError, match=r"gone:3.*--select gone:3.*or install the package that adds it"):
        archived.choose((Trial(300_000, 5, 5, 1),), 1)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        pytest.param(
            "def make(value): return 7", "returned 7, which is no function", id="returns no function"
        ),
        pytest.param("def make(value): raise KeyError(value)", "raised KeyError", id="raises"),
        pytest.param("", "raised AttributeError", id="has no such function"),
    ],
)
def test_a_mistake_of_a_package_is_named(code: str, why: str, plugins: Path) -> None:
    install(plugins, "broken", "broken_selectors:make", code)
    with pytest.raises(SettingsError, match=rf"broken_selectors:make {why}"):
        selectors.parse("broken:1")


def test_a_package_does_not_replace_a_built_in_selector(plugins: Path) -> None:
    install(plugins, "energy", "mine_selectors:make", LEAST_LIMIT)
    assert parsed("energy").choose((Trial(300_000, 5, 5, 1), Trial(100_000, 9, 9, 1)), 1) == 300_000
