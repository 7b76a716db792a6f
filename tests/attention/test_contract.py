"""Every mechanism of the table against every rule that all of them promise. A new table line is tested as it is."""

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from cosformer.attention import ATTENTIONS, Attention, attention_class, build_attention, slices

HEADS, HEAD_DIM, VALUE_DIM, MAX_LEN = 2, 8, 5, 160
LENGTHS = (1, 37, 150)  # none a multiple of a block length, one longer than most blocks

# Options that make a mechanism's own structure appear at these lengths, or choose its other forms. The defaults are
# tested for all.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "multiscale": [{"scales": 2, "cosine": True}, {"scales": 4, "slowest": 0.0}],
    "local": [{"window": 5}, {"window": 1}],
    "longformer": [{"window": 8}, {"window": 8, "num_global": 3}],
    "sparse": [
        {"stride": 8, "columns": 2},
        {"pattern": "strided", "stride": 8},
        {"pattern": "strided"},
    ],
    "bigbird": [{"block": 8}, {"block": 4, "num_random": 0}],
    "performer": [{"kernel": "relu"}, {"eps": 0.0}],
    "reformer": [{"chunk": 8}, {"chunk": 8, "num_hashes": 4, "allow_duplicates": True}],
    "sinkhorn": [{"block": 8}],
    "smyrf": [{"cluster_size": 8}],
    "routing": [{"num_clusters": 5, "window": 8}],
    "clustered": [{"num_clusters": 5, "topk": 4}, {"num_clusters": 5, "topk": None}],
    "linformer": [{"rank": 8, "sharing": "none"}, {"rank": 8, "sharing": "key-value"}],
    "nystrom": [{"num_landmarks": 8}, {"num_landmarks": 8, "conv_kernel": None}],
    "inducing": [{"num_inducing": 4}],
    "synthesizer": [{"kind": "random"}, {"kind": "factorised_dense"}, {"kind": "factorised_random"}],
}
# Learned D x D maps of the values leave no choice of their width.
SAME_VALUE_DIM = {("longformer", 2)}
# Rules that hold for the others and are no promise of these.
NO_PROMISE: dict[str, dict[str, str]] = {
    "padding": {"bigbird": "its last block is the last of the tensor, padded or not"},
    "one key": {
        "multiscale": "rows whose sum has decayed below eps fade to zero",
        "linformer": "weights go to mixtures of keys and need not sum to one",
        "nystrom": "a product of three matrices, whose rows need not sum to one",
        "rotary_linear": "only the numerator is rotated",
        "rfa_gaussian": "row sums below 1 count as 1, as in its authors' code",
    },
}
# (mechanism, rule) -> why the mechanism cannot keep the rule; its traits must say so too.
LATER_TOKENS_COMPETE = "later tokens compete for the places at a centroid, so they change which keys a row sees"
DEVIATIONS: dict[tuple[str, str], str] = {
    ("routing", "no peeking"): LATER_TOKENS_COMPETE,
    ("routing", "appending"): LATER_TOKENS_COMPETE,
}


