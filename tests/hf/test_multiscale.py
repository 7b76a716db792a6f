"""``attn_implementation="multiscale"`` and ``cosformer convert --attention multiscale`` in stock models."""

import pytest
import torch
import transformers
from transformers import AutoModel, AutoModelForCausalLM

from cosformer.attention import build_attention
from cosformer.cli import main
from cosformer.hf import StateCache, convert
from hf.families import DECODERS, ENCODER_DECODERS, TEXT, TEXT_ENCODERS, build, ids, relative


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_it_is_the_mechanism_of_the_zoo(causal, masked):
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, h, 12, 16, dtype=torch.float64, generator=draw) for h in (4, 2, 2))
    mask = torch.arange(12) < torch.tensor([[12], [7]]) if masked else None
    module = torch.nn.Module()
    module.config, module.is_causal = transformers.LlamaConfig(max_position_embeddings=40), causal
    out, _ = transformers.AttentionInterface()["multiscale"](module, q, k, v, mask)
    attention = build_attention("multiscale", num_heads=4, head_dim=16, max_len=40, causal=causal)
    torch.testing.assert_close(out.transpose(1, 2), attention(q, k, v, mask), rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_input_has_no_longest_length_and_the_config_sets_the_slowest_rate():
    short, far = (
        build(DECODERS["llama"], attention="multiscale", max_position_embeddings=8, cosformer_max_len=length)
        for length in (None, 1000)
    )
    x = ids(2, 30)
    whole, cache = short(x, use_cache=False).logits, StateCache()
    steps = [short(piece, past_key_values=cache).logits for piece in x.split([20, 1, 1, 8], 1)]
    assert relative(torch.cat(steps, 1), whole) < 1e-4
    assert relative(far(x, use_cache=False).logits, whole) > 1e-2


@torch.no_grad()
def test_an_encoder_tells_left_from_right():
    model = build(TEXT_ENCODERS["bert"], attention="multiscale", dtype=torch.float64)
    for table in (model.embeddings.position_embeddings, model.embeddings.token_type_embeddings):
        table.weight.zero_()
    x = ids(1, 12)
    out, mirrored = model(x).last_hidden_state, model(x.flip(1)).last_hidden_state.flip(1)
    assert relative(mirrored, out) > 1e-2


def test_autocast_computes_in_half_precision():
    model, x = build(DECODERS["llama"], attention="multiscale"), ids(2, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(x, use_cache=False).logits.float().square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    q, v = torch.randn(2, 1, 2, 40, 16)
    attend, module = transformers.AttentionInterface()["multiscale"], model.model.layers[0].self_attn
    with torch.autocast("cpu", dtype=torch.bfloat16):  # as rotary layers hand them over
        mixed = attend(module, q, q, v.bfloat16(), None)[0]
    assert torch.equal(mixed, attend(module, q.bfloat16(), q.bfloat16(), v.bfloat16(), None)[0])


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_encoder_decoders_are_refused_by_name(name):
    with pytest.raises(ValueError, match=rf"{ENCODER_DECODERS[name][1]} crosses .* attn_implementation='cosformer'"):
        build(ENCODER_DECODERS[name], attention="multiscale")


def test_cross_attention_is_refused_wherever_it_is_called():
    crossing = transformers.BertConfig(**TEXT, is_decoder=True, add_cross_attention=True)
    with pytest.raises(ValueError, match="BertLMHeadModel crosses"):
        transformers.BertLMHeadModel._from_config(crossing, attn_implementation="multiscale")
    # a decoder alone, which crosses only when it is given something to attend to
    kind = ("BartConfig", "BartForCausalLM", {**ENCODER_DECODERS["bart"][2], "is_encoder_decoder": False})
    model, x = build(kind, attention="multiscale"), ids(1, 6)
    assert model(x, use_cache=False).logits.isfinite().all()
    for length in (6, 9):
        with pytest.raises(ValueError, match=r"BartAttention.*cross-attention does not have"):
            model(x, encoder_hidden_states=torch.randn(1, length, 32), use_cache=False)


def test_what_has_no_rates_is_refused():
    with pytest.raises(ValueError, match="scales=8 does not divide head_dim=12"):
        build(DECODERS["llama"], attention="multiscale", head_dim=12)(ids(1, 5))
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 16, "patch_size": 4}
    vit = build(("ViTConfig", "ViTModel", sizes), attention="multiscale")
    with pytest.raises(ValueError, match=r"slowest decay: set config\.cosformer_max_len"):
        vit(torch.randn(1, 3, 16, 16))
    vit.config.cosformer_max_len = 17
    assert vit(torch.randn(1, 3, 16, 16)).last_hidden_state.isfinite().all()


def test_a_state_of_another_attention_is_refused():
    cache, x = StateCache(), ids(1, 6)
    build(DECODERS["gpt2"])(x[:, :5], past_key_values=cache)
    with pytest.raises(ValueError, match="state"):
        build(DECODERS["gpt2"], attention="multiscale")(x[:, 5:], past_key_values=cache)


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_decoder_is_converted_saved_and_loaded(name, tmp_path):
    config, kind, values = DECODERS[name]
    original = getattr(transformers, kind)(getattr(transformers, config)(**values, initializer_range=0.3))
    original.save_pretrained(tmp_path / "stock")
    assert main(["convert", str(tmp_path / "stock"), str(tmp_path / "out"), "--attention", "multiscale"]) == 0
    assert "softmax -> multiscale" in (tmp_path / "out" / "README.md").read_text()
    model, x = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval(), ids(2, 6)
    swapped = getattr(transformers, kind).from_pretrained(tmp_path / "stock", attn_implementation="multiscale").eval()
    assert torch.equal(model(x).logits, swapped(x).logits)
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    made = model.generate(x, return_dict_in_generate=True, **options)
    assert isinstance(made.past_key_values, StateCache)
    assert torch.equal(made.sequences, model.generate(x, use_cache=False, **options))
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()(x).logits, model(x).logits)
    for other in ("cosformer", "sdpa"):
        with pytest.raises(ValueError, match="converted to attention='multiscale'"):
            AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation=other)
    convert(str(tmp_path / "out"), tmp_path / "back", attention="softmax")
    with pytest.raises(ValueError, match="converted to attention='softmax'"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "back", attn_implementation="multiscale")
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "back").eval()
    torch.testing.assert_close(back(x).logits, original.eval()(x).logits)


@torch.no_grad()
def test_a_converted_encoder_keeps_its_rates(tmp_path):
    config, _, values = TEXT_ENCODERS["roberta"]
    transformers.RobertaModel(getattr(transformers, config)(**values)).save_pretrained(tmp_path / "stock")
    outs = []
    for length in (None, 1000):
        where = tmp_path / str(length)
        convert(str(tmp_path / "stock"), where, attention="multiscale", max_len=length)
        model = AutoModel.from_pretrained(where).eval()
        assert model.config.cosformer_max_len == length and model.config._attn_implementation == "multiscale"
        outs.append(model(ids(2, 20)).last_hidden_state)
    assert not torch.equal(*outs)


def test_an_encoder_decoder_is_not_converted(tmp_path):
    config, kind, values = ENCODER_DECODERS["bart"]
    getattr(transformers, kind)(getattr(transformers, config)(**values)).save_pretrained(tmp_path / "stock")
    with pytest.raises(ValueError, match="CosformerBartForConditionalGeneration crosses"):
        convert(str(tmp_path / "stock"), tmp_path / "out", attention="multiscale")
    assert not (tmp_path / "out").exists()
