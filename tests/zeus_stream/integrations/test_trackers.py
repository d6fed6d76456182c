"""Energies in trackers: points from an archive whose figures are known, and the real packages.

`make test-frameworks` installs MLflow, TensorBoard and W&B; elsewhere their tests say what is missing.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.sandbox.bounded_queries import Queries
from analyzers.results.rows import Row
from tests.analyzers.archive.test_waste import CLOSED, row
from tests.analyzers.archives import BOOTED_NS, SECOND
from tests.empty_archive import archive_at
from zeus_stream.errors import SettingsError, UnreachableError
from zeus_stream.integrations import trackers
from zeus_stream.integrations.trackers import (
    BLOCK,
    EnergyLog,
    Mlflow,
    TrackedPoint,
    TrackedPoints,
    Wandb,
    sink_of,
)
from zeus_stream.protocol.queries import Query
from zeus_stream.settings import Settings

INSTALL = "is not installed: `make test-frameworks` installs it"
BEGAN_S = BOOTED_NS / SECOND


@pytest.fixture
def put(tmp_path: Path) -> Iterator[tuple[Callable[[Sequence[Row]], None], TrackedPoints]]:
    archive = DuckdbFile.open(archive_at(tmp_path / "energy.duckdb"), Settings())
    queries = Queries(archive, Settings())

    def ask(sql: str) -> list[dict[str, Any]]:
        _, parts = queries.answer(Query(sql, 1000, 10_000))
        rows: list[dict[str, Any]] = pa.ipc.open_stream(b"".join(parts)).read_all().to_pylist()
        return rows

    yield lambda rows: archive.put([], rows, {}, replaying=False), TrackedPoints(CLOSED.run, ask)
    queries.stop()
    archive.close()


def steps(first: int, end: int) -> list[Row]:
    """Steps of 1 s; step n takes n joules."""
    return [row("step", n, n, n + 1, n) for n in range(first, end)]


@pytest.mark.sweep
def test_points_are_whole_blocks_in_order_each_once(put: tuple[Any, TrackedPoints]) -> None:
    store, points = put
    store([CLOSED, *steps(0, 60)])
    (first,) = points.new()
    assert (first.step, first.at_s) == (BLOCK - 1, BEGAN_S + BLOCK)
    assert first.values == {
        "energy/step_j": pytest.approx(24.5),
        "energy/step_ms": 1000,
        "energy/power_w": pytest.approx(24.5),
        "energy/limit_w": 200,
        "energy/total_j": pytest.approx(BLOCK * 24.5),
    }
    assert points.new() == []
    store([*steps(60, 100), row("epoch", 0, 0, 100, 50)])
    second, epoch = points.new()
    assert second.step == 2 * BLOCK - 1
    assert second.values["energy/total_j"] == pytest.approx(sum(range(100)))
    assert epoch == TrackedPoint(0, BEGAN_S + 100, {"energy/epoch_j": 5000})
    assert points.new() == []


def test_a_step_that_was_not_measured_is_left_out(put: tuple[Any, TrackedPoints]) -> None:
    store, points = put
    store([CLOSED, *steps(0, 10), row("step", 10, 10, 11, None), *steps(11, 100)])
    (point,) = points.new()
    assert point.step == BLOCK
    assert point.values["energy/total_j"] == pytest.approx(sum(range(BLOCK + 1)) - 10)


def test_a_log_begins_with_the_step_and_epoch_that_come_next(put: tuple[Any, TrackedPoints]) -> None:
    store, points = put
    store([CLOSED, *steps(0, 90), row("epoch", 0, 0, 30, 50), row("epoch", 1, 30, 90, 50)])
    resumed = TrackedPoints(CLOSED.run, points._ask, 30, 1)
    block, epoch = resumed.new()
    assert block.step == 79
    assert block.values["energy/total_j"] == pytest.approx(sum(range(30, 80)))
    assert epoch.step == 1


def test_a_block_waits_for_the_rows_of_every_rank_until_the_end(put: tuple[Any, TrackedPoints]) -> None:
    store, points = put
    slower = {"session": "slower", "rank": 1, "gpu": "GPU-slower"}
    other = [row("step", n, n, n + 1, n, **slower) for n in range(60)]
    store([CLOSED, *steps(0, 60), row("epoch", 0, 0, 50, 9), row("epoch", 1, 50, 60, 9)])
    store([*other[:40], row("epoch", 0, 0, 50, 9, **slower)])
    (epoch,) = points.new()
    assert epoch.values == {"energy/epoch_j": 900}
    store(other[40:50])
    (block,) = points.new()
    assert block.values["energy/total_j"] == pytest.approx(2 * sum(range(50)))
    assert [point.step for point in points.new(last=True)] == [59, 1]


def test_a_block_does_not_wait_for_a_rank_that_was_lost(put: tuple[Any, TrackedPoints]) -> None:
    """A run that went on with fewer ranks had no point before its end."""
    store, points = put
    lost = {"session": "lost", "rank": 1, "gpu": "GPU-lost"}
    store([CLOSED, row("step", 0, 0, 1, 9, **lost), row("run", 0, 0, 1, 9, **lost), *steps(0, 60)])
    (block,) = points.new()
    assert block.step == BLOCK - 1


def test_steps_of_a_minute_are_points(put: tuple[Any, TrackedPoints]) -> None:
    store, points = put
    store([CLOSED, *[row("step", n, 70 * n, 70 * (n + 1), 9) for n in range(3)]])
    assert [(point.step, point.values["energy/step_j"]) for point in points.new()] == [(2, 630)]
    store([row("step", 3, 210, 280, 9)])
    assert [point.step for point in points.new()] == [3]


@dataclass
class Writer:
    """A writer as torch's TensorBoard has it."""

    scalars: list[tuple[str, float, int, float]] = field(default_factory=list)
    fails: bool = False

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, walltime: float) -> None:
        if self.fails:
            raise OSError("no space left on device")
        self.scalars.append((tag, scalar_value, global_step, walltime))

    def flush(self) -> None:
        pass


