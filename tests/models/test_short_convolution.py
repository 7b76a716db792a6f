"""Short convolution and output gate inside models: padding, states, generation, packing, checkpoints, settings."""

import copy
import json
import warnings

import pytest
import torch
from transformers import AutoModel

import cosformer.hf  # noqa: F401  (registers the Auto classes)
import studies.cosformer2022  # noqa: F401  # brings the recipe evidence-lm
from cosformer.attention import ATTENTIONS, attention_class
from cosformer.commands.train import parse
from cosformer.models.attention_weights import attention_weights
from cosformer.models.causal_lm import CosformerForCausalLM
from cosformer.models.encoder_decoder import CosformerForConditionalGeneration
from cosformer.models.masked_lm import CosformerForMaskedLM
from cosformer.models.presets import preset
from cosformer.models.state_cache import StateCache
from cosformer.models.transformer import CosformerModel
from cosformer.nn.short_convolution import ShortConvolution
from cosformer.recipes import recipe
from cosformer.tasks.base import ARCHITECTURE
from versions import rewinds

BOTH = {"short_convolution": 4, "output_gate": True}
STREAMING = [name for name in ATTENTIONS if attention_class(name).traits.streaming]
GREEDY = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None, "max_new_tokens": 12}
LIMIT = 1e-12


def mixing(model):
    """``model`` in float64 with convolutions that do mix."""
    for module in model.modules():
        if isinstance(module, ShortConvolution):
            torch.nn.init.normal_(module.weight, std=0.7)
    return model.double().eval()


def padded_left(ids) -> tuple[torch.Tensor, torch.Tensor]:
    x = ids(3, 24)
    mask = torch.ones_like(x)
    mask[0, :5], mask[2, :1] = 0, 0
    return x, mask


def test_a_new_convolution_changes_nothing_and_a_gate_does(config, ids):
    plain = CosformerModel(config()).eval()
    convolved = CosformerModel(config(short_convolution=4)).eval()
    missing = convolved.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert missing == [f"layers.{i}.attention.convolution.weight" for i in (0, 1)]
    assert torch.equal(convolved(ids(2, 9))[0], plain(ids(2, 9))[0])
    gated = CosformerModel(config(output_gate=True)).eval()
    gated.load_state_dict(plain.state_dict(), strict=False)
    assert not torch.allclose(gated(ids(2, 9))[0], plain(ids(2, 9))[0], atol=1e-3)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("width", [3, 4])
def test_padding_feeds_zeros(causal, width, config, ids, relative):
    """The biases make something of every token, padding included, before the convolution."""
    model = mixing(CosformerModel(config(short_convolution=width, output_gate=True, is_decoder=causal)))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    x, pad = ids(1, 9), torch.zeros(1, 4, dtype=torch.long)
    alone, left = model(x)[0], torch.tensor([[0] * 4 + [1] * 9])
    assert relative(model(torch.cat((pad, x), 1), attention_mask=left)[0][:, 4:], alone) < LIMIT
    assert relative(model(torch.cat((x, pad), 1), attention_mask=left.flip(1))[0][:, :9], alone) < LIMIT
    moved = model(x.roll(1, 1))[0]
    assert relative(moved, alone) > 1e-2


@torch.no_grad()
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("name", STREAMING)
def test_windows_of_a_stream_are_the_whole(name, rotary, config, ids, relative):
    fields = BOTH | ({"rotary": {"rope_type": "default", "rope_theta": 100.0}, "qk_norm": True} if rotary else {})
    model = mixing(CosformerModel(config(attention=name, is_decoder=True, **fields)))
    x, mask = padded_left(ids)
    whole, cache, at, found = model(x, attention_mask=mask, use_cache=False)[0], StateCache(2), 0, []
    for n in (7, 1, 1, 2, 12, 1):
        found.append(model(x[:, at : at + n], attention_mask=mask[:, : at + n], past_key_values=cache)[0])
        at += n
        order = torch.tensor([2, 0, 1])  # as beams would
        cache.reorder_cache(order)
        x, mask, whole, found = x[order], mask[order], whole[order], [part[order] for part in found]
    keep = mask.bool()
    assert relative(torch.cat(found, 1)[keep], whole[keep]) < LIMIT


