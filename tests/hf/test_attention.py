"""``attn_implementation="cosformer"`` in stock transformers models."""

import copy
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import EncoderDecoderCache

import cosformer.hf
from cosformer import cosformer_attention
from cosformer.hf import StateCache
from cosformer.hf.attention import cosformer_forward, max_len_of
from hf.families import DECODERS, ENCODER_DECODERS, TEXT_ENCODERS, build, ids, relative
from versions import traces

ENCODERS = ("roberta", "bert", "distilbert")
SOME_DECODERS = ("gpt2", "opt", "llama", "qwen2")


def encoder(name: str) -> Any:
    return build(TEXT_ENCODERS[name], dtype=torch.float64)


def decoder(name: str, attention: str = "cosformer") -> Any:
    return build(DECODERS[name], attention=attention)


def bart() -> Any:
    return build(ENCODER_DECODERS["bart"], attention_dropout=0.1)


@pytest.mark.parametrize("name", ENCODERS)
def test_encoder_runs_the_operator_and_honours_padding(name, monkeypatch):
    calls = []
    monkeypatch.setattr(
        "cosformer.hf.attention.cosformer_attention",
        lambda *args, **kwargs: calls.append(kwargs) or cosformer_attention(*args, **kwargs),
    )
    model, x = encoder(name), ids(2, 12)
    alone = model(x[1:, :7]).last_hidden_state
    mask = torch.ones_like(x)
    mask[1, 7:] = 0
    padded = model(x, attention_mask=mask).last_hidden_state
    assert relative(padded[1, :7], alone[0]) < 1e-5
    assert relative(model(x).last_hidden_state[1, :7], alone[0]) > 1e-3  # and without the mask it would matter
    assert calls[0] == {"causal": False, "max_len": 40, "q_offset": 0, "key_mask": None}
    assert calls[2]["key_mask"].tolist() == mask.bool().tolist()


@pytest.mark.parametrize("attention", ["cosformer", "multiscale"])
@pytest.mark.parametrize("name", SOME_DECODERS)
@pytest.mark.parametrize("beams", [1, 3])
def test_generate_with_constant_state(name, beams, attention):
    model, x = decoder(name, attention), ids(2, 8)
    mask = torch.ones_like(x)
    mask[0, :3] = 0
    options = {"attention_mask": mask, "max_new_tokens": 10, "num_beams": beams, "do_sample": False, "pad_token_id": 0}
    options |= {"eos_token_id": None, "return_dict_in_generate": True, "output_logits": True}
    recomputed = model.generate(x, use_cache=False, **options)
    cache = StateCache()
    stated = model.generate(x, past_key_values=cache, **options)
    grown = model.generate(x, **options)
    for out in (stated, grown):
        assert torch.equal(out.sequences, recomputed.sequences)
        assert max(map(relative, out.logits, recomputed.logits)) < 1e-4
    assert cache.get_seq_length() == 17
    assert cache.nbytes == state_bytes(model, beams * 2)


def state_bytes(model: transformers.PreTrainedModel, batch: int) -> int:
    cache = StateCache()
    model(ids(batch, 1), past_key_values=cache)
    return cache.nbytes


def test_cross_attention_cache_of_states_is_refused():
    cache = EncoderDecoderCache(StateCache(), StateCache())
    with pytest.raises(ValueError, match="DynamicCache"):
        bart()(ids(1, 4), decoder_input_ids=ids(1, 3), past_key_values=cache)


def test_vision_and_speech():  # evaluation, then a training step of each
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=4
    )
    vit = transformers.ViTModel._from_config(config, attn_implementation="cosformer").eval()
    assert vit(torch.randn(2, 3, 16, 16)).last_hidden_state.isfinite().all()
    config = transformers.Wav2Vec2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, conv_dim=(16, 16),
        conv_kernel=(4, 4), conv_stride=(4, 4), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        feat_extract_norm="layer", vocab_size=20, mask_time_prob=0.0, layerdrop=0.0, attention_dropout=0.0,
    )  # fmt: skip
    speech = transformers.Wav2Vec2Model._from_config(config, attn_implementation="cosformer").eval()
    sound, mask = torch.randn(2, 320), torch.ones(2, 320, dtype=torch.long)
    mask[1, 160:] = 0
    assert speech(sound).last_hidden_state.isfinite().all()
    with pytest.raises(ValueError, match="cosformer_max_len"):
        speech(sound, attention_mask=mask)
    speech.config.cosformer_max_len = 64
    changed = sound.clone()
    changed[1, 200:] = 9.0  # beyond the mask and the convolutions' reach
    kept = [speech(s, attention_mask=mask).last_hidden_state[1, :9] for s in (sound, changed)]
    assert torch.equal(*kept)
    for model, given in ((vit, torch.randn(2, 3, 16, 16)), (speech, sound)):
        model.train()(given).last_hidden_state.square().sum().backward()
        gradients = [p.grad for name, p in model.named_parameters() if re.search(r"(query|q_proj)\.weight", name)]
        assert len(gradients) == 2
        assert all(g.isfinite().all() and g.abs().max() > 0 for g in gradients)


