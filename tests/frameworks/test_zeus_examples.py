"""Zeus's own published examples, from its distribution, with only their imports changed; and its callback."""

import random
import re
import shlex
import struct
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.directories import QUICK_FILE
from tests.frameworks.told import absent
from tests.zeus_stream.conftest import Cli

REASON = absent("zeus", "torchvision") or "installed"
needs_zeus = pytest.mark.skipif(bool(absent("zeus", "torchvision")), reason=REASON)
RUN = ("run", "--device", "simulated:p100x2", *QUICK_FILE, "--")
ON_SIMULATED = ("-m", "tests.frameworks.on_simulated", "--zeus")
SMALL = ("--arch", "shufflenet_v2_x0_5", "--workers", "0", "--print_freq", "50", "--lr", "0.001")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Two threads of torch wait for each other on a busy machine."""
LIMITS = "250,225,200,175,150,125"
SEARCH = """
SELECT string_agg(power_limit_w::INTEGER, ',' ORDER BY power_limit_w DESC) AS limits, min(steps) AS steps
FROM trials WHERE NOT confirms
"""
CHOSEN = (
    "SELECT selector, applied, power_limit_w BETWEEN 125 AND 250 FROM decisions ORDER BY number DESC LIMIT 1"
)
RUNS = "SELECT count(DISTINCT run), any_value(world_size) FROM runs WHERE world_size > 0"
HUGGING_FACE = """
import torch
from transformers import Trainer, TrainingArguments
from tests.frameworks.trainings.tiny_models import tiny_llama
from zeus.monitor import ZeusMonitor
from zeus.optimizer.power_limit import HFGlobalPowerLimitOptimizer

model = tiny_llama()
data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (64, 8))]

monitor = ZeusMonitor()
optimizer = HFGlobalPowerLimitOptimizer(monitor, warmup_steps=1, profile_steps=20, pl_step=50)
trainer = Trainer(
    model=model,
    args=TrainingArguments("out", max_steps=160, logging_steps=50, save_strategy="no", report_to="none",
        use_cpu=True, dataloader_pin_memory=False),
    train_dataset=data,
    callbacks=[optimizer],
)
trainer.train()
"""


def example(name: str) -> Path:
    found = find_spec("zeus")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parents[1] / "examples" / name


def pictures(directory: Path, *, train: int) -> Path:
    """Write tiny pictures of two classes where ImageNet's would be."""
    from PIL import Image

    rng = random.Random(1)
    for part, count in (("train", train), ("val", 4)):
        for number in range(count):
            folder = directory / part / f"class{number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.frombytes("RGB", (8, 8), rng.randbytes(192)).save(folder / f"{number}.png")
    return directory


def digits(directory: Path, *, train: int) -> None:
    """Write tiny sets of digits in the format and the place of MNIST's files."""
    rng, folder = random.Random(1), directory / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part, count in (("train", train), ("t10k", 4)):
        images = struct.pack(">4i", 0x803, count, 28, 28) + rng.randbytes(count * 28 * 28)
        labels = struct.pack(">2i", 0x801, count) + bytes(number % 10 for number in range(count))
        (folder / f"{part}-images-idx3-ubyte").write_bytes(images)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(labels)


def rows(zeus: Cli, query: str) -> list[str]:
    return zeus("sql", "--format", "csv", query).stdout.replace('"', "").splitlines()[1:]


def finds_its_limit(zeus: Cli, selector: str, limits: str, *command: str, **more: str) -> None:
    """Train under ``zeus-stream run``: these limits are tried, and one that the selector chooses is set."""
    done = zeus(*RUN, *command, **more, **ONE_THREAD)
    assert done.returncode == 0, done.stderr[-4000:]
    assert rows(zeus, SEARCH)[0].rsplit(",", 1)[0] == limits
    assert rows(zeus, CHOSEN) == [f"{selector},true,true"]


@needs_zeus
def test_the_example_of_one_gpu_finds_its_limit(zeus_dir: Path) -> None:
    zeus, data = Cli(zeus_dir), pictures(zeus_dir / "data", train=60)
    script = (sys.executable, *ON_SIMULATED, str(example("power_limit_optimizer/train_single.py")))
    arguments = (str(data), *SMALL, "--batch_size", "1", "--epochs", "7")
    one = {"ZEUS_STREAM_GPUS": "0", "LOCAL_RANK": "0"}
    finds_its_limit(zeus, "slowdown:1.1", LIMITS, *script, *arguments, **one)
    assert int(rows(zeus, SEARCH)[0].rsplit(",", 1)[1]) >= 40


@needs_zeus
@pytest.mark.parametrize("way", ["data-parallel", "sharded"])
def test_the_example_of_two_ranks_is_one_run_and_finds_its_limit(zeus_dir: Path, way: str) -> None:
    zeus = Cli(zeus_dir)
    ranks = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    if way == "data-parallel":
        data = pictures(zeus_dir / "data", train=60)
        script = (*ON_SIMULATED, str(example("power_limit_optimizer/train_dp.py")))
        command = (*ranks, *script, str(data), *SMALL, "--batch_size", "2", "--epochs", "15")
        finds_its_limit(zeus, "slowdown:1.1", LIMITS, *command)
    else:
        digits(zeus_dir / "data", train=512)
        sharded = (sys.executable, *ON_SIMULATED, str(example("power_limit_optimizer/train_fsdp.py")))
        each = f'{shlex.join(sharded)} --batch-size 1 --epochs 6 --local-rank "$LOCAL_RANK"'
        finds_its_limit(zeus, "cost:0.5", LIMITS, *ranks, "--no-python", "sh", "-c", f"exec {each}")
    assert rows(zeus, RUNS) == ["1,2"]


@pytest.mark.skipif(bool(absent("transformers")), reason=absent("transformers") or "installed")
def test_the_callback_of_a_hugging_face_trainer_finds_its_limit(zeus_dir: Path) -> None:
    zeus, script = Cli(zeus_dir), zeus_dir / "train.py"
    script.write_text(HUGGING_FACE, encoding="utf-8")
    command = (sys.executable, *ON_SIMULATED, str(script))
    finds_its_limit(zeus, "cost:0.5", "250,200,150,125", *command, ZEUS_STREAM_GPUS="0")
    assert rows(zeus, "SELECT count(*) FROM steps") == ["160"]


@pytest.mark.skipif(
    bool(absent("zeus", "jax", "torch")), reason=absent("zeus", "jax", "torch") or "installed"
)
def test_the_example_of_jax_prints_the_joules_of_its_window(zeus_dir: Path) -> None:
    zeus = Cli(zeus_dir)
    script = (
        sys.executable,
        "-m",
        "tests.frameworks.jax_on_simulated",
        str(example("jax/measure_energy.py")),
    )
    done = zeus(*RUN, *script, CUDA_VISIBLE_DEVICES="0", JAX_PLATFORMS="cpu", **ONE_THREAD)
    assert done.returncode == 0, done.stderr[-4000:]
    [printed] = re.findall(r"^GPU 0 consumed ([\d.]+) Joules", done.stdout, re.MULTILINE)
    [stored] = rows(zeus, "SELECT energy_j FROM named WHERE name = 'all_computations'")
    assert float(printed) == pytest.approx(float(stored))
    assert float(printed) > 100