@torch.no_grad()
def test_the_cache_has_one_size_with_the_last_tokens_in_it(config, ids):
    sizes = []
    for fields in ({}, BOTH):
        model, cache = CosformerForCausalLM(config(is_decoder=True, **fields)).eval(), StateCache(2)
        for token in ids(2, 9).split(1, dim=1):
            model(token, past_key_values=cache)
            sizes.append(cache.nbytes)
    assert len(set(sizes[:9])) == len(set(sizes[9:])) == 1
    assert sizes[-1] - sizes[0] == 2 * 2 * 3 * (3 * 32) * 4  # layers, rows, tokens, channels, bytes


@torch.no_grad()
@pytest.mark.parametrize("attention", ["cosformer", "multiscale", "softmax", "local", ["cosformer", "softmax"]])
def test_tokens_are_taken_back(attention, config, ids, relative):
    model = mixing(CosformerForCausalLM(config(attention=attention, is_decoder=True, **BOTH)))
    x, mask = padded_left(ids)
    whole = model(x, attention_mask=mask, use_cache=False).logits
    cache, seen = StateCache(2), 2
    model(x[:, :2], attention_mask=mask[:, :2], past_key_values=cache)
    with pytest.raises(ValueError, match="1 tokens to take back and 0 recorded; call activate_past_recording"):
        cache.crop(-1)
    cache.activate_past_recording()
    for new, back in ((9, 4), (5, 0), (1, 1), (6, 5), (2, 2)):
        model(x[:, seen : seen + new], attention_mask=mask[:, : seen + new], past_key_values=cache)
        cache.crop(-back)
        seen += new - back
        assert cache.get_seq_length() == seen
        other = copy.deepcopy(cache)
        other.reorder_cache(torch.tensor([1, 2, 0]))
        rest = model(x[:, seen:], attention_mask=mask, past_key_values=copy.deepcopy(cache)).logits
        assert relative(rest[1:], whole[1:, seen:]) < LIMIT
        turned = [each[[1, 2, 0]] for each in (x[:, seen:], mask, whole[:, seen:])]
        rest = model(turned[0], attention_mask=turned[1], past_key_values=other).logits
        assert relative(rest[:2], turned[2][:2]) < LIMIT


@torch.no_grad()
def test_the_record_does_not_grow(config, ids):
    model, cache, sizes = CosformerForCausalLM(config(is_decoder=True, **BOTH)).eval(), StateCache(2), set()
    cache.activate_past_recording()
    for token in ids(1, 60).split(3, dim=1):
        model(token, past_key_values=cache)
        cache.crop(-1)
        cache.crop(0)
        model(token[:, -1:], past_key_values=cache)
        cache.crop(0)
        sizes.add(cache.nbytes)
    assert len(sizes) == 1


@pytest.mark.parametrize("attention", ["cosformer", "multiscale", "softmax", ["local", "linear"]])
@pytest.mark.parametrize("mode", [{}, {"num_beams": 3}, {"prefill_chunk_size": 3}])
def test_generation_from_states_is_that_of_the_whole(attention, mode, config, ids):
    model = mixing(CosformerForCausalLM(config(attention=attention, is_decoder=True, **BOTH)))
    x, mask = padded_left(ids)
    options = {"input_ids": x[:, :9], "attention_mask": mask[:, :9], **GREEDY}
    beams = {name: value for name, value in mode.items() if name == "num_beams"}
    assert torch.equal(model.generate(**options, **mode), model.generate(**options, **beams, use_cache=False))


@rewinds
@pytest.mark.parametrize("attention", ["cosformer", "softmax"])
def test_assisted_and_lookup_decoding_write_the_greedy_text(attention, config, ids):
    target = mixing(CosformerForCausalLM(config(attention=attention, is_decoder=True, **BOTH)))
    near = copy.deepcopy(target)  # an assistant that is often right, and sometimes not
    with torch.no_grad():
        near.lm_head.weight.add_(torch.randn_like(near.lm_head.weight) * 0.05)
    x = ids(1, 8).repeat(1, 2)
    greedy = target.generate(x, **GREEDY)
    for how in ({"assistant_model": near}, {"prompt_lookup_num_tokens": 4}):
        assert torch.equal(target.generate(x, **how, **GREEDY), greedy)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("attention", ["cosformer", "multiscale", "softmax"])
