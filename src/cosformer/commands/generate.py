"""``cosformer generate``: continue a text, token by token on the terminal."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from cosformer.experiment import EXPERIMENT_FILE, load_experiment
from cosformer.extras import require
from cosformer.shipped import STDLIB_MODEL
from cosformer.suggest import check_model_path

DEFAULT_TOKENS = 200
DEFAULT_PROMPT = 'def parse(text):\n    """Parse a string."""\n'  # of the model that comes with the package
TEMPERATURE, TOP_P = 0.8, 0.95  # text that stays on its subject and does not repeat itself


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        nargs="?",
        help="a run's folder, a directory with a saved causal model, or a name on the hub (default: a small model of "
        "Python sources that comes with this package)",
    )
    add("--prompt", help="the text to continue; - reads it from standard input")
    add("--max-new-tokens", type=int, help=f"how many at the most (default: {DEFAULT_TOKENS}, or what fits)")
    add("--greedy", action="store_true", help="always the likeliest token, instead of drawing at random")
    add("--temperature", type=float, help=f"below 1 is more cautious (default: {TEMPERATURE:g})")
    add("--top-k", type=int, help="draw among the k likeliest tokens")
    add(
        "--top-p",
        type=float,
        help=f"draw among the likeliest tokens that make up this probability (default: {TOP_P:g})",
    )
    add("--seed", type=int, help="the same seed draws the same text (default: another one each time)")
    add("--weights", choices=["bf16", "int8"], help="fewer bytes to read for each token (default: as they were saved)")
    add(
        "--compile",
        action="store_true",
        help="compile the step of one token first (needs a C++ compiler); torch keeps the result on disk",
    )
    add("--device", default="cpu", help="where to run: cpu, cuda, cuda:1 (default: cpu)")


def run(args: argparse.Namespace) -> int:
    shape = {name: getattr(args, name) for name in ("temperature", "top_k", "top_p")}
    shape = {name: value for name, value in shape.items() if value is not None}
    if args.greedy and (shape or args.seed is not None):
        given = [f"--{name.replace('_', '-')}" for name in (*shape, *(("seed",) if args.seed is not None else ()))]
        raise ValueError(f"{', '.join(given)} shape what is drawn at random; leave out --greedy")
    if not args.greedy:
        shape = {"temperature": TEMPERATURE, "top_p": TOP_P} | shape
    if args.prompt is None and args.model is not None:
        raise ValueError("--prompt is missing: the text to continue, or - to read it from standard input")
    name = str(STDLIB_MODEL) if args.model is None else args.model
    task = load_experiment(Path(name)).task if (Path(name) / EXPERIMENT_FILE).is_file() else "lm"
    if task != "lm":
        raise ValueError(f"{name} was trained for the task {task!r}; only a language model ('lm') continues a text")
    model, tokenizer = load(name, "AutoModelForCausalLM")
    import torch
    import transformers

    from cosformer.hf import StateCache

    model.to(args.device).eval()
    if args.weights is not None:
        from cosformer.hf.weights import shrink_weights

        shrink_weights(model, args.weights)
    given = DEFAULT_PROMPT if args.prompt is None else args.prompt
    prompt = sys.stdin.read() if given == "-" else given
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"].to(args.device)
    if not ids.shape[1]:
        raise ValueError("the prompt holds no token; give at least one word")
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    options: dict[str, Any] = {"do_sample": not args.greedy, "pad_token_id": 0 if pad is None else pad, **shape}
    tokens = room(args.max_new_tokens, ids.shape[1], model.config)

    @torch.no_grad()
    def write(tokens: int, **more: Any) -> None:
        if model.config._attn_implementation in ("cosformer", "multiscale"):
            more["past_key_values"] = StateCache()
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, **options, **more)

    if args.compile:
        from cosformer.hf import compile_step

        start = time.perf_counter()
        compile_step(model)
        write(min(2, tokens), eos_token_id=None)  # the second token is the first compiled step
        print(f"compiled in {time.perf_counter() - start:.1f} s", file=sys.stderr)
    if args.seed is not None:
        torch.manual_seed(args.seed)
    write(tokens, streamer=transformers.TextStreamer(tokenizer, skip_special_tokens=True))
    return 0


def load(name: str, auto_class: str) -> tuple[Any, Any]:
    """The model and tokenizer of a run, or of a folder or hub name loaded with transformers' ``auto_class``."""
    check_model_path(name)
    transformers: Any = require("hf", "transformers")
    import cosformer.hf  # noqa: F401  (its models load by name)
    from cosformer.hf.convert import read_config

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if (Path(name) / EXPERIMENT_FILE).is_file():
        from cosformer.train import load_model

        return load_model(Path(name)), RunTokenizer(Path(name))
    try:
        read_config(name)
        model = getattr(transformers, auto_class).from_pretrained(name)
    except (OSError, ValueError) as error:  # ValueError: a folder without a model's config.json
        kind = "causal model" if "Causal" in auto_class else "model"
        raise FileNotFoundError(f"no run and no {kind} in {name!r}: {error}") from error
    try:
        return model, transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise FileNotFoundError(f"no tokenizer in {name!r}; save one there with save_pretrained") from error


