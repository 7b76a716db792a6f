"""Stock models whose attention layers run different mechanisms: learned linear ones, or softmax in the layers that kept
it.

``attn_implementation="cosformer_learned"`` calls this module. The config's ``learned`` lists the layers and the
mechanism of each; the mechanisms are submodules of the stock attention modules, so they are saved and loaded with them.
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
from cosformer.hf.gated_window import GatedWindow
from cosformer.hf.learned_map import LearnedMap
from cosformer.hf.sink_window import SinkWindow
from cosformer.models.attention_weights import replaced_function

LEARNED = "cosformer_learned"
MECHANISM = "mechanism"  # the submodule of a stock attention module


@dataclass(frozen=True)
class LearnedAttention:
    """What a linearized model runs, as its config keeps it.

    With a window its linear layers are a :class:`GatedWindow`, or a :class:`SinkWindow` if ``features`` is 0; without
    one they are a :class:`LearnedMap`.
    """

    attention: str | None  # of the zoo, applied to the learned features; None with a window
    layers: list[str]  # attention modules as the base model names them, in the order they run
    kept: list[str]  # those among them that stay softmax
    num_heads: int
    num_key_heads: int
    head_dim: int
    features: int
    max_len: int  # the longest sequence of the original
    causal: bool
    window: int = 0  # last keys of each query that stay softmax in the linear layers
    sinks: int = 0  # first keys of the sequence that do
    options: dict[str, Any] = field(default_factory=dict)  # of the attention

    def build(self, index: int) -> nn.Module:
        """The mechanism of layer ``index``."""
        return self.softmax() if self.layers[index] in self.kept else self.linear(index)

    def linear(self, index: int) -> nn.Module:
        near = {"window": self.window, "sinks": self.sinks, "context": self.max_len}
        if self.window and not self.features:
            return SinkWindow(**near)
        names = ("num_heads", "num_key_heads", "head_dim", "features")
        sizes: dict[str, Any] = {name: getattr(self, name) for name in names} | {"seed": index}
        if self.window:
            return GatedWindow(**sizes, **near)
        assert self.attention is not None
        return LearnedMap(self.attention, max_len=self.max_len, causal=self.causal, options=self.options, **sizes)

    def softmax(self) -> Softmax:
        return Softmax(num_heads=self.num_heads, head_dim=self.head_dim, max_len=self.max_len, causal=self.causal)


def learned_attention(config: Any) -> LearnedAttention:
    if config.learned.get("window") and "sinks" not in config.learned:
        raise ValueError(
            "this model was linearized by an earlier version, whose window had no sinks and no gate; it fails on long "
            "texts and is no longer supported: run `cosformer linearize` again"
        )
    return LearnedAttention(**config.learned)


def attach_mechanisms(model: PreTrainedModel) -> None:
    """Give each attention module the mechanism that the config names for it."""
    plan = learned_attention(model.config)
    rotary = rotary_embedding(model) if plan.window else None
    for index, layer in enumerate(plan.layers):
        mechanism = plan.build(index)
        if isinstance(mechanism, SinkWindow):
            mechanism.rotary = rotary
        model.base_model.get_submodule(layer).add_module(MECHANISM, mechanism)


def rotary_embedding(model: PreTrainedModel) -> Any:
    """The model's rotary embedding, or None. ValueError if its frequencies change with the length."""
    rotary: Any = getattr(model.base_model, "rotary_emb", None)
    kind = getattr(rotary, "rope_type", "default")
    if "dynamic" in kind or kind == "longrope":
        raise ValueError(
            f"rotary positions of type {kind!r} change with the length of the input, so that stored keys cannot be "
            "rotated back; linearize a model with another rope_type"
        )
    return rotary


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
    """``query [B,H,N,D]``, ``key``, ``value [B,Hk,S,.]``, mask ``[B,S]`` of ``cosformer_mask`` -> ``[B,N,H,E]``."""
    mechanism: Any = getattr(module, MECHANISM, None)
    if mechanism is None:
        raise ValueError(
            f"attn_implementation={LEARNED!r} runs models that `cosformer linearize` wrote; this "
            f"{type(module).__name__} has no mechanism"
        )
    refuse_arguments(kwargs)
    usual = query.shape[-1] ** -0.5
    if scaling is not None and scaling != usual:  # OPT, for one, scales its queries itself
        query = query * (scaling / usual)
    if kwargs.get("cu_seq_lens_q") is not None:
        raise ValueError("a linearized model takes no packed sequences; pad them")
    if dropout:
        mention_dropout(module, dropout)
    layer = getattr(key, "cosformer_layer", None)
    check_mask(attention_mask, key, query, layer, 1)
    positions = rotary_positions(mechanism, query, kwargs.get("position_ids"))
    if layer is None:
        if key.shape[2] != query.shape[2]:
            raise ValueError(
                f"{query.shape[2]} queries and {key.shape[2]} keys: a linearized model keeps states, not keys; pass a"
                " cosformer StateCache as past_key_values, as generate() does by itself"
            )
        out = mechanism(query, key, value, attention_mask, **positions)
    else:
        new = None if attention_mask is None else attention_mask[:, -query.shape[2] :]
        out, layer.state = extend_state(mechanism.extend, query, key, value, layer.state, new, **positions)
        layer.pending = False
    return out.transpose(1, 2).contiguous(), None


def rotary_positions(mechanism: nn.Module, query: Tensor, position_ids: Tensor | None) -> dict[str, Tensor]:
    """The argument ``positions [B,N]`` of a mechanism that rotates back what it gets; nothing for the others."""
    if getattr(mechanism, "rotary", None) is None or position_ids is None:
        return {}
    return {"positions": position_ids.expand(len(query), -1)}


class FoundLayer(NamedTuple):
    """An attention module that calls transformers' attention interface, and what it hands over."""

    name: str
    num_heads: int
    num_key_heads: int
    head_dim: int
    causal: bool


@torch.no_grad()
def find_layers(model: PreTrainedModel) -> list[FoundLayer]:
    """The attention modules of a stock model in the order they run, determined by tracing a call with four tokens."""
    names = {module: name for name, module in model.base_model.named_modules()}
    found: list[FoundLayer] = []
    inner = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def watch(module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
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
