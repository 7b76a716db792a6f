"""Attention by feature maps: weights are products of features, so time and memory are linear in the length.

The base class of the family, and the maps that need no file of their own: ReLU, leaky ReLU, identity, elu + 1, a
constant.
"""

from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.base import Attention, Traits
from cosformer.attention.slices import attend_in_slices, works_in_slices
from cosformer.ops.checks import check_eps, check_tensors, without_autocast
from cosformer.ops.operator import linear_attention
from cosformer.ops.spec import AttentionSpec, Call, accumulator
from cosformer.ops.state import LinearState


class FeatureMap(Attention):
    """``o_i = sum_j (phi(q_i).phi(k_j)) v_j / sum_j phi(q_i).phi(k_j)``, by the kernels of the operator.

    A subclass says what phi is: :meth:`phi` where queries and keys have the same map and positions do not matter,
    :meth:`features` otherwise, :meth:`attend` where the sums themselves differ. Masked keys are left out after the map,
    so they leave numerator and denominator.
    """

    normaliser: ClassVar[str] = "clamp"  # what becomes of the row sum, see linear_attention
    eps: ClassVar[float] = 1e-6
    relu: ClassVar[bool] = False  # ReLU on both features inside the kernel, which saves writing them
    maps: ClassVar[bool] = True  # False: the features are q and k themselves and take no memory

    def phi(self, x: Tensor) -> Tensor:
        """x [B,H,N,D] -> features [B,H,N,F]."""
        raise NotImplementedError(f"{type(self).__name__} must define phi or features")

    def features(self, q: Tensor, k: Tensor, *, first: int, fresh: bool) -> tuple[Tensor, Tensor]:
        """q [B,H,N,D], k [B,H,S,D] -> fq [B,H,N,F], fk [B,H,S,F].

        ``first`` is the position of the first query and key. ``fresh``: maps that draw new random numbers for every
        training call do so; otherwise they use the ones in their buffers.
        """
        return self.phi(q), self.phi(k)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """q [B,H,N,D], k [B,H,S,D], v [B,H,S,E], key_mask bool [B,S] -> [B,H,N,E]."""
        self.check(q, k, v, key_mask)
        # autocast would take the projections inside the maps to half precision
        with without_autocast(q.device):
            # in training the random numbers of a call must be the same for all of it
            if self.maps and not self.training and works_in_slices(q, k):
                return attend_in_slices(self._extend, q, k, v, key_mask, causal=self.causal)
            return self.attend(q, k, v, None, key_mask, first=0, fresh=self.training)[0]

    def sharded(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        group: Any,
        key_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """This rank's shard of a sequence; random maps draw the same numbers on every rank of ``group``."""
        from cosformer.ops import parallel  # torch.distributed is loaded by those who use it

        def check() -> None:
            if cu_seqlens is not None:
                raise ValueError(
                    f"{type(self).__name__} does not support packed sequences sharded over processes; cosformer does"
                )
            check_tensors(q, k, v, key_mask)

        shards, _ = parallel.agree(group, check, q, k, v, causal=self.causal, max_len=self.max_len)
        if shards.q_bounds[-1] > self.max_len:
            raise ValueError(
                f"the shards have {shards.q_bounds[-1]} tokens in total, which exceeds max_len={self.max_len}; build "
                "the attention with a larger max_len"
            )
        devices = [q.device] if q.is_cuda else []
        with without_autocast(q.device), torch.random.fork_rng(devices, enabled=self.training):
            if self.training:
                torch.manual_seed(shards.seed)
            fq, fk = self.features(q, k, first=shards.first, fresh=self.training)
            spec = AttentionSpec.features(
                causal=self.causal, relu=self.relu, normaliser=self.normaliser, eps=check_eps(self.eps, fq.dtype)
            )
            call = Call(fq, fk, v.to(fq.dtype), None, None, key_mask, None, None, spec)
            return parallel.attend_shards(call, shards, max_len=0, backend="auto").to(v.dtype)

    def extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: LinearState | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, LinearState]:
        """The next n tokens after ``state``, whose size does not grow: (out [B,H,n,E], new state).

        Random maps always use the numbers in their buffers here: every call on a sequence must use the same.
        """
        self.check_extend(q, k, v, key_mask, state)
        first: Any = 0
        if state is not None:  # a compiler must not look at the value
            first = state.position if torch.compiler.is_compiling() else state.seen
        with without_autocast(q.device):
            return self._extend(q, k, v, state, key_mask, first)

    def _extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: LinearState | None, key_mask: Tensor | None, first: int
    ) -> tuple[Tensor, LinearState]:
        out, state = self.attend(q, k, v, state, key_mask, first=first, fresh=False, return_state=True)
        assert state is not None
        return out, state

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: LinearState | None,
        key_mask: Tensor | None,
        *,
        first: int,
        fresh: bool,
        return_state: bool = False,
    ) -> tuple[Tensor, LinearState | None]:
        """Checked input -> (out, state or None); out is in the dtype of v, the sums in that of the features."""
        fq, fk = self.features(q, k, first=first, fresh=fresh)
        result = linear_attention(
            fq,
            fk,
            v.to(fq.dtype),
            causal=self.causal,
            key_mask=key_mask,
            state=state,
            return_state=return_state,
            relu=self.relu,
            normaliser=self.normaliser,
            eps=self.eps,
        )
        out, state = result if isinstance(result, tuple) else (result, None)
        return out.to(v.dtype), state


