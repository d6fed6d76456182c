"""Zeus's examples for Hugging Face, from its distribution, with only their imports changed.

They name what transformers 5 and TRL 1 have removed, so they need the versions of their time, which
`make test-zeus-examples` installs. Models and data are tiny, and lie where the examples look for them.
"""

import json
import random
import string
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.environment import ROOT
from tests.frameworks.test_zeus_examples import LIMITS, ON_SIMULATED, example, finds_its_limit, rows
from tests.frameworks.told import absent
from tests.zeus_stream.conftest import Cli

if reason := absent("zeus", "transformers", "datasets", "evaluate", "peft", "trl"):
    pytest.skip(reason, allow_module_level=True)
if not version("transformers").startswith("4."):
    pytest.skip("they need transformers 4: `make test-zeus-examples`", allow_module_level=True)

STEPS = 420
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "0",
    "ZEUS_STREAM_GPUS": "0",
}


def save(kind: str, directory: Path) -> None:
    command = [sys.executable, "-m", "tests.frameworks.trainings.tiny_models", kind, str(directory)]
    subprocess.run(command, cwd=ROOT, timeout=300, check=True)


def letters(count: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(string.ascii_lowercase, k=count))


def test_run_clm_finds_its_limit(zeus_dir: Path) -> None:
    zeus = Cli(zeus_dir)
    save("gpt2", zeus_dir / "gpt2")
    lines = "\n".join(letters(33, seed) for seed in range(200))
    (zeus_dir / "text.txt").write_text(lines, encoding="utf-8")
    arguments = (
        *("--model_name_or_path", "gpt2", "--train_file", "text.txt", "--block_size", "16", "--do_train"),
        *("--output_dir", "out", "--max_steps", str(STEPS), "--per_device_train_batch_size", "2"),
        *("--save_strategy", "no", "--report_to", "none"),
    )
    script = (sys.executable, *ON_SIMULATED, str(example("huggingface/run_clm.py")))
    finds_its_limit(zeus, "cost:0.5", LIMITS, *script, *arguments, **OFFLINE)
    assert rows(zeus, "SELECT count(*) FROM steps") == [str(STEPS)]


def test_the_qlora_example_finds_its_limit(zeus_dir: Path) -> None:
    zeus = Cli(zeus_dir)
    save("gemma", zeus_dir / "google" / "gemma-7b")
    (zeus_dir / "chat").mkdir()
    chats = ({"id": str(seed), "data": [letters(20, seed), letters(20, seed)]} for seed in range(4000))
    (zeus_dir / "chat" / "train.jsonl").write_text("\n".join(map(json.dumps, chats)), encoding="utf-8")
    arguments = (
        *("--dataset_name", "chat", "--max_seq_length", "16", "--max_steps", "160"),
        *("--optim", "adamw_torch", "--save_steps", "1000"),
    )
    script = (sys.executable, *ON_SIMULATED, str(example("huggingface/run_gemma_sft_qlora.py")))
    finds_its_limit(zeus, "cost:0.5", LIMITS, *script, *arguments, **OFFLINE)
