"""Transformers' own tests of pipelines against our models: the second part of ``make test-hf TRANSFORMERS=<checkout>``.

They look for tiny models in a folder, which is made here. Images are left out: those tests fetch pictures from the
internet.
"""

import json
import os
import tempfile
import unittest
from pathlib import Path
from typing import Any, ClassVar

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from cosformer.hf import (
    CosformerConfig,
    CosformerForCausalLM,
    CosformerForMaskedLM,
    CosformerForSequenceClassification,
    CosformerForTokenClassification,
    CosformerModel,
)

KINDS: dict[type, dict[str, Any]] = {
    CosformerModel: {},
    CosformerForCausalLM: {"is_decoder": True},
    CosformerForMaskedLM: {},
    CosformerForSequenceClassification: {"pooling": "mean", "num_labels": 3},
    CosformerForTokenClassification: {"num_labels": 3},
}
LONGEST = 512


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a printable character, and back without loss."""
    marks = ["<pad>", "<unk>", "<mask>", "<s>", "</s>"]
    characters = [chr(code) for code in range(33, 127)] + ["Ġ"]
    words = {word: i for i, word in enumerate((*marks, *characters))}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = dict(zip(("pad_token", "unk_token", "mask_token", "bos_token", "eos_token"), marks, strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=LONGEST, padding_side="left", clean_up_tokenization_spaces=False,
        **names
    )  # fmt: skip


def write_tiny_models(folder: Path) -> None:
    tokenizer, summary = make_tokenizer(), {}
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 37, "max_position_embeddings": LONGEST, "pad_token_id": 0, "bos_token_id": 3}
    sizes |= {"eos_token_id": 4, "hidden_dropout_prob": 0.0}
    for kind, changes in KINDS.items():
        path = folder / "cosformer" / kind.__name__
        kind(CosformerConfig(**sizes | changes)).save_pretrained(path)
        tokenizer.save_pretrained(path)
        summary[kind.__name__] = {"tokenizer_classes": ["PreTrainedTokenizerFast"], "processor_classes": []}
    (folder / "reports").mkdir()
    (folder / "reports" / "tiny_model_summary.json").write_text(json.dumps(summary))


_FOLDER = tempfile.TemporaryDirectory()
write_tiny_models(Path(_FOLDER.name))
os.environ["TRANSFORMERS_TINY_MODEL_PATH"] = _FOLDER.name  # the mixin reads it when it is imported

from tests.test_pipeline_mixin import PipelineTesterMixin  # noqa: E402  # pyright: ignore


class PipelineTest(PipelineTesterMixin, unittest.TestCase):
    pipeline_model_mapping: ClassVar[dict[str, type]] = {
        "feature-extraction": CosformerModel,
        "fill-mask": CosformerForMaskedLM,
        "text-classification": CosformerForSequenceClassification,
        "zero-shot": CosformerForSequenceClassification,
        "text-generation": CosformerForCausalLM,
        "token-classification": CosformerForTokenClassification,
    }

    def run_pipeline_test(self, task: str, name: str, kind: Any, **options: Any) -> None:
        kind.from_pretrained(Path(_FOLDER.name) / "cosformer" / name)  # the mixin skips where a model does not load
        super().run_pipeline_test(task, name, kind, **options)
