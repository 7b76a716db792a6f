"""Performer: positive random features whose products estimate the softmax kernel (FAVOR+)."""

import math

import torch
from torch import Tensor

from cosformer.attention.base import Traits, at_least_one
from cosformer.attention.feature_maps import FeatureMap, widen

EPS = {"softmax": 1e-4, "relu": 1e-3}  # for each kernel
LARGEST = 60.0  # log of the largest key feature: float32 sums stay finite; only a key along a row of W gets there


class Performer(FeatureMap):
    """Weights ``phi(q_i).phi(k_j)`` with random features of ``x' = x D^(-1/4)`` (Choromanski et al. 2021).

    kernel "softmax": ``phi(x) = exp(W x' - |x'|^2 / 2) + eps``: but for eps and a constant factor, the products are
    unbiased estimates of ``exp(q.k / sqrt(D))``. "relu", the generalised kernel: ``phi(x) = relu(W x') + eps``.

    W ``[num_features, D]`` (default int(D ln D) features) has orthogonal rows in blocks of D, each with the length of a
    Gaussian vector. It lives in a buffer, drawn from ``seed`` (default 0); heads, queries and keys share it. Every
    ``redraw_interval`` training calls :meth:`redraw` replaces it (None: only when you call it). Under activation
    checkpointing use None, as a redraw between a forward pass and its repetition gives gradients of another map.

    A feature is typically 1, and eps is relative to that, whatever the input. The authors' code adds eps relative to
    the largest feature of all keys instead: there the far end of a sequence changes how even the weights are
    everywhere, also before it. Here features depend on their own token only, and overflow is avoided by a factor for
    each query, which cancels exactly.
    """

    traits = Traits(
        paper="Choromanski et al. 2021", time="N F D", memory="N F", causal=True, cross=True, streaming=True
    )
    grouped = True
    projection: Tensor
    calls: Tensor
    draws: Tensor

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        max_len: int,
        causal: bool,
        num_features: int | None = None,
        kernel: str = "softmax",
        eps: float | None = None,
        redraw_interval: int | None = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        if kernel not in EPS:
            raise ValueError(f"unknown kernel {kernel!r}; known: {', '.join(EPS)}")
        if num_features is None:
            num_features = max(1, int(head_dim * math.log(head_dim)))
        at_least_one(num_features=num_features)
        if redraw_interval is not None and redraw_interval < 1:
            raise ValueError(f"redraw_interval={redraw_interval}; it must be at least 1, or None for no redraws")
        if eps is not None and eps < 0:
            raise ValueError(f"eps={eps}; it must be at least 0")
        self.num_features, self.kernel, self.redraw_interval, self.seed = num_features, kernel, redraw_interval, seed
        self.feature_eps = EPS[kernel] if eps is None else eps
        self.register_buffer("projection", orthogonal_gaussian(num_features, head_dim, seed=seed))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))  # training calls so far
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64))  # redraws so far

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, num_features={self.num_features}, kernel={self.kernel!r}"

    def redraw(self) -> None:
        """A new W, the next one of the sequence that ``seed`` determines."""
        self.draws += 1
        # far apart, so that attentions with neighbouring seeds do not get each other's W one redraw later
        seed = self.seed + 1_000_003 * int(self.draws)
        self.projection.copy_(orthogonal_gaussian(*self.projection.shape, seed=seed))

    def features(self, q: Tensor, k: Tensor, *, first: int, fresh: bool) -> tuple[Tensor, Tensor]:
        if fresh and self.redraw_interval is not None and not self.projection.is_meta:
            if self.calls > 0 and self.calls % self.redraw_interval == 0:
                self.redraw()
            self.calls += 1
        if self.kernel == "relu":
            return self._relu_features(q), self._relu_features(k)
        return self._query_features(q), self._key_features(k)

    def _project(self, x: Tensor) -> Tensor:
        x = widen(x)
        return x @ (self.projection.to(x.dtype) * self.head_dim**-0.25).mT

    def _relu_features(self, x: Tensor) -> Tensor:
        return self._project(x).add_(self.feature_eps).clamp_min_(self.feature_eps)  # relu(Wx') + eps

    def _exponent(self, x: Tensor) -> Tensor:
        """``W x' - |x'|^2 / 2``, [B,H,N,m]."""
        half_square = widen(x).square().sum(-1, keepdim=True) * (0.5 * self.head_dim**-0.5)
        return self._project(x).sub_(half_square)

    def _query_features(self, q: Tensor) -> Tensor:
        exponent = self._exponent(q)
        # exp(-top) multiplies the whole row, eps too, so it drops out of the normalised weights
        top = exponent.detach().amax(-1, keepdim=True)
        if not self.feature_eps:
            return exponent.sub_(top).exp_()
        top = top.clamp_min(math.log(self.feature_eps))
        return exponent.sub_(top).exp_() + top.neg().exp_().mul_(self.feature_eps)

    def _key_features(self, k: Tensor) -> Tensor:
        features = self._exponent(k).clamp_max_(LARGEST).exp_()
        return features + self.feature_eps if self.feature_eps else features


def orthogonal_gaussian(rows: int, columns: int, *, seed: int) -> Tensor:
    """``[rows, columns]``: each row a Gaussian vector, orthogonal to the others in its block of ``columns`` rows."""
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-rows // columns)
    basis, triangle = torch.linalg.qr(torch.randn(blocks, columns, columns, generator=generator))
    # QR fixes the signs of the basis by its input, so some coordinates would always be negative and the features biased
    directions = (basis * triangle.diagonal(dim1=-2, dim2=-1).sign()[:, None]).mT
    lengths = torch.randn(rows, columns, generator=generator).norm(dim=-1, keepdim=True)
    return directions.flatten(0, 1)[:rows] * lengths