def test_at_the_end_everything_has_been_logged_with_its_step_and_time() -> None:
    writer, points = Writer(), iter([[], [TrackedPoint(49, 100.0, {"energy/step_j": 4.5})]])
    EnergyLog([sink_of(writer)], lambda **_: next(points, []), 3600).close()
    assert writer.scalars == [("energy/step_j", 4.5, 49, 100.0)]


@pytest.mark.sweep
def test_the_last_block_is_logged_though_it_is_not_full(
    put: tuple[Any, TrackedPoints], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "FLUSH_S", 180.0)
    store, points = put
    store([CLOSED, *steps(0, 60)])
    writer = Writer()
    EnergyLog([sink_of(writer)], points.new, 3600).close()
    totals = [(step, value) for tag, value, step, _ in writer.scalars if tag == "energy/total_j"]
    assert totals == [(49, pytest.approx(sum(range(50)))), (59, pytest.approx(sum(range(60))))]  # type: ignore[comparison-overlap]


def test_nothing_is_logged_after_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "FLUSH_S", 0.05)
    writer, asked, go_on = Writer(), threading.Event(), threading.Event()

    def slow(**_: object) -> list[TrackedPoint]:
        asked.set()
        go_on.wait(30)
        return [TrackedPoint(49, 100.0, {"energy/step_j": 4.5})]

    log = EnergyLog([sink_of(writer)], slow, 0.001)
    assert asked.wait(30)
    log.close()
    go_on.set()
    log._thread.join(30)
    assert writer.scalars == []


@pytest.mark.sweep
def test_a_failure_is_one_warning_and_reaches_no_training(caplog: pytest.LogCaptureFixture) -> None:
    def unreachable(**_: object) -> list[TrackedPoint]:
        raise UnreachableError("analyzer: did not answer")

    with caplog.at_level(logging.WARNING, "zeus_stream"):
        broken = EnergyLog(
            [sink_of(Writer(fails=True))], lambda **_: [TrackedPoint(0, 0.0, {"a": 1.0})], 0.001
        )
        gone = EnergyLog([sink_of(Writer())], unreachable, 0.001)
        broken.close()
        gone.close()
    logged = "zeus-stream: trackers: could not log energies: OSError('no space left on device')."
    assert sorted(record.message for record in caplog.records) == [
        "zeus-stream: analyzer: did not answer",
        f"{logged} The training goes on without them.",
    ]


def test_what_is_no_tracker_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"it is no tracker that is known\. Give wandb\.run, mlflow"):
        sink_of(object())


