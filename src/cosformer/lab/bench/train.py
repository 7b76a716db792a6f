"""``cosformer bench train``: tokens per second of each attention in one small language model, and what the engine costs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from cosformer import terminal
from cosformer.extras import require
from cosformer.lab.bench import engine
from cosformer.lab.bench.measure import compared, interleaved
from cosformer.lab.bench.steps import attempt, memory_limit, training_step
from cosformer.lab.bench.zoo import names
from cosformer.lab.records import Measurement
from cosformer.ops.backends import check_backend

QUICK = {"lengths": (512, 2048), "tokens": 4096, "repeats": 3}
LAYERS, HEADS, WIDENING, VOCABULARY = 4, 4, 4, 256
ACTIVATION = "relu"  # as in the paper's language model
BASELINE = "softmax"
_BUDGET = 180.0  # seconds of one length's repeats, once there are three
Variant = tuple[str, str]  # an attention and, of cosFormer, its backend ("": the best)


def measurements(
    *,
    attentions: str = "cosformer",
    backends: str = "chunked",
    lengths: Sequence[int] = (512, 2048, 8192),
    width: Sequence[int] = (256,),
    tokens: int = 16_384,
    repeats: int = 5,
    threads: int = 2,
    memory_limit_gb: float | None = None,
    engine_steps: int = 30,
) -> Iterator[Measurement]:
    require("hf", "transformers")
    chosen = variants(attentions, backends)
    if max(lengths) > tokens:
        raise ValueError(f"--lengths {max(lengths)} with {tokens} tokens a batch: no sequence fits; raise --tokens")
    limit = memory_limit(memory_limit_gb)
    for channels in width:
        for n in lengths:
            yield from at_length(n, chosen, width=channels, tokens=tokens, repeats=repeats, memory=limit)
    if engine_steps > 0:
        yield engine.measurement(engine_steps, threads=threads)


def variants(attentions: str, backends: str) -> list[Variant]:
    """What is measured besides softmax: attentions by name, and cosFormer on further backends."""
    chosen = [(name, "") for name in names(attentions) if name != BASELINE]
    extra = [name.strip() for name in backends.split(",") if name.strip()]
    for name in extra:
        check_backend(name)
    return [*chosen, *(("cosformer", name) for name in extra if ("cosformer", "") in chosen)]


def at_length(
    n: int, chosen: Sequence[Variant], *, width: int, tokens: int, repeats: int, memory: int
) -> Iterator[Measurement]:
    """All variants at length ``n``; they and softmax take turns."""
    actions, notes = {}, {}
    for variant in ((BASELINE, ""), *chosen):
        label = ":".join(variant)
        terminal.status(f"building {label} of width {width} for {n:,} tokens ...")
        step, notes[label] = attempt(lambda x=variant: training_step(*language_model(*x, n, width, tokens)), memory)
        if step is not None:
            actions[label] = step
    terminal.status(f"timing {len(actions)} models of width {width} at {n:,} tokens ...")
    # training repeats one model's update: memory that another one left behind is not part of it
    times = interleaved(actions, repeats=repeats, budget=_BUDGET, warm=True, settle=True)
    softmax = f"{BASELINE}:"
    for name, backend in chosen:
        label, place = f"{name}:{backend}", {"attention": name, "backend": backend, "width": width, "length": n}
        m = Measurement(kind="training", **place, baseline=BASELINE, unit="times softmax", better="higher")
        if label not in times:
            yield replace(m, note=notes[label])
        else:
            note = f"softmax: {notes[softmax]}" if softmax not in times else ""
            yield replace(compared(m, times[label], times.get(softmax)), note=note)


def language_model(attention: str, backend: str, n: int, width: int, tokens: int) -> tuple[Any, dict[str, Any]]:
    """The model and a batch of random bytes of ``tokens`` tokens in rows of ``n``."""
    from cosformer.models.causal_lm import CosformerForCausalLM
    from cosformer.models.config import CosformerConfig

    torch.manual_seed(0)
    config = CosformerConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=WIDENING * width,
        max_position_embeddings=n,
        is_decoder=True,
        attention=attention,
        attention_options={"backend": backend} if backend else None,
        hidden_act=ACTIVATION,
        hidden_dropout_prob=0.0,
    )
    ids = torch.randint(0, VOCABULARY, (max(1, tokens // n), n))
    return CosformerForCausalLM(config), {"input_ids": ids, "labels": ids}
