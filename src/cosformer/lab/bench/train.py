"""``cosformer bench train``: tokens per second of each attention in one small language model, and what the engine costs.

Rows: ``train/<width>/<length>/<attention>``, times softmax's tokens per second, with both step times in ``milliseconds``; the
attention ``cosformer:chunked`` is cosFormer on that backend. ``train/engine``: the engine's step over a bare loop's.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cosformer import terminal
from cosformer.lab.bench import output

if TYPE_CHECKING:
    from cosformer.lab.bench.results import Row
    from cosformer.lab.bench.table import Table

LENGTHS = (512, 2048, 8192)
QUICK_LENGTHS = (512, 2048)
WIDTHS = (256,)
LAYERS, HEADS, WIDENING, VOCABULARY = 4, 4, 4, 256
ACTIVATION = "relu"  # as in the paper's language model
TOKENS = 16_384
QUICK_TOKENS = 4096
ATTENTIONS = "cosformer"
BACKENDS = "chunked"
ENGINE_STEPS = 30
MARKER, WIDE_MARKER, ZOO_MARKER = "bench train", "bench wide", "bench train_zoo"
BASELINE = "softmax"
# cosFormer's tokens per second over softmax's, in the model of width 256 with 16,384 tokens a batch
GOALS = {512: 0.9, 2048: 1.5, 8192: 4.0}
_BUDGET = 180.0  # seconds of one length's repeats, once there are three


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "A whole update (forward, loss, backward, Adam) of a byte-level language model of 4 layers with 4 heads, float32, no "
        "dropout, against the same model with torch's softmax attention, the attentions taking turns, each timed update behind an "
        "untimed one of the same model. Run it on a quiet machine. "
        "Needs cosformer[hf]."
    )
    add = parser.add_argument
    add("--attentions", default=ATTENTIONS, metavar="NAME,...|all", help="besides softmax (default: %(default)s)")
    add(
        "--backends",
        default=BACKENDS,
        metavar="NAME,...",
        help="cosFormer also on these (default: %(default)s; '': none)",
    )
    add("--lengths", type=output.whole_numbers, metavar="N,N,...", help=f"default: {','.join(map(str, LENGTHS))}")
    add("--width", type=output.whole_numbers, default=WIDTHS, metavar="C,C,...", help="default: 256")
    add("--tokens", type=output.positive, help=f"of a batch (default: {TOKENS:,})")
    add("--threads", type=output.positive, default=2, help="default: %(default)s")
    add(
        "--repeats",
        type=output.positive,
        default=5,
        help="of each timing (default: %(default)s); once a length takes minutes: 3",
    )
    add("--memory-limit", type=float, metavar="GB", help="of one model's step (default: 70 %% of what is free)")
    add(
        "--engine-steps", type=int, default=ENGINE_STEPS, help="to time the engine by (default: %(default)s; 0: do not)"
    )
    add("--quick", action="store_true", help="short lengths, small batches, three repeats")
    output.add_options(parser, MARKER)


def run(args: argparse.Namespace) -> int:
    return output.show(args, marker, measure, tables)


def marker(results: dict[str, Any]) -> str:
    """Where the tables go: files of wider models alone and of the whole zoo have places of their own."""
    if "--attentions all" in results.get("command", ""):
        return ZOO_MARKER
    widths = {int(row["id"].split("/")[1]) for row in results["rows"] if row["id"].count("/") == 3}
    return WIDE_MARKER if widths and min(widths) > WIDTHS[0] else MARKER


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run the benchmark that ``args`` describe."""
    from cosformer.extras import require

    require("hf", "transformers")
    import torch

    from cosformer import machine
    from cosformer.lab.bench import engine, results

    labels = variants(args.attentions, args.backends)
    lengths = args.lengths or (QUICK_LENGTHS if args.quick else LENGTHS)
    tokens = args.tokens or (QUICK_TOKENS if args.quick else TOKENS)
    if max(lengths) > tokens:
        raise ValueError(f"--lengths {max(lengths)} with {tokens} tokens a batch: no sequence fits; raise --tokens")
    repeats = min(args.repeats, 3) if args.quick else args.repeats
    limit = int(1e9 * args.memory_limit) if args.memory_limit else int(0.7 * machine.memory("MemAvailable"))
    torch.set_num_threads(args.threads)
    about = machine.describe(args.threads)
    rows = [
        row
        for width in args.width
        for n in lengths
        for row in length_rows(n, labels, width=width, tokens=tokens, repeats=repeats, memory=limit)
    ]
    if args.engine_steps > 0:
        rows.append(engine.row(args.engine_steps, threads=args.threads))
    terminal.status("")
    settings = {"layers": LAYERS, "heads": HEADS, "feed forward": f"{WIDENING} x width", "vocabulary": VOCABULARY}
    settings |= {
        "activation": ACTIVATION,
        "tokens": tokens,
        "repeats": repeats,
        "dropout": 0,
        "optimizer": "Adam",
        "memory_limit_gb": limit / 1e9,
    }
    return results.document(rows, about, machine.provenance(_command(args)), settings)


