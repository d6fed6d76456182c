"""The examples of docs/how-to/examples.md as they are, on simulated GPUs: joules in tables and logs."""

import sys
from pathlib import Path

import pytest

from tests.environment import ROOT
from tests.frameworks.told import absent
from tests.zeus_stream.conftest import Cli

SIMULATED = ("run", "--device", "simulated:a40x2", "--select", "none", "--")
COUNTED = "SELECT count(*) AS steps, min(energy_j) > 0 AS measured FROM steps"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
TINY = ("--samples", "32", "--batch-size", "4", "--size", "32", "--epochs", "1", "--arch", "resnet18")
TRAINS = {
    "imagenet.py": (("torchvision",), TINY, 8),
    "causal_lm.py": (("transformers", "accelerate"), ("--steps", "40", "--tokens", "16"), 40),
    "sft_lora.py": (("trl", "peft"), ("--steps", "40", "--tokens", "16"), 40),
}


def example(name: str) -> object:
    reason = absent(*TRAINS[name][0])
    return pytest.param(name, marks=pytest.mark.skipif(bool(reason), reason=reason))


@pytest.mark.parametrize("name", [example(name) for name in TRAINS])
def test_an_example_is_measured_as_it_is(zeus_dir: Path, name: str) -> None:
    _, arguments, steps = TRAINS[name]
    zeus = Cli(zeus_dir)
    script = (sys.executable, "-m", "tests.frameworks.on_simulated", str(ROOT / "examples" / name))
    done = zeus(*SIMULATED, *script, *arguments, CUDA_VISIBLE_DEVICES="0", ZEUS_STREAM_GPUS="0", **ONE_THREAD)
    assert done.returncode == 0, done.stderr[-4000:]
    assert zeus("sql", "--format", "csv", COUNTED).stdout.splitlines()[1] == f"{steps},true"
    if name != "imagenet.py":
        assert "energy_per_token_j" in done.stdout


@pytest.mark.skipif(bool(absent("torchvision")), reason=absent("torchvision") or "installed")
def test_imagenet_on_two_ranks_is_one_run(zeus_dir: Path) -> None:
    zeus = Cli(zeus_dir)
    module = ("-m", "tests.frameworks.on_simulated", str(ROOT / "examples" / "imagenet.py"))
    ranks = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *module)
    done = zeus(*SIMULATED, *ranks, *TINY, **ONE_THREAD)
    assert done.returncode == 0, done.stderr[-4000:]
    assert zeus("sql", "--format", "csv", COUNTED).stdout.splitlines()[1] == "4,true"
    rows = zeus(
        "sql", "--format", "csv", "SELECT count(DISTINCT run), count(*), any_value(world_size) FROM runs"
    )
    assert rows.stdout.splitlines()[1] == "1,2,2"
