"""Lightning's `Trainer`, tiny and on the CPU."""

import csv
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

from tests.frameworks.trainings.common import Broken, publisher, publisher_alone, say, slow
from zeus_stream import Publisher
from zeus_stream.integrations.lightning import LightningCallback

BATCHES = 10


class Line(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.losses: list[float] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.layer(batch[0])

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Pair(Line):
    """Two optimizers, each makes a step of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, number: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, number))
            optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]


def loader() -> DataLoader[Any]:
    x = torch.randn(BATCHES * 4, 4, generator=torch.Generator().manual_seed(2))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)


def trainer(*callbacks: Callback, **arguments: Any) -> Trainer:
    settings = {
        "max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 2,
    } | arguments  # fmt: skip
    return Trainer(callbacks=list(callbacks), **settings)


def run(
    pub: Publisher | None, *callbacks: Callback, model: type[Line] = Line, **arguments: Any
) -> dict[str, Any]:
    seed_everything(1, verbose=False)
    made = model()
    ours = [] if pub is None else [LightningCallback(pub)]
    trainer(*ours, *callbacks, **arguments).fit(made, loader(), loader())
    return {"losses": made.losses, "weights": made.layer.weight.tolist()}


class At(Callback):
    """Does something at the end of a batch."""

    def __init__(self, batch: int, what: str) -> None:
        self.batch = batch
        self.what = what

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == self.batch and self.what == "stop":
            trainer.should_stop = True
        elif batch_idx == self.batch:
            raise Broken


EVERYTHING: dict[str, Any] = {
    "accumulate_grad_batches": 3,
    "val_check_interval": 5,
    "num_sanity_val_steps": 2,
}
results: dict[str, Any] = {"without": run(None, **EVERYTHING)}
with publisher("everything") as pub:
    results["with"] = run(pub, **EVERYTHING)
with publisher_alone("alone") as pub:
    results["alone"] = run(pub, **EVERYTHING)
with publisher("stopped") as pub:
    run(pub, At(4, "stop"))
with publisher("pair") as pub:
    run(pub, model=Pair)
with publisher("broken") as pub:
    try:
        run(pub, At(4, "break"), accumulate_grad_batches=2)
    except Broken:
        run(pub)
with publisher("resumed") as pub:
    first = trainer(max_epochs=1)
    first.fit(Line(), loader())
    first.save_checkpoint("one.ckpt")
    trainer(LightningCallback(pub), max_epochs=3).fit(Line(), loader(), ckpt_path="one.ckpt")
with publisher("tested") as pub:
    trainer(LightningCallback(pub)).test(Line(), loader(), verbose=False)
with publisher("logged") as pub:
    logged = Line()
    logged.layer.register_forward_hook(slow)
    counted = LightningCallback(pub, tokens=lambda batch: batch[0].numel())
    trainer(counted, logger=CSVLogger("logs"), accumulate_grad_batches=2).fit(logged, loader())
trainer(LightningCallback(), max_epochs=1, accumulate_grad_batches=2).fit(
    Line(), loader()
)  # the script's publisher
(table,) = Path("logs").rglob("metrics.csv")
results["logs"] = list(csv.DictReader(table.open()))
say(**results)
