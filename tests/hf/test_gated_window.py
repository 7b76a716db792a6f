"""Linear layers of a linearized decoder: against their definition, in chunks, padded, inside models."""

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from cosformer.bench.generate import _aged as age
from cosformer.hf import StateCache
from cosformer.hf.convert import with_attention
from cosformer.hf.gated_window import GatedWindow, GatedWindowState, causal_log_mass
from cosformer.hf.linearized import find_layers, mechanisms
from cosformer.hf.sink_window import SinkWindow, SinkWindowState, rotate, rotate_back

CONTEXT = 25  # shorter than the tests' sequences: later queries see the sinks just before their window


def embedding(**rope) -> LlamaRotaryEmbedding:
    parameters = {"rope_type": "default", "rope_theta": 100.0, **rope}
    config = transformers.LlamaConfig(hidden_size=16, num_attention_heads=2, max_position_embeddings=64)
    config.rope_parameters = parameters
    return LlamaRotaryEmbedding(config)


def build(window: int, sinks: int = 4, dtype=torch.float64, rotary=True) -> GatedWindow:
    torch.manual_seed(0)
    sizes = {"num_heads": 6, "num_key_heads": 2, "head_dim": 8, "features": 16}
    made = GatedWindow(window=window, sinks=sinks, context=CONTEXT, **sizes).to(dtype)
    made.rotary = embedding() if rotary else None
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return made


def inputs(n: int, rows: int = 2, dtype=torch.float64):
    torch.manual_seed(n)
    return [torch.randn(rows, heads, n, 8, dtype=dtype) for heads in (6, 2, 2)]


def padding(n: int, left: int = 5, right: int = 4):
    """Row 0 is left-padded, row 1 right-padded with a hole; positions count the unmasked tokens."""
    mask = torch.ones(2, n, dtype=torch.bool)
    mask[0, :left] = False
    mask[1, 2] = False
    mask[1, n - right :] = False
    return mask, (mask.cumsum(1) - 1).clamp_min(0)


