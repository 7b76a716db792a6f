"""States that take tokens back: crop, assisted and prompt-lookup decoding."""

import copy
from types import SimpleNamespace

import pytest
import torch

from cosformer.attention.recorded_state import RecordedState
from cosformer.models.causal_lm import CosformerForCausalLM
from cosformer.models.state_cache import StateCache
from versions import rewinds

GREEDY = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None, "max_new_tokens": 24}
ATTENTIONS = ["cosformer", "softmax", "local", "rfa_gate_gaussian", ["cosformer", "softmax"]]


@pytest.fixture
def model(config):
    def make(attention, **more) -> CosformerForCausalLM:
        return CosformerForCausalLM(config(attention=attention, is_decoder=True, **more)).eval()

    return make


@torch.no_grad()
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_crop_gives_the_state_before(attention, model, ids, relative):
    made, x = model(attention).double(), ids(2, 30)
    mask = torch.ones_like(x)
    mask[0, :3] = 0
    whole = made(x, attention_mask=mask, use_cache=False).logits
    cache = StateCache(2)
    cache.activate_past_recording()
    seen = 0
    for new, back in ((9, 4), (5, 0), (1, 1), (6, 3), (2, 2)):
        made(x[:, seen : seen + new], attention_mask=mask[:, : seen + new], past_key_values=cache)
        cache.crop(-back)
        seen += new - back
        assert cache.get_seq_length() == seen
        other = copy.deepcopy(cache)
        other.reorder_cache(torch.tensor([1, 0]))
        rest = made(x[:, seen:], attention_mask=mask, past_key_values=copy.deepcopy(cache)).logits
        assert relative(rest[1], whole[1, seen:]) < 1e-10
        swapped = made(x[:, seen:].flip(0), attention_mask=mask.flip(0), past_key_values=other).logits
        assert relative(swapped[0], whole[1, seen:]) < 1e-10


@rewinds
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_assisted_and_lookup_decoding_write_the_greedy_text(attention, model, ids):
    target, x = model(attention), ids(1, 8)
    greedy = target.generate(x, **GREEDY)
    x = torch.cat((x, greedy[:, 8:14], x), 1)  # something to look up
    greedy = target.generate(x, **GREEDY)
    torch.manual_seed(5)
    helper = model("cosformer", num_hidden_layers=1) if isinstance(attention, str) else model("linear")
    near = copy.deepcopy(target)  # an assistant that is often right, and sometimes not
    with torch.no_grad():
        near.lm_head.weight.add_(torch.randn_like(near.lm_head.weight) * 0.05)
    for how in ({"assistant_model": helper}, {"assistant_model": near}, {"prompt_lookup_num_tokens": 4}):
        assert torch.equal(target.generate(x, **how, **GREEDY), greedy)


def test_assisted_decoding_of_older_transformers_is_refused(model):
    """Before 5.15 it asks for a cache of this kind, and would cut it to a length."""
    with pytest.raises(ValueError, match=r"assisted decoding needs transformers 5\.15"):
        model("cosformer")._prepare_cache_for_generation(SimpleNamespace(cache_implementation="dynamic_full"), {})


def test_without_a_record_sums_cannot_be_cropped(model, ids):
    cache = model("cosformer")(ids(1, 5)).past_key_values
    with pytest.raises(ValueError, match="activate_past_recording"):
        cache.crop(-1)
    with pytest.raises(ValueError, match="minus the number"):
        cache.crop(3)
    cache.activate_past_recording()
    with pytest.raises(ValueError, match="2 tokens to take back and 0 recorded"):
        cache.crop(-2)
    keys = model("softmax")(ids(1, 5)).past_key_values
    keys.crop(-2)  # keys and values need no record
    assert keys.get_seq_length() == 3


def test_the_record_does_not_grow(model, ids):
    made, cache, sizes = model("cosformer", max_position_embeddings=128), StateCache(2), set()
    cache.activate_past_recording()
    for token in ids(1, 60).split(3, dim=1):
        made(token, past_key_values=cache)
        cache.crop(-1)
        cache.crop(0)
        made(token[:, -1:], past_key_values=cache)
        cache.crop(0)
        sizes.add(cache.nbytes)
    assert len(sizes) == 1


def test_recorded_positions_keep_their_digits_in_half_precision() -> None:
    k, far = torch.ones(1, 1, 1, 2), torch.tensor([[70_001]])
    state = RecordedState(None, None, ((k, k, torch.ones(1, 1, dtype=torch.bool), far),)).to(torch.float16)
    ((k, _, mask, positions),) = state.pieces
    assert k.dtype == torch.float16 and mask is not None and mask.dtype == torch.bool
    assert positions is not None and positions.tolist() == [[70_001]]
