"""Every supported stock family: exact to 1e-10 in float64 and 1e-4 in float32."""

import functools

import pytest
import torch
import transformers
from transformers import DynamicCache, EncoderDecoderCache

import cosformer.hf
import cosformer.hf.attention
from cosformer.hf import StateCache
from hf.families import DECODERS, ENCODER_DECODERS, TEXT_ENCODERS, build, ids, randomize, relative

PRECISION = pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 1e-10), (torch.float32, 1e-4)], ids=["float64", "float32"]
)
ATTENTION = pytest.mark.parametrize("attention", ["cosformer", "multiscale"])
PIECES = [5, 1, 1, 3, 1, 1]


@pytest.fixture
def dense(monkeypatch):
    """Run the attention by its O(N^2) definition."""

    def switch() -> None:
        for name in ("cosformer_attention", "linear_attention"):
            by_definition = functools.partial(getattr(cosformer.hf.attention, name), backend="dense")
            monkeypatch.setattr(f"cosformer.hf.attention.{name}", by_definition)

    return switch


@torch.no_grad()
@PRECISION
@ATTENTION
@pytest.mark.parametrize("name", DECODERS)
def test_decoder_step_by_step(name, attention, dtype, limit, dense):
    model, x = build(DECODERS[name], attention=attention, dtype=dtype), ids(2, 12)
    whole = model(x, use_cache=False).logits
    for cache in (DynamicCache(config=model.config), StateCache()):
        steps = [model(piece, past_key_values=cache).logits for piece in x.split(PIECES, 1)]
        assert relative(torch.cat(steps, 1), whole) < limit
    mask = torch.ones_like(x)
    mask[0, :4] = 0
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    padded = model(x, attention_mask=mask, position_ids=places, use_cache=False).logits
    assert relative(padded[0, 4:], model(x[:1, 4:], use_cache=False).logits[0]) < limit
    dense()
    assert relative(whole, model(x, use_cache=False).logits) < limit


@torch.no_grad()
@PRECISION
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_encoder_decoder_step_by_step(name, dtype, limit, dense):
    model, target = build(ENCODER_DECODERS[name], dtype=dtype), ids(2, 12)
    if name == "whisper":
        given = {"input_features": torch.randn(2, 8, 40, dtype=dtype)}
    else:
        given = {"input_ids": ids(2, 9), "attention_mask": (torch.arange(9) < torch.tensor([[9], [6]])).long()}
    whole = model(**given, decoder_input_ids=target, use_cache=False).logits
    for own in (DynamicCache(), StateCache()):
        cache = EncoderDecoderCache(own, DynamicCache())
        steps = [
            model(**given, decoder_input_ids=piece, past_key_values=cache).logits for piece in target.split(PIECES, 1)
        ]
        assert relative(torch.cat(steps, 1), whole) < limit
    if name == "bart":
        alone = model(given["input_ids"][1:, :6], decoder_input_ids=target[1:], use_cache=False).logits
        assert relative(whole[1:], alone) < limit
    dense()
    assert relative(whole, model(**given, decoder_input_ids=target, use_cache=False).logits) < limit


@torch.no_grad()
@PRECISION
@ATTENTION
@pytest.mark.parametrize("name", TEXT_ENCODERS)
def test_text_encoder(name, attention, dtype, limit, dense):
    model, x = build(TEXT_ENCODERS[name], attention=attention, dtype=dtype), ids(2, 14)
    mask = torch.ones_like(x)
    mask[1, 9:] = 0
    x[1, 9:] = model.config.pad_token_id
    out = model(x, attention_mask=mask).last_hidden_state
    assert relative(out[1, :9], model(x[1:, :9]).last_hidden_state[0]) < limit
    dense()
    assert relative(out, model(x, attention_mask=mask).last_hidden_state) < limit


@torch.no_grad()
@PRECISION
def test_images_and_clip(dtype, limit, dense):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    sight = {**sizes, "image_size": 16, "patch_size": 4}
    vit = build(("ViTConfig", "ViTModel", sight), dtype=dtype)
    text = {**sizes, "vocab_size": 60, "max_position_embeddings": 20, "eos_token_id": 2, "bos_token_id": 1}
    config = transformers.CLIPConfig(text_config=text, vision_config=sight, projection_dim=16)
    clip = transformers.CLIPModel._from_config(config, attn_implementation="cosformer")
    clip = randomize(clip, dtype)
    pixels, x = torch.randn(2, 3, 16, 16, dtype=dtype), ids(2, 10)
    x[:, 9] = 2
    mask = torch.ones_like(x)
    outs = []
    for switch in (lambda: None, dense):
        switch()
        both = clip(input_ids=x, attention_mask=mask, pixel_values=pixels)
        outs.append([vit(pixels).last_hidden_state, both.text_embeds, both.image_embeds])
    for ours, definition in zip(*outs, strict=True):
        assert relative(ours, definition) < limit
    # padding: a text that ends earlier
    short = x[:1].clone()
    short[0, 6], short[0, 7:] = 2, 0
    keep = (torch.arange(10) < 7).long()[None]
    padded = clip.get_text_features(input_ids=short, attention_mask=keep).pooler_output
    assert relative(padded, clip.get_text_features(input_ids=short[:, :7]).pooler_output) < limit