def by_definition(m: GatedWindow, q0, k0, v, mask, positions):
    """Every part as an N x N matrix; ``q0``, ``k0`` before rotary positions."""
    n = q0.shape[2]
    k0, v = k0.repeat_interleave(3, 1), v.repeat_interleave(3, 1)
    psi = (k0 @ m.key.repeat_interleave(3, 0) + m.key_bias.repeat_interleave(3, 0)).softmax(-1)
    phi = (q0 @ m.query + m.query_bias).softmax(-1)
    turn = (lambda x, p: rotate(x, *m.rotary(x, p))) if m.rotary is not None else (lambda x, p: x)
    place = torch.arange(n)
    ago = place[:, None] - place
    sink = (mask & (mask.cumsum(1) <= m.sinks))[:, None]
    first = (
        torch.stack([p[keep][0] for p, keep in zip(positions, mask, strict=True)])[:, None] if m.sinks else positions
    )
    near = torch.where(positions - first >= m.context, first + m.window + m.sinks - 1, positions)
    scores = turn(q0, positions) @ turn(k0, positions).mT
    scores = torch.where(sink[:, None], turn(q0, near) @ turn(k0, positions).mT, scores) / 8**0.5
    allowed = mask[:, None] & (ago >= 0)
    seen = (allowed & (sink | (ago < m.window)))[:, None]
    scores = scores.masked_fill(~seen, -1e30)  # finite: gradients of empty rows stay numbers
    near_out = scores.softmax(-1) @ v
    far = (allowed & ~sink & (ago >= m.window))[:, None]
    products = (phi @ psi.mT) * far
    count = far.sum(-1)
    log_mean = products.sum(-1).clamp_min(1e-300).log() - count.clamp_min(1).log()
    far_out = products @ v / products.sum(-1, keepdim=True).clamp_min(1e-300)
    odds = (
        m.gate_far * log_mean - m.gate_near * scores.logsumexp(-1) + m.gate_bias + (q0 @ m.gate_query)[..., 0] / 8**0.5
    )
    gate = torch.where(count > 0, odds.sigmoid(), 0.0)[..., None]
    return (1 - gate) * near_out + gate * far_out


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("window", "sinks"), [(1, 4), (3, 0), (7, 2), (60, 4)])
def test_equals_the_definition(window, sinks, padded, rotary):
    m = build(window, sinks, rotary=rotary)
    q0, k0, v = inputs(41)
    mask, positions = padding(41)
    if not padded:
        mask, positions = torch.ones_like(mask), torch.arange(41).expand(2, 41)
    q, k = (rotate(x, *m.rotary(x, positions)) if rotary else x for x in (q0, k0))
    out = m(q, k, v, mask if padded else None, positions)
    expected = by_definition(m, q0, k0, v, mask, positions)
    rows = mask[:, None, :, None].expand_as(out)
    assert (out - expected)[rows].abs().max() < 1e-10
    parameters = list(m.parameters())
    got, want = (torch.autograd.grad(x[rows].square().sum(), parameters) for x in (out, expected))
    assert all((a - b).abs().max() < 1e-8 * b.abs().max().clamp_min(1) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@torch.no_grad()
def test_in_pieces_and_token_by_token_it_is_the_same(dtype, limit):
    m = build(6, dtype=dtype)
    n = 53
    q, k, v = inputs(n, dtype=dtype)
    mask, positions = padding(n, right=0)
    whole = m(q, k, v, mask, positions)
    for lengths in ([1, 2, 7, 3, 30, 10], [1] * n):
        state, pieces, first = None, [], 0
        for length in lengths:
            part = slice(first, first + length)
            options = {"key_mask": mask[:, part], "positions": positions[:, part]}
            out, state = m.extend(q[:, :, part], k[:, :, part], v[:, :, part], state, **options)
            state = GatedWindowState.from_state_dict(state.state_dict())
            pieces.append(out)
            first += length
            assert state.seen == first
            assert state.near.k.shape[2] == 6
            assert state.near.sink_k.shape[2] == 4
        assert (torch.cat(pieces, 2) - whole)[mask[:, None, :, None].expand_as(whole)].abs().max() < limit
        assert state.near.sink_positions.tolist() == [[0, 1, 2, 3]] * 2
        assert state.count.tolist() == (mask[:, : n - 6].sum(1) - 4).tolist()  # of each row by itself


@torch.no_grad()
def test_left_padding_changes_nothing_not_even_with_nan():
    m = build(5)
    q, k, v = inputs(40, rows=1)
    positions = torch.arange(40)[None]
    alone = m(q, k, v, None, positions)
    pad = [torch.full_like(x[:, :, :7], torch.nan) for x in (q, k, v)]
    padded = [torch.cat(pair, 2) for pair in zip(pad, (q, k, v), strict=True)]
    mask = (torch.arange(47) >= 7)[None]
    places = torch.cat([torch.zeros(1, 7, dtype=torch.long), positions], 1)
    together = m(*padded, mask, places)
    assert (together[:, :, 7:] - alone).abs().max() < 1e-10
    state = m.extend(*padded, None, mask, places)[1]
    assert all(x.isfinite().all() for x in state.state_dict().values())


@torch.no_grad()
def test_rows_of_a_state_move_with_everything_they_hold():
    m = build(5)
    q, k, v = inputs(30)
    mask, positions = padding(30, right=0)
    _, state = m.extend(q[:, :, :20], k[:, :, :20], v[:, :, :20], None, mask[:, :20], positions[:, :20])
    order = torch.tensor([1, 0, 1])
    rest = [x[order][:, :, 20:] for x in (q, k, v)]
    out, _ = m.extend(*rest, state.reorder(order), mask[order][:, 20:], positions[order][:, 20:])
    expected = m(q, k, v, mask, positions)[order][:, :, 20:]
    assert (out - expected).abs().max() < 1e-10
    half = state.to(torch.float32)
    assert half.near.k.dtype == half.far.kv.dtype == torch.float32
    assert half.near.key_mask.dtype == torch.bool
    assert half.count.dtype == half.near.sink_positions.dtype == torch.int64


@torch.no_grad()
def test_the_window_alone_is_its_own_mechanism():
    m = build(6)
    alone = SinkWindow(window=6, sinks=4, context=CONTEXT)
    alone.rotary = m.rotary
    q, k, v = inputs(30)
    positions = torch.arange(30).expand(2, 30)
    m.gate_bias.fill_(-1e9)
    out, state = alone.extend(q, k, v, None, None, positions)
    assert (out - m(q, k, v, None, positions)).abs().max() < 1e-10
    again = SinkWindowState.from_state_dict(state.state_dict())
    assert again.seen == 30
    # as long as the text fits, it is softmax
    short = [x[:, :, :10] for x in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(*short, is_causal=True, enable_gqa=True)
    assert (alone(*short, None, positions[:, :10]) - expected).abs().max() < 1e-12


@torch.no_grad()
def test_calibration_gives_the_far_keys_their_mass():
    m = build(6, sinks=2)
    m.reset_parameters()
    q, k, v = inputs(CONTEXT, rows=3)
    positions = torch.arange(CONTEXT).expand(3, CONTEXT)
    near = m.near(q, k, v, None, None, positions)
    m.calibrate(q, k, None, near)
    scores = (q @ k.repeat_interleave(3, 1).mT / 8**0.5).masked_fill(
        ~torch.ones(CONTEXT, CONTEXT).tril().bool(), -torch.inf
    )
    assert (causal_log_mass(q, k, None, rows=7) - scores.logsumexp(-1)).abs().max() < 1e-10
    ago = torch.arange(CONTEXT)[:, None] - torch.arange(CONTEXT)
    far = scores.masked_fill((ago < 6) | (torch.arange(CONTEXT) < 2), -torch.inf)[:, :, 8:].logsumexp(-1)
    log_mean = m._far(near, None)[1][:, :, 8:]
    assert (log_mean + m.gate_bias - far).mean((0, 2)).abs().max() < 1e-6


@pytest.mark.parametrize("rope", [{}, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}])
def test_rotation_is_undone_partial_and_scaled(rope):
    rotary = embedding(**rope)
    assert (rotary.attention_scaling != 1) == bool(rope)
    x = torch.randn(2, 3, 11, 12, dtype=torch.float64)  # 8 of 12 channels are rotated
    positions = torch.randint(0, 1000, (2, 11))
    turned = rotate(x, *rotary(x, positions))
    assert (turned - x)[..., :8].abs().max() > 0.1
    assert torch.equal(turned[..., 8:], x[..., 8:])
    assert (rotate_back(turned, *rotary(x, positions)) - x).abs().max() < 1e-10


def linearized(original, **changes):
    found = find_layers(original)
    sizes = {name: getattr(found[0], name) for name in ("num_heads", "num_key_heads", "head_dim", "causal")}
    learned = {"attention": None, "layers": [x.name for x in found], "kept": [], "features": 2 * sizes["head_dim"]}
    learned |= {"max_len": 32, "window": 5, "sinks": 4, "options": {}, **sizes, **changes}
    return with_attention(original, attention="learned", learned=learned).eval()


def stock(family: str = "Llama", **changes):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": 48, "vocab_size": 30, "max_position_embeddings": 32, "initializer_range": 0.4}
    if family == "GPT2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 30}
        kind, config = transformers.GPT2LMHeadModel, transformers.GPT2Config
    elif family == "OPT":
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48, "vocab_size": 30}
        sizes |= {"max_position_embeddings": 64, "word_embed_proj_dim": 32}
        kind, config = transformers.OPTForCausalLM, transformers.OPTConfig
    else:
        kind, config = (getattr(transformers, f"{family}{part}") for part in ("ForCausalLM", "Config"))
    return kind(config(**sizes, bos_token_id=0, eos_token_id=None, **changes)).eval()


