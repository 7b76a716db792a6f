"""``cosformer bench generate``: one token at growing contexts, cosFormer's state against softmax's key-value cache."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from cosformer import terminal
from cosformer.extras import require
from cosformer.lab.bench.measure import compared, in_fresh_process, interleaved, measured, resident, spread
from cosformer.lab.records import Measurement

QUICK = {"lengths": (256, 1024), "tokens": 2000}
SIZES = {"hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 2048}
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
NAMES = ("cosformer", "softmax")


def measurements(
    *,
    lengths: Sequence[int] = (1024, 4096, 16384, 65536),
    tokens: int = 100_000,
    repeats: int = 9,
    threads: int = 2,
) -> Iterator[Measurement]:
    require("hf", "transformers")
    if lengths:
        yield from steps(lengths, repeats=repeats)
    if tokens > 0:
        yield from long_run(tokens, threads=threads)


def steps(lengths: Sequence[int], *, repeats: int) -> Iterator[Measurement]:
    """Time of one token behind each context, and the size of what is carried; the two attentions taking turns."""
    actions: dict[str, Any] = {}
    sizes: dict[tuple[str, int], int] = {}
    for name in NAMES:
        model = build(name, SIZES, max(lengths) + 1)
        for n in lengths:
            terminal.status(f"filling {name}'s state with {n:,} tokens ...")
            states = filled_states(model, n)
            sizes[name, n] = sum(x.nbytes for state in states for x in state.state_dict().values())
            actions[f"{name}/{n}"] = _step(model, states)
    terminal.status("timing one token at every length ...")
    with torch.no_grad():
        times = interleaved(actions, repeats=repeats)
        # without the other's copies of half a gigabyte in between, which empty the processor's caches
        cheap = {key: step for key, step in actions.items() if key.startswith("cosformer/")}
        alone = interleaved(cheap, repeats=5 * repeats)
    for n in lengths:
        m = Measurement(kind="step", attention="cosformer", length=n, baseline="softmax", unit="", better="higher")
        yield compared(replace(m, unit="times faster"), times[f"cosformer/{n}"], times[f"softmax/{n}"])
        ours, theirs = (sizes[name, n] / 1e6 for name in NAMES)
        m = replace(m, kind="state", unit="times smaller", megabytes=ours, baseline_megabytes=theirs)
        yield measured(m, [theirs / ours])
    medians = [spread(alone[f"cosformer/{n}"]).median for n in lengths]
    m = Measurement(kind="slowest token", attention="cosformer", baseline="the fastest", unit="times", better="lower")
    yield measured(replace(m, variant=f"context {min(lengths):,} to {max(lengths):,}"), [max(medians) / min(medians)])


def long_run(tokens: int, *, threads: int) -> Iterator[Measurement]:
    """The model's own step loop, ``tokens`` long, in a fresh process: growth of the process and of the state."""
    terminal.status(f"running the step loop to token {tokens:,} ...")
    found = in_fresh_process("cosformer.lab.bench.generate:loop", threads, tokens=tokens)
    m = Measurement(kind="process growth", attention="cosformer", length=tokens, unit="MB", better="lower")
    yield replace(m, baseline=f"token {found['warm']:,}", value=found["grown"] / 1e6)
    change = found["last_bytes"] / found["first_bytes"]
    yield replace(m, kind="state growth", unit="times", baseline="token 1", value=change)


def loop(tokens: int) -> dict[str, int]:
    """Greedy steps of a small model; run in a process of its own."""
    from cosformer.models.state_cache import StateCache

    torch.manual_seed(0)
    model = build("cosformer", SMALL, tokens)
    cache, token = StateCache(SMALL["num_hidden_layers"]), torch.ones(1, 1, dtype=torch.long)
    warm = min(1000, tokens // 2)
    first_bytes = before = 0
    with torch.no_grad():
        for t in range(tokens):
            token = model(token, past_key_values=cache).logits[:, -1:].argmax(-1)
            if t == 0:
                first_bytes = cache.nbytes
            if t == warm:
                before = resident("VmRSS")
    assert cache.get_seq_length() == tokens
    return {"first_bytes": first_bytes, "last_bytes": cache.nbytes, "grown": resident("VmRSS") - before, "warm": warm}


def build(attention: str, sizes: dict[str, Any], max_len: int) -> Any:
    """The model with one attention; the other weights are the same for every attention."""
    from cosformer.models.causal_lm import CosformerForCausalLM
    from cosformer.models.config import CosformerConfig

    torch.manual_seed(0)
    config = CosformerConfig(
        vocab_size=1000,
        attention=attention,
        is_decoder=True,
        max_position_embeddings=max_len,
        position_embedding_type="sinusoidal",
        **sizes,
    )
    return CosformerForCausalLM(config).eval()


def filled_states(model: Any, tokens: int) -> list[Any]:
    """What each layer carries after ``tokens`` tokens, of random keys and values: a step's time does not depend on them."""
    from cosformer.attention.key_value_state import KeyValueState
    from cosformer.attention.softmax import Softmax

    states = []
    with torch.no_grad():
        for layer in model.model.layers:
            mechanism = layer.attention.attention
            k, v = torch.randn(2, 1, mechanism.num_heads, tokens, mechanism.head_dim).unbind()
            if isinstance(mechanism, Softmax):  # its extend would attend first, in quadratic time
                states.append(KeyValueState.extended(None, k, v, None))
            else:
                states.append(mechanism.extend(k, k, v)[1])
    return states


def _step(model: Any, states: list[Any]) -> Any:
    from cosformer.models.state_cache import StateCache

    token = torch.ones(1, 1, dtype=torch.long)

    def step() -> None:
        cache = StateCache(len(states))
        for i, state in enumerate(states):
            cache[i] = state
        model(token, past_key_values=cache)

    return step