class Case:
    """One mechanism with one set of options."""

    def __init__(self, name: str, variant: int) -> None:
        self.name, self.variant = name, variant
        self.options = [{}, *VARIANTS.get(name, [])][variant]
        self.traits = attention_class(name).traits
        self.value_dim = HEAD_DIM if (name, variant) in SAME_VALUE_DIM else VALUE_DIM

    @property
    def forms(self) -> list[bool]:
        """The values of ``causal`` it can be built with."""
        return [form for form, there in ((False, self.traits.bidirectional), (True, self.traits.causal)) if there]

    def build(self, causal: bool, weights: int = 0, **changes: Any) -> Attention:
        torch.manual_seed(weights)
        sizes = {"num_heads": HEADS, "head_dim": HEAD_DIM, "max_len": MAX_LEN, "causal": causal}
        return build_attention(self.name, **{**sizes, **self.options, **changes}).double().eval()

    def inputs(self, n: int, batch: int = 3, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        widths = (HEAD_DIM, HEAD_DIM, self.value_dim)
        q, k, v = (torch.randn(batch, HEADS, n, w, dtype=torch.float64, generator=generator) for w in widths)
        return q, k, v


def cases(rule: str, *, causal: bool | None = None, **traits: bool) -> pytest.MarkDecorator:
    """Parametrise over (case, causal) for all mechanisms with these traits; causal=None: all forms there are."""
    params = []
    for name in ATTENTIONS:
        if name in NO_PROMISE.get(rule, {}):
            continue
        for variant in range(1 + len(VARIANTS.get(name, []))):
            case = Case(name, variant)
            if any(getattr(case.traits, trait) != wanted for trait, wanted in traits.items()):
                continue
            reason = DEVIATIONS.get((name, rule))
            marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
            options = "-".join(f"{key}={value}" for key, value in case.options.items())
            for form in case.forms:
                if causal in (None, form):
                    label = "-".join(filter(None, (name, options, "causal" if form else "bidirectional")))
                    params.append(pytest.param(case, form, id=label, marks=marks))
    return pytest.mark.parametrize("case, causal", params)


def padding(batch: int, n: int) -> Tensor:
    """Key masks of unlike kinds: padding on the right, padding on the left, holes."""
    position = torch.arange(n)
    rows = (position < max(1, n - n // 3), position >= n // 3, position % 3 != 1)
    return torch.stack([rows[item % 3] for item in range(batch)])


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-9, rtol=1e-7)


@cases("shape and dtype")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_shape_and_dtype_follow_the_values(case: Case, causal: bool, dtype: torch.dtype) -> None:
    attn = case.build(causal).to(dtype)
    for n in LENGTHS:
        q, k, v = (x.to(dtype) for x in case.inputs(n))
        for key_mask in (None, padding(3, n)):
            out = attn(q, k, v, key_mask)
            assert out.shape == v.shape and out.dtype == dtype
            assert out.isfinite().all()


@cases("linear in v")
def test_it_is_linear_in_v(case: Case, causal: bool) -> None:
    attn = case.build(causal)
    q, k, v = case.inputs(150)
    other = case.inputs(150, seed=2)[2]
    key_mask = padding(3, 150)
    together = attn(q, k, 2 * v - 3 * other, key_mask)
    assert_same(together, 2 * attn(q, k, v, key_mask) - 3 * attn(q, k, other, key_mask))
    assert together.abs().max() > 0.1


@cases("weights")
def test_values_of_the_identity_give_the_weights(case: Case, causal: bool) -> None:
    attn = case.build(causal)
    if case.value_dim == HEAD_DIM:  # the values cannot be as wide as the sequence
        n, identity = HEAD_DIM, torch.eye(HEAD_DIM, dtype=torch.float64)
    else:
        n, identity = 70, torch.eye(70, dtype=torch.float64)
    q, k, v = case.inputs(n)
    weights = attn(q, k, identity.expand(3, HEADS, n, n))
    if case.value_dim != HEAD_DIM:
        assert_same(weights @ v, attn(q, k, v))
    if causal:
        assert not weights.triu(1).any()


@cases("masked key")
@pytest.mark.parametrize("n", LENGTHS[1:])
def test_a_masked_key_has_no_influence(case: Case, causal: bool, n: int) -> None:
    attn = case.build(causal)
    q, k, v = case.inputs(n)
    key_mask = padding(3, n)
    masked = ~key_mask[:, None, :, None]
    expected = attn(q, k, v, key_mask)
    for size in (0.0, 30.0):
        _, other_k, other_v = case.inputs(n, seed=2)
        changed = attn(q, torch.where(masked, size * other_k, k), torch.where(masked, size * other_v, v), key_mask)
        assert_same(changed, expected)
    assert (attn(q, k, v) - expected).abs().max() > 1e-3


@cases("padding")
@pytest.mark.parametrize("n", LENGTHS[1:])
def test_padding_on_the_right_is_a_shorter_sequence(case: Case, causal: bool, n: int) -> None:
    attn = case.build(causal)
    q, k, v = case.inputs(n)
    length = n - 10
    key_mask = (torch.arange(n) < length).expand(3, n)
    expected = attn(*(x[:, :, :length] for x in (q, k, v)))
    assert_same(attn(q, k, v, key_mask)[:, :, :length], expected)


@cases("one key")
@pytest.mark.parametrize("n", LENGTHS)
def test_the_only_key_left_has_all_the_weight(case: Case, causal: bool, n: int) -> None:
    attn = case.build(causal)
    q, k, v = case.inputs(n)
    key_mask = (torch.arange(n) == n // 2).expand(3, n)
    out = attn(q, k, v, key_mask)
    attended = out.abs().sum(-1) > 0
    assert attended.any()
    only = v[:, :, n // 2 : n // 2 + 1].expand_as(v)
    torch.testing.assert_close(out[attended], only[attended], atol=1e-4, rtol=1e-4)


@cases("dead rows")
@pytest.mark.parametrize("n", LENGTHS)
def test_rows_without_a_key_give_zeros(case: Case, causal: bool, n: int) -> None:
    attn = case.build(causal)
    q, k, v = case.inputs(n)
    key_mask = torch.ones(3, n, dtype=torch.bool)
    key_mask[1] = False
    out = attn(q, k, v, key_mask)
    assert not out[1].any()
    assert_same(out[[0, 2]], attn(q, k, v)[[0, 2]])
    if causal:
        key_mask[1, n // 2 :] = True
        assert not attn(q, k, v, key_mask)[1, :, : n // 2].any()


@cases("no peeking", causal=True)
@pytest.mark.parametrize("n", LENGTHS[1:])
def test_no_row_sees_a_later_token(case: Case, causal: bool, n: int) -> None:
    attn = case.build(causal)
    q, k, v = case.inputs(n)
    for key_mask in (None, padding(3, n)):
        expected = attn(q, k, v, key_mask)
        for now in (0, n // 2, n - 2):
            changed = [x.clone() for x in (q, k, v)]
            for x, other in zip(changed, case.inputs(n, seed=2), strict=True):
                x[:, :, now + 1 :] = 10 * other[:, :, now + 1 :]
            out = attn(*changed, key_mask)
            assert_same(out[:, :, : now + 1], expected[:, :, : now + 1])
            assert (out - expected).abs().max() > 1e-3


@cases("appending", causal=True)
@pytest.mark.parametrize("n", LENGTHS[1:])
def test_appended_tokens_change_nothing_before_them(case: Case, causal: bool, n: int) -> None:
    attn = case.build(causal)
    q, k, v = case.inputs(n)
    key_mask = padding(3, n)
    whole, whole_masked = attn(q, k, v), attn(q, k, v, key_mask)
    for length in (1, n // 2, n - 1):
        start = [x[:, :, :length] for x in (q, k, v)]
        assert_same(attn(*start), whole[:, :, :length])
        assert_same(attn(*start, key_mask[:, :length]), whole_masked[:, :, :length])


@cases("batch")
@pytest.mark.parametrize("n", LENGTHS)
def test_batch_items_do_not_know_each_other(case: Case, causal: bool, n: int) -> None:
    attn = case.build(causal)
    q, k, v = case.inputs(n)
    q, k = (x * torch.tensor([1.0, 0.1, 4.0])[:, None, None, None] for x in (q, k))
    for key_mask in (None, padding(3, n)):
        together = attn(q, k, v, key_mask)
        for item in range(3):
            alone = [x[item : item + 1] for x in (q, k, v)]
            mask = None if key_mask is None else key_mask[item : item + 1]
            assert_same(attn(*alone, mask), together[item : item + 1])


@cases("gradients")
@pytest.mark.parametrize("n", LENGTHS)
def test_gradients_are_finite(case: Case, causal: bool, n: int) -> None:
    attn = case.build(causal)
    key_mask = padding(3, n)
    key_mask[1] = False  # a dead item
    for mask in (None, key_mask):
        q, k, v = (x.requires_grad_() for x in case.inputs(n))
        attn.zero_grad()
        attn(q, k, v, mask).square().sum().backward()
        for x in (q, k, v, *attn.parameters()):
            assert x.grad is None or x.grad.isfinite().all()
        assert v.grad is not None and v.grad.abs().max() > 0
        if mask is not None:
            assert not v.grad[~key_mask[:, None, :, None].expand_as(v)].any()


@cases("pieces")
def test_without_gradients_it_gives_the_same(case: Case, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    attn = case.build(causal)
    lengths = [(150, 150), (37, 150), (150, 37)] if case.traits.cross and not causal else [(150, 150)]
    for n, s in lengths:
        q, (_, k, v) = case.inputs(n)[0], case.inputs(s, seed=2)
        for key_mask in (None, padding(3, s)):
            expected = attn(q, k, v, key_mask)
            for rows, fewest in ((8192, 128), (1, 40)):  # one piece, and several with a rest
                monkeypatch.setattr(slices, "ROWS", rows)
                monkeypatch.setattr(slices, "FEWEST", fewest)
                with torch.no_grad():
                    assert_same(attn(q, k, v, key_mask), expected)


@cases("deterministic")
def test_eval_is_deterministic(case: Case, causal: bool) -> None:
    attn = case.build(causal)
    q, k, v = case.inputs(150)
    first = attn(q, k, v)
    torch.manual_seed(123)
    assert torch.equal(attn(q, k, v), first)


@cases("save and load")
def test_save_and_load_reproduce_it_bitwise(case: Case, causal: bool, tmp_path: Any) -> None:
    attn = case.build(causal)
    q, k, v = case.inputs(150)
    torch.save(attn.state_dict(), tmp_path / "attention.pt")
    seeds = {"seed": 7} if "seed" in inspect.signature(attention_class(case.name)).parameters else {}
    other = case.build(causal, weights=5, **seeds)
    other.load_state_dict(torch.load(tmp_path / "attention.pt", weights_only=True))
    assert torch.equal(other(q, k, v), attn(q, k, v))


@cases("reset")
def test_reset_parameters_starts_anew(case: Case, causal: bool) -> None:
    attn = case.build(causal, weights=5)
    start = [x.clone() for x in attn.parameters()]
    if not start:
        return
    with torch.no_grad():
        for x in attn.parameters():
            x.fill_(9)
    attn.float()  # drawn in float32, as when it was built
    torch.manual_seed(5)
    for module in attn.modules():  # each resets its own, as in torch
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    for x, first in zip(attn.parameters(), start, strict=True):
        assert torch.equal(x.double(), first)


@cases("cross", causal=False, cross=True)
def test_keys_may_be_of_another_length(case: Case, causal: bool) -> None:
    attn = case.build(causal)
    for n, s in ((37, 150), (150, 37), (1, 37), (37, 1)):
        q, (_, k, v) = case.inputs(n)[0], case.inputs(s, seed=2)
        for key_mask in (None, padding(3, s)):
            out = attn(q, k, v, key_mask)
            assert out.shape == (3, HEADS, n, case.value_dim) and out.isfinite().all()
        if s > 1:
            masked = ~key_mask[:, None, :, None]
            assert_same(attn(q, k.masked_fill(masked, 3), v.masked_fill(masked, -7), key_mask), out)


@cases("cross", causal=False, cross=False)
def test_keys_of_another_length_raise(case: Case, causal: bool) -> None:
    with pytest.raises(ValueError, match="N=37 and S=20"):
        case.build(causal)(case.inputs(37)[0], *case.inputs(20)[1:])


@cases("sizes")
def test_sizes_it_was_not_built_for_raise(case: Case, causal: bool) -> None:
    attn = case.build(causal)
    q, k, v = case.inputs(20)
    if attn.bounded:
        with pytest.raises(ValueError, match=f"max_len={MAX_LEN}"):
            attn(*case.inputs(MAX_LEN + 1))
    else:
        assert attn(*case.inputs(MAX_LEN + 1)).isfinite().all()
    with pytest.raises(ValueError, match="head_dim"):
        attn(q[..., :-1], k[..., :-1], v)
    with pytest.raises(ValueError, match="q has shape"):
        attn(q[:, :1], k, v)
    with pytest.raises(ValueError, match="batch"):
        attn(q[:1], k, v)
    with pytest.raises(ValueError, match="positions"):
        attn(q, k, v[:, :, :-1])
    with pytest.raises(ValueError, match="at least one"):
        attn(*case.inputs(0))
    with pytest.raises(ValueError, match="key_mask"):
        attn(q, k, v, torch.ones(3, 19, dtype=torch.bool))
    with pytest.raises(ValueError, match="key_mask"):
        attn(q, k, v, torch.ones(3, 20))
    for size in ("num_heads", "head_dim", "max_len"):
        with pytest.raises(ValueError, match=f"{size}=0"):
            case.build(causal, **{size: 0})
    if causal:
        with pytest.raises(ValueError, match="N=20 and S=19"):
            attn(q, k[:, :, :-1], v[:, :, :-1])


@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_form_that_does_not_exist_raises_when_built(name: str) -> None:
    case = Case(name, 0)
    for causal in {False, True} - set(case.forms):
        with pytest.raises(ValueError, match="causal"):
            case.build(causal)


@cases("streaming", causal=True, streaming=True)
@pytest.mark.parametrize("pieces", [[1] * 37, [37], [1, 5, 31], [20, 1, 16], [80, 1, 69]], ids=str)
def test_pieces_give_what_the_whole_gives(case: Case, causal: bool, pieces: list[int]) -> None:
    attn = case.build(causal)
    n = sum(pieces)
    q, k, v = case.inputs(n)
    mask = padding(3, n)
    # a mask may also come only with some of the pieces: the others may all be attended
    partial = mask.clone()
    partial[:, pieces[0] :] = True
    for key_mask, given in ((None, 0), (mask, n), (partial, pieces[0])):
        state, out, start = None, [], 0
        for length in pieces:
            part = slice(start, start + length)
            piece_mask = key_mask[:, part] if key_mask is not None and start < given else None
            piece, state = attn.extend(q[:, :, part], k[:, :, part], v[:, :, part], state, piece_mask)
            out.append(piece)
            start += length
            assert state.seen == start
        assert_same(torch.cat(out, dim=2), attn(q, k, v, key_mask))


@cases("streaming", causal=True, streaming=True)
def test_a_state_is_a_value(case: Case, causal: bool) -> None:
    attn = case.build(causal)
    q, k, v = (x.requires_grad_() for x in case.inputs(37))
    start, rest = slice(20), slice(20, 37)
    mask = padding(3, 37)

    def begin() -> Any:
        return attn.extend(q[:, :, start], k[:, :, start], v[:, :, start], key_mask=mask[:, start])[1]

    def go_on(state: Any, pick: Any = slice(None)) -> Tensor:
        return attn.extend(q[pick, :, rest], k[pick, :, rest], v[pick, :, rest], state, mask[pick, rest])[0]

    state = begin()
    expected = go_on(state)
    assert torch.equal(go_on(state), expected), "going on from a state changed it"

    index = torch.tensor([2, 0, 0, 1])
    assert_same(go_on(state.reorder(index), index), expected[index])
    assert state.reorder(index).seen == 20

    detached = state.detach()
    assert torch.equal(go_on(detached), expected) and detached.seen == 20
    before = torch.autograd.grad(go_on(detached).sum(), v, retain_graph=True)[0][:, :, start]
    assert not before.any()
    assert torch.autograd.grad(go_on(state).sum(), v)[0][:, :, start].any()

    moved = state.to(torch.float32)
    assert moved.seen == 20
    assert all(x.dtype != torch.float64 for x in moved.state_dict().values() if x.is_floating_point())

    tensors = state.state_dict()
    assert all(isinstance(x, Tensor) for x in tensors.values())
    again = type(state).from_state_dict({key: x.detach().clone() for key, x in tensors.items()})
    assert again.seen == 20 and torch.equal(go_on(again), expected)


@cases("streaming", causal=True, streaming=True)
def test_gradients_flow_through_the_state(case: Case, causal: bool) -> None:
    attn = case.build(causal)
    q, k, v = (x.requires_grad_() for x in case.inputs(37))
    expected = torch.autograd.grad(attn(q, k, v).square().sum(), (q, k, v))
    first, state = attn.extend(q[:, :, :20], k[:, :, :20], v[:, :, :20])
    second, _ = attn.extend(q[:, :, 20:], k[:, :, 20:], v[:, :, 20:], state)
    actual = torch.autograd.grad(torch.cat((first, second), dim=2).square().sum(), (q, k, v))
    for a, e in zip(actual, expected, strict=True):
        assert_same(a, e)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_file_class_key_and_traits_agree(name: str) -> None:
    module, attribute = ATTENTIONS[name]
    cls = attention_class(name)
    assert issubclass(cls, Attention) and cls.__doc__
    assert attribute.lower() == name.replace("_", ""), "class and key have different names"
    assert module.startswith("cosformer.attention.")
    assert cls.traits.streaming == hasattr(cls, "extend")
    assert cls.traits.paper and cls.traits.time and cls.traits.memory
    breaks_a_rule = name in NO_PROMISE["padding"] or any(known == name for known, _ in DEVIATIONS)
    assert bool(cls.traits.deviations) == breaks_a_rule, "table and traits differ"
