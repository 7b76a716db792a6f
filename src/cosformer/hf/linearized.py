"""Stock models whose attention layers run mechanisms of their own: learned linear ones, and softmax where it was kept.

What ``attn_implementation="cosformer_learned"`` calls. Which layers there are and what each runs stands in the config's
``learned``; the mechanisms are submodules of the stock attention modules, so they are saved and loaded with them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from cosformer.attention.recorded_state import extend_state
from cosformer.attention.softmax import Softmax
from cosformer.hf.attention import check_mask, mention_dropout, refuse_arguments
from cosformer.hf.learned_map import LearnedMap
from cosformer.hf.windowed_map import WindowedMap
from cosformer.models.attention_weights import replaced_function

LEARNED = "cosformer_learned"
MECHANISM = "mechanism"  # the submodule of a stock attention module


@dataclass(frozen=True)
class LearnedAttention:
    """What a linearized model runs, as its config keeps it."""

    attention: str  # of the zoo, behind the learned maps
    layers: list[str]  # attention modules as the base model names them, in the order they run
    kept: list[str]  # those among them that stay softmax
    num_heads: int
    num_key_heads: int
    head_dim: int
    features: int
    max_len: int
    causal: bool
    window: int = 0  # keys before each query that stay softmax in the linear layers
    options: dict[str, Any] = field(default_factory=dict)  # of the mechanism

    def build(self, index: int) -> nn.Module:
        """The mechanism of layer ``index``."""
        return self.softmax() if self.layers[index] in self.kept else self.linear(index)

    def linear(self, index: int) -> LearnedMap:
        names = ("num_heads", "num_key_heads", "head_dim", "features", "max_len", "causal", "options")
        sizes: dict[str, Any] = {name: getattr(self, name) for name in names} | {"seed": index}
        if self.window:
            return WindowedMap(self.attention, window=self.window, **sizes)
        return LearnedMap(self.attention, **sizes)

    def softmax(self) -> Softmax:
        return Softmax(num_heads=self.num_heads, head_dim=self.head_dim, max_len=self.max_len, causal=self.causal)


def learned_attention(config: Any) -> LearnedAttention:
    return LearnedAttention(**config.learned)


def attach_mechanisms(model: PreTrainedModel) -> None:
    """Give each attention module the mechanism that the config names for it."""
    plan = learned_attention(model.config)
    for index, layer in enumerate(plan.layers):
        model.base_model.get_submodule(layer).add_module(MECHANISM, plan.build(index))


def mechanisms(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Layer name -> its mechanism, in the order they run."""
    return {name: getattr(model.base_model.get_submodule(name), MECHANISM) for name in model.config.learned["layers"]}


@contextmanager
def replaced_mechanisms(model: PreTrainedModel, others: dict[str, nn.Module]) -> Iterator[None]:
    """Inside, the named layers run these."""
    before = mechanisms(model)
    for name, other in others.items():
        setattr(model.base_model.get_submodule(name), MECHANISM, other)
    try:
        yield
    finally:
        for name in others:
            setattr(model.base_model.get_submodule(name), MECHANISM, before[name])


def keep_softmax(model: PreTrainedModel, kept: list[str]) -> None:
    """From now on these layers are softmax, for good."""
    plan = learned_attention(model.config)
    for name in kept:
        setattr(model.base_model.get_submodule(name), MECHANISM, plan.softmax())
    model.config.learned = asdict(plan) | {"kept": [name for name in plan.layers if name in {*plan.kept, *kept}]}


def learned_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """``query [B,H,N,D]``, ``key`` and ``value [B,Hk,S,.]``, mask ``[B,S]`` from ``cosformer_mask`` -> ``[B,N,H,E]``."""
    mechanism: Any = getattr(module, MECHANISM, None)
    if mechanism is None:
        raise ValueError(
            f"attn_implementation={LEARNED!r} runs models that `cosformer linearize` wrote; this {type(module).__name__}"
            " has no mechanism"
        )
    refuse_arguments(kwargs)
    if kwargs.get("cu_seq_lens_q") is not None:
        raise ValueError("a linearized model takes no packed sequences; pad them")
    if dropout:
        mention_dropout(module, dropout)
    layer = getattr(key, "cosformer_layer", None)
    check_mask(attention_mask, key, query, layer, 1)
    if layer is None:
        if key.shape[2] != query.shape[2]:
            raise ValueError(
                f"{query.shape[2]} queries and {key.shape[2]} keys: a linearized model keeps states, not keys; pass a"
                " cosformer StateCache as past_key_values, as generate() does by itself"
            )
        out = mechanism(query, key, value, attention_mask)
    else:
        new = None if attention_mask is None else attention_mask[:, -query.shape[2] :]
        out, layer.state = extend_state(mechanism.extend, query, key, value, layer.state, new)
        layer.pending = False
    return out.transpose(1, 2).contiguous(), None


class FoundLayer(NamedTuple):
    """An attention module that calls transformers' attention interface, and what it hands over."""

    name: str
    num_heads: int
    num_key_heads: int
    head_dim: int
    causal: bool


@torch.no_grad()
def find_layers(model: PreTrainedModel) -> list[FoundLayer]:
    """The attention modules of a stock model in the order they run, found by watching a call of four tokens."""
    names = {module: name for name, module in model.base_model.named_modules()}
    found: list[FoundLayer] = []
    inner = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def watch(module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        scaling = kwargs.get("scaling")
        usual = query.shape[-1] ** -0.5
        if scaling is not None and abs(scaling - usual) > 1e-6 * usual:
            raise ValueError(
                f"{names[module]} of {type(model).__name__} scales its scores by {scaling}, not by 1/sqrt(head size);"
                " it cannot be linearized"
            )
        causal = kwargs.get("is_causal")
        causal = bool(getattr(module, "is_causal", False) if causal is None else causal)
        found.append(FoundLayer(names[module], query.shape[1], key.shape[1], query.shape[-1], causal))
        return inner(module, query, key, value, *args, **kwargs)

    with replaced_function(model, "sdpa", watch):
        model.eval()(input_ids=torch.zeros(1, 4, dtype=torch.long, device=model.device))
    if not found:
        raise ValueError(
            f"{type(model).__name__} does not use transformers' attention interface; it cannot be linearized"
        )
    first, *others = found
    for other in others:
        if other[1:] != first[1:]:
            raise ValueError(f"{first.name} and {other.name} have attentions of different sizes; this is not supported")
    return found
