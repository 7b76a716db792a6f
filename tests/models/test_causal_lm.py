"""The causal language model: generation with states, streaming, errors."""

import copy
import queue
import threading
import warnings

import pytest
import torch
from transformers import AutoModelForCausalLM, TextIteratorStreamer

import cosformer.hf  # noqa: F401
from cosformer.models.causal_lm import CosformerForCausalLM
from cosformer.models.state_cache import StateCache
from cosformer.ops.backends import available_backends
from models.two_steps import two_steps

GREEDY = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
RECORD = {"return_dict_in_generate": True, "output_logits": True}


def left_padded(ids) -> dict[str, torch.Tensor]:
    x = ids(3, 10)
    mask = torch.ones_like(x)
    mask[0, :4], mask[1, :1] = 0, 0
    return {"input_ids": x, "attention_mask": mask}


@pytest.mark.parametrize("attention", ["cosformer", "softmax", "linear", "local", ["cosformer", "softmax"]])
@pytest.mark.parametrize(
    "mode", [{}, {"num_beams": 3}, {"prefill_chunk_size": 3}, {"num_beams": 2, "num_return_sequences": 2}]
)
def test_states_give_what_recomputing_gives(attention, mode, config, ids, relative):
    model = CosformerForCausalLM(config(attention=attention, is_decoder=True)).eval()
    batch = left_padded(ids)
    recompute = {name: value for name, value in mode.items() if name != "prefill_chunk_size"}
    plain = model.generate(**batch, max_new_tokens=12, use_cache=False, **recompute, **GREEDY, **RECORD)
    stated = model.generate(**batch, max_new_tokens=12, **mode, **GREEDY, **RECORD)
    assert torch.equal(stated.sequences, plain.sequences)
    assert max(map(relative, stated.logits, plain.logits)) < 1e-4
    assert isinstance(stated.past_key_values, StateCache)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
def test_logits_of_every_step(dtype, limit, config, ids, relative):
    model = CosformerForCausalLM(config(is_decoder=True)).eval().to(dtype)
    x = ids(2, 40)
    whole = model(x, use_cache=False).logits
    cache = model(x[:, :6]).past_key_values
    for t in range(6, 40):
        step = model(x[:, t : t + 1], past_key_values=cache).logits[:, 0]
        assert relative(step, whole[:, t]) < limit


def test_sampling_is_the_same_with_and_without_states(config, ids):
    model = CosformerForCausalLM(config(is_decoder=True)).eval()
    runs = []
    for use_cache in (True, False):
        torch.manual_seed(7)
        options = {**GREEDY, "do_sample": True, "top_k": 20, "use_cache": use_cache}
        runs.append(model.generate(ids(2, 5), max_new_tokens=15, **options))
    assert torch.equal(*runs)


@torch.no_grad()
def test_state_has_one_size(config, ids):
    model = CosformerForCausalLM(config(is_decoder=True, max_position_embeddings=300)).eval()
    cache, sizes = StateCache(2), set()
    for token in ids(1, 200).split(1, dim=1):
        model(token, past_key_values=cache)
        sizes.add(cache.nbytes)
    assert len(sizes) == 1
    grown = StateCache(2)
    CosformerForCausalLM(config(is_decoder=True, attention="softmax")).eval()(ids(1, 40), past_key_values=grown)
    assert grown.nbytes > 40 * 2 * 2 * 32 * 4  # keys and values of 40 tokens in 2 layers


@torch.no_grad()
def test_a_cache_can_be_copied_reset_and_continued(config, ids, relative):
    model = CosformerForCausalLM(config(is_decoder=True)).eval()
    x = ids(2, 20)
    cache = model(x[:, :10]).past_key_values
    other = copy.deepcopy(cache)
    first = model(x[:, 10:], past_key_values=cache).logits
    assert torch.equal(model(x[:, 10:], past_key_values=other).logits, first)
    assert relative(first, model(x).logits[:, 10:]) < 1e-5
    other.reset()
    assert other.get_seq_length() == 0
    assert torch.equal(model(x[:, :5], past_key_values=other).logits, model(x[:, :5]).logits)
    picked = copy.deepcopy(cache)
    picked.batch_select_indices(torch.tensor([1]))
    assert picked.layers[0].batch_size == 1
    with pytest.raises(ValueError, match="cannot forget"):
        cache.crop(-1)


