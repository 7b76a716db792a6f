"""Pipelines and the Trainer on tiny models of every head."""

import math
import subprocess
import sys

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments, pipeline

import cosformer.hf
from cosformer.hf import (
    CosformerForCausalLM,
    CosformerForMaskedLM,
    CosformerForPairClassification,
    CosformerForSequenceClassification,
)
from versions import serves

WORDS = [
    "[PAD]",
    "[UNK]",
    "[MASK]",
    "</s>",
    *["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "far", "away"],
]


@pytest.fixture
def tokenizer():
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, padding_side="left", **names)


def saved(model, tokenizer, path) -> str:
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def test_text_generation_pipeline(config, tokenizer, tmp_path):
    made = config(is_decoder=True, vocab_size=len(WORDS), pad_token_id=0, eos_token_id=3)
    where = saved(CosformerForCausalLM(made), tokenizer, tmp_path)
    pipe = pipeline("text-generation", model=where, device="cpu")
    assert isinstance(pipe.model, CosformerForCausalLM)
    out = pipe(["the cat", "a dog ran far away"], max_new_tokens=6, do_sample=False, batch_size=2)
    alone = pipe("the cat", max_new_tokens=6, do_sample=False)
    assert out[0][0]["generated_text"] == alone[0]["generated_text"]
    assert out[0][0]["generated_text"].startswith("the cat")


def test_fill_mask_pipeline(config, tokenizer, tmp_path):
    where = saved(CosformerForMaskedLM(config(vocab_size=len(WORDS), pad_token_id=0)), tokenizer, tmp_path)
    guesses = pipeline("fill-mask", model=where, device="cpu")("the [MASK] sat on a mat", top_k=3)
    assert len(guesses) == 3
    assert guesses[0]["score"] >= guesses[1]["score"] > 0


def test_text_classification_pipeline(config, tokenizer, tmp_path):
    made = config(vocab_size=len(WORDS), pad_token_id=0, pooling="mean", id2label={0: "cat", 1: "dog", 2: "mat"})
    where = saved(CosformerForSequenceClassification(made), tokenizer, tmp_path)
    pipe = pipeline("text-classification", model=where, device="cpu", top_k=None)
    both = pipe(["the cat sat on a mat", "dog"], batch_size=2)
    assert {row["label"] for row in both[0]} == {"cat", "dog", "mat"}
    assert both[1][0]["score"] == pytest.approx(pipe(["dog"])[0][0]["score"], abs=1e-5)


def test_feature_extraction_pipeline(config, tokenizer, tmp_path):
    where = saved(cosformer.hf.CosformerModel(config(vocab_size=len(WORDS))), tokenizer, tmp_path)
    assert torch.tensor(pipeline("feature-extraction", model=where, device="cpu")("the cat")).shape == (1, 2, 32)


def rows(kind: str) -> list[dict]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(64):
        x = torch.randint(3, 50, (12,), generator=generator)
        row = {"input_ids": x, "attention_mask": torch.ones_like(x)}
        if kind == "causal":
            row["labels"] = x
        elif kind == "masked":
            row["labels"] = torch.where(torch.arange(12) % 5 == 0, x, -100)
        else:
            row["labels"] = (x[0] > 25).long()
        if kind == "pair":
            row |= {"input_ids_b": x.flip(0), "attention_mask_b": torch.ones_like(x)}
        made.append(row)
    return made


@pytest.mark.parametrize(
    ("kind", "model_class", "values"),
    [
        ("causal", CosformerForCausalLM, {"is_decoder": True}),
        ("causal", CosformerForCausalLM, {"is_decoder": True, "adaptive_cutoffs": [10, 30]}),
        ("masked", CosformerForMaskedLM, {}),
        ("one", CosformerForSequenceClassification, {}),
        ("pair", CosformerForPairClassification, {}),
    ],
    ids=["causal", "adaptive", "masked", "classification", "pair"],
)
def test_trainer(kind, model_class, values, config, tmp_path):
    model = model_class(config(**values, hidden_dropout_prob=0.0))
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=12, per_device_train_batch_size=16, learning_rate=3e-3, report_to=[],
        use_cpu=True, logging_steps=1, save_steps=12, gradient_accumulation_steps=2, eval_strategy="steps",
        eval_steps=12,
        disable_tqdm=True, gradient_checkpointing=True, seed=0, prediction_loss_only=True,
    )  # fmt: skip
    data = rows(kind)
    trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:16])
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert math.isfinite(trainer.evaluate()["eval_loss"])
    again = model_class.from_pretrained(tmp_path / "checkpoint-12")
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name


