"""Every mistake of the caller: an error that names the value, the limit and the way out."""

from dataclasses import replace

import pytest
import torch

from cosformer import CosformerAttention, LinearState, cosformer_attention
from cosformer.ops import linear_attention


def qkv(n=6, s=6, h=4, hk=4, d=8, e=8, b=2):
    return torch.randn(b, h, n, d), torch.randn(b, hk, s, d), torch.randn(b, hk, s, e)


Q, K, V = qkv()
ALL, FIRST = (Q, K, V), (Q[:1], K[:1], V[:1])
STATE = cosformer_attention(Q, K, V, causal=True, max_len=20, return_state=True)[1]

BAD = {
    "rank": ((Q[0], K, V), {}, r"q has 3 dimensions.*expected 4"),
    "dtype": ((Q.long(), K, V), {}, r"q is torch.int64; expected float64"),
    "mixed dtypes": ((Q.double(), K, V), {}, r"torch.float64, torch.float32.*must be equal"),
    "batch": ((Q[:1], K, V), {}, r"batch sizes 1, 2, 2"),
    "channels": ((Q[..., :5], K, V), {}, r"q has 5 channels and k has 8"),
    "keys and values": ((Q, K, V[:, :, :3]), {}, r"4 heads of 6 positions, v has 4 of 3"),
    "heads": ((Q, K[:, :3], V[:, :3]), {}, r"q has 4 heads, k and v have 3.*multiple"),
    "no channels": ((Q[..., :0], K[..., :0], V), {}, r"at least 1"),
    "mask dtype": (ALL, {"key_mask": torch.ones(2, 6), "max_len": 9}, r"key_mask is torch.float32; expected bool"),
    "mask shape": (ALL, {"key_mask": torch.ones(6, 2).bool(), "max_len": 9}, r"expected.*\[2, 6\]"),
    "too long": (ALL, {"max_len": 5}, r"6 tokens exceeds max_len=5.*larger max_len"),
    "query offset too far": (ALL, {"max_len": 7, "q_offset": 2}, r"8 tokens exceeds max_len=7"),
    "negative offset": (ALL, {"max_len": 9, "q_offset": -1}, r"q_offset=-1; it must be at least 0"),
    "causal lengths": ((Q[:, :, :2], K, V), {"causal": True, "max_len": 9}, r"q_offset=S-N=4"),
    "more queries than keys": ((Q, K[:, :, :2], V[:, :, :2]), {"causal": True, "max_len": 9}, r"S-N=-4"),
    "align": (ALL, {"align": "relative"}, r"align='relative'; known: absolute, proportional"),
    "proportional causal": (ALL, {"align": "proportional", "causal": True}, r"does not go with causal"),
    "eps": (ALL, {"eps": 0.0}, r"eps=0.0; it must be above 0"),
    "unknown backend": (ALL, {"backend": "fast"}, r"unknown backend 'fast'; known: auto, dense, plain"),
    "mask without max_len": (ALL, {"key_mask": torch.ones(2, 6).bool()}, r"key_mask given without max_len"),
    "state without max_len": (ALL, {"causal": True, "state": STATE}, r"state given without max_len"),
    "return_state without max_len": (ALL, {"causal": True, "return_state": True}, r"return_state given without"),
    "other max_len": (ALL, {"causal": True, "state": STATE, "max_len": 30}, r"max_len=20, this call has max_len=30"),
    "other state": (
        FIRST,
        {"causal": True, "state": STATE, "max_len": 20},
        r"state holds kv \(2, 4, 16, 8\) and z \(2, 4, 16\); k and v of this call need .* = \[1, 4, 16, 8\]",
    ),
    "not a state": (ALL, {"causal": True, "state": (K, V), "max_len": 20}, r"state is a tuple"),
    "state of two shapes": (
        ALL,
        {"causal": True, "state": replace(STATE, z=STATE.z[:, :, :8]), "max_len": 20},
        r"z \(2, 4, 8\); k and v of this call need .* \[B, Hk, F\] = \[2, 4, 16\]",
    ),
    "state of two dtypes": (
        ALL,
        {"causal": True, "state": replace(STATE, z=STATE.z.double()), "max_len": 20},
        r"state is torch.float64 and k is torch.float32",
    ),
    "state dtype": (
        (Q.double(), K.double(), V.double()),
        {"causal": True, "state": STATE, "max_len": 20},
        r"state is torch.float32 and k is torch.float64",
    ),
    "packed batch": (ALL, {"cu_seqlens": torch.tensor([0, 6]), "max_len": 9}, r"needs batch 1.*got batch 2"),
    "packed without max_len": (FIRST, {"cu_seqlens": torch.tensor([0, 6])}, r"cu_seqlens given without"),
    "packed end": (FIRST, {"cu_seqlens": torch.tensor([0, 5]), "max_len": 9}, r"from 0 to N=6, got \[0, 5\]"),
    "packed order": (FIRST, {"cu_seqlens": torch.tensor([0, 4, 2, 6]), "max_len": 9}, r"must rise"),
    "packed dtype": (FIRST, {"cu_seqlens": torch.tensor([0.0, 6.0]), "max_len": 9}, r"int32 or int64"),
    "packed too long": (FIRST, {"cu_seqlens": torch.tensor([0, 6]), "max_len": 5}, r"of 6 tokens exceeds max_len=5"),
    "packed mask": (
        FIRST,
        {"cu_seqlens": torch.tensor([0, 6]), "max_len": 9, "key_mask": torch.ones(1, 6).bool()},
        r"does not go with key_mask",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_are_named(name):
    tensors, options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        cosformer_attention(*tensors, **options)


def test_devices_must_agree():
    with pytest.raises(ValueError, match=r"on cpu, meta, cpu"):
        cosformer_attention(Q, K.to("meta"), V)


def test_a_known_backend_that_cannot_run_here_says_why():
    with pytest.raises(RuntimeError, match=r"backend 'native' cannot run here: .*; use backend='auto'"):
        cosformer_attention(Q.half(), K.half(), V.half(), backend="native")


def test_unknown_normaliser():
    with pytest.raises(ValueError, match=r"unknown normaliser 'softmax'; known: clamp, add, signed, none"):
        linear_attention(Q, K, V, normaliser="softmax")


def test_state_on_another_device():
    moved = LinearState(STATE.kv.to("meta"), STATE.z.to("meta"), STATE.position, STATE.max_len)
    with pytest.raises(ValueError, match=r"state is on meta and k on cpu"):
        cosformer_attention(Q, K, V, causal=True, state=moved, max_len=20)


@pytest.mark.parametrize(
    ("tensors", "options", "message"),
    [
        ((Q[..., :5], K, V), {}, r"q has 5 channels and k has 8"),
        ((Q, K[:, :, :3], V[:, :, :3]), {"causal": True}, r"N=6 queries over S=3 keys: N must be at most S"),
        ((Q, K, V), {"state": STATE}, r"need \[B, Hk, F, E\] = \[2, 4, 8, 8\]"),
        ((Q, K, V), {"key_mask": torch.ones(2, 5).bool()}, r"key_mask has shape \(2, 5\)"),
    ],
)
def test_linear_attention_checks_too(tensors, options, message):
    with pytest.raises(ValueError, match=message):
        linear_attention(*tensors, **options)


@pytest.mark.parametrize("name", ["max_len", "q_offset"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("value", "message"),
    [(300.0, "=300.0 is a float; pass a whole number"), (2**63, r"=9223372036854775808; it must be at most 2\*\*53")],
)
def test_lengths_are_whole_numbers(name, value, message, causal):
    for n in (6, 300):
        with pytest.raises(ValueError, match=f"^{name}{message}"):
            cosformer_attention(*qkv(n, n), causal=causal, **{name: value})
    if name == "max_len":
        with pytest.raises(ValueError, match=f"^{name}{message}"):
            cosformer_attention(Q[:, :, :1], K[:, :, :1], V[:, :, :1], causal=True, return_state=True, max_len=value)
        with pytest.raises(ValueError, match=f"^{name}{message}"):
            CosformerAttention(8, 2, max_len=value)
