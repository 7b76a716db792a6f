"""``cosformer bench generate``: one token at growing contexts, cosFormer's state against softmax's key-value cache."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from cosformer import terminal
from cosformer.bench.measure import compared, in_fresh_process, interleaved, measured, resident, spread
from cosformer.bench.steps import language_model
from cosformer.bench.tables import SPREAD, lengths_of, rest
from cosformer.bench.tokens import FIRST, TOKEN, generated_tokens, token_table
from cosformer.extras import require
from cosformer.report.measurements import Measurement, Results, cell
from cosformer.report.table import Table

QUICK = {"lengths": (256, 1024), "tokens": 2000, "batches": (1,), "contexts": (), "layers": 2}
SIZES: dict[str, Any] = {"width": 512, "layers": 2, "heads": 8}
SMALL: dict[str, Any] = {"width": 64, "layers": 2, "heads": 2, "intermediate_size": 128}
NAMES = ("cosformer", "softmax")
WIDTH, HEADS, VOCABULARY = 768, 12, 4096  # of the models whose generated tokens are timed
SOFTMAX, MAMBA = "softmax (GPT-2 of transformers)", "Mamba (of transformers)"
Action = Callable[[], Any]


def measurements(
    *,
    lengths: Sequence[int] = (1024, 4096, 16384, 65536),
    tokens: int = 100_000,
    batches: Sequence[int] = (1, 4),
    contexts: Sequence[int] = (1024, 8192, 65536, 1 << 20),
    layers: int = 12,
    repeats: int = 9,
    threads: int = 2,
) -> Iterator[Measurement]:
    require("hf", "transformers")
    if batches:
        models = {"cosformer": lambda: large(layers, 4096), SOFTMAX: lambda: gpt2(layers), MAMBA: lambda: mamba(layers)}
        more = {"batches": batches, "repeats": repeats}
        yield from generated_tokens(models, compiled=["cosformer"], **more)
    if contexts:
        yield from flat(large(layers, max(contexts) + 1), contexts, repeats=repeats)
    if lengths:
        yield from steps(lengths, repeats=repeats)
    if tokens > 0:
        yield from long_run(tokens, threads=threads)


def steps(lengths: Sequence[int], *, repeats: int) -> Iterator[Measurement]:
    """Time of one token behind each context, and the size of what is carried; the two attentions taking turns."""
    actions, sizes = token_steps({name: build(name, SIZES, max(lengths) + 1) for name in NAMES}, lengths)
    terminal.status("timing one token at every length ...")
    with torch.no_grad():
        times = interleaved(actions, repeats=repeats)
        # without the other's copies of half a gigabyte in between, which empty the processor's caches
        cheap = {key: step for key, step in actions.items() if key.startswith("cosformer/")}
        alone = interleaved(cheap, repeats=5 * repeats)
    yield from against(*NAMES, lengths, times, sizes)
    medians = [spread(samples).median for samples in alone.values()]
    m = Measurement(kind="slowest token", attention="cosformer", baseline="the fastest", unit="times", better="lower")
    yield measured(replace(m, variant=f"context {min(lengths):,} to {max(lengths):,}"), [max(medians) / min(medians)])


def large(layers: int, max_len: int) -> Any:
    """cosFormer with the layers' sizes of GPT-2."""
    more = {"vocab_size": VOCABULARY, "position_embedding_type": "sinusoidal"}
    return language_model("cosformer", max_len, width=WIDTH, layers=layers, heads=HEADS, **more).eval()


def gpt2(layers: int) -> Any:
    """Softmax with transformers' own cache, in layers of the same sizes."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=WIDTH, n_layer=layers, n_head=HEADS, vocab_size=VOCABULARY, n_positions=4096)
    return GPT2LMHeadModel(config).eval()


def mamba(layers: int) -> Any:
    """Two layers of Mamba have about as many weights as one of GPT-2."""
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(
        MambaConfig(hidden_size=WIDTH, num_hidden_layers=2 * layers, vocab_size=VOCABULARY, pad_token_id=0)
    ).eval()


def flat(model: Any, contexts: Sequence[int], *, repeats: int) -> Iterator[Measurement]:
    """Time of one token after each context, against the shortest one."""
    actions, _ = token_steps({"cosformer": model}, contexts)
    with torch.no_grad():
        times = interleaved(actions, repeats=repeats)
    shortest, *others = (f"cosformer/{n}" for n in contexts)
    for n, key in zip(contexts[1:], others, strict=True):
        m = Measurement(kind="token after a context", attention="cosformer", length=n, width=WIDTH, better="lower",
                        unit="times as long", baseline=f"after {contexts[0]:,}")  # fmt: skip
        yield compared(m, times[key], times[shortest])


def against(
    name: str, baseline: str, lengths: Sequence[int], times: Mapping[str, list[float]], sizes: Mapping[str, float]
) -> Iterator[Measurement]:
    """One model of :func:`token_steps` against another, by length: the time of a token, and what is carried."""
    for n in lengths:
        ours, theirs = f"{name}/{n}", f"{baseline}/{n}"
        m = Measurement(kind="step", attention=name, length=n, baseline=baseline, unit="times faster", better="higher")
        yield compared(m, times[ours], times[theirs])
        m = replace(m, kind="state", unit="times smaller", megabytes=sizes[ours], baseline_megabytes=sizes[theirs])
        yield measured(m, [sizes[theirs] / sizes[ours]])


def token_steps(models: Mapping[str, Any], lengths: Sequence[int]) -> tuple[dict[str, Action], dict[str, float]]:
    """Time of one token after each context, and the size of its cache in MB, by ``"model/context"``."""
    actions, sizes = {}, {}
    token = torch.ones(1, 1, dtype=torch.long)
    for name, model in models.items():
        for n in lengths:
            terminal.status(f"filling {name}'s cache with {n:,} tokens ...")
            make = _filled(model, n)
            sizes[f"{name}/{n}"] = _megabytes(make())
            actions[f"{name}/{n}"] = lambda model=model, make=make: model(token, past_key_values=make())
    return actions, sizes


def long_run(tokens: int, *, threads: int) -> Iterator[Measurement]:
    """The model's own step loop, ``tokens`` long, in a fresh process: growth of the process and of the state."""
    terminal.status(f"running the step loop to token {tokens:,} ...")
    found = in_fresh_process("cosformer.bench.generate:loop", threads, tokens=tokens)
    m = Measurement(kind="process growth", attention="cosformer", length=tokens, unit="MB", better="lower")
    yield replace(m, baseline=f"token {found['warm']:,}", value=found["grown"] / 1e6)
    change = found["last_bytes"] / found["first_bytes"]
    yield replace(m, kind="state growth", unit="times", baseline="token 1", value=change)


