"""Models as ONNX files: onnxruntime gives what torch gives, for whole sequences and token by token."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

import cosformer.hf
from cosformer.attention import ATTENTIONS, attention_class
from cosformer.hf import CosformerConfig, convert
from cosformer.hf import onnx as exporting
from cosformer.hf.onnx import HEADS, STEP, WHOLE, export
from cosformer.ops.dispatch import traceable

pytest.importorskip("onnxscript")
runtime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(not traceable, reason="exports need torch 2.12")

SIZES = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
SIZES |= {"max_position_embeddings": 300, "position_embedding_type": "sinusoidal", "initializer_range": 0.3}
FIELDS = {
    "CosformerForCausalLM": {"is_decoder": True},
    "CosformerForMaskedLM": {"attention": ["multiscale", "softmax"]},
    "CosformerForSequenceClassification": {"num_labels": 3, "cls_token": True},
    "CosformerForImageClassification": {"image_size": 8, "num_channels": 1},
    "CosformerForForecasting": {"is_decoder": True, "num_input_channels": 3},
    "CosformerForConditionalGeneration": {"is_encoder_decoder": True, "decoder_start_token_id": 1},
}
# what a recent model of the family has, hybrid, and with one key head for two of queries
MODERN = {
    "attention": ["local", "cosformer", "multiscale"],
    "num_hidden_layers": 3,
    "attention_options": [{"window": 8}, {}, {}],
}
MODERN |= {"short_convolution": 3, "output_gate": True, "norm_type": "rms", "qk_norm": True, "num_key_value_heads": 1}
MODERN |= {"position_embedding_type": "none", "rotary": {"rope_type": "default", "rope_theta": 10_000.0}}


def build(name: str, **fields):
    torch.manual_seed(0)
    config = CosformerConfig(**(SIZES | FIELDS.get(name, {}) | fields))
    return getattr(cosformer.hf, name)(config).eval().requires_grad_(False)


def inputs_of(name: str, batch: int, length: int) -> dict[str, torch.Tensor]:
    if name == "CosformerForImageClassification":
        return {"pixel_values": torch.rand(batch, 1, 8, 8)}
    shape = (batch, 2, length) if name == "CosformerForMultipleChoice" else (batch, length)
    mask = torch.ones(shape, dtype=torch.int64)
    mask[0, ..., -5:] = 0
    if name == "CosformerForForecasting":
        return {"input_values": torch.randn(*shape, 3), "attention_mask": mask}
    inputs = {"input_ids": torch.randint(50, shape), "attention_mask": mask}
    if name == "CosformerForPairClassification":
        inputs |= {
            "input_ids_b": torch.randint(50, (batch, 9)),
            "attention_mask_b": torch.ones(batch, 9, dtype=torch.int64),
        }
    if name == "CosformerForConditionalGeneration":
        inputs["decoder_input_ids"] = torch.randint(50, (batch, 11))
    return inputs


def run(path, tensors) -> dict[str, np.ndarray]:
    session = runtime.InferenceSession(str(path))
    names = [x.name for x in session.get_outputs()]
    return dict(zip(names, session.run(None, {name: x.numpy() for name, x in tensors.items()}), strict=True))


@pytest.mark.parametrize("name", HEADS)
def test_every_head(name, tmp_path):
    model = build(name)
    said = export(model, tmp_path)
    assert said[0].startswith(f"{WHOLE}: onnxruntime differs from torch by at most ")
    for batch, length in ((1, 299), (4, 30)):
        inputs = inputs_of(name, batch, length)
        with torch.no_grad():
            expected = model(**inputs)
        found = run(tmp_path / WHOLE, inputs)
        assert list(found) == list(HEADS[name][1])
        for output, values in found.items():
            torch.testing.assert_close(torch.as_tensor(values), expected[output], rtol=1e-5, atol=1e-5)


def steps(folder, ids, tokens: int) -> tuple[list[int], list[np.ndarray]]:
    """Greedy continuation of ``ids`` with onnxruntime alone, as docs/how-to/deployment.md has it."""
    session = runtime.InferenceSession(str(folder / STEP))
    outputs = [x.name for x in session.get_outputs()]
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}
    state = {
        x.name: np.zeros([1 if size == "batch" else size for size in x.shape], kinds[x.type])
        for x in session.get_inputs()
        if x.name.startswith("past.")
    }
    shapes = {name: x.shape for name, x in state.items()}
    written, logits = [], []
    for number in range(len(ids) + tokens - 1):
        token = ids[number] if number < len(ids) else written[-1]
        found = dict(zip(outputs, session.run(None, {"input_ids": np.array([[token]]), **state}), strict=True))
        state = {name.replace("present.", "past."): x for name, x in found.items() if name != "logits"}
        assert {name: x.shape for name, x in state.items()} == shapes, "the state has one size"
        if number >= len(ids) - 1:
            logits.append(found["logits"][0])
            written.append(int(found["logits"][0].argmax()))
    return written, logits


@pytest.mark.parametrize("fields", [{"attention": ["local", "cosformer"]}, MODERN], ids=["hybrid", "modern hybrid"])
def test_256_greedy_tokens_of_a_step(fields, tmp_path):
    model = build("CosformerForCausalLM", **fields)
    assert len(export(model, tmp_path)) == 2
    ids = [3, 7, 11, 2, 9]
    written, logits = steps(tmp_path, ids, 256)
    out = model.generate(torch.tensor([ids]), max_new_tokens=256, do_sample=False, eos_token_id=None)[0]
    assert written == out[len(ids) :].tolist()
    expected = model(out[None, :-1], use_cache=False).logits[0, len(ids) - 1 :]
    torch.testing.assert_close(torch.as_tensor(np.stack(logits)), expected, rtol=1e-4, atol=1e-4)


def test_softmax_has_no_state_of_one_size(tmp_path):
    said = export(build("CosformerForCausalLM", attention=["cosformer", "softmax"]), tmp_path)
    assert said[1] == "no step.onnx: attention Softmax of layer 1 keeps every key, so its state has no fixed size"
    assert not (tmp_path / STEP).exists() and (tmp_path / WHOLE).exists()


def test_a_file_that_differs_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "TOLERANCE", 0.0)
    with pytest.raises(ValueError, match=r"model\.onnx: onnxruntime differs from torch by \d\.\de-\d\d, allowed"):
        export(build("CosformerModel"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_models_of_transformers_are_refused_by_name(tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes)).save_pretrained(tmp_path / "stock")
    convert(str(tmp_path / "stock"), tmp_path / "converted")
    for folder, name in (("stock", "LlamaForCausalLM"), ("converted", "CosformerLlamaForCausalLM")):
        with pytest.raises(ValueError, match=f"^{name} cannot be exported to ONNX"):
            exporting.load(str(tmp_path / folder))


def test_the_command_exports_the_shipped_model(tmp_path, capsys):
    from cosformer import cli
    from cosformer.shipped import STDLIB_MODEL
    from cosformer.train import load_model

    out = tmp_path / "lm"
    assert cli.main(["export", str(out), "--format", "onnx"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [WHOLE, STEP, f"written to {out}"]
    assert (out / "tokenizer.json").is_file()
    ids = Tokenizer.from_file(str(out / "tokenizer.json")).encode("def parse(text):\n").ids
    model = load_model(STDLIB_MODEL).eval()
    written, _ = steps(out, ids, 256)
    found = model.generate(torch.tensor([ids]), max_new_tokens=256, do_sample=False, eos_token_id=None, use_cache=True)
    assert written == found[0, len(ids) :].tolist()
    assert cli.main(["export", str(out)]) == 2 and "is not empty" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_attention_is_exported_or_refused_by_name(attention, tmp_path):
    """Which are refused stands on the page, docs/how-to/deployment.md."""
    kind = "CosformerForCausalLM" if attention_class(attention).traits.causal else "CosformerModel"
    try:
        said = export(build(kind, attention=attention, num_hidden_layers=1), tmp_path)
    except ValueError as error:
        assert f"attention {attention_class(attention).__name__} cannot be exported" in str(error)
        assert not list(tmp_path.iterdir())
    else:
        assert said and (tmp_path / WHOLE).exists()
