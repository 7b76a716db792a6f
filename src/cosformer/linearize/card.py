"""What the card of a linearized model says: what was done, and what was measured."""

from typing import Any

from cosformer._version import __version__
from cosformer.hf.linearized import LearnedAttention


def card(record: dict[str, Any], plan: LearnedAttention) -> str:
    """Markdown."""
    settings, kept = record["settings"], plan.kept
    linear = len(plan.layers) - len(kept)
    done = [
        f"Linearized with cosformer {__version__} (`cosformer linearize`): {linear} of {len(plan.layers)} attention layers run"
        f" `{plan.attention}` on {plan.features} learned features a head; softmax stays in {', '.join(kept) or 'none'}.",
        f"Longest sequence: {plan.max_len} tokens.",
        f"Transfer: {settings['transfer_tokens']:,} tokens in rows of {settings['length']}, each layer's maps taught its softmax"
        " attention's output.",
        f"Repair: {settings['repair_tokens']:,} tokens, LoRA of rank {settings['rank']} on the attention's projections and the"
        f" maps, against the {settings['against']}; merged into the weights.",
    ]
    names = list(dict.fromkeys(name for scores in record["measured"].values() for name in scores))
    table = [f"| stage | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for stage, scores in record["measured"].items():
        table.append(f"| {stage} | {' | '.join(f'{scores[name]:.4g}' for name in names)} |")
    held_out = f"Measured on {settings['held_out']} rows of the text that were held out:"
    return "\n\n".join(["\n".join(f"* {line}" for line in done), held_out, "\n".join(table)])
