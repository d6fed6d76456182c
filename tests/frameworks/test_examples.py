"""The examples of docs/how-to/frameworks.md, on a simulated GPU with collector and analyzer."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.directories import short_directory
from tests.environment import run as run_python
from tests.frameworks.told import ON_CPU, absent
from tests.processes.pipeline import Setup
from tests.waiting import until
from zeus_stream import Publisher

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "frameworks.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^## ([^\n]+)\n\n```python\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL))
MOST_LINES = 15
STEPS = 60
ROUNDING = 1e-3
ARCHIVED = """
SELECT count(*) FILTER (kind = 'step') AS steps, min(energy_j) FILTER (kind = 'step') AS least_j,
    max(energy_j) FILTER (name = 'logging interval') AS most_j,
    min(energy_j / duration_s) FILTER (name = 'logging interval') AS least_w,
    max(energy_j / duration_s) FILTER (name = 'logging interval') AS most_w
FROM windows WHERE run = '{run}'
"""
GPU = """
import json, sys
from zeus_stream.simulated_gpu.accelerator import attach
gpu = attach("imagenet")
def work(*_): gpu.run(0.05)
"""
TORCH = (
    GPU
    + """
import torch
from torch.utils.data import DataLoader
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.register_forward_hook(work)
"""
)
LLAMA = (
    GPU
    + """
import torch
from tests.frameworks.trainings.tiny_models import tiny_llama
model = tiny_llama()
model.register_forward_hook(work)
data = [{"input_ids": row, "labels": row} for row in torch.randint(3, 32, (64, 8))]
"""
)
LOGS = "logs = trainer.state.log_history"


@dataclass(frozen=True)
class Around:
    """What an example needs before it, and what its logs are after it."""

    before: str
    after: str
    frameworks: tuple[str, ...]
    tokens: bool = False


AROUND = {
    "Hugging Face Trainer": Around(LLAMA, LOGS, ("transformers",)),
    "TRL": Around(LLAMA + """
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
data = Dataset.from_dict({"input_ids": [row["input_ids"].tolist() for row in data]})
words = {f"w{number}": number for number in range(32)}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")), eos_token="w1", pad_token="w2")
""", LOGS, ("trl",), tokens=True),
    "Lightning": Around(TORCH + """
from lightning.pytorch import LightningModule
layer = model
class Line(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = layer
    def training_step(self, batch, _):
        return self.layer(batch[0]).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
loader = DataLoader(torch.utils.data.TensorDataset(torch.randn(40, 4)), 4)
model = Line()
""", """
import csv, pathlib
(table,) = pathlib.Path("out").rglob("metrics.csv")
logs = [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(table.open())]

""", ("lightning",), tokens=True),
    "Keras": Around(GPU + """
import keras, numpy as np
class Work(keras.layers.Layer):
    def call(self, x):
        work()
        return x
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1), Work()])
model.compile(optimizer="sgd", loss="mse")
x = np.ones((40, 4), "float32"); y = x[:, :1]
""", "logs = [{key: value[-1] for key, value in history.items()}]", ("keras", "torch")),
    "Plain torch": Around(TORCH + """
loader = DataLoader(torch.randn(240, 4), 4)
told, print = [], lambda loss, log: told.append(log)
""", "logs = told", ("torch",), tokens=True),
    "Accelerate": Around(TORCH + """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
told = []
accelerator.log = told.append
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(torch.randn(480, 4), 4))
""", "logs = told", ("accelerate",)),
    "JAX": Around(GPU + """
import jax, jax.numpy as jnp
def batches_():
    for _ in range(60):
        work()
        yield jnp.ones(4)
batches = batches_()
weights = jnp.ones(4)
@jax.jit
def train_step(weights, batch):
    loss, slope = jax.value_and_grad(lambda w: ((batch @ w - 1) ** 2))(weights)
    return weights - 0.01 * slope, loss
""", "logs = []", ("jax",)),
}  # fmt: skip


@pytest.fixture(scope="module")
def setup() -> Iterator[Setup]:
    with short_directory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZEUS_STREAM_DIR", str(directory))
        made = Setup(directory, collect=("--observe",))
        try:
            for process in ("collector", "analyzer"):
                made.start(process)
            until(made.welcome)
            until(lambda: made.sql("SELECT 1 AS up"))
            with Publisher(gpus=[0]) as asking:  # who asks is answered
                with asking.window("warm-up") as window:
                    until(lambda: made.sql("SELECT 1 FROM readings"))
                until(window.energy)
            yield made
        finally:
            made.close()


def unless_absent(name: str) -> pytest.MarkDecorator:
    reason = absent(*AROUND[name].frameworks)
    return pytest.mark.skipif(bool(reason), reason=reason)


def test_there_is_a_test_for_each_example_and_none_is_long() -> None:
    assert set(EXAMPLES) == set(AROUND)
    assert max(len(example.splitlines()) for example in EXAMPLES.values()) <= MOST_LINES


@pytest.mark.parametrize("name", [pytest.param(name, marks=unless_absent(name)) for name in EXAMPLES])
def test_an_example_runs_and_its_logs_say_what_the_archive_says(setup: Setup, name: str) -> None:
    around = AROUND[name]
    script = setup.directory / "example.py"
    script.write_text(
        f"{around.before}\n{EXAMPLES[name]}\n{around.after}\njson.dump(logs, open(sys.argv[1], 'w'))\n",
        encoding="utf-8",
    )
    run = f"run-{list(EXAMPLES).index(name)}"
    result = setup.directory / f"{run}.json"
    variables = ON_CPU | {"ZEUS_STREAM_RUN": run, "ZEUS_STREAM_GPUS": "0", "KERAS_BACKEND": "torch"}
    done = run_python(setup.directory, script, result, cwd=setup.directory, env=variables)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "zeus-stream:" not in done.stderr
    until(lambda: setup.sql(f"SELECT 1 FROM windows WHERE kind = 'run' AND run = '{run}'"))  # noqa: S608
    [archived] = setup.sql(ARCHIVED.format(run=run))
    assert archived["steps"] == STEPS
    if name == "JAX":  # it has no log
        return
    known = [log for log in json.loads(result.read_text()) if "energy_per_step_j" in log]
    assert known, "its logs know what a step costs"
    for log in known:
        # An interval is some steps, and what it takes to load their batches; a log may be of several.
        assert 0.9 * archived["least_j"] < log["energy_per_step_j"] < archived["most_j"] + ROUNDING
        assert archived["least_w"] - ROUNDING < log["average_power_w"] < archived["most_w"] + ROUNDING
        assert ("energy_per_token_j" in log) == around.tokens