YARN = {
    "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 8}
}


@pytest.mark.parametrize(
    ("family", "changes"),
    [("Llama", {}), ("Llama", YARN), ("Qwen2", {}), ("Qwen3", {"head_dim": 8}), ("GPT2", {}), ("OPT", {})],
)
@torch.no_grad()
def test_in_a_model_whole_is_token_by_token_padded_and_in_beams(family, changes):
    model = linearized(stock(family, **changes))
    x = torch.randint(2, 30, (1, 45))
    whole = model(x, use_cache=False).logits
    cache = StateCache()
    parts = [model(piece, past_key_values=cache).logits for piece in x.split([20, 1, 1, 3, 20], 1)]
    assert (torch.cat(parts, 1) - whole).abs().max() < 1e-4
    mask = (torch.arange(51) >= 6).long()[None]
    padded = torch.cat([torch.ones(1, 6, dtype=torch.long), x], 1)
    positions = {} if family == "OPT" else {"position_ids": (mask.cumsum(1) - 1).clamp_min(0)}  # OPT makes its own
    assert (model(padded, attention_mask=mask, **positions).logits[:, 6:] - whole).abs().max() < 1e-4
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 1}
    for beams in (1, 3):
        out = model.generate(x[:, :20], num_beams=beams, **options)
        assert torch.equal(out, model.generate(x[:, :20], num_beams=beams, use_cache=False, **options))


