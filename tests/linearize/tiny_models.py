"""A vocabulary of a few words, and sizes of tiny models for it."""

from pathlib import Path

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "bird",
    "sees",
    "hears",
    "follows",
    "red",
    "blue",
    "old",
    "small",
    "and",
    "or",
    "not",
    "with",
    "near",
    "far",
    "in",
    "on",
]
SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
SIZES |= {"max_position_embeddings": 96, "initializer_range": 0.4, "vocab_size": len(WORDS) + 2, "pad_token_id": 1}


def save_tokenizer(where: Path) -> None:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["[UNK]", "[PAD]", *WORDS])}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
    fast.save_pretrained(where)