def test_tokens_stream_as_they_are_made(config, ids):
    class Words:
        def decode(self, tokens, **_):
            return " ".join(str(int(t)) for t in tokens) + " "

    model = CosformerForCausalLM(config(is_decoder=True)).eval()
    x = ids(1, 4)
    streamer = TextIteratorStreamer(Words(), skip_prompt=True, timeout=20)
    thread = threading.Thread(
        target=model.generate, args=(x,), kwargs={**GREEDY, "max_new_tokens": 9, "streamer": streamer}
    )
    thread.start()
    try:
        text = "".join(streamer)
    except queue.Empty:
        pytest.fail("nothing was streamed")
    thread.join()
    expected = model.generate(x, max_new_tokens=9, **GREEDY)[0, 4:]
    assert [int(word) for word in text.split()] == expected.tolist()


def test_attention_without_a_state_recomputes_and_says_so_once(config, ids):
    model = CosformerForCausalLM(config(attention="sinkhorn", is_decoder=True)).eval()
    with pytest.warns(UserWarning, match="'sinkhorn' carries no state"):
        out = model.generate(ids(2, 6), max_new_tokens=5, **GREEDY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(model.generate(ids(2, 6), max_new_tokens=5, **GREEDY), out)
    x = ids(2, 6)
    for _ in range(5):
        x = torch.cat((x, model(x, use_cache=False).logits[:, -1:].argmax(-1)), 1)
    assert torch.equal(out, x)


def test_errors(config, ids):
    with pytest.raises(ValueError, match="needs is_decoder=True"):
        CosformerForCausalLM(config())
    with pytest.raises(ValueError, match="no causal form"):
        CosformerForCausalLM(config(attention="nystrom", is_decoder=True))
    model = CosformerForCausalLM(config(is_decoder=True)).eval()
    with pytest.raises(ValueError, match="65 tokens exceeds max_len=64"):
        model.generate(ids(1, 60), max_new_tokens=10, **GREEDY)
    with pytest.raises(ValueError, match="cache_implementation='static'"):
        model.generate(ids(1, 4), max_new_tokens=2, cache_implementation="static", **GREEDY)
    with pytest.raises(ValueError, match="logits_to_keep"):
        model(ids(1, 4), labels=ids(1, 4), logits_to_keep=1)


def test_weights_are_tied_saved_once_and_still_tied_after_loading(config, ids, tmp_path):
    model = CosformerForCausalLM(config(is_decoder=True)).eval()
    assert model.lm_head.weight is model.model.embeddings.tokens.weight
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.lm_head.weight is again.model.embeddings.tokens.weight
    assert torch.equal(again(ids(2, 9)).logits, model(ids(2, 9)).logits)
    loose = CosformerForCausalLM(config(is_decoder=True, tie_word_embeddings=False))
    assert loose.lm_head.weight is not loose.model.embeddings.tokens.weight


def test_loss_is_the_mean_over_next_tokens(config, ids):
    model = CosformerForCausalLM(config(is_decoder=True)).eval()
    x = ids(2, 9)
    labels = x.clone()
    labels[0, :4] = -100
    out = model(x, labels=labels)
    scores = out.logits[:, :-1].log_softmax(-1).gather(-1, x[:, 1:, None])[..., 0]
    counted = labels[:, 1:] != -100
    torch.testing.assert_close(out.loss, -scores[counted].mean())


def test_vocabulary_can_be_resized_unless_adaptive(config, ids):
    model = CosformerForCausalLM(config(is_decoder=True)).eval()
    before = model(ids(1, 5)).logits
    model.resize_token_embeddings(60, mean_resizing=False)
    assert model.lm_head.weight is model.model.embeddings.tokens.weight
    torch.testing.assert_close(model(ids(1, 5)).logits[..., :50], before)
    with pytest.raises(ValueError, match="bands of an adaptive vocabulary"):
        CosformerForCausalLM(config(is_decoder=True, adaptive_cutoffs=[10])).resize_token_embeddings(60)


@pytest.mark.parametrize("backend", [name for name in available_backends() if name != "dense"])
def test_two_training_steps_with_each_backend_forced(backend, relative):
    (*before, after), moved = two_steps(backend, 300)
    losses, expected = two_steps("dense", 300)
    assert before[0] > before[1] > after
    assert [*before, after] == pytest.approx(losses, rel=1e-5)
    assert relative(moved, expected) < 1e-4
