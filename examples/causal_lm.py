"""Fine-tune a causal language model with the Trainer of Hugging Face.

    zeus-stream run -- python examples/causal_lm.py
    zeus-stream run -- python examples/causal_lm.py --model gpt2 --tokens 512

Without ``--model`` it is a tiny model with random weights. The text is random tokens, so that nothing has to
be downloaded. Put your data set in its place.
"""

import argparse
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from zeus_stream.integrations.huggingface import measure


def tiny() -> Any:
    config = LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    return LlamaForCausalLM(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="name or folder")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128, help="of a sample")
    parser.add_argument("--output", default="out")
    options = parser.parse_args()

    model = AutoModelForCausalLM.from_pretrained(options.model) if options.model else tiny()
    rows = torch.randint(model.config.vocab_size, (64 * options.batch_size, options.tokens))
    arguments = TrainingArguments(
        options.output,
        max_steps=options.steps,
        per_device_train_batch_size=options.batch_size,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        include_num_input_tokens_seen="all",
    )
    trainer = Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows])
    measure(trainer)  # joules of a step and of a token are in the trainer's logs
    trainer.train()


if __name__ == "__main__":
    main()
