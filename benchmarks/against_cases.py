"""What ``benchmarks/against.py`` times in each of two trees: public names that both have, printed as JSON."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cosformer import cosformer_attention
from cosformer.hf import CosformerConfig, CosformerForCausalLM

LENGTHS = (64, 256, 1024, 4096, 16384)
HEADS, CHANNELS = 8, 64

Case = tuple[str, Callable[[], object]]


def fastest(run: Callable[[], object], seconds: float = 0.5) -> float:
    """The smallest time of a call, over calls that take about ``seconds`` together, at least two."""
    run()
    times, end = [], time.perf_counter() + seconds
    while len(times) < 2 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def operator(length: int, causal: bool) -> Iterator[Case]:
    q, k, v = (torch.randn(1, HEADS, length, CHANNELS) for _ in range(3))

    def forward() -> torch.Tensor:
        return cosformer_attention(q, k, v, causal=causal, max_len=length)

    name = f"{'causal' if causal else 'non-causal'}, {length}"
    yield f"{name}, forward", forward
    for x in (q, k, v):
        x.requires_grad_()
    yield f"{name}, forward and backward", lambda: forward().sum().backward()


def one_token() -> Iterator[Case]:
    q, k, v = (torch.randn(1, HEADS, 1, CHANNELS) for _ in range(3))
    options = {"causal": True, "max_len": 4096, "return_state": True}
    _, state = cosformer_attention(q, k, v, **options)  # pyright: ignore
    yield "one-token call", lambda: cosformer_attention(q, k, v, state=state, **options)  # pyright: ignore


def model() -> Iterator[Case]:
    sizes: dict[str, Any] = {
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    }
    sizes |= {"vocab_size": 512, "max_position_embeddings": 1024}
    torch.manual_seed(0)
    lm = CosformerForCausalLM(CosformerConfig(is_decoder=True, attention="cosformer", **sizes)).eval()
    ids, batch = torch.randint(0, 512, (1, 1)), torch.randint(0, 512, (4, 512))
    with torch.no_grad():
        cache = lm(ids, use_cache=True).past_key_values
        states = [cache[layer] for layer in range(6)]

    @torch.no_grad()
    def token() -> None:
        for layer, state in enumerate(states):
            cache[layer] = state
        lm(ids, past_key_values=cache, use_cache=True)

    yield "a model's token", token
    lm.train()
    optimizer = torch.optim.AdamW(lm.parameters(), lr=1e-4)

    def update() -> None:
        lm(batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    yield "a training update", update


def main() -> None:
    times = {}
    for cases in (*(operator(n, causal) for causal in (True, False) for n in LENGTHS), one_token(), model()):
        for name, run in cases:
            times[name] = fastest(run)
    print(json.dumps(times))


if __name__ == "__main__":
    main()