class RunTokenizer:
    """A run's vocabulary, called as a tokenizer is."""

    def __init__(self, run: Path) -> None:
        from cosformer.train.vocabulary import load_vocabulary

        self.vocabulary = vocabulary = load_vocabulary(run)
        self.specials = load_experiment(run).task != "lm"  # start and end tokens around a text, as rows have them
        self.pad_token_id, self.eos_token_id = vocabulary.pad_id, vocabulary.eos_id
        self._special = {vocabulary.pad_id, vocabulary.bos_id, vocabulary.eos_id, vocabulary.mask_id}

    def __call__(self, text: str, return_tensors: str | None = None) -> dict[str, Any]:
        import torch

        ids = encode(self.vocabulary, text, self.specials)
        return {"input_ids": torch.tensor([ids]) if return_tensors == "pt" else ids}

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        import numpy as np

        kept = [int(i) for i in ids if not (skip_special_tokens and int(i) in self._special)]
        return self.vocabulary.decode(np.array(kept, np.int64)) if kept else ""


def encode(vocabulary: Any, text: str, specials: bool) -> list[int]:
    """The ids of ``text`` in a data set's vocabulary; ``specials``: between its start and end tokens, as rows are."""
    if hasattr(vocabulary, "encode"):
        ids = [int(i) for i in vocabulary.encode([text])[0]]
    elif hasattr(vocabulary, "index"):
        ids = [_word(vocabulary, word) for word in text.split()]
    else:
        raise ValueError("this run reads pixels, not text")
    if specials and vocabulary.bos_id is not None and vocabulary.eos_id is not None:
        ids = [vocabulary.bos_id, *ids, vocabulary.eos_id]
    return ids


def _word(vocabulary: Any, word: str) -> int:
    found = vocabulary.index.get(word, vocabulary.unk_id)
    if found is None:
        raise ValueError(f"the word {word!r} is not in the run's vocabulary: {' '.join(vocabulary.words[:20])} …")
    return found


def room(wanted: int | None, used: int, config: Any) -> int:
    """The number of tokens to generate after ``used``: ``wanted``, refused if too many, or what fits of the default."""
    longest = getattr(config, "max_position_embeddings", None)
    free = DEFAULT_TOKENS if longest is None else longest - used
    if wanted is not None and wanted < 1:
        raise ValueError(f"--max-new-tokens {wanted}; it must be at least 1")
    if free < 1 or (longest is not None and wanted is not None and wanted > free):
        raise ValueError(
            f"a prompt of {used} tokens and {wanted or 1} new ones exceed the model's max_len={longest};"
            " shorten the prompt or ask for fewer"
        )
    return min(DEFAULT_TOKENS, free) if wanted is None else wanted
