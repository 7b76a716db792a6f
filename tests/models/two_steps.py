"""Two training steps of a tiny language model, for the tests that force a backend."""

import torch

from cosformer.models.causal_lm import CosformerForCausalLM
from cosformer.models.config import CosformerConfig

SIZES = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 64, "max_position_embeddings": 320, "hidden_dropout_prob": 0.0, "is_decoder": True}


def two_steps(backend: str, length: int) -> tuple[list[float], torch.Tensor]:
    """The loss before each step and after them, and how far every weight has moved, in float32."""
    torch.manual_seed(0)
    config = CosformerConfig(attention="cosformer", attention_options={"backend": backend}, **SIZES)
    model = CosformerForCausalLM(config)
    ids = torch.randint(0, 50, (1, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, : length // 3] = 0
    start = _weights(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(2):
        loss = model(ids, attention_mask=mask, labels=ids, use_cache=False).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    with torch.no_grad():
        losses.append(model(ids, attention_mask=mask, labels=ids, use_cache=False).loss.item())
    return losses, _weights(model) - start


def _weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).clone()
