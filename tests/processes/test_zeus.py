"""A script of Zeus's users, with only its imports changed, on simulated GPUs and services of its own."""

import csv
import json
from pathlib import Path

import duckdb
import pytest

from tests.environment import run
from tests.waiting import until
from zeus_stream.paths import holder

SIMULATED = {"ZEUS_STREAM_DEVICE": "simulated:v100x1"}
SCRIPT = """
import pickle, sys, time
from zeus.device import get_gpus
from zeus.monitor import PowerMonitor, TemperatureMonitor, ZeusMonitor
from zeus.optimizer.power_limit import Done, Energy, GlobalPowerLimitOptimizer, Profiling, Ready
from zeus_stream import simulated

monitor = ZeusMonitor(gpu_indices=[0], log_file=sys.argv[1])
optimizer = GlobalPowerLimitOptimizer(
    monitor, Energy(), warmup_steps=2, profile_steps=8, pl_step=75, profile_path=sys.argv[2]
)
power, temperature, began = PowerMonitor([0]), TemperatureMonitor([0]), time.time()
with simulated.attach("imagenet") as gpu:
    for epoch in range(int(sys.argv[3])):
        monitor.begin_window("epoch")
        for step in range(12):  # too few for a limit of Zeus: 2 + 8 steps and the rest of the epoch are lost
            optimizer.on_step_begin()
            gpu.run(0.02)
        optimizer.on_epoch_end()
        measured = monitor.end_window("epoch")
        assert len(open(sys.argv[1]).readlines()) == 2 + epoch, "the row is there when end_window returns"
        assert pickle.loads(pickle.dumps(measured)) == measured == pickle.loads(pickle.dumps(measured))
        assert measured.total_energy == measured.gpu_energy[0] > 0, measured
        assert isinstance(optimizer.state, (Ready, Profiling, Done)), optimizer.state
    monitor.begin_window("twice")
    try:
        monitor.begin_window("twice")
    except ValueError as wrong:
        print(wrong)
    assert monitor.end_window("twice", cancel=True).total_energy == 0.0
    gpus = get_gpus(ensure_homogeneous=True)
    least_mw, most_mw = gpus.get_power_management_limit_constraints(0)
    assert len(gpus) == 1 and "V100" in gpus.get_name(0), gpus
    assert least_mw <= gpus.get_power_management_limit(0) <= most_mw
    assert gpus.get_total_energy_consumption(0) > 0 and gpus.get_instant_power_usage(0) > 30_000
    assert gpus.get_gpu_temperature(0) > 20
    try:
        gpus.set_power_management_limit(0, most_mw)
    except Exception as wrong:
        assert "under a lease" in str(wrong), wrong
    else:
        raise AssertionError("a script set a limit past the collector")
    assert power.get_energy(began, time.time())[0] > 1, "known from the instant at which the monitor began"
    print(power.get_power()[0] > 30, temperature.get_temperature()[0] > 20)
"""


@pytest.fixture
def script(zeus_dir: Path) -> Path:
    path = zeus_dir / "train.py"
    path.write_text(SCRIPT.replace("from zeus.", "from zeus_stream.zeus."), encoding="utf-8")
    return path


