import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from importlib.resources import files
from pathlib import Path

import click
import duckdb
import pyarrow as pa
import pytest

import zeus_stream
from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.open_file import opened
from analyzers.archive.query import answer_some
from analyzers.archive.sandbox.bounded_queries import Queries
from tests.analyzers.archives import BOOTED_NS, POWER_W, A, B, fill
from tests.directories import short_directory
from tests.empty_archive import archive_at
from tests.waiting import until
from tests.zeus_stream.conftest import SIMULATED, Cli, Ran, said
from zeus_stream.cli.main import INTERRUPTED, QUERY_INTERRUPTED, CommandLine
from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.package_version import VERSION
from zeus_stream.paths import holder
from zeus_stream.settings import Settings

QUERIES = files("analyzers.archive") / "queries"
COLUMNS = ("runs", "step_ms"), ("gpus", "step_j")
COUNT = "SELECT count(*) AS trials FROM trials"


@pytest.mark.parametrize(
    ("arguments", "wrong", "cure"),
    [
        (("analyze", "--select", "fastest"), "fastest", "slowdown:"),
        (("analyze", "--select", "slowdown:0.5"), "0.5", "1"),
        (("analyze", "--search", "wild"), "search = 'wild'", "could not be understood"),
        (("analyze", "--stride-w", "0"), "stride_w = '0'", "expected 1 to 1,000"),
        (("collect", "--device", "tpu"), "'tpu'", "simulated:v100x4"),
        (("collect", "--device", "simulated:b300x1"), "b300", "v100"),
        (("collect", "--device", "simulated:v100,colour=1"), "'colour'", "options:"),
        (("budget", "--watts", "500", "--until", "noon"), "'noon'", "Write 18:00"),
        (("collect", "--log-hours", "often"), "log_hours = 'often'", "expected a number"),
        (("collect", "--device", SIMULATED, "--dir", "d" * 120), "over 107 bytes", "Set ZEUS_STREAM_DIR"),
        (("sql", "SELECT 1"), "energy.duckdb", "zeus-stream analyze"),
        (("web", "--archive", "absent.duckdb", "--listen", "127.0.0.1:0"), "no such file", "analyze"),
        (("run", "--device", SIMULATED, "--", "no-such-command"), "no-such-command", "after `--`"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_what_cannot_be_is_one_sentence_with_the_cure(
    zeus: Cli, arguments: tuple[str, ...], wrong: str, cure: str
) -> None:
    alone = arguments[0] == "analyze"  # it has started its store by then, which ends with its process
    sentence = said(zeus(*arguments) if alone else zeus.refused(*arguments))
    assert wrong in sentence
    assert cure in sentence


def test_a_budget_is_about_a_group_that_the_settings_file_names(zeus: Cli) -> None:
    text = '[budget_groups]\nrack1 = ["gpu7", "gpu8:0"]\n'
    (zeus.directory / "zeus-stream.toml").write_text(text, encoding="utf-8")
    assert (
        "rack1: 500 W for gpu7:all, gpu8:0, from"
        in zeus("budget", "--watts", "500", "--group", "rack1").stdout
    )
    assert "Name one of rack1, or give --gpus" in said(zeus("budget", "--watts", "500", "--group", "rakc1"))
    assert "Leave out" in said(zeus("budget", "--watts", "5", "--group", "rack1", "--hosts", "gpu9"))


def test_a_budget_is_about_gpus_of_this_host_by_their_index(zeus: Cli) -> None:
    done = zeus("budget", "--watts", "200", "--gpus", "0,gpu8:1", ZEUS_STREAM_HOST="gpu7")
    assert "all: 200 W for gpu7:0, gpu8:1, from" in done.stdout


def test_a_budget_follows_a_signal_by_its_file_or_its_name(zeus: Cli) -> None:
    text = '# name=load unit=W source="test"\nat,value\n2026-05-01T00:00+00:00,900\n'
    (zeus.directory / "mine.csv").write_text(text, encoding="utf-8")
    assert "load.csv: could not be read" in said(zeus.refused("budget", "--follow", "load"))
    zeus("signals", "import", "mine.csv")
    for given, file in (("mine.csv", "mine.csv"), ("load", "signals/load.csv")):
        done = zeus("budget", "--follow", given, "--ramp-rate", "60", "--first", "prod-*,eval")
        assert f"all: follows {zeus.directory / file} for every GPU of the site" in done.stdout
    stored = json.loads((zeus.directory / "budgets.json").read_text(encoding="utf-8"))["all"]
    assert (stored["ramp_w_min"], stored["first"]) == (60, ["prod-*", "eval"])
    assert "exclude each other" in zeus("budget", "--watts", "5", "--follow", "load").stderr


def test_a_budget_for_a_group_that_nothing_names_is_refused(zeus: Cli) -> None:
    assert "Give --gpus or --hosts" in said(zeus("budget", "--watts", "500", "--group", "rack1"))
    assert not (zeus.directory / "budgets.json").exists()


def test_a_file_that_is_no_archive_is_named(zeus: Cli) -> None:
    path = zeus.directory / "notes.txt"
    path.write_text("not a database " * 1000, encoding="utf-8")
    assert "notes.txt" in said(zeus("sql", COUNT, "--archive", str(path)))


def test_an_archive_that_another_process_holds_is_waited_for_and_that_process_named(zeus: Cli) -> None:
    path = zeus.directory / "held.duckdb"
    hold = f"import duckdb; c = duckdb.connect({str(path)!r}); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with zeus.start("analyze", "--archive", str(path)) as analyzer:
            assert analyzer.stderr is not None
            waits = analyzer.stderr.readline()
            assert waits.startswith(f"{path}: could not be opened: process {other.pid} holds it. ")
            assert waits.endswith(" Waiting for it, at most 30 s.\n")
            other.communicate("\n")
            assert analyzer.stderr.readline().startswith("analyzer:")
            analyzer.terminate()


def test_help_lists_commands_and_options_under_headings(zeus: Cli) -> None:
    commands, options = zeus("--help").stdout, zeus("analyze", "--help").stdout
    for heading in ("Train and measure:", "Look at the results:", "Services:"):
        assert heading in commands
    headings = ("Options:", "Common options:", "Search for", "Other users", "Limits of resources:", "Expert")
    places = [options.index(heading) for heading in headings]
    assert places == sorted(places)


def test_the_help_of_run_is_one_screen_and_all_options_work(zeus: Cli) -> None:
    text = zeus.refused("run", "--help").stdout
    assert text.count("\n") <= 50
    wrong = ("--device", "simulated:v100,colour=1", "--profile-steps", "40")
    assert "colour" in said(zeus.refused("run", *wrong, "--", "true"))


def test_a_misspelled_command_names_the_closest_one(zeus: Cli) -> None:
    completed = zeus.refused("rnu", "--", "true")
    assert completed.returncode == 2
    assert "Did you mean 'run'?" in completed.stderr
    assert "Did you mean" not in zeus.refused("xyz").stderr


def test_the_version_is_a_word_and_two_letters(zeus: Cli) -> None:
    versions = {zeus.refused(word).stdout for word in ("--version", "-V", "-v")}
    assert versions == {f"zeus-stream, version {VERSION}\n"}


def interrupt(cause: BaseException) -> None:
    raise cause


@pytest.mark.parametrize(
    ("cause", "at_the_end"),
    [
        (KeyboardInterrupt(), False),
        (KeyboardInterrupt(), True),
        (click.Abort(), False),
        (RuntimeError(QUERY_INTERRUPTED), False),
    ],
)
def test_ctrl_c_ends_with_130_in_a_command_in_its_prompt_and_as_its_context_ends(
    capsys: pytest.CaptureFixture[str], cause: BaseException, *, at_the_end: bool
) -> None:
    def command() -> None:
        if not at_the_end:
            raise cause
        click.get_current_context().call_on_close(partial(interrupt, cause))

    with pytest.raises(SystemExit) as ended:
        CommandLine("zeus-stream", callback=command, invoke_without_command=True).main([])
    assert ended.value.code == INTERRUPTED
    assert capsys.readouterr().err.strip() == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_are_a_script_for_the_shell(zeus: Cli, shell: str) -> None:
    assert "_ZEUS_STREAM_COMPLETE" in zeus("completions", shell).stdout


def test_status_of_nothing_says_what_to_start(zeus: Cli) -> None:
    completed = zeus("status")
    assert completed.returncode == 1
    assert "zeus-stream collect" in completed.stderr
    assert "zeus-stream analyze" in completed.stderr
    assert "Traceback" not in completed.stderr


def test_status_of_a_host_whose_analyzer_is_elsewhere_is_no_fault(zeus: Cli) -> None:
    with zeus.serving("collect", "--device", SIMULATED):
        shown = zeus("status")
        assert (shown.returncode, "collector" in shown.stdout) == (0, True)
        assert shown.stderr.startswith("No analyzer was started in ")
        services = json.loads(zeus("status", "--json").stdout)["services"]
        assert [each["name"] for each in services] == ["collector"]
    assert zeus("status").returncode == 1, "the collector was started here, and is gone"


def test_a_receiver_of_metrics_without_a_scheme_is_refused(zeus: Cli) -> None:
    refused = zeus("metrics", "--listen", "127.0.0.1:0", "--otlp", "collector:4318")
    assert refused.returncode == 1
    assert "--otlp collector:4318: could not be used: expected the URL" in refused.stderr


@pytest.fixture(scope="module")
def site() -> Iterator[Cli]:
    """A setup whose collector and analyzer run."""
    with short_directory() as directory:
        zeus = Cli(directory)
        with zeus.serving("collect", "--device", SIMULATED), zeus.serving("analyze"):
            yield zeus


def test_status_is_one_screen_and_json(site: Cli) -> None:
    with ExitStack() as stack:
        train = [sys.executable, site.script(), "100000"]
        training = stack.enter_context(
            subprocess.Popen(train, env=site.environment, stderr=subprocess.DEVNULL)
        )
        stack.callback(training.kill)

        def busy() -> bool:
            shown = json.loads(site("status", "--json").stdout)
            rates, joules = ([each[name] for each in shown[rows]] for rows, name in COLUMNS)
            return any(rates) and any(joules)

        until(busy)
        shown = json.loads(site("status", "--json").stdout)
        screen = site("status").stdout
    (gpu,), (run,) = shown["gpus"], shown["runs"]
    assert gpu["power_mw"] > 0
    assert gpu["limit_mw"] is not None
    assert gpu["run"] == run["run"]
    assert run["job"] == "train"
    assert run["energy_j"] > 0
    assert [each["name"] for each in shown["services"]] == ["collector", "analyzer", "follows " + gpu["host"]]
    for words in ("J/step", "1 open run", "saved", "collector", "analyzer", "Tesla V100"):
        assert words in screen, words
    assert "frames" not in screen, "internals belong to --verbose"


def test_an_archive_is_replayed_and_exported_while_the_analyzer_runs(site: Cli) -> None:
    of = {**site.environment, "ZEUS_STREAM_RUN": "short"}
    subprocess.run([sys.executable, site.script(), "8"], env=of, check=True)
    until(lambda: site.ask("SELECT count(*) AS n FROM steps WHERE run = 'short'") == [{"n": 8}])
    replayed, exported = site("replay"), site("export", "out", "--format", "csv")
    table = zeus_stream.open(site.directory / "energy.duckdb").sql("SELECT count(*) AS n FROM steps")
    assert replayed.returncode == 0, replayed.stderr
    assert exported.returncode == 0, exported.stderr
    (steps,) = table["n"].to_pylist()
    assert steps >= 8
    assert len((site.directory / "out" / "steps.csv").read_text().splitlines()) == 1 + steps


def test_sql_is_answered_by_the_running_analyzer_and_by_the_file(zeus: Cli) -> None:
    with zeus.serving("analyze"):
        assert json.loads(zeus("sql", COUNT, "--format", "json").stdout) == [{"trials": 0}]
        wrong = zeus("sql", "SELECT * FROM nothing")
        assert (wrong.returncode, wrong.stdout) == (1, "")
        assert "Table with name nothing does not exist" in wrong.stderr
        assert "SELECT" in said(zeus("sql", "DROP TABLE trials"))
    assert json.loads(zeus("sql", COUNT, "--format", "json").stdout) == [{"trials": 0}]


def test_a_run_says_what_it_cost_and_leaves_nothing_running(ran: Ran) -> None:
    assert ran.completed.returncode == 0, ran.completed.stderr
    assert ran.completed.stdout == "trained\n"
    assert ran.completed.stderr.startswith("zeus-stream: starting the collector and the analyzer ...\n")
    assert "failed" not in ran.completed.stderr
    for words in ("train", "240 steps", "4 epochs", "J", "chosen", "250", "100", "zeus-stream sql"):
        assert words in ran.completed.stderr, words
    for process in ("collector", "analyzer"):
        assert holder(ran.zeus.directory / f"{process}.lock") is None


def test_every_format_says_the_same(ran: Ran) -> None:
    query = "SELECT power_limit_w, energy_j FROM trials ORDER BY number"
    csv, rows, table = (ran.zeus("sql", query, "--format", form).stdout for form in ("csv", "json", "table"))
    limits = [row["power_limit_w"] for row in json.loads(rows)]
    assert len(limits) > 1
    assert [float(line.split(",")[0]) for line in csv.splitlines()[1:]] == limits
    assert [float(line.split()[0]) for line in table.splitlines()[2:]] == limits
    arrow = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "zeus_stream", "sql", query, "--format", "arrow"],
        env=ran.zeus.environment,
        capture_output=True,
        check=True,
    )
    assert pa.ipc.open_stream(io.BytesIO(arrow.stdout)).read_all()["power_limit_w"].to_pylist() == limits
    imported = {line.rpartition(b"|")[2].strip() for line in arrow.stderr.splitlines()}
    assert b"pyarrow.lib" in imported
    assert not imported & {b"numpy", b"asyncio"}, "a question waits for imports that it does not need"


@pytest.mark.parametrize(
    "query", ["-- One?\nSELECT 1 AS n", "--one\nSELECT 1 AS n", "SELECT 1 AS n -- --list"]
)
def test_a_query_is_never_an_option(ran: Ran, query: str) -> None:
    completed = ran.zeus("sql", query, "--json")
    assert json.loads(completed.stdout) == [{"n": 1}], completed.stderr


def test_a_misspelled_option_of_sql_is_still_an_error(ran: Ran) -> None:
    completed = ran.zeus("sql", "SELECT 1", "--formt", "csv")
    assert completed.returncode == 2
    assert "No such option" in completed.stderr


def test_a_query_comes_from_stdin_a_file_or_by_name(ran: Ran, tmp_path: Path) -> None:
    path = tmp_path / "query.sql"
    path.write_text("-- Two?\nSELECT 2 AS n", encoding="utf-8")
    assert json.loads(ran.zeus("sql", "-f", str(path), "--json").stdout) == [{"n": 2}]
    piped = subprocess.run(
        [sys.executable, "-m", "zeus_stream", "sql", "-", "--json"],
        env=ran.zeus.environment,
        input="-- Three?\nSELECT 3 AS n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(piped.stdout) == [{"n": 3}]
    epochs = json.loads(ran.zeus("sql", "@epochs", "--json").stdout)
    assert [row["epoch"] for row in epochs] == [0, 1, 2, 3]
    assert "The shipped queries are" in said(ran.zeus("sql", "@nothing"))
    assert "nothing.sql" in said(ran.zeus("sql", "-f", "nothing.sql"))
    assert ran.zeus("sql", "SELECT 1", "-f", str(path)).returncode == 2


def test_every_shipped_query_is_listed_and_can_be_run(ran: Ran) -> None:
    listed = [line.split()[0] for line in ran.zeus("sql", "--list").stdout.splitlines()]
    assert len(listed) > 10
    shipped = {f"@{file.name.removesuffix('.sql')}": file for file in QUERIES.iterdir()}
    assert set(listed) == set(shipped)
    assert len(ran.zeus("sql", "@runs", "--format", "csv").stdout.splitlines()) > 1, "of the last week"
    with opened(ran.zeus.directory / "energy.duckdb", Settings()) as archive:
        for name in listed:  # each in a process of its own would take longer than all others
            answer_some(Queries(archive, Settings()), shipped[name].read_text(), 10_000, 30.0)


def test_a_report_is_json_for_programs(ran: Ran) -> None:
    report = json.loads(ran.zeus("report", "--json").stdout)
    assert report["steps"] == 240
    assert report["energy_j"] > 0
    limits = [row["limit_w"] for row in report["trials"]]
    assert limits == sorted(limits, reverse=True)


def test_a_report_fits_80_columns(ran: Ran) -> None:
    lines = ran.zeus("report", COLUMNS="80").stdout.splitlines()
    [heads] = [line.split() for line in lines if line.startswith("limit ")]
    # a second round, as after a change on a busy host, has a column of its own
    assert [head for head in heads if head != "round"][:3] == ["limit", "energy", "time"]
    assert "…" not in "\n".join(lines), "the last columns go, and no figure is cut"
    assert [line for line in lines if len(line) > 80 and not line.startswith(("DuckdbFile:", "More:"))] == []


def test_a_finished_archive_is_read_in_python(ran: Ran) -> None:
    archive = zeus_stream.open(ran.zeus.directory / "energy.duckdb")
    assert archive.sql("FROM epochs ORDER BY epoch")["epoch"].to_pylist() == [0, 1, 2, 3]
    assert set(archive.windows(name="validation")["name"].to_pylist()) == {"validation"}
    with pytest.raises(RefusedError, match="nothing does not exist"):
        archive.sql("FROM nothing")
    with pytest.raises(StorageError, match="no such file"):
        zeus_stream.open("nowhere.duckdb")


def test_export_writes_every_table_and_says_where(ran: Ran, tmp_path: Path) -> None:
    completed = ran.zeus("export", str(tmp_path / "out"))
    assert completed.returncode == 0, completed.stderr
    assert (tmp_path / "out" / "trials.parquet").exists()
    assert "trials.parquet" in completed.stdout


def test_a_gpu_is_calibrated_against_a_meter_shown_and_forgotten(zeus: Cli) -> None:
    archive = DuckdbFile.open(archive_at(zeus.directory / "energy.duckdb"), Settings(memory_mb=256))
    fill(archive)
    archive.close()
    seconds = [(BOOTED_NS // 10**9 + second, POWER_W[A] if second <= 60 else 50) for second in range(5, 115)]
    record = "\n".join(f"{t_s},{power_w / 0.95}" for t_s, power_w in seconds)
    (zeus.directory / "meter.csv").write_text(f"t_s,power_w\n{record}\n", encoding="utf-8")

    several = said(zeus("calibrate", "--reference", "meter.csv"))
    assert A in several
    assert B in several
    fitted = zeus("calibrate", "--reference", "meter.csv", "--gpu", A)
    assert fitted.returncode == 0, fitted
    assert "110 samples, columns t_s, power_w" in fitted.stdout
    assert f"{A}: gain 0.9" in fitted.stdout
    assert zeus("calibrate").stdout.startswith(f"{A}  gain 0.9")
    assert zeus("calibrate", "--remove", "--gpu", A).returncode == 0
    assert zeus("calibrate").stdout == "No GPU is calibrated.\n"
    assert "there is none" in said(zeus("calibrate", "--remove", "--gpu", A))


def test_a_running_analyzer_takes_a_calibration_and_what_is_forgotten_as_they_come(site: Cli) -> None:
    gain = {"gain": 0.95, "gain_error": 0.001, "offset_w": 0.0, "source": "meter.csv", "at": "today"}
    (site.directory / "gains.json").write_text(json.dumps({A: gain}), encoding="utf-8")
    until(lambda: "gain 0.950, from meter.csv" in site("status", "--verbose").stdout)
    (site.directory / "forgotten.json").write_text(json.dumps({"nightly": 10**18}), encoding="utf-8")
    until(lambda: "nightly, up to 2001-09-09 01:46:40 UTC" in site("status", "--verbose").stdout)


def test_a_training_is_replayed_and_decides_the_same(ran: Ran) -> None:
    completed = ran.zeus("replay", "--format", "json")
    assert completed.returncode == 0, completed.stderr
    decided = "SELECT power_limit_w, reason FROM decisions ORDER BY number"
    stored = json.loads(ran.zeus("sql", decided, "--format", "json").stdout)
    again = json.loads(completed.stdout)
    assert again
    assert [{name: row[name] for name in stored[0]} for row in again] == stored
    assert f"gave the same {len(again)} decision(s) again" in completed.stderr


def test_another_selector_is_asked_about_what_was_measured(ran: Ran) -> None:
    completed = ran.zeus("replay", "--select", "time", "--format", "json")
    assert completed.returncode == 0, completed.stderr
    assert "not known" in completed.stderr
    row, *_ = json.loads(completed.stdout)
    assert row["other_step_ms"] <= row["step_ms"] * (1 + 1e-9)  # sums in another order
    assert row["other_limit_w"] >= row["power_limit_w"]


def test_decisions_that_are_not_what_they_were_are_listed(ran: Ran, tmp_path: Path) -> None:
    path = tmp_path / "energy.duckdb"
    shutil.copy(ran.zeus.directory / "energy.duckdb", path)
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE decisions SET power_limit_w = 123")
    completed = ran.zeus("replay", str(path), "--format", "json")
    assert completed.returncode == 1
    assert "did not give the stored decisions" in completed.stderr
    assert {(row["what"], row["stored"]) for row in json.loads(completed.stdout)} == {
        ("power_limit_w", "123.0")
    }


def test_the_report_is_of_the_last_run_or_the_one_named(ran: Ran) -> None:
    (run,) = json.loads(ran.zeus("sql", "SELECT DISTINCT run FROM runs", "--format", "json").stdout)
    last, named = ran.zeus("report"), ran.zeus("report", run["run"])
    assert last.returncode == 0, last.stderr
    assert last.stdout == named.stdout
    assert "chosen" in last.stdout
    for unknown in (ran.zeus("report", "nothing"), ran.zeus("statement", "nothing")):
        assert "nothing" in said(unknown)
        assert "taken over, it is in the lake" in said(unknown)


def test_what_a_training_leaves_is_listed_and_forgotten(ran: Ran) -> None:
    listed = ran.zeus("profiles", "--format", "json")
    assert listed.returncode == 0, listed.stderr
    (row,) = json.loads(listed.stdout)
    assert (row["job"], row["gpus"], row["batch_size"]) == ("train", 1, None)
    assert row["limits"] > 1
    assert row["least_limit_w"] <= row["chosen_limit_w"] <= row["highest_limit_w"]
    assert "there is no profile of it. Name one of these jobs: train" in said(
        ran.zeus("profiles", "forget", "nightly")
    )
    forgotten = ran.zeus("profiles", "forget", "train")
    assert forgotten.stdout == "The next run of train searches again.\n", forgotten.stderr
    assert json.loads(ran.zeus("profiles", "--format", "json").stdout) == []