def variants(attentions: str, backends: str) -> list[str]:
    """What is measured besides softmax: attentions by name, and ``cosformer:BACKEND``."""
    from cosformer.lab.bench.zoo import names
    from cosformer.ops.backends import check_backend

    chosen = [name for name in names(attentions) if name != BASELINE]
    extra = [name.strip() for name in backends.split(",") if name.strip()]
    for name in extra:
        check_backend(name)
    return [*chosen, *(f"cosformer:{name}" for name in extra if "cosformer" in chosen)]


def length_rows(
    n: int, labels: Sequence[str], *, width: int, tokens: int, repeats: int, memory: int
) -> Iterator["Row"]:
    """One row per variant at length ``n``; all of them and softmax take turns."""
    from cosformer.lab.bench.measure import interleaved, ratio, spread
    from cosformer.lab.bench.results import Row, measured
    from cosformer.lab.bench.steps import attempt, training_step
    from cosformer.ops.native.memory import release

    actions, notes = {}, {}
    for label in (BASELINE, *labels):
        terminal.status(f"building {label} of width {width} for {n:,} tokens ...")
        step, notes[label] = attempt(lambda x=label: training_step(*language_model(x, n, width, tokens)), memory)
        if step is not None:
            actions[label] = step
        release()  # the limit is one model's, above what the process holds
    terminal.status(f"timing {len(actions)} models of width {width} at {n:,} tokens ...")
    # training repeats one model's update: memory that another one left behind is not part of it
    times = interleaved(actions, repeats=repeats, budget=_BUDGET, warm=True, settle=True)
    for label in labels:
        goal = GOALS.get(n) if (label, width, tokens) == ("cosformer", WIDTHS[0], TOKENS) else None
        what = f"{label}, width {width}, length {n:,}: tokens per second over softmax's"
        row = Row(f"train/{width}/{n}/{label}", what, "times softmax", "higher", goal=goal, note=notes[label])
        if label in times:
            milliseconds = {x: float(f"{1e3 * spread(times[x]).median:.4g}") for x in (label, BASELINE) if x in times}
            row = replace(
                row, milliseconds=milliseconds, note="" if BASELINE in times else f"softmax: {notes[BASELINE]}"
            )
            if BASELINE in times:
                row = measured(row, ratio(times[BASELINE], times[label]))
        yield row


def language_model(label: str, n: int, width: int, tokens: int) -> tuple[Any, dict[str, Any]]:
    """The model with attention ``label`` and a batch of random bytes of ``tokens`` tokens in rows of ``n``."""
    import torch

    from cosformer.models.causal_lm import CosformerForCausalLM
    from cosformer.models.config import CosformerConfig

    attention, _, backend = label.partition(":")
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


def tables(results: dict[str, Any]) -> "list[Table]":
    """For each width a table by attention and length, then what is wanted and reached."""
    from cosformer.lab.bench.results import rows_of
    from cosformer.lab.bench.table import Table, cell, goals

    rows = rows_of(results)
    cells = {tuple(row.id.split("/")[1:]): row for row in rows if row.id.count("/") == 3}
    tokens, found = results["settings"]["tokens"], []
    for width in sorted({int(key[0]) for key in cells}):
        lengths = sorted({int(n) for w, n, _ in cells if int(w) == width})
        labels = list(dict.fromkeys(label for w, _, label in cells if int(w) == width))
        header = ["attention", *(f"{n:,}" for n in lengths), *(f"tokens/s at {n:,}" for n in lengths)]
        of_width = {label: [cells.get((str(width), str(n), label)) for n in lengths] for label in labels}
        body = [
            [label, *map(cell, line), *(_speed(row, label, tokens) for row in line)] for label, line in of_width.items()
        ]
        some = next(iter(of_width.values()))
        body.insert(0, [BASELINE, *["1" for _ in lengths], *(_speed(row, BASELINE, tokens) for row in some)])
        title = (
            f"Training a language model of {LAYERS} layers of width {width} with {HEADS} heads on {tokens:,} tokens a batch: "
            "tokens per second by length, as a multiple of softmax's (torch's SDPA; median and quartiles) and as such."
        )
        found.append(Table(title, header, body))
    wanted = [row for row in rows if row.goal is not None]
    return [*found, goals(wanted, "What training is meant to reach on two cores.")] if wanted else found


def _speed(row: "Row | None", label: str, tokens: int) -> str:
    if row is None or label not in row.milliseconds:
        return ""
    return f"{1e3 * tokens / row.milliseconds[label]:,.0f}"


def _command(args: argparse.Namespace) -> list[str]:
    """The options that shape the numbers, as they would be typed."""
    words = ["bench", "train"]
    if args.lengths:
        words += ["--lengths", ",".join(map(str, args.lengths))]
    if args.width != WIDTHS:
        words += ["--width", ",".join(map(str, args.width))]
    defaults = {"attentions": ATTENTIONS, "backends": BACKENDS, "tokens": None, "threads": 2, "repeats": 5}
    defaults |= {"memory_limit": None, "engine_steps": ENGINE_STEPS}
    for name, default in defaults.items():
        if getattr(args, name) != default:
            words += [f"--{name.replace('_', '-')}", str(getattr(args, name)) or "''"]
    return [*words, "--quick"] if args.quick else words
