"""Fine-tune a language model with TRL's `SFTTrainer` and LoRA adapters.

    zeus-stream run -- python examples/sft_lora.py
    zeus-stream run -- python examples/sft_lora.py --model google/gemma-2-2b --tokens 512

Without ``--model`` it is a tiny model with random weights. The text is random words, so that nothing has to
be downloaded. Put your data set in its place. For QLoRA, load the model with a ``BitsAndBytesConfig``.
"""

import argparse
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from trl import SFTConfig, SFTTrainer

from zeus_stream.integrations.huggingface import measure

WORDS = 512


def tiny() -> tuple[Any, Any]:
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    tokenizer = Tokenizer(WordLevel({f"w{number}": number for number in range(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w1", pad_token="w2")
    return LlamaForCausalLM(config), fast


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="name or folder")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128, help="of a sample")
    parser.add_argument("--output", default="out")
    options = parser.parse_args()

    if options.model:
        model, tokenizer = (
            AutoModelForCausalLM.from_pretrained(options.model),
            AutoTokenizer.from_pretrained(options.model),
        )
    else:
        model, tokenizer = tiny()
    words = torch.randint(3, WORDS, (64 * options.batch_size, options.tokens)).tolist()
    data = Dataset.from_dict({"text": [" ".join(f"w{word}" for word in row) for row in words]})
    arguments = SFTConfig(
        options.output,
        max_steps=options.steps,
        per_device_train_batch_size=options.batch_size,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        bf16=torch.cuda.is_available(),
    )
    adapters = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer = SFTTrainer(
        model, arguments, train_dataset=data, processing_class=tokenizer, peft_config=adapters
    )
    measure(trainer)  # joules of a step and of a token are in the trainer's logs
    trainer.train()


if __name__ == "__main__":
    main()