@pytest.mark.filterwarnings("default")
def test_mlflow_has_each_value_at_its_step_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason=f"mlflow {INSTALL}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with pytest.raises(SettingsError, match=r"no run is active\. Call mlflow\.start_run\(\)"):
        sink_of(mlflow)
    with mlflow.start_run() as run:
        mlflow.log_metric("loss", 1.0, step=500)
        sink = sink_of(mlflow)
        assert isinstance(sink, Mlflow)
        assert sink.write(
            [
                TrackedPoint(49, 100.0, {"energy/step_j": 4.5}),
                TrackedPoint(99, 101.0, {"energy/step_j": 4.0}),
            ],
            last=True,
        )
        mlflow.log_metric("loss", 0.5, step=501)
    client = mlflow.MlflowClient()
    found = client.get_metric_history(run.info.run_id, "energy/step_j")
    assert [(each.step, each.timestamp, each.value) for each in found] == [
        (49, 100_000, 4.5),
        (99, 101_000, 4.0),
    ]
    assert [each.step for each in client.get_metric_history(run.info.run_id, "loss")] == [500, 501]


@pytest.mark.filterwarnings("default")
def test_tensorboard_has_each_value_at_its_step_and_time(tmp_path: Path) -> None:
    summary = pytest.importorskip("tensorboard.summary", reason=f"tensorboard {INSTALL}")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    writer = summary.Writer(str(tmp_path))
    assert sink_of(writer).write([TrackedPoint(49, 100.0, {"energy/step_j": 4.5})], last=True) == 1
    writer.close()
    (file,) = tmp_path.iterdir()
    events = [event for event in EventFileLoader(str(file)).Load() if event.summary.value]
    assert [(event.step, event.wall_time) for event in events] == [(49, 100.0)]
    assert events[0].summary.value[0].tag == "energy/step_j"
    assert events[0].summary.value[0].tensor.float_val[0] == 4.5


@pytest.mark.filterwarnings("default")
def test_wandb_loses_no_row_of_the_user_and_has_an_axis_for_energy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline. Several logs of one step of the user, with energy of an earlier step in between."""
    wandb = pytest.importorskip("wandb", reason=f"wandb {INSTALL}")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(mode="offline", project="test", dir=str(tmp_path))
    sink = sink_of(run)
    assert isinstance(sink, Wandb)
    points = [TrackedPoint(49 + BLOCK * n, 100.0 + n, {"energy/step_j": 4.0 + n}) for n in range(4)]
    waiting = [*points, TrackedPoint(0, 104.0, {"energy/epoch_j": 7.0})]
    for step in (100, 101, 102):
        run.log({"loss": step / 10}, step=step)
        del waiting[: sink.write(waiting, last=False)]
        run.log({"accuracy": step / 100}, step=step)
    assert sink.write(waiting, last=True) == len(waiting)
    assert run.summary["energy/step"] == points[-1].step, "an epoch's number is no step"
    run.finish()
    wandb.teardown()  # then everything is in the file
    rows = history(next(tmp_path.rglob("run-*.wandb")))
    assert [each["_step"] for each in rows if "loss" in each] == [100, 101, 102]
    assert [each["loss"] for each in rows if "loss" in each] == [10.0, 10.1, 10.2]
    assert [each["accuracy"] for each in rows if "accuracy" in each] == [1.0, 1.01, 1.02]
    energies = [(each["energy/step"], each["energy/step_j"]) for each in rows if "energy/step_j" in each]
    assert energies == [(point.step, point.values["energy/step_j"]) for point in points]


def records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a file of W&B: after 7 bytes, blocks of 32 KiB as LevelDB's log has them."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        if (left := 32_768 - at % 32_768) < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def history(file: Path) -> list[dict[str, Any]]:
    """Return the rows of an offline run."""
    from wandb.proto import wandb_internal_pb2

    rows = []
    for data in records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            items = record.history.item
            keys = [item.key or "/".join(item.nested_key) for item in items]
            rows.append(dict(zip(keys, (json.loads(item.value_json) for item in items), strict=True)))
    return rows


@pytest.mark.filterwarnings("default")
def test_aim_has_each_value_at_its_step_beside_the_metrics_of_the_user(tmp_path: Path) -> None:
    aim = pytest.importorskip("aim", reason=f"aim {INSTALL}")
    plain = {"repo": str(tmp_path), "system_tracking_interval": None, "capture_terminal_logs": False}
    run = aim.Run(**plain)
    run.track(1.0, name="loss", step=500)
    points = [TrackedPoint(step, 100.0, {"energy/step_j": value}) for step, value in ((49, 4.5), (99, 4.0))]
    assert sink_of(run).write(points, last=True) == 2
    run.track(0.5, name="loss", step=501)
    run.close()
    again = aim.Run(run.hash, **plain)
    found = {
        each.name: [(step, value) for step, (value, *_) in each.data.items()] for each in again.metrics()
    }
    again.close()
    assert found == {"energy/step_j": [(49, 4.5), (99, 4.0)], "loss": [(500, 1.0), (501, 0.5)]}
