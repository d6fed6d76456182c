"""Tiny language models. ``python -m ...tiny_models KIND DIRECTORY`` saves one, and a tokenizer of letters."""

import string
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

WORDS = ["<eos>", "<unk>", *string.ascii_lowercase]
LENGTH = 32


def tiny_llama() -> LlamaForCausalLM:
    """Return a model of 32 tokens."""
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    return LlamaForCausalLM(config)


def main(kind: str, directory: Path) -> None:
    if kind == "gemma":
        config = GemmaConfig(
            vocab_size=len(WORDS), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        )  # fmt: skip
    else:
        config = GPT2Config(vocab_size=len(WORDS), n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2)
    numbers = {word: number for number, word in enumerate(WORDS)}
    words = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<eos>", unk_token="<unk>", model_max_length=LENGTH
    )
    tokenizer.save_pretrained(directory)
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
