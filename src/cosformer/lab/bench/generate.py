"""``cosformer bench generate``: one token at growing contexts, cosFormer's state against softmax's key-value cache."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cosformer import terminal
from cosformer.lab.bench import output
from cosformer.lab.bench.results import Row, document, measured

if TYPE_CHECKING:
    from cosformer.lab.bench.table import Table

MARKER = "bench generate"
LENGTHS = (1024, 4096, 16384, 65536)
QUICK_LENGTHS = (256, 1024)
TOKENS = 100_000
QUICK_TOKENS = 2000
FLAT, GROWTH_MB = 1.10, 20.0
SIZES = {"hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 2048}
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Milliseconds and state bytes per generated token by context length, in one model of 2 layers of width 512 with 8 heads "
        "(float32, one sequence; softmax's cache grows by copying, as transformers' DynamicCache does), and a run of the model's own step loop in a small model. Needs cosformer[hf]."
    )
    add = parser.add_argument
    add("--lengths", type=_lengths, metavar="N,N,...", help=f"default: {','.join(map(str, LENGTHS))}; '' for none")
    add("--tokens", type=int, help=f"length of the run of the step loop (default: {TOKENS:,}; 0: none)")
    add("--threads", type=int, default=2, help="default: %(default)s")
    add("--repeats", type=int, default=9, help="of each timing (default: %(default)s)")
    add("--quick", action="store_true", help="short lengths and a short run: seconds")
    output.add_options(parser, MARKER)


def run(args: argparse.Namespace) -> int:
    return output.show(args, MARKER, measure, tables)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run the benchmark that ``args`` describe."""
    from cosformer.extras import require

    require("hf", "transformers")
    import torch

    from cosformer import machine

    lengths = args.lengths if args.lengths is not None else (QUICK_LENGTHS if args.quick else LENGTHS)
    tokens = args.tokens if args.tokens is not None else (QUICK_TOKENS if args.quick else TOKENS)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    about = machine.describe(args.threads)
    words = ["bench", "generate", "--lengths", ",".join(map(str, lengths)), "--tokens", str(tokens)]
    rows = [*step_rows(lengths, repeats=args.repeats), *loop_rows(tokens, threads=args.threads)]
    terminal.status("")
    settings = {"model": SIZES, "loop model": SMALL, "repeats": args.repeats, "batch": 1, "dtype": "float32"}
    return document(rows, about, machine.provenance(words), settings)


def step_rows(lengths: tuple[int, ...], *, repeats: int) -> Iterator[Row]:
    """Time of one token behind each context, and the size of what is carried; the two attentions taking turns."""
    import torch

    from cosformer.lab.bench.measure import interleaved, ratio, spread

    if not lengths:
        return
    steps: dict[str, Any] = {}
    sizes: dict[tuple[str, int], int] = {}
    for name in ("cosformer", "softmax"):
        model = build(name, SIZES, max(lengths) + 1)
        for n in lengths:
            terminal.status(f"filling {name}'s state with {n:,} tokens ...")
            states = filled_states(model, n)
            sizes[name, n] = sum(x.nbytes for state in states for x in state.state_dict().values())
            steps[f"{name}/{n}"] = _step(model, states)
    terminal.status("timing one token at every length ...")
    with torch.no_grad():
        samples = interleaved(steps, repeats=repeats)
        # without the other's copies of half a gigabyte in between, which empty the processor's caches
        cheap = {key: step for key, step in steps.items() if key.startswith("cosformer/")}
        alone = interleaved(cheap, repeats=5 * repeats)
    for n in lengths:
        ours, theirs = samples[f"cosformer/{n}"], samples[f"softmax/{n}"]
        milliseconds = {name: spread(samples[f"{name}/{n}"]).median * 1e3 for name in ("cosformer", "softmax")}
        row = Row(
            f"step/{n}/time", f"one token at context {n:,}: times faster", "x", "higher", milliseconds=milliseconds
        )
        row = measured(row, ratio(theirs, ours))
        yield Row(**{**row.__dict__, "goal": 1.0 if n >= 4096 else None})
        factor = sizes["softmax", n] / sizes["cosformer", n]
        by = {name: sizes[name, n] / 1e6 for name in ("cosformer", "softmax")}
        what = f"state at context {n:,}: times smaller"
        yield Row(f"step/{n}/memory", what, "x", "higher", value=factor, low=factor, high=factor, by_length=by)
    medians = [spread(alone[f"cosformer/{n}"]).median for n in lengths]
    flat = max(medians) / min(medians)
    what = f"cosFormer's slowest over its fastest token, {min(lengths):,} to {max(lengths):,}"
    yield Row("step/flat", what, "x", "lower", value=flat, low=flat, high=flat, goal=FLAT)


def loop_rows(tokens: int, *, threads: int) -> Iterator[Row]:
    """The model's own step loop, ``tokens`` long, in a fresh process: state bytes and growth of the process."""
    from cosformer.lab.bench.measure import in_fresh_process

    if tokens <= 0:
        return
    terminal.status(f"running the step loop to token {tokens:,} ...")
    found = in_fresh_process("cosformer.lab.bench.generate:loop", threads, tokens=tokens)
    grown = found["grown"] / 1e6
    what = f"growth of the process, token {found['warm']:,} to {tokens:,}"
    yield Row(f"loop/{tokens}/growth", what, "MB", "lower", value=grown, low=grown, high=grown, goal=GROWTH_MB)
    change = found["last_bytes"] / found["first_bytes"]
    what = f"state bytes at token {tokens:,} over those at token 1"
    yield Row(f"loop/{tokens}/state", what, "x", "lower", value=change, low=change, high=change, goal=1.0)


def loop(tokens: int) -> dict[str, int]:
    """Greedy steps of a small model; run in a process of its own."""
    import torch

    from cosformer.lab.bench.measure import _resident
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
                before = _resident("VmRSS")
    assert cache.get_seq_length() == tokens
    return {"first_bytes": first_bytes, "last_bytes": cache.nbytes, "grown": _resident("VmRSS") - before, "warm": warm}


def build(attention: str, sizes: dict[str, Any], max_len: int) -> Any:
    """The model with one attention; the other weights are the same for every attention."""
    import torch

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
    import torch

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
    import torch

    from cosformer.models.state_cache import StateCache

    token = torch.ones(1, 1, dtype=torch.long)

    def step() -> None:
        cache = StateCache(len(states))
        for i, state in enumerate(states):
            cache[i] = state
        model(token, past_key_values=cache)

    return step


def tables(results: dict[str, Any]) -> "list[Table]":
    """What was measured, from what, wanted and reached."""
    from cosformer.lab.bench.results import rows_of
    from cosformer.lab.bench.table import Table, goals

    rows = rows_of(results)
    found = goals(
        rows, "A model of 2 layers of width 512: one more token, and the run of the step loop (median and quartiles)."
    )
    body = []
    for row, (what, *cells) in zip(rows, found.rows, strict=True):
        parts = row.milliseconds or row.by_length
        unit = "ms" if row.milliseconds else "MB"
        made_from = " against ".join(f"{name} {value:.3g} {unit}" for name, value in parts.items())
        body.append([what, cells[0], made_from, *cells[1:]])
    return [Table(found.title, ["", "measured", "from", "wanted", "reached"], body)]


def _lengths(text: str) -> tuple[int, ...]:
    try:
        found = tuple(sorted({int(part) for part in text.split(",") if part}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: whole numbers with commas, like 1024,4096") from None
    if found and found[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: lengths start at 1")
    return found
