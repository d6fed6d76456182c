"""TRL's `SFTTrainer`, tiny and on the CPU."""

from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

from tests.frameworks.trainings.common import publisher, say, slow
from zeus_stream import Publisher
from zeus_stream.integrations.huggingface import measure

WORDS = 32
TOKENS = 8


def trainer(name: str) -> SFTTrainer:
    set_seed(1)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
        )
    )
    model.register_forward_hook(slow)
    words = {f"w{number}": number for number in range(WORDS)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")), eos_token="w1", pad_token="w2"
    )
    ids = torch.randint(3, WORDS, (96, TOKENS), generator=torch.Generator().manual_seed(2)).tolist()
    arguments = SFTConfig(
        name, max_steps=12, logging_steps=2, save_strategy="no", report_to="none", disable_tqdm=True,
        use_cpu=True, bf16=False, per_device_train_batch_size=4, gradient_accumulation_steps=2,
        dataloader_pin_memory=False,
    )  # fmt: skip
    return SFTTrainer(
        model, arguments, train_dataset=Dataset.from_dict({"input_ids": ids}), processing_class=tokenizer
    )


def run(trained: SFTTrainer, pub: Publisher | None) -> dict[str, Any]:
    if pub is not None:
        measure(trained, pub)
    trained.train()
    logs = trained.state.log_history
    return {
        "losses": [log["loss"] for log in logs if "loss" in log],
        "weights": [value.double().sum().item() for value in trained.model.state_dict().values()],
        "logs": logs,
    }


without = run(trainer("without"), None)
with publisher("tuned") as pub:
    tuned = run(trainer("tuned"), pub)
say(without=without, tuned=tuned)
