"""The chunked gated recurrence against the recurrence itself, step by step."""

import pytest
import torch

from cosformer.ops.gated import CHUNK, gated_attention


def recurrence(fq, fk, v, log_keep):
    """One token after the other: the definition."""
    sums, totals, out = 0, 0, []
    for t in range(fq.shape[2]):
        keep = log_keep[:, :, t, None].exp()
        sums = keep[..., None] * sums + fk[:, :, t, :, None] * v[:, :, t, None]
        totals = keep * totals + fk[:, :, t]
        num = (fq[:, :, t, None] @ sums).squeeze(-2)
        out.append(num / (fq[:, :, t] * totals).sum(-1, keepdim=True))
    return torch.stack(out, dim=2), sums, totals


def inputs(n, dtype=torch.float64):
    torch.manual_seed(0)
    fq, fk = (torch.rand(2, 3, n, 7, dtype=dtype) + 0.1 for _ in range(2))
    return fq, fk, torch.randn(2, 3, n, 5, dtype=dtype), -3 * torch.rand(2, 3, n, dtype=dtype) ** 4


def gated(fq, fk, v, log_keep, state=None):
    return gated_attention(fq, fk, v, log_keep, state, normaliser="clamp", eps=1e-12)


@pytest.mark.parametrize("n", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 200])
def test_it_is_the_recurrence(n):
    def chunked(*x):
        out, state = gated(*x)
        return out, state.kv, state.z

    results = []
    for form in (chunked, recurrence):
        leaves = [x.requires_grad_() for x in inputs(n)]
        out, kv, z = form(*leaves)
        loss = (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)).sum() + kv.sum() + z.sum()
        results.append((out, kv, z, *torch.autograd.grad(loss, leaves)))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-9)
    assert n == 1 or results[1][-1].abs().max() > 1e-3, "the gates have no gradient"


@pytest.mark.parametrize("pieces", [[1] * 10, [100, 1, 99], [CHUNK, CHUNK, 3]], ids=str)
def test_it_goes_on_from_a_state(pieces):
    n = sum(pieces)
    whole, last = gated(*inputs(n))
    state, out = None, []
    for piece in zip(*(x.split(pieces, dim=2) for x in inputs(n)), strict=True):
        rows, state = gated(*piece, state)
        out.append(rows)
    torch.testing.assert_close(torch.cat(out, dim=2), whole)
    torch.testing.assert_close(state.kv, last.kv)
    assert state.seen == last.seen == n


@pytest.mark.parametrize("log_keep", [0.0, -1e-4, -30.0, -200.0])
def test_gates_of_any_size_stay_finite_in_float32(log_keep):
    fq, fk, v, gates = inputs(300, torch.float32)
    leaves = [x.requires_grad_() for x in (fq, fk, v, torch.full_like(gates, log_keep))]
    out, _ = gated(*leaves)
    expected, *_ = recurrence(*(x.double() for x in leaves))
    torch.testing.assert_close(out, expected.float(), rtol=1e-4, atol=1e-5)
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), leaves))
