"""Tiny stock checkpoints with a tokenizer, and text for them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = ["the", "a", "cat", "dog", "bird", "sees", "hears", "follows", "red", "blue", "old", "small"]
WORDS += ["and", "or", "not", "with", "near", "far", "in", "on"]
SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
SIZES |= {"max_position_embeddings": 96, "initializer_range": 0.4, "vocab_size": len(WORDS) + 2, "pad_token_id": 1}


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = torch.Generator().manual_seed(0)
    lines = []
    for length in torch.randint(4, 20, (400,), generator=generator).tolist():
        lines.append(" ".join(WORDS[i] for i in torch.randint(0, len(WORDS), (length,), generator=generator)))
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="session")
def save(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """A factory of transformers models with a tokenizer from a class, a config and settings; returns the path."""

    def write(kind: type, config: type, **settings: Any) -> str:
        where = tmp_path_factory.mktemp("models")
        torch.manual_seed(0)
        kind(config(**settings)).save_pretrained(where)
        words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["[UNK]", "[PAD]", *WORDS])}, "[UNK]"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
        fast.save_pretrained(where)
        return str(where)

    return write


@pytest.fixture(scope="session")
def llama(save: Callable[..., str]) -> str:
    settings = {**SIZES, "num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": 0}
    return save(transformers.LlamaForCausalLM, transformers.LlamaConfig, **settings)


@pytest.fixture(scope="session")
def bert(save: Callable[..., str]) -> str:
    return save(transformers.BertModel, transformers.BertConfig, **SIZES)