WITHOUT_PACKAGE = """
import sys
class Missing:
    def find_spec(self, name, *_):
        if name == "cosformer":
            raise ModuleNotFoundError("No module named 'cosformer'")
sys.meta_path.insert(0, Missing())
"""


@pytest.mark.parametrize(
    ("before", "trust", "expected"),
    [
        ("", "", "trust_remote_code=True"),
        ("", ", trust_remote_code=True", "loaded by cosformer.models.transformer"),
        (WITHOUT_PACKAGE, ", trust_remote_code=True", "pip install cosformer"),
    ],
    ids=["not asked to", "with the package", "without the package"],
)
def test_a_process_that_imports_only_transformers(before, trust, expected, config, tmp_path):
    import os

    cosformer.hf.CosformerModel(config()).save_pretrained(tmp_path)
    code = f"{before}from transformers import AutoModel; m = AutoModel.from_pretrained({str(tmp_path)!r}{trust})"
    code += "; print('loaded by', type(m).__module__)"
    env = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env
    )
    assert expected in result.stdout + result.stderr
    assert transformers.AutoModel.from_pretrained(tmp_path) is not None  # where it is imported, nothing is asked
    again = transformers.AutoModel.from_pretrained(tmp_path, trust_remote_code=True)
    again.save_pretrained(tmp_path / "again")
    assert "CosformerModel" in (tmp_path / "again" / "modeling_cosformer.py").read_text()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore::DeprecationWarning")
def test_torch_ao_quantises_every_linear_layer(config):
    model = CosformerForCausalLM(config(is_decoder=True)).eval()
    names = {name for name, module in model.named_modules() if type(module) is torch.nn.Linear}
    assert len(names) >= 2 * 6 + 1  # queries, keys, values, output and feed-forward of two layers; the words
    quantised = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    found = {name for name, module in quantised.named_modules() if type(module) is torch.ao.nn.quantized.dynamic.Linear}
    assert found == names
    x = torch.arange(12)[None] % 50
    difference = (quantised(x).logits - model(x).logits).abs().max()
    assert 0 < difference < 0.2 * model(x).logits.abs().max()


SERVED = """
import sys
from transformers.cli.serving.model_manager import ModelManager  # before ours, as `transformers serve` has it

manager = ModelManager(device="cpu", trust_remote_code=True, model_timeout=-1)
model, tokenizer = manager.load_model_and_processor(manager.process_model_name(sys.argv[1]))
ids = tokenizer("the cat", return_tensors="pt")
out = model.generate(**ids, max_new_tokens=3, do_sample=False, tokenizer=tokenizer)  # the server hands it on
print(type(model).__name__, out.shape[1])
"""


@serves
@pytest.mark.parametrize("kind", ["own", "converted"])
def test_what_transformers_serve_loads(kind, config, tokenizer, tmp_path):
    made = config(is_decoder=True, vocab_size=len(WORDS), pad_token_id=0)
    own = saved(CosformerForCausalLM(made), tokenizer, tmp_path / "own")
    name = "CosformerForCausalLM"
    if kind == "converted":
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        stock = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=len(WORDS), pad_token_id=0, **sizes))
        cosformer.hf.convert(saved(stock, tokenizer, tmp_path / "stock"), tmp_path / "converted")
        own, name = str(tmp_path / "converted"), "CosformerLlamaForCausalLM"
    done = subprocess.run([sys.executable, "-c", SERVED, own], capture_output=True, text=True)
    assert done.stdout.split() == [name, "5"], done.stderr[-2000:]
