"""`transformers.Trainer` in two ranks: as torchrun starts them, on the CPU."""

import os

import torch
from transformers import Trainer, TrainingArguments, set_seed

from tests.frameworks.trainings.common import publisher, say, slow
from tests.frameworks.trainings.tiny_models import tiny_llama
from zeus_stream.integrations.huggingface import measure

rank = os.environ["RANK"]
set_seed(1)
model = tiny_llama()
model.register_forward_hook(slow)
words = torch.randint(0, 32, (96, 8), generator=torch.Generator().manual_seed(2))
arguments = TrainingArguments(
    "ranks", max_steps=12, logging_steps=2, save_strategy="no", report_to="none", disable_tqdm=True,
    use_cpu=True, ddp_backend="gloo", per_device_train_batch_size=4, dataloader_pin_memory=False,
    include_num_input_tokens_seen="all",
)  # fmt: skip
trainer = Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in words])
with publisher(f"rank {rank}") as pub:
    measure(trainer, pub)
    trainer.train()
if rank == "0":
    say(logs=trainer.state.log_history, world_size=arguments.world_size)
torch.distributed.destroy_process_group()
