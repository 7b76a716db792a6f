"""Tiny stock checkpoints with a tokenizer, and text for them."""

from pathlib import Path

import pytest
import torch
import transformers

from linearize.tiny_models import SIZES, WORDS, save_tokenizer


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
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    where = tmp_path_factory.mktemp("models") / "llama"
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, bos_token_id=0, eos_token_id=0)
    transformers.LlamaForCausalLM(config).save_pretrained(where)
    save_tokenizer(where)
    return str(where)


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    where = tmp_path_factory.mktemp("models") / "bert"
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**SIZES)).save_pretrained(where)
    save_tokenizer(where)
    return str(where)
