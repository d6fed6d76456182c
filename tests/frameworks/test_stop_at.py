"""`zeus-stream run --stop-at` with real frameworks: it warns, and a training ends at its next checkpoint."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.directories import short_directory
from tests.frameworks.told import ON_CPU, absent
from tests.zeus_stream.conftest import SIMULATED, Cli

BUDGET_J = 150
SAVE_EVERY = 10
"""Steps between two checkpoints."""
STEPS = 5_000
"""They would take minutes and 25 times the budget."""
WORK = """
import json, sys
from zeus_stream.simulated_gpu.accelerator import attach
gpu = attach("imagenet")
def work(*_): gpu.run(0.01)
"""
HUGGING_FACE = """
import torch
from transformers import Trainer, TrainingArguments
from tests.frameworks.trainings.tiny_models import tiny_llama
from zeus_stream.integrations.huggingface import measure
model = tiny_llama()
model.register_forward_hook(work)
data = [{"input_ids": row, "labels": row} for row in torch.randint(3, 32, (64, 8))]
arguments = TrainingArguments("saved", max_steps=5000, save_steps=10, save_total_limit=1, report_to="none",
    use_cpu=True, disable_tqdm=True, per_device_train_batch_size=4)
trainer = Trainer(model, arguments, train_dataset=data)
measure(trainer)
trainer.train()
step = trainer.state.global_step
"""
LIGHTNING = """
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset
from zeus_stream.integrations.lightning import LightningCallback
class Line(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, _):
        work()
        return self.layer(batch[0]).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(400, 4)), 4)
saves = ModelCheckpoint("saved", "checkpoint-{step}", every_n_train_steps=10, auto_insert_metric_name=False)
trainer = Trainer(max_steps=5000, callbacks=[LightningCallback(), saves], logger=False, accelerator="cpu",
    enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Line(), loader)
step = trainer.global_step
"""
KERAS = """
import keras, numpy as np
from zeus_stream.integrations.keras import KerasCallback
class Work(keras.layers.Layer):
    def call(self, x):
        work()
        return x
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1), Work()])
model.compile(optimizer="sgd", loss="mse")
class Save(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        model.save_weights(f"saved/checkpoint-{int(model.optimizer.iterations)}.weights.h5")
import pathlib
pathlib.Path("saved").mkdir()
x = np.ones((40, 4), "float32")
model.fit(x, x[:, :1], batch_size=4, epochs=500, verbose=0, callbacks=[KerasCallback(), Save()])
step = int(model.optimizer.iterations)
"""
SAY = """
json.dump(step, open("result.json", "w"))
"""
SPENT = "SELECT energy_j, (SELECT count(*) FROM steps) AS steps FROM run_energy"


@pytest.fixture
def zeus() -> Iterator[Cli]:
    with short_directory() as directory:
        yield Cli(Path(directory))


@pytest.mark.parametrize(
    ("script", "frameworks"),
    [
        pytest.param(HUGGING_FACE, ("transformers",), id="Hugging Face Trainer"),
        pytest.param(LIGHTNING, ("lightning",), id="Lightning"),
        pytest.param(KERAS, ("keras", "torch"), id="Keras"),
    ],
)
def test_a_training_warns_and_ends_at_the_checkpoint_after_its_budget(
    zeus: Cli, script: str, frameworks: tuple[str, ...]
) -> None:
    if reason := absent(*frameworks):
        pytest.skip(reason)
    path = zeus.directory / "train.py"
    path.write_text(WORK + script + SAY, encoding="utf-8")
    more = ON_CPU | {"ZEUS_STREAM_GPUS": "0", "KERAS_BACKEND": "torch"}
    done = zeus(
        "run", "--select", "none", "--device", SIMULATED, "--stop-at", f"{BUDGET_J}J",
        "--", sys.executable, str(path), **more,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"% of its budget of {BUDGET_J}J. It ends at its next checkpoint" in done.stderr

    step = json.loads((zeus.directory / "result.json").read_text())
    assert 0 < step < STEPS / 2
    assert step % SAVE_EVERY == 0, "it ends where a checkpoint was written"
    assert list((zeus.directory / "saved").glob(f"checkpoint-{step}*")), "that checkpoint is there"
    (spent,) = json.loads(zeus("sql", "--format", "json", SPENT).stdout)
    assert spent["energy_j"] >= BUDGET_J
    assert spent["steps"] == step