def loop(tokens: int) -> dict[str, int]:
    """Greedy steps of a small model; run in a process of its own."""
    from cosformer.models.state_cache import StateCache

    model = build("cosformer", SMALL, tokens)
    cache, token = StateCache(SMALL["layers"]), torch.ones(1, 1, dtype=torch.long)
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
    more = {"vocab_size": 1000, "position_embedding_type": "sinusoidal"}
    return language_model(attention, max_len, **sizes, **more).eval()


def _filled(model: Any, tokens: int) -> Action:
    """Builds a cache of random keys and values as it is after ``tokens`` tokens; the values do not affect time."""
    from transformers import DynamicCache

    from cosformer.models.state_cache import StateCache

    keeps_states = model.config.model_type == "cosformer" or hasattr(model.config, "learned")  # or it is a stock model
    first: Any = StateCache(model.config.num_hidden_layers) if keeps_states else DynamicCache()
    with torch.no_grad():
        model(torch.ones(1, 1, dtype=torch.long), past_key_values=first)

    def state_cache() -> Any:
        cache = StateCache(len(kept))
        for i, state in enumerate(kept):
            cache[i] = state
        return cache

    def key_value_cache() -> Any:
        cache: Any = DynamicCache(config=model.config)
        for layer, (k, v) in zip(cache.layers, kept, strict=True):
            layer.lazy_initialization(k, v)
            layer.keys, layer.values = k, v
        return cache

    if keeps_states:
        kept: list[Any] = [_aged(layer.state, tokens) for layer in first.layers]
        return state_cache
    kept = [(_random(layer.keys, tokens), _random(layer.values, tokens)) for layer in first.layers]
    return key_value_cache


def _aged(state: Any, tokens: int) -> Any:
    """``state`` as after ``tokens`` tokens; sums are of the same size, so that those of one token do."""
    from cosformer.attention.key_value_state import KeyValueState
    from cosformer.hf.gated_window import GatedWindowState
    from cosformer.hf.sink_window import SinkWindowState

    if isinstance(state, KeyValueState):
        return KeyValueState(_random(state.k, tokens), _random(state.v, tokens), None, torch.tensor(tokens))
    if isinstance(state, GatedWindowState):
        count = torch.full_like(state.count, tokens)
        return replace(state, near=_aged(state.near, tokens), far=_aged(state.far, tokens), count=count)
    if isinstance(state, SinkWindowState):
        unmasked = torch.full_like(state.unmasked, tokens)
        return replace(state, key_mask=torch.ones_like(state.key_mask), unmasked=unmasked, seen=tokens)
    return replace(state, position=torch.tensor(tokens))


def _random(x: torch.Tensor, tokens: int) -> torch.Tensor:
    return torch.randn(*x.shape[:2], tokens, x.shape[3], dtype=x.dtype)


def _megabytes(cache: Any) -> float:
    if hasattr(cache, "nbytes"):
        return cache.nbytes / 1e6
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers) / 1e6


def tables(results: Results) -> list[Table]:
    """Contexts down; time and state of both attentions across."""
    shown = [m for kind in ("step", "state", TOKEN, FIRST) for m in results.find(kind=kind)]
    rows = [[f"{n:,}", *token_cells(results, n)] for n in lengths_of(results.find(kind="state"))]
    title = (
        "One more token in a model of 2 layers of width 512, cosFormer's state against softmax's key-value cache "
        f"({SPREAD}), and what each carries."
    )
    header = ["context", "ms, cosFormer", "ms, softmax", "times faster, median of pairs"]
    header += ["MB, cosFormer", "MB, softmax", "times smaller"]
    return [*token_table(results), *([Table(title, header, rows)] if rows else []), rest(results, shown)]


def token_cells(results: Results, n: int | None, **which: str) -> list[str]:
    """Milliseconds and megabytes of a token behind ``n`` tokens, ours and the baseline's, each pair with its ratio."""
    step, state = (results.one(kind=kind, length=n, **which) for kind in ("step", "state"))
    assert step is not None and state is not None
    times, sizes = (step.milliseconds, step.baseline_milliseconds), (state.megabytes, state.baseline_megabytes)
    shown = [[f"{x:.3g}" if x < 1000 else f"{x:,.0f}" for x in pair if x is not None] for pair in (times, sizes)]
    return [*shown[0], cell(step), *shown[1], cell(state)]
