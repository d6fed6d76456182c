"""Recorded trainings are read from whatever files are given; a wrong file is one sentence."""

from pathlib import Path

import pytest

from analyzers.simulation.recorded_jobs import (
    RecordedWorkload,
    pooled,
    recorded_workload,
    world,
)
from analyzers.simulation.traces import read
from zeus_stream.errors import StorageError

TRAIN = "dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch\n"
POWER = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n"
WORKLOADS = "dataset,optimizer,default_batch_size,target_metric,max_epochs,lower_is_better\n"


def directory(path: Path, **files: str) -> Path:
    """Write files of a workload, digits, on an H100, or those given in their place."""
    runs = {16: ((0.5, "2"), (0.9, "4")), 32: ((0.5, "2"), (0.9, "5")), 64: ((0.5, "3"), (0.9, ""))}
    train = "".join(
        f"digits,net,{size},sgd,0.1,{run},{level},{epoch}\n"
        for size, reached in runs.items()
        for run in (1, 2)
        for level, epoch in reached
    )
    power = "".join(
        f"digits,net,{size},sgd,{limit},{1600 / size},{limit / 2}\n" for size in runs for limit in (700, 500)
    )
    for name, text in {"summary_train": TRAIN + train, "summary_power_h100": POWER + power, **files}.items():
        (path / f"{name}.csv").write_text(text, encoding="utf-8")
    return path


def test_the_package_has_four_gpu_models_and_six_workloads_each_a_world() -> None:
    traces = read()
    assert sorted(traces.powered) == ["a40", "p100", "rtx6000", "v100"]
    assert next(iter(traces.workloads)) == "cifar100"
    defaults = {
        (gpu, name): fit.default
        for gpu in traces.powered
        for name, workload in traces.workloads.items()
        if (fit := recorded_workload(traces, gpu, workload)) and world(traces, gpu, fit).competing
    }
    assert len(defaults) == 24
    smaller = {at: size for at, size in defaults.items() if size != traces.workloads[at[1]].default}
    assert smaller == {
        ("p100", "imagenet"): 128,
        ("p100", "librispeech"): 72,
        ("p100", "squad"): 24,
        ("p100", "sentiment140"): 64,
        ("rtx6000", "librispeech"): 128,
    }


def test_other_gpu_models_and_workloads_are_taken_from_the_files(tmp_path: Path) -> None:
    given = directory(tmp_path, workloads=WORKLOADS + "digits,sgd,32,0.9,20,0\n")
    traces = read(given)
    assert traces.workloads == {
        "digits": RecordedWorkload(dataset="digits", default=32, optimizer="sgd", target=0.9, max_epochs=20)
    }
    assert world(traces, "h100", traces.workloads["digits"]).limits_w == (700, 500)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (
            "summary_train",
            "a,b\n1,2\n",
            r"summary_train\.csv, line 2: could not be read: Object missing required field `dataset`",
        ),
        ("summary_train", TRAIN + "digits,net,0,sgd,0.1,1,0.5,2\n", "Expected `int` >= 1 - at `batch_size`"),
        (
            "summary_train",
            TRAIN + "digits,net,x,sgd,0.1,1,0.5,2\n",
            "Expected `int`, got `str` - at `batch_size`",
        ),
        (
            "summary_train",
            TRAIN + "digits,net,8,sgd,0.1,1,0.5,1e9\n",
            r"Expected `int \| null`|Expected `int` <= 100000",
        ),
        (
            "summary_power_h100",
            POWER + "digits,net,8,sgd,700,nan,9\n",
            "missing required field `time_per_epoch`",
        ),
        (
            "summary_power_h100",
            POWER + "digits,net,8,sgd,700,-1,9\n",
            "Expected `float` > 0.0 - at `time_per_epoch`",
        ),
        ("summary_power_", POWER, "names no GPU model"),
        ("summary_power_h100", "", r"summary_power_h100\.csv: could not be read: it has no rows"),
        ("summary_train", "no table\n", r"summary_train\.csv: could not be read: it has no rows"),
        (
            "workloads",
            WORKLOADS + "digits,sgd,64,0.5,5,no\n",
            "Expected `bool`, got `str` - at `lower_is_better`",
        ),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, name: str, text: str, says: str) -> None:
    given = directory(tmp_path, **{name: text})
    with pytest.raises(StorageError, match=says) as wrong:
        read(given)
    assert "\n" not in str(wrong.value)


def test_a_file_that_is_no_text_and_a_directory_without_tables_are_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"summary_train\.csv: could not be read: No such file"):
        read(tmp_path)
    directory(tmp_path)
    (tmp_path / "summary_power_h100.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(StorageError, match="it is no CSV file"):
        read(tmp_path)
    (tmp_path / "summary_power_h100.csv").unlink()
    with pytest.raises(StorageError, match=r"no file is named summary_power_GPU\.csv"):
        read(tmp_path)


def test_a_pool_has_the_sizes_that_all_its_members_have() -> None:
    traces = read()
    members = []
    for gpu in ("v100", "p100"):
        fit = recorded_workload(traces, gpu, traces.workloads["squad"])
        assert fit is not None
        members.append(world(traces, gpu, fit))
    pool = pooled(members)
    assert pool.job.batch_sizes == (8, 12, 16, 24)
    assert (pool.gpu, pool.job.default) == ("v100+p100", 24)
    assert [member.job for member in pool.pool] == [pool.job, pool.job]
