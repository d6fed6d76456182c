"""`transformers.Trainer`, tiny and on the CPU."""

from pathlib import Path
from typing import Any

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

from tests.frameworks.trainings.common import Broken, publisher, publisher_alone, say, slow
from tests.frameworks.trainings.tiny_models import tiny_llama
from zeus_stream import Publisher
from zeus_stream.integrations.huggingface import measure

TOKENS = 8
"""Of a sample."""


def trainer(name: str, **arguments: Any) -> Trainer:
    set_seed(1)
    model = tiny_llama()
    words = torch.randint(0, 32, (96, TOKENS), generator=torch.Generator().manual_seed(2))
    data = [{"input_ids": row, "labels": row} for row in words]
    settings = {
        "max_steps": 12, "logging_steps": 3, "save_strategy": "no", "report_to": "none", "disable_tqdm": True,
        "per_device_train_batch_size": 4, "dataloader_pin_memory": False, "use_cpu": True,
    } | arguments  # fmt: skip
    return Trainer(model, TrainingArguments(name, **settings), train_dataset=data, eval_dataset=data[:8])


def outcome(trained: Trainer) -> dict[str, Any]:
    """Return all that a training results in, but for its speed."""
    logs = [
        {k: v for k, v in log.items() if k in {"loss", "grad_norm", "eval_loss"}} for log in logged(trained)
    ]
    weights = {name: value.double().sum().item() for name, value in trained.model.state_dict().items()}
    return {"logs": logs, "weights": weights, "step": trained.state.global_step}


def logged(trained: Trainer) -> list[dict[str, float]]:
    history: list[dict[str, float]] = trained.state.log_history
    return history


def run(trained: Trainer, pub: Publisher | None) -> dict[str, Any]:
    if pub is not None:
        measure(trained, pub)
    trained.train()
    return outcome(trained)


class At(TrainerCallback):
    """Does something at the end of a step, once."""

    def __init__(self, step: int, what: str) -> None:
        self.step = step
        self.what = what

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.what == "break" and state.global_step == self.step:
            self.step = -1
            raise Broken

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.what == "stop" and state.global_step == self.step:
            control.should_training_stop = True


EVERYTHING = {
    "gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps",
    "save_steps": 6,
}  # fmt: skip

results: dict[str, Any] = {"without": run(trainer("without", **EVERYTHING), None)}
with publisher("everything") as pub:
    results["with"] = run(trainer("everything", **EVERYTHING), pub)
with publisher_alone("alone") as pub:
    results["alone"] = run(trainer("alone", **EVERYTHING), pub)

with publisher("epochs") as pub:  # 24 batches an epoch make 5 steps, the last of 4 batches
    by_epoch = {"eval_strategy": "epoch", "save_strategy": "best", "metric_for_best_model": "loss"}
    run(trainer("epochs", max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=5, **by_epoch), pub)

with publisher("stopped") as pub:
    early = trainer("stopped")
    early.add_callback(At(5, "stop"))
    run(early, pub)

with publisher("broken") as pub:  # in the middle of step 4; then the same trainer trains anew
    failing = trainer("broken", gradient_accumulation_steps=2)
    failing.add_callback(At(4, "break"))
    try:
        run(failing, pub)
    except Broken:
        failing.train()

run(trainer("resumed", save_strategy="steps", save_steps=6), None)
with publisher("resumed") as pub:
    resumed = trainer("resumed", save_strategy="steps", save_steps=6)
    measure(resumed, pub)
    resumed.train(resume_from_checkpoint="resumed/checkpoint-6")
    results["resumed"] = outcome(resumed)["weights"]
results["resumed without"] = run(trainer("not resumed"), None)["weights"]

with publisher("logged") as pub:
    logging = trainer(
        "logged", logging_steps=2, include_num_input_tokens_seen="all", report_to="tensorboard",
        eval_strategy="steps", eval_steps=4,
    )  # fmt: skip
    logging.model.register_forward_hook(slow)
    run(logging, pub)
    results["logs"] = logged(logging)

with publisher("evaluated") as pub:
    measure(asked := trainer("evaluated"), pub)
    asked.evaluate()
    asked.predict(asked.eval_dataset)

measure(own := trainer("own", max_steps=2, gradient_accumulation_steps=2))  # with the script's publisher
own.train()

boards = [EventAccumulator(str(path.parent)) for path in Path().rglob("*tfevents*")]
results["tensorboard"] = {}
for board in boards:
    board.Reload()
    for tag in board.Tags()["scalars"]:
        results["tensorboard"][tag] = [(event.step, event.value) for event in board.Scalars(tag)]
say(**results)