def test_packed_sequences_do_not_leak(attention, causal, config, ids, relative):
    model = mixing(CosformerModel(config(attention=attention, is_decoder=causal, **BOTH)))
    lengths, x = (7, 12, 1, 2, 9), ids(1, 31)
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0)])
    losses, gradients = [], []
    for packed in (False, True):
        if packed:
            out = model(x, cu_seq_lens_q=bounds, use_cache=False)[0]
        else:
            out = torch.cat([model(part, use_cache=False)[0] for part in x.split(lengths, 1)], 1)
        out.square().sum().backward()
        losses.append(out.detach())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
        model.zero_grad()
    assert relative(losses[1], losses[0]) < LIMIT and relative(gradients[1], gradients[0]) < LIMIT


def test_an_encoder_decoder_writes_from_states_what_it_writes_from_the_whole(config, ids):
    fields = {"is_encoder_decoder": True, "decoder_start_token_id": 1, **BOTH}
    model = mixing(CosformerForConditionalGeneration(config(**fields)))
    assert model.model.decoder.layers[0].cross.gate is not None
    x, mask = padded_left(ids)
    options = {"input_ids": x, "attention_mask": mask.flip(1), **GREEDY}
    assert torch.equal(model.generate(**options), model.generate(**options, use_cache=False))


def test_saved_and_loaded_it_is_the_same(config, ids, tmp_path):
    model = mixing(CosformerModel(config(attention="local", **BOTH)))
    model.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path, dtype=torch.float64)
    assert again.config.short_convolution == 4 and again.config.output_gate
    assert torch.equal(again(ids(2, 12))[0], model(ids(2, 12))[0])
    with pytest.raises(
        ValueError, match=r"hold, but the config has no place for, layers\.0\.attention\.convolution\.weight"
    ):
        CosformerModel.from_pretrained(tmp_path, short_convolution=0)
    with pytest.raises(RuntimeError, match=r"size mismatch|mismatched"):
        CosformerModel.from_pretrained(tmp_path, short_convolution=3)


def test_a_checkpoint_of_before_loads_unchanged(config, ids, tmp_path):
    model = CosformerModel(config()).eval()
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved.pop("short_convolution") == 0 and saved.pop("output_gate") is False
    (tmp_path / "config.json").write_text(json.dumps(saved))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = CosformerModel.from_pretrained(tmp_path)
    assert torch.equal(again(ids(2, 9))[0], model(ids(2, 9))[0])
    CosformerForMaskedLM(config(**BOTH)).save_pretrained(tmp_path)
    fresh = CosformerForMaskedLM.from_pretrained(tmp_path).model.layers[0].attention.convolution
    assert torch.equal(fresh.weight, fresh.identity())


def test_weights_times_values_are_what_the_layer_attended(config, ids, relative):
    model, seen = mixing(CosformerForCausalLM(config(is_decoder=True, **BOTH))), []
    for layer in model.model.layers:
        layer.attention.attention.register_forward_hook(lambda _, args, out: seen.append((args[2], out)))
    x, mask = padded_left(ids)
    with torch.no_grad():
        model(x, attention_mask=mask, use_cache=False)
    recorded = list(seen)
    for weights, (v, out) in zip(attention_weights(model, x, mask), recorded, strict=True):
        assert relative(weights @ v, out) < LIMIT


def test_the_command_line_reaches_both_and_parameters_are_those_of_the_trial():
    plain = recipe("evidence-lm")
    assert plain.model.short_convolution is None and plain.model.output_gate is None
    counts = []
    for words in ("", "--model.short-convolution 4", "--model.short-convolution 4 --model.output-gate"):
        chosen, _, _ = parse("evidence-lm", words.split())
        named = {field: getattr(chosen.model, ours) for field, ours in ARCHITECTURE.items()}
        fields = {name: value for name, value in named.items() if value is not None} | chosen.model.fields
        config = preset(chosen.model.preset, vocab_size=260, is_decoder=True, max_position_embeddings=128, **fields)
        counts.append(CosformerForCausalLM(config).num_parameters())
    assert counts == [430_976, 435_584, 484_736]
    assert parse("evidence-lm", ["--model.no-output-gate"])[0].model.output_gate is False


def test_a_negative_width_is_refused(config):
    with pytest.raises(ValueError, match="short_convolution=-1; it cannot be negative"):
        config(short_convolution=-1)
