"""The non-causal linear form in a handful of plain operations: what compilers and exporters see."""

from torch import Tensor

from cosformer.ops.dense import dense_state, features, stack_heads, unstack_heads
from cosformer.ops.normaliser import NORMALISERS
from cosformer.ops.spec import AttentionSpec


def factored_attention(
    q: Tensor, k: Tensor, v: Tensor, kv: Tensor | None, z: Tensor | None, p: AttentionSpec
) -> tuple[Tensor, Tensor, Tensor]:
    """``out [B,H,N,E]`` and the state after the keys: ``Phi(q) (Phi(k)^T v)`` over ``Phi(q) (Phi(k)^T 1)``.

    Linear in N and S, and free of loops, so that one graph serves every length.
    """
    kv, z = dense_state(k, v, kv, z, p)
    fq = stack_heads(features(q, p.q_first, p.q_len, p.relu), k.shape[1])
    num = fq @ kv
    if p.normaliser != "none":
        num = num / NORMALISERS[p.normaliser].divisor(fq @ z[..., None], p.eps)
    return unstack_heads(num, q.shape[1]), kv, z