def widen(x: Tensor) -> Tensor:
    """In float32 at least: exponentials, sines and cosines of half-precision arguments have no correct digits."""
    return x.to(accumulator(x.dtype))


class Relu(FeatureMap):
    """Weights ``relu(q_i).relu(k_j)``, normalised by their sum (phi = ReLU in the ablation of Qin et al. 2022).

    A query without a positive channel in common with any key attends to nothing and gives zeros.
    """

    traits = Traits(paper="Qin et al. 2022", time="N D^2", memory="N D", causal=True, cross=True, streaming=True)
    relu = True
    maps = False
    grouped = True

    def phi(self, x: Tensor) -> Tensor:
        return x  # the kernel applies the ReLU


class LeakyRelu(FeatureMap):
    """Weights ``phi(q_i).phi(k_j)`` with phi(x) = x above zero, ``slope`` x below (ablation of Qin et al. 2022).

    The paper does not name its slope. Weights can be negative: row sums keep their sign and stay at least 1e-6 away
    from zero.
    """

    traits = Relu.traits
    normaliser = "signed"

    def __init__(self, *, num_heads: int, head_dim: int, max_len: int, causal: bool, slope: float = 0.01) -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        self.slope = slope

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, slope={self.slope}"

    def phi(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, self.slope)


class Identity(FeatureMap):
    """Weights ``q_i.k_j / sum_j q_i.k_j`` (phi = identity, the worst ablation of Qin et al. 2022).

    Weights of either sign: a row sum may come near zero, where outputs grow without bound. It keeps its sign and stays
    at least 1e-6 away from zero.
    """

    traits = Relu.traits
    normaliser = "signed"
    maps = False

    def phi(self, x: Tensor) -> Tensor:
        return x


class Linear(FeatureMap):
    """``o_i = sum_j (phi(q_i).phi(k_j)) v_j / (sum_j phi(q_i).phi(k_j) + 1e-6)``, phi(x) = elu(x) + 1.

    The Linear Transformer of Katharopoulos et al. 2020. The small number is added to the row sum, as its authors do,
    and there is no 1/sqrt(D).
    """

    traits = replace(Relu.traits, paper="Katharopoulos et al. 2020")
    normaliser = "add"
    grouped = True

    def phi(self, x: Tensor) -> Tensor:
        return elu_plus_one(x)


class Uniform(FeatureMap):
    """``o_i = mean of v_j over the keys that row i may see``; queries and keys are not looked at: the control that
    cannot attend.

    A task on which it does as well as an attention that chooses says nothing about how the choice is made. One feature,
    the constant one, so the causal form is a running mean in linear time and its state is one sum and one count a head.
    """

    traits = Traits(paper="(a control)", time="N D", memory="N", causal=True, cross=True, streaming=True)

    def phi(self, x: Tensor) -> Tensor:
        # ones that hang on x with a gradient of zero: training on several machines wants one for every parameter
        return x[..., :1].masked_fill(torch.ones((), dtype=torch.bool, device=x.device), 1)


def elu_plus_one(x: Tensor) -> Tensor:
    """x + 1 above zero, exp(x) below: positive and smooth."""
    return F.elu(widen(x)).add_(1)
