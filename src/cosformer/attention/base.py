"""The base class of every attention mechanism, its traits, and the protocol of a streaming state."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Traits:
    """Facts about a mechanism: which forms it has, for checks when it is built, and its cost, for tables and tests."""

    paper: str  # "Wang et al. 2020"
    time: str  # cost in N (tokens), D (head size) and the method's own letters, e.g. "N k D"
    memory: str  # likewise, beyond inputs and output
    causal: bool  # has a left-to-right form
    cross: bool  # takes keys of another length than the queries
    streaming: bool  # has `extend` and a state
    bidirectional: bool = True  # has a form in which every row may attend to every key
    deviations: tuple[str, ...] = ()  # rules of the contract it breaks by its nature, each with its reason and size


class State(Protocol):
    """What ``extend`` carries from one call to the next. It is never modified in place."""

    @property
    def seen(self) -> int:
        """How many tokens have been processed, including masked ones."""
        ...

    def reorder(self, index: Tensor) -> Self:
        """The batch rows selected by ``index`` (int64 ``[B']``), as beam search needs."""
        ...

    def detach(self) -> Self:
        """The same values, detached from the graph."""
        ...

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Like ``Tensor.to``, for device and dtype."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors to save."""
        ...

    @classmethod
    def from_state_dict(cls, tensors: dict[str, Tensor]) -> Self:
        """The state that ``state_dict`` saved."""
        ...


class TensorState:
    """The methods of a :class:`State` for a frozen dataclass of tensors with the batch first, other states, and
    numbers."""

    def reorder(self, index: Tensor) -> Self:
        return self._each(lambda x: x.index_select(0, index.to(x.device)), lambda state: state.reorder(index))

    def detach(self) -> Self:
        return self._each(Tensor.detach, lambda state: state.detach())

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Masks, positions and counts follow the device and keep their dtype."""
        return self._each(lambda x: moved(x, *args, **kwargs), lambda state: state.to(*args, **kwargs))

    def state_dict(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for name, value in vars(self).items():
            if hasattr(value, "state_dict"):
                tensors |= {f"{name}.{key}": x for key, x in value.state_dict().items()}
            elif value is not None:
                tensors[name] = torch.as_tensor(value)
        return tensors

    def _each(self, tensor: Callable[[Tensor], Tensor], state: Callable[[Any], Any]) -> Self:
        values: dict[str, Any] = {name: tensor(x) for name, x in vars(self).items() if isinstance(x, Tensor)}
        values |= {name: state(x) for name, x in vars(self).items() if hasattr(x, "reorder")}
        return replace(self, **values)  # pyright: ignore[reportArgumentType]


def moved(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Like ``Tensor.to``; integers and bools take the device alone."""
    return x.to(*args, **kwargs) if x.is_floating_point() else x.to(x.new_empty(0).float().to(*args, **kwargs).device)


def at_least_one(**sizes: int) -> None:
    """Raise ValueError for a size below 1."""
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name}={value}; it must be at least 1")


class Attention(nn.Module):
    """Base class of every mechanism. Sizes and causality are fixed at construction.

    ``forward(q [B,H,N,D], k [B,H,S,D], v [B,H,S,E], key_mask bool [B,S] or None) -> [B,H,N,E]``; ``key_mask`` is True
    where a key may be attended. A row with nothing to attend to gives zeros. Every mechanism is linear in ``v``.

    A streaming mechanism (``traits.streaming``) built causal also has ``extend(q, k, v, state=None, key_mask=None) ->
    (out, state)`` for the next n >= 1 tokens. Extending over any split of a sequence gives what ``forward`` gives for
    all of it.
    """

    traits: ClassVar[Traits]
    grouped: ClassVar[bool] = False  # accepts fewer heads of keys and values, each shared by several query heads
    bounded: bool = True  # refuses input longer than max_len

    def __init__(self, *, num_heads: int, head_dim: int, max_len: int, causal: bool) -> None:
        super().__init__()
        at_least_one(num_heads=num_heads, head_dim=head_dim, max_len=max_len)
        if causal and not self.traits.causal:
            name = type(self).__name__
            raise ValueError(f"{name} has no causal form; build it with causal=False or choose another attention")
        if not causal and not self.traits.bidirectional:
            name = type(self).__name__
            raise ValueError(f"{name} has only a causal form; build it with causal=True")
        self.num_heads, self.head_dim, self.max_len, self.causal = num_heads, head_dim, max_len, causal

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, head_dim={self.head_dim}, max_len={self.max_len}, causal={self.causal}"

    def packed(self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Concatenated sequences, each attending only to itself: ``[1,H,T,.]`` -> ``[1,H,T,E]``.

        ``cu_seqlens`` int ``[n+1]``: the sequences' bounds, from 0 to T.
        """
        ends = itertools.pairwise(cu_seqlens.tolist())
        parts = [slice(start, end) for start, end in ends if end > start]
        return torch.cat([self(q[:, :, part], k[:, :, part], v[:, :, part]) for part in parts], dim=2)

    def sharded(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        group: Any,
        key_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """This rank's shard of a sequence split over the process group ``group``; see ``cosformer_attention``."""
        raise ValueError(
            f"{type(self).__name__} does not support sequences sharded over several processes, which needs a state of "
            "plain sums over keys; use cosformer or a feature-map attention"
        )

    def check(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> None:
        """Raise ValueError on inputs that do not match the sizes this attention was built with."""
        heads, dim = self.num_heads, self.head_dim
        for name, x in (("q", q), ("k", k), ("v", v)):
            fits = x.dim() == 4 and (x.shape[1] == heads or (self.grouped and name != "q" and heads % x.shape[1] == 0))
            if not fits:
                raise ValueError(f"{name} has shape {tuple(x.shape)}; expected [B, {heads}, length, channels]")
        if q.shape[-1] != dim or k.shape[-1] != dim:
            got = f"{q.shape[-1]} and {k.shape[-1]}"
            raise ValueError(f"q and k have {got} channels; this attention was built with head_dim={dim}")
        if not q.shape[0] == k.shape[0] == v.shape[0]:
            sizes = f"{q.shape[0]}, {k.shape[0]}, {v.shape[0]}"
            raise ValueError(f"q, k, v have batch sizes {sizes}; they must be equal")
        n, s = q.shape[2], k.shape[2]
        if v.shape[2] != s:
            raise ValueError(f"k has {s} positions and v has {v.shape[2]}; they must be equal")
        if min(n, s) < 1:
            raise ValueError(f"got N={n} queries and S={s} keys; there must be at least one of each")
        if self.bounded and max(n, s) > self.max_len:
            way_out = "build the attention with a larger max_len"
            raise ValueError(f"sequence of {max(n, s)} tokens exceeds max_len={self.max_len}; {way_out}")
        if n != s and (self.causal or not self.traits.cross):
            why = "a causal attention" if self.causal else type(self).__name__
            raise ValueError(f"{why} needs as many keys as queries, got N={n} and S={s}")
        if key_mask is not None and (key_mask.shape != (k.shape[0], s) or key_mask.dtype != torch.bool):
            got = f"{key_mask.dtype} {tuple(key_mask.shape)}"
            raise ValueError(f"key_mask is {got}; expected bool [{k.shape[0]}, {s}], True = may be attended")

    def check_extend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, state: State | None) -> None:
        """Raise ValueError on inputs that cannot follow ``state``.

        A compiled step checks the length where it advances the state's position.
        """
        if not self.causal:
            raise ValueError("extend goes from left to right; build the attention with causal=True")
        self.check(q, k, v, key_mask)
        seen = 0 if state is None or torch.compiler.is_compiling() else state.seen
        if self.bounded and seen + q.shape[2] > self.max_len:
            way_out = "build the attention with a larger max_len"
            raise ValueError(f"{seen} + {q.shape[2]} tokens exceed max_len={self.max_len}; {way_out}")