@pytest.mark.parametrize(
    ("family", "changes"), [("Llama", YARN), ("Qwen3", {"head_dim": 8}), ("GPT2", {}), ("OPT", {})]
)
@torch.no_grad()
def test_a_text_that_fits_into_the_window_is_the_originals(family, changes):
    original = stock(family, **changes)
    x = torch.randint(2, 30, (2, 20))
    expected = original(x).logits
    model = linearized(original, window=16)
    assert (model(x).logits - expected).abs().max() < 1e-4


@torch.no_grad()
def test_a_state_has_one_size_up_to_a_million_tokens():
    m = build(5)
    q, k, v = inputs(30)
    _, state = m.extend(q, k, v, None, None, torch.arange(30).expand(2, 30))
    size = sum(x.nbytes for x in state.state_dict().values())
    later = age(state, 1_000_000)
    out, new = m.extend(*(x[:, :, :1] for x in (q, k, v)), later, None, torch.full((2, 1), 1_000_000))
    assert out.isfinite().all()
    assert new.seen == 1_000_001
    assert new.count.tolist() == [1_000_001] * 2
    assert sum(x.nbytes for x in new.state_dict().values()) == size


@torch.no_grad()
def test_tokens_are_taken_back():
    model = linearized(stock())
    x = torch.randint(2, 30, (1, 30))
    cache = StateCache()
    cache.activate_past_recording()
    model(x[:, :15], past_key_values=cache)
    model(torch.randint(2, 30, (1, 6)), past_key_values=cache)
    cache.crop(-6)
    rest = model(x[:, 15:], past_key_values=cache).logits
    assert (rest - model(x, use_cache=False).logits[:, 15:]).abs().max() < 1e-4


@torch.no_grad()
def test_the_far_part_reads_queries_and_keys_before_their_rotation(monkeypatch):
    model = linearized(stock(**YARN))
    seen = {}
    layer = model.model.layers[0].self_attn
    layer.q_proj.register_forward_hook(lambda m, a, out: seen.__setitem__("q", out))
    inner = GatedWindow._far
    monkeypatch.setattr(
        GatedWindow, "_far", lambda self, near, state: seen.setdefault("near", near) and inner(self, near, state)
    )
    model(torch.randint(2, 30, (1, 20)), position_ids=torch.arange(7, 27)[None])
    assert (seen["near"].q - seen["q"].view(1, 20, 4, 8).transpose(1, 2)).abs().max() < 1e-5


def test_refusals_are_sentences():
    dynamic = {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}
    with pytest.raises(ValueError, match="'dynamic' change with the length"):
        linearized(stock(**dynamic))
    model = linearized(stock())
    old = {key: value for key, value in model.config.learned.items() if key != "sinks"}
    with pytest.raises(ValueError, match="linearized by an earlier version"):
        with_attention(stock(), attention="learned", learned=old)
    x = torch.randint(2, 30, (1, 8))
    with pytest.raises(ValueError, match="packed sequences; pad them"):
        model(x, cu_seq_lens_q=torch.tensor([0, 3, 8]), cu_seq_lens_k=torch.tensor([0, 3, 8]), use_cache=False)
    with pytest.raises(ValueError, match="must hand over position_ids"):
        m = build(4)
        m(*inputs(9))
    assert {type(m) for m in mechanisms(model).values()} == {GatedWindow}
