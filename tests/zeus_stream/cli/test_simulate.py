"""Simulated games go into an archive once, and a page is drawn of them."""

import csv
import io
import json
import re
from html import unescape
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace
from rich.console import Console

from analyzers.archive.query import read_file
from tests.zeus_stream.conftest import Cli
from zeus_stream.cli.simulate import Wanted, simulate
from zeus_stream.errors import SettingsError, StorageError
from zeus_stream.settings import Settings

SETTINGS = Settings()
SIZES = {16: (4, 5), 32: (4, 4), 64: ("nan", 8)}
GAMES = 2 * 2 * 2
"""Players, seeds, etas."""


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Return a directory of traces of one workload, squad, on two GPU models."""
    train = "dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch\n" + "".join(
        f"squad,bert,{size},adamw,1e-5,{run},84.0,{epochs}\n"
        for size, runs in SIZES.items()
        for run, epochs in enumerate(runs)
    )
    power = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n" + "".join(
        f"squad,bert,{size},adamw,{limit},{1600 / size * slow},{limit / 2}\n"
        for size in SIZES
        for limit, slow in ((200, 1.0), (100, 1.1))
    )
    directory = tmp_path / "traces"
    directory.mkdir()
    (directory / "summary_train.csv").write_text(train, encoding="utf-8")
    for gpu in ("v100", "a40"):
        (directory / f"summary_power_{gpu}.csv").write_text(power, encoding="utf-8")
    return directory


def wanted(traces: Path, seeds: int = 2) -> Wanted:
    return Wanted(
        traces=traces,
        players=["default", "reference"],
        seeds=seeds,
        gpus=["v100"],
        workloads=["squad"],
        etas=(0.5, 1.0),
    )


def played(archive: Path, of: Wanted, report: Path | None = None) -> tuple[pa.Table, str]:
    console = Console(file=io.StringIO(), width=200)
    table = simulate(archive, SETTINGS, of, report=report, console=console)
    assert isinstance(console.file, io.StringIO)
    return table, console.file.getvalue()


def test_games_are_played_once_and_what_was_broken_off_goes_on(traces: Path, tmp_path: Path) -> None:
    archive, other = tmp_path / "a.duckdb", tmp_path / "b.duckdb"
    played(archive, wanted(traces, seeds=1))
    resumed, says = played(archive, wanted(traces))
    assert f"{GAMES // 2} of {GAMES} games are in {archive} already." in says
    assert resumed.to_pylist() == played(other, wanted(traces))[0].to_pylist()
    counts = "SELECT count(*) AS games, count(DISTINCT game) AS different FROM simulations"
    assert read_file(archive, counts, SETTINGS).to_pylist() == [{"games": GAMES, "different": GAMES}]
    again = "SELECT count(*) AS n FROM simulated_tries GROUP BY game, number HAVING n > 1"
    assert read_file(archive, again, SETTINGS).num_rows == 0


def test_the_default_costs_what_it_costs_and_regret_is_above_the_optimum(
    traces: Path, tmp_path: Path
) -> None:
    table, _ = played(tmp_path / "a.duckdb", wanted(traces))
    default = next(row for row in table.to_pylist() if row["player"] == "default")
    assert (default["world"], default["seeds"], default["not_reached"]) == ("v100 squad", 2, 0)
    assert (default["energy_change_percent"], default["cost_of_first_5"]) == (0, 1)
    # The optimum is 32 at 100 W: an epoch takes 55 s and 2750 J there, cost 6875, and at 200 W cost 7500.
    rows = read_file(tmp_path / "a.duckdb", "FROM simulated WHERE player = 'default' AND eta = 0.5", SETTINGS)
    assert {row["cost_j"] for row in rows.to_pylist()} == {30_000}
    assert default["regret"] == pytest.approx(12 * (7500 / 6875 - 1))


def test_the_page_stands_alone_and_has_its_data(traces: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    played(tmp_path / "a.duckdb", wanted(traces), report)
    text = report.read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img)|https?://(?!www\.w3\.org/2000/svg)", text)
    assert re.findall("<h2>(.*?)</h2>", text) == [
        "What there is to be saved", "Time against energy", "Energy by batch size", "Energy by power limit",
        "Cumulative regret", "Search paths", "Energy and time against the default", "What eta trades",
    ]  # fmt: skip
    assert text.count("<figure") == 1 + 1 + 1 + 1 + 1 + 1 + 2 + 1  # of two etas, but for the last one
    assert text.count("With eta 0.5.") == 3
    tables = [
        list(csv.DictReader(io.StringIO(unescape(one))))
        for one in re.findall('CSV, and its SQL</summary><pre tabindex="0">(.*?)</pre>', text, re.DOTALL)
    ]
    sweep, *_, regret, paths, against, frontier = tables
    # 32 at 100 W: 4 epochs of 55 s at 50 W, against 50 s at 100 W.
    cheap = next(row for row in sweep if (row["batch_size"], row["limit_w"]) == ("32", "100"))
    assert (float(cheap["energy"]), float(cheap["time"])) == pytest.approx((0.55, 1.1))
    assert {row["batch_size"] for row in sweep} == {"16", "32"}
    assert len(regret) == 2 * 12
    assert {row["batch_size"] for row in paths if row["player"] == "default"} == {"32"}
    assert {row["energy"] for row in against if row["player"] == "default"} == {"1"}
    assert sorted(row["eta"] for row in frontier) == ["0.5", "0.5", "1", "1"]
    assert "synthetic" not in text


TABLE = "group,submitted_s,runtime_s\n" + "".join(f"9,{at},20\n10,{5 * at},30\n" for at in range(0, 60, 10))


def test_recurrences_of_a_table_overlap_as_there_and_take_as_much_as_there(
    traces: Path, tmp_path: Path
) -> None:
    cluster = tmp_path / "cluster.csv"
    cluster.write_text(TABLE)
    of = Wanted(traces=traces, players=["default"], seeds=1, gpus=["v100"], cluster=cluster)
    table, _ = played(tmp_path / "a.duckdb", of)
    costs = {row["world"]: row["energy_change_percent"] for row in table.to_pylist()}
    assert costs == {world: pytest.approx(0) for world in costs}, "the default is as dear as its own default"
    assert list(costs) == ["v100 squad", "cluster 9: v100 squad", "cluster 10: v100 squad"]


def test_the_page_has_every_figure_that_its_games_allow(traces: Path, tmp_path: Path) -> None:
    report, cluster = tmp_path / "report.html", tmp_path / "cluster.csv"
    cluster.write_text(TABLE)
    of = Wanted(
        traces=traces,
        players=["default", "zeus", "reference", "reference-no-stop", "reference-no-pruning"],
        seeds=1,
        betas=(2.0, 3.0),
        drifts=("none", "abrupt"),
        cluster=cluster,
    )
    played(tmp_path / "a.duckdb", of, report)
    text = report.read_text(encoding="utf-8")
    titles = re.findall("<h2>(.*?)</h2>", text)
    assert titles[7:] == [
        "GPU models", "What beta costs", "Without a part of the policy", "When the job changes",
        "A cluster",
    ]  # fmt: skip
    for section in re.split("<h2>", text)[1:]:
        assert re.match(r"[^<]+</h2>.*<p class=\"caption\">[A-Z][^<]+\.</p>", section, re.DOTALL), section[
            :200
        ]
        assert section.count("<figure") >= 1
    last = re.findall('CSV, and its SQL</summary><pre tabindex="0">(.*?)</pre>', text, re.DOTALL)[-1]
    worlds = {row["world"] for row in csv.DictReader(io.StringIO(unescape(last)))}
    assert worlds == {"cluster 9: a40 squad", "cluster 10: a40 squad"}
    assert len(text.encode()) < 1_000_000


def test_results_of_other_traces_and_of_other_overlaps_are_not_mixed(traces: Path, tmp_path: Path) -> None:
    cluster, power = tmp_path / "cluster.csv", traces / "summary_power_v100.csv"
    cluster.write_text(TABLE)
    of = Wanted(traces=traces, players=["reference"], seeds=2, gpus=["v100"], overlap=2.0, cluster=cluster)
    played(tmp_path / "a.duckdb", replace(of, overlap=0.0, cluster=None))
    power.write_text(power.read_text().replace(",100.0", ",190.0"), encoding="utf-8")
    cluster.write_text(TABLE.replace("9,40,20", "9,40,200"))
    alone, _ = played(tmp_path / "b.duckdb", of)
    assert played(tmp_path / "a.duckdb", of)[0].to_pylist() == alone.to_pylist()
    assert alone["overlap"].to_pylist() == [2.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("group,submitted_s,runtime_s\na,0,-6\n", "line 2: .* Expected `float` > 0.0 - at `runtime_s`"),
        ("group\na\n", "missing required field `submitted_s`"),
    ],
)
def test_a_wrong_cluster_is_one_sentence(traces: Path, tmp_path: Path, text: str, says: str) -> None:
    cluster = tmp_path / "cluster.csv"
    cluster.write_text(text)
    of = Wanted(
        traces=traces, players=["default"], seeds=1, gpus=["v100"], workloads=["squad"], cluster=cluster
    )
    with pytest.raises((SettingsError, StorageError), match=says):
        played(tmp_path / "a.duckdb", of)


def test_overlapping_submissions_are_labelled(traces: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    of = Wanted(traces=traces, players=["reference"], seeds=1, gpus=["a40"], workloads=["squad"], overlap=2.0)
    table, _ = played(tmp_path / "a.duckdb", of, report)
    assert table["overlap"].to_pylist() == [2.0]
    assert "Overlapping submissions are synthetic" in report.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("option", "changed"),
    [
        ("--policy oracle", {"players": ["oracle"]}),
        ("--workload mnist", {"workloads": ["mnist"]}),
        ("--gpu h100", {"gpus": ["h100"]}),
        ("--drift sudden", {"drifts": ["sudden"]}),
    ],
)
def test_what_is_not_known_is_named(
    traces: Path, tmp_path: Path, option: str, changed: dict[str, list[str]]
) -> None:
    of = Wanted(**{"traces": traces, "players": ["reference"], "seeds": 1, **changed})  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=f"{option} is not known. Name some of: "):
        played(tmp_path / "a.duckdb", of)


def test_what_the_files_have_is_played_and_a_pool_as_one(traces: Path, tmp_path: Path) -> None:
    every, _ = played(tmp_path / "a.duckdb", Wanted(traces=traces, players=["default"], seeds=1))
    assert every["world"].to_pylist() == ["a40 squad", "v100 squad"]
    pool, _ = played(
        tmp_path / "a.duckdb", Wanted(traces=traces, players=["adaptive"], seeds=1, gpus=["v100+a40"])
    )
    assert pool["world"].to_pylist() == ["v100+a40 squad"]


def test_a_workload_that_no_size_reaches_is_named(traces: Path, tmp_path: Path) -> None:
    (traces / "workloads.csv").write_text(
        "dataset,optimizer,default_batch_size,target_metric,max_epochs,lower_is_better\nsquad,adamw,32,84.0,1,0\n"
    )
    with pytest.raises(SettingsError, match="squad on v100 has no batch size at which every run reaches"):
        played(
            tmp_path / "a.duckdb",
            Wanted(traces=traces, players=["default"], seeds=1, gpus=["v100"], workloads=["squad"]),
        )
    with pytest.raises(SettingsError, match="the traces have no workload"):
        played(tmp_path / "a.duckdb", Wanted(traces=traces, players=["default"], seeds=1))


def test_a_report_that_cannot_be_written_says_so(traces: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="Name another file with --report"):
        played(tmp_path / "a.duckdb", wanted(traces, 1), tmp_path / "none" / "report.html")


def test_the_command_plays_into_the_archive_of_the_setup(zeus: Cli, traces: Path) -> None:
    given = ("--traces", str(traces), "--gpu", "v100", "--workload", "squad", "--seeds", "1", "--eta", "0,1")
    done = zeus("simulate", *given, "--format", "json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["world"] for row in rows} == {"v100 squad, eta 0", "v100 squad, eta 1"}
    assert {row["player"] for row in rows} == {"default", "known", "reference", "zeus", "adaptive"}
    assert (zeus.directory / "energy.duckdb").exists()
    wrong = zeus("simulate", *given, "--eta", "half")
    assert wrong.returncode == 2
    assert "'half': could not be read: it is no number" in wrong.stderr


@pytest.mark.parametrize(("option", "given"), [("--eta", "0.5,2"), ("--eta", "nan"), ("--beta", "0.5")])
def test_a_weight_that_no_recurring_job_may_have_is_refused(zeus: Cli, option: str, given: str) -> None:
    """With --eta 2 costs were less than nothing, and the table had a regret of -283."""
    wrong = zeus("simulate", "--workload", "squad", "--gpu", "v100", "--policy", "default", option, given)
    assert wrong.returncode == 2
    assert f"Invalid value for '{option}': {given} is not in the range" in wrong.stderr