def test_a_script_for_zeus_finds_a_limit_in_short_epochs_and_uses_it_the_next_time(
    zeus_dir: Path, script: Path
) -> None:
    profile, log = zeus_dir / "profile.json", zeus_dir / "log.csv"
    for epochs in ("8", "3"):
        done = run(zeus_dir, script, log, profile, epochs, env=SIMULATED)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "Measurement window 'twice' already exists\nTrue True\n"
        measured = json.loads(profile.read_text())["measurements"]
        assert [each["power_limit"] for each in measured] == [250, 175, 100]
        with log.open(encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        assert [row["window_name"] for row in rows] == ["epoch"] * int(epochs)
        assert all(float(row["gpu0_energy"]) > 0 for row in rows)
    until(lambda: holder(zeus_dir / "keeper.lock") is None)
    best = min(measured, key=lambda each: each["energy"])["power_limit"]
    with duckdb.connect(str(zeus_dir / "energy.duckdb"), read_only=True) as archive:
        decisions = archive.execute(
            "SELECT count(*), any_value(selector), any_value(power_limit_w), bool_and(applied) FROM decisions"
            " GROUP BY run ORDER BY min(t_ns)"
        ).fetchall()
        tried = archive.execute(
            "SELECT count(DISTINCT power_limit_w) FROM trials GROUP BY run ORDER BY 1"
        ).fetchall()
    assert decisions == [(1, "energy", best, True), (1, "energy", best, True)]
    assert tried == [(1,), (3,)], "the second training read the file"


KILLED = """
import os, signal, time
from zeus_stream.paths import holder, places
from zeus_stream.zeus.monitor import PowerMonitor, ZeusMonitor

monitor, power = ZeusMonitor(gpu_indices=[0]), PowerMonitor([0])
for name in ("keeper", "analyzer", "collector"):
    os.kill(holder(places(os.environ).run / f"{name}.lock"), signal.SIGKILL)
waits = []
for _ in range(3):
    monitor.begin_window("epoch")
    measured, began = monitor.end_window("epoch"), time.monotonic()
    assert measured.total_energy != measured.total_energy, measured
    waits.append(time.monotonic() - began)
print(sum(waits[1:]) < waits[0], power.get_power(), power.get_power_timeline("device_instant"))
"""


def test_a_script_for_zeus_goes_on_without_its_services(zeus_dir: Path) -> None:
    """Each window waited for 10 s and logged a line, and readings raised an error into the training."""
    done = run(zeus_dir, "-c", KILLED, env={**SIMULATED, "ZEUS_STREAM_FLUSH_S": "1"})
    assert (done.returncode, done.stdout) == (0, "True None {0: []}\n"), done.stderr
    assert done.stderr.count("window 'epoch': its energy is not known") == 1, done.stderr
    assert done.stderr.count("readings are not known: analyzer") == 1, done.stderr


RECURRING = """
from zeus_stream.zeus.monitor import ZeusMonitor
from zeus_stream.zeus.optimizer.batch_size import BatchSizeOptimizer, JobSpec, ZeusBSOTrainFailError
from zeus_stream import simulated

monitor = ZeusMonitor(gpu_indices=[0])
job = JobSpec(
    job_id_prefix="nightly", batch_sizes=[16, 32], default_batch_size=32, target_metric=0.9, max_epochs=3
)
for metrics in ([0.5, 0.95], [0.1, 0.2, 0.3]):
    optimizer = BatchSizeOptimizer(monitor, "http://not.used", job)
    print(optimizer.get_batch_size() in job.batch_sizes)
    optimizer.on_train_begin()
    try:
        for metric in metrics:
            with simulated.attach("imagenet") as gpu:
                gpu.run(0.1)
            optimizer.on_evaluate(metric)
    except ZeusBSOTrainFailError as wrong:
        print(wrong)
    print(optimizer.training_finished)
"""


def test_a_recurring_job_for_zeus_needs_no_server(zeus_dir: Path) -> None:
    path = zeus_dir / "recurring.py"
    path.write_text(RECURRING, encoding="utf-8")
    done = run(zeus_dir, path, env=SIMULATED)
    assert done.returncode == 0, done.stderr
    first, converged, second, failed, over = done.stdout.splitlines()
    assert (first, converged, second, over) == ("True", "True", "True", "True")
    assert failed.startswith("Training failed: "), failed
    until(lambda: holder(zeus_dir / "keeper.lock") is None)
    with duckdb.connect(str(zeus_dir / "energy.duckdb"), read_only=True) as archive:
        ended = archive.execute("SELECT ended FROM tries ORDER BY ended").fetchall()
    assert ended == [("converged",), ("exhausted",)]