@pytest.mark.parametrize(
    "make", [lambda: encoder("roberta"), lambda: decoder("gpt2"), bart], ids=["roberta", "gpt2", "bart"]
)
def test_training_warns_once_about_dropout_and_reaches_every_weight(make, monkeypatch):
    monkeypatch.setattr("cosformer.hf.attention._told", set())
    model = make().train()
    field = {"bart": "attention_dropout", "gpt2": "attn_pdrop"}.get(
        model.config.model_type, "attention_probs_dropout_prob"
    )
    with pytest.warns(UserWarning, match=rf"config\.{field}=0\.1") as caught:
        for _ in range(2):
            out = model(ids(2, 9))
    assert len([w for w in caught if "dropout" in str(w.message)]) == 1
    out[0].square().sum().backward()
    named = [(name, p) for name, p in model.named_parameters() if "pooler" not in name]
    assert [name for name, p in named if p.grad is None or not p.grad.isfinite().all()] == []
    monkeypatch.setattr("cosformer.hf.attention._told", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.eval()(ids(2, 9))


@pytest.mark.parametrize(
    "make", [*(lambda n=n: encoder(n) for n in ENCODERS), *(lambda n=n: decoder(n) for n in SOME_DECODERS)]
)
@pytest.mark.filterwarnings("ignore:attention dropout")
def test_a_training_step_with_padding(make):
    model, x = make().train(), ids(2, 9)
    mask = torch.ones_like(x)
    mask[1, 6:] = 0
    out = model(x, attention_mask=mask)[0]
    (out * torch.randn_like(out)).sum().backward()
    named = [(name, p) for name, p in model.named_parameters() if "pooler" not in name]
    assert [name for name, p in named if p.grad is None or not p.grad.isfinite().all()] == []
    queries = [
        p.grad for name, p in named if re.search(r"query\.weight|q_proj\.weight|q_lin\.weight|c_attn\.weight", name)
    ]
    assert queries
    assert all(gradient.abs().max() > 0 for gradient in queries)


def test_what_has_no_linear_form_is_refused():
    with pytest.raises(ValueError, match="sliding window"):
        build(DECODERS["mistral"], sliding_window=4)(ids(1, 8))
    t5 = transformers.T5Config(vocab_size=60, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    with pytest.raises(ValueError, match=r"position_bias|attention interface"):
        transformers.T5EncoderModel._from_config(t5, attn_implementation="cosformer")(ids(1, 8))
    q = torch.randn(1, 2, 3, 4)
    module = decoder("llama").model.layers[0].self_attn
    for name in ("softcap", "s_aux", "output_attentions"):
        with pytest.raises(ValueError, match=name):
            cosformer_forward(module, q, q, q, None, **{name: 30.0})


def test_static_cache_and_masks_per_query_are_refused():
    model = decoder("llama")
    with pytest.raises(ValueError, match="static"):
        model.generate(ids(1, 6), cache_implementation="static", max_new_tokens=2)
    with pytest.raises(ValueError, match="mask per query"):
        model(ids(1, 6), attention_mask=torch.zeros(1, 1, 6, 6))
    with pytest.raises(ValueError, match="does not know the tensor argument"):
        q = torch.randn(1, 2, 3, 4)
        cosformer_forward(model.model.layers[0].self_attn, q, q, q, None, alibi=torch.ones(2))


def test_lone_query_without_a_position_is_refused():
    q, k = torch.randn(1, 2, 1, 4), torch.randn(1, 2, 5, 4)
    module = torch.nn.Module()
    module.is_causal = False
    with pytest.raises(ValueError, match="unknown position"):
        cosformer_forward(module, q, k, k, None)
    del module.is_causal
    with pytest.raises(ValueError, match="causal"):
        cosformer_forward(module, q, k, k, None)


def test_state_cache_with_softmax_is_refused():
    model = copy.deepcopy(decoder("gpt2"))
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="attn_implementation='cosformer'"):
        model.generate(ids(1, 4), past_key_values=StateCache(), max_new_tokens=3, eos_token_id=None, pad_token_id=0)


def test_longer_than_the_config_allows_is_refused():
    model = build(DECODERS["llama"], max_position_embeddings=8)
    with pytest.raises(ValueError, match="max_len=8"):
        model(ids(1, 9))
    assert max_len_of(model.config) == 8
    model.config.cosformer_max_len = 16
    assert max_len_of(model.config) == 16


@traces
@pytest.mark.slow
@torch.no_grad()
def test_compiled_stock_models_equal_eager():
    names = [(DECODERS["llama"], "cosformer"), (DECODERS["llama"], "multiscale"), (TEXT_ENCODERS["bert"], "multiscale")]
    for model in (encoder("roberta"), *(build(kind, attention=name, dtype=torch.float64) for kind, name in names)):
        x = ids(2, 12)
        mask = torch.ones_like(x)
        mask[1, 8:] = 0
        expected = model(x, attention_mask=mask, use_cache=False)[0]
        compiled = torch.compile(model, fullgraph=True)
        assert relative(compiled(x, attention_mask=mask, use_cache=False)[0], expected) < 1e-5


@pytest.mark.parametrize("name", ["models", "drop_in"])
@pytest.mark.filterwarnings("ignore:attention dropout")
def test_code_in_the_documents_runs(name):
    text = (Path(__file__).parents[2] / "docs" / f"{name}.md").read_text()
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
    assert names["ids"].shape[0] == 1


def test_import_registers():
    assert cosformer.hf.NAME in transformers.AttentionInterface()
    assert transformers.AutoConfig.for_model("cosformer").model_type == "cosformer"
