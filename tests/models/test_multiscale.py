"""The models of the evidence with decays, against a prototype of whole models written from the formulas in float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import studies.cosformer2022  # noqa: F401  # brings the recipes
from cosformer.models.causal_lm import CosformerForCausalLM
from cosformer.models.masked_lm import CosformerForMaskedLM
from cosformer.models.presets import preset
from cosformer.nn.short_convolution import ShortConvolution
from cosformer.recipes import recipe
from cosformer.tasks.base import ARCHITECTURE

HEADS, VOCABULARY = 2, 260


class Prototype:
    """A pre-norm transformer of ``weights`` by name; its attention is a recurrence, or in an encoder a matrix."""

    def __init__(self, weights: dict[str, Tensor], *, causal: bool, max_len: int, cosine: bool, groups: int) -> None:
        self.weights = {name: x.detach().double() for name, x in weights.items()}
        self.causal, self.angle = causal, math.pi / 2 / max_len * cosine
        of_head = groups if causal else groups // 2
        rates = torch.logspace(0, -math.log10(max_len), HEADS * of_head, dtype=torch.float64).view(of_head, HEADS).T
        self.rates = rates if causal else torch.cat((rates, rates), 1)  # [H, groups]

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], 1e-5)

    def logits(self, ids: Tensor) -> Tensor:
        """``[N]`` -> ``[N, words]``"""
        words = self.weights["model.embeddings.tokens.weight"]
        x, i = words[ids] * math.sqrt(words.shape[1]), 0
        wave = 10_000.0 ** (-torch.arange(0, x.shape[1], 2).double() / x.shape[1])
        angles = torch.arange(len(ids))[:, None] * wave
        x = x + torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
        x = x + self.weights.get("model.embeddings.types.weight", torch.zeros(1, 1))[0]
        while f"model.layers.{i}.attention.query.weight" in self.weights:
            layer, i = f"model.layers.{i}.", i + 1
            x = x + self.attention(self.norm(x, f"{layer}attention_norm"), f"{layer}attention.")
            wide = self.linear(self.norm(x, f"{layer}feed_forward_norm"), f"{layer}feed_forward.widen").relu()
            x = x + self.linear(wide, f"{layer}feed_forward.narrow")
        x = self.norm(x, "model.final_norm")
        if self.causal:
            return x @ words.T
        x = self.norm(F.gelu(self.linear(x, "lm_head.dense")), "lm_head.norm")
        return x @ words.T + self.weights["lm_head.words.bias"]

    def attention(self, x: Tensor, name: str) -> Tensor:
        q, k, v = (self.linear(x, name + part) for part in ("query", "key", "value"))
        if (taps := self.weights.get(f"{name}convolution.weight")) is not None:  # the last tap is the token itself
            row = F.pad(torch.cat((q, k, v), 1), (0, 0, len(taps) - 1, 0))
            q, k, v = sum(row[t : t + len(x)] * tap for t, tap in enumerate(taps)).chunk(3, 1)
        heads = zip(*(part.chunk(HEADS, 1) for part in (q.relu(), k.relu(), v)), self.rates, strict=True)
        out = torch.cat([(self.recurrence if self.causal else self.matrix)(*head) for head in heads], 1)
        if f"{name}gate.weight" in self.weights:
            out = out * F.silu(self.linear(x, f"{name}gate"))
        return self.linear(out, f"{name}output")

    def recurrence(self, q: Tensor, k: Tensor, v: Tensor, rates: Tensor) -> Tensor:
        keep = torch.exp(-rates).repeat_interleave(q.shape[1] // len(rates)).repeat(2)[:, None]
        state, rows = torch.zeros(len(keep), v.shape[1] + 1, dtype=q.dtype), []
        for t in range(len(q)):
            cos, sin = math.cos(self.angle * t), math.sin(self.angle * t)
            fq, fk = (torch.cat((x[t] * cos, x[t] * sin)) for x in (q, k))
            state = keep * state + fk[:, None] * torch.cat((v[t], torch.ones(1)))
            row = fq @ state
            rows.append(row[:-1] / row[-1].clamp_min(1e-6))
        return torch.stack(rows)

    def matrix(self, q: Tensor, k: Tensor, v: Tensor, rates: Tensor) -> Tensor:
        """Groups of channels that look left (j <= i), then as many that look right (j >= i)."""
        behind = torch.arange(len(q))[:, None] - torch.arange(len(q))
        weights = torch.zeros(behind.shape, dtype=q.dtype)
        parts = zip(q.chunk(len(rates), 1), k.chunk(len(rates), 1), rates, strict=True)
        for group, (fq, fk, rate) in enumerate(parts):
            seen = behind >= 0 if group < len(rates) // 2 else behind <= 0
            weights += (fq @ fk.T) * torch.exp(-rate * behind.abs()) * seen
        weights *= torch.cos(self.angle * behind)
        return weights @ v / weights.sum(1, keepdim=True).clamp_min(1e-6)


BOTH = {"short_convolution": 4, "output_gate": True}
MODELS = {
    "multi8": ("evidence-lm", 8, True, {}, 430_976),
    "multi8 without cosine": ("evidence-lm", 8, False, {}, 430_976),
    "multi8, convolution and gate": ("evidence-lm", 8, True, BOTH, 484_736),
    "two directions": ("evidence-mlm", 8, True, {}, 315_652),
    "two directions without cosine": ("evidence-mlm", 8, False, {}, 315_652),
    "two directions, 16 groups, gate": ("evidence-mlm", 16, True, {"output_gate": True}, 348_420),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_prototype(name: str) -> None:
    of, groups, cosine, fields, parameters = MODELS[name]
    experiment, causal = recipe(of), of == "evidence-lm"
    chosen = {field: getattr(experiment.model, ours) for field, ours in ARCHITECTURE.items()}
    fields = {name: value for name, value in chosen.items() if value is not None} | experiment.model.fields | fields
    fields |= {"attention": "multiscale", "attention_options": {"scales": groups, "cosine": cosine}}
    length = experiment.data.length
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": length, "is_decoder": causal}
    torch.manual_seed(0)
    model = (CosformerForCausalLM if causal else CosformerForMaskedLM)(
        preset(experiment.model.preset, **sizes, **fields)
    )
    for module in model.modules():
        if isinstance(module, ShortConvolution):  # which starts as the identity
            torch.nn.init.normal_(module.weight, std=0.5)
    ids = torch.randint(3, VOCABULARY, (2, length))
    with torch.no_grad():
        found = model.eval()(ids).logits
    prototype = Prototype(dict(model.named_parameters()), causal=causal, max_len=length, cosine=cosine, groups=groups)
    wanted = torch.stack([prototype.logits(row) for row in ids])
    assert model.num_parameters() == parameters
    assert wanted.std() > 0.2 and (found - wanted).abs().max() < 1e-5
