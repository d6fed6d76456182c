"""Lightning in two ranks: it starts the second process by itself, on the CPU."""

import os

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from tests.frameworks.trainings.common import say
from zeus_stream.integrations.lightning import LightningCallback


class Line(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch[0]).mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


os.environ["ZEUS_STREAM_JOB"] = f"rank {os.environ.get('LOCAL_RANK', '0')}"
trainer = Trainer(
    max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False, callbacks=[LightningCallback()],
    enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
)  # fmt: skip
trainer.fit(Line(), DataLoader(TensorDataset(torch.randn(40, 4)), 4))
if trainer.is_global_zero:
    say(world_size=trainer.world_size)
