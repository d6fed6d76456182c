"""Exporters: the registry, one of another distribution, and systems that do not answer."""

import json
import re
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from analyzers.results.rows import MetricRow
from tests.processes.pipeline import Setup
from tests.waiting import until
from tests.zeus_stream.conftest import QUICK, Cli
from zeus_stream.errors import RefusedError, SettingsError, UnreachableError
from zeus_stream.screens.results import registry
from zeus_stream.screens.results.follow import ReceivedResult, forward

GUIDE = Path(__file__).parents[4] / "docs" / "how-to" / "add-an-exporter.md"
METRIC = MetricRow(session="s", run="r", name="loss", t_ns=1, step=1, value=0.5)
STEPS = "SELECT run, sum(energy_j) AS joules FROM windows WHERE kind = 'step' GROUP BY run"


def example(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def install(packages: Path, module: str, source: str, name: str, target: str) -> None:
    """Install a module as pip would, with its entry point."""
    info = packages / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (packages / f"{module}.py").write_text(source, encoding="utf-8")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{name} = {target}\n")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "site"
    name, target = re.findall(r"^(\w+) = \"(.*)\"", example("toml"), re.MULTILINE)[0]
    install(path, "joules_exporter", example("python"), name, target)
    monkeypatch.syspath_prepend(str(path))
    monkeypatch.delitem(sys.modules, "joules_exporter", raising=False)
    return path


def test_the_exporter_of_the_guide_is_short_and_sends(packages: Path) -> None:
    assert packages.exists()
    assert len([line for line in example("python").splitlines() if line.strip()]) <= 22
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(60)
        exporter = registry.open_exporter(f"joules:127.0.0.1:{receiver.getsockname()[1]}")
        exporter.export([METRIC])
        assert receiver.recv(100) == b"energy_j 0.0"
        exporter.report_missed(None)
        assert receiver.recv(100) == b"missed unknown"
        exporter.close()


def test_a_name_that_is_not_there_is_answered_by_those_that_are(packages: Path) -> None:
    assert packages.exists()
    with pytest.raises(SettingsError, match=r"'carbon': could not be opened.*jsonl:FILE, .*joules"):
        registry.open_exporter("carbon:1")


def test_an_exporter_that_cannot_be_loaded_says_which_package_is_wrong(packages: Path) -> None:
    (packages / "joules_exporter.py").write_text("kind = 7")
    with pytest.raises(SettingsError, match=r"joules_exporter:kind is no ExporterKind. See docs/how-to"):
        registry.find("joules")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"jsonl:.*/none/there: could not be opened: No such file"):
        registry.open_exporter(f"jsonl:{tmp_path}/none/there")


class Flaky:
    """An exporter whose system does not answer at first."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.got: list[Struct] = []
        self.missed: list[int | None] = []

    def export(self, rows: Sequence[Struct]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise ConnectionRefusedError("no")
        self.got += rows

    def report_missed(self, count: int | None) -> None:
        self.missed.append(count)

    def close(self) -> None:
        pass


class Pages:
    """Pages of an analyzer that is away now and then."""

    def __init__(self, *pages: ReceivedResult | Exception) -> None:
        self._pages = iter(pages)

    def __iter__(self) -> Iterator[ReceivedResult]:
        return self

    def __next__(self) -> ReceivedResult:
        page = next(self._pages, None)
        if page is None:
            raise RefusedError("enough")
        if isinstance(page, Exception):
            raise page
        return page


def page(*rows: Struct, missed: int | None = 0) -> ReceivedResult:
    return ReceivedResult(rows, missed, replayed=False)


def test_rows_are_given_again_until_the_other_system_takes_them() -> None:
    exporter, warned = Flaky(3), list[str]()
    away = UnreachableError("analyzer: did not answer")
    pages = Pages(page(METRIC), away, away, page(missed=4), page(METRIC, missed=None))
    with pytest.raises(RefusedError, match="enough"):
        forward(pages, exporter, lambda _: False, warned.append)
    assert exporter.got == [METRIC, METRIC]
    assert exporter.missed == [4, None]
    assert warned == ["no", "analyzer: did not answer"], "each trouble is said once"


def test_it_ends_while_the_other_system_does_not_answer() -> None:
    ended = iter([False, True])
    exporter = Flaky(10**9)
    forward(Pages(page(METRIC)), exporter, lambda _: next(ended), lambda _: None)
    assert exporter.got == []


def test_the_list_has_the_exporters_of_other_packages(zeus: Cli, packages: Path) -> None:
    path = f"{packages}:{zeus.environment['PYTHONPATH']}"
    completed = zeus("forward", "--list", PYTHONPATH=path)
    assert [line.split()[0] for line in completed.stdout.splitlines()] == ["jsonl:FILE", "joules:HOST:PORT"]
    nothing = zeus("forward")
    assert "no exporter is named. Name one of --list" in nothing.stderr


@pytest.mark.sweep
def test_what_is_forwarded_agrees_with_the_archive_through_a_restart(zeus_dir: Path) -> None:
    """A real collector, analyzer and run; the analyzer is killed; the sums are those of the archive."""
    received = zeus_dir / "results.jsonl"
    setup, zeus = Setup(zeus_dir, analyze=QUICK), Cli(zeus_dir)

    def rows(name: str) -> list[dict[str, Any]]:
        whole = received.read_text(encoding="utf-8").rpartition("\n")[0]
        return [row for row in map(json.loads, whole.splitlines()) if row["row"] == name]

    try:
        setup.start("collector")
        setup.start("analyzer")
        until(lambda: setup.sql("FROM logs"))
        forwarding = zeus.start("forward", f"jsonl:{received}", "--kept")
        setup.start("publisher 0")
        until(lambda: setup.sql("FROM trials"))
        setup.kill("analyzer")
        setup.start("analyzer")
        until(lambda: setup.sql("FROM decisions"))
        setup.kill("publisher 0")
        until(lambda: any(row["ended_ns"] for row in rows("RunRow")))
        [(row)] = setup.sql(STEPS)
        forwarding.send_signal(signal.SIGINT)
        _, err = forwarding.communicate(timeout=60)
        assert forwarding.returncode == 0, err
    finally:
        setup.close()
    steps = {  # a row that comes again replaces the one before
        (each["session"], each["index"], each["gpu"]): each["energy_j"]
        for each in rows("WindowRow")
        if each["run"] == "run-1" and each["kind"] == "step" and each["energy_j"] is not None
    }
    assert sum(steps.values()) == pytest.approx(row["joules"])
    assert [each["count"] for each in rows("Missed")] == [None], "of the restart only that it was is known"
    assert rows("DecisionRow")[-1]["power_limit_w"] is not None
