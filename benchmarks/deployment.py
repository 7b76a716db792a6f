"""``python -m benchmarks deployment``: one more token in each form of a model that can be deployed, and its quality.

The forms take turns on one token: float32, bfloat16 and int8 weights in torch, torchao's int8 where it is installed,
and the ONNX step in onnxruntime. The bits per byte are those of the shipped model on its own validation text.
"""

import copy
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from cosformer import terminal
from cosformer.bench.measure import compared, interleaved
from cosformer.bench.tables import rest
from cosformer.experiment import load_experiment
from cosformer.extras import require
from cosformer.report.measurements import Measurement, Results, cell, number
from cosformer.report.table import Table
from cosformer.shipped import STDLIB_MODEL

QUICK = {"repeats": 3, "models": "shipped"}
LARGE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
BASELINE = "float32"
TORCHAO, ONNX = "int8, torchao", "ONNX step"


def measurements(*, models: str = "shipped,large", repeats: int = 15, threads: int = 2) -> Iterator[Measurement]:
    require("hf", "transformers")
    require("export", "onnxruntime")
    torch.set_num_threads(threads)
    for name in models.split(","):
        terminal.status(f"preparing {name} ...")
        forms = dict(forms_of(build(name)))
        with tempfile.TemporaryDirectory() as folder:
            actions = {form: stepper(model) for form, model in forms.items()}
            actions[ONNX] = onnx_stepper(forms[BASELINE], Path(folder), threads)
            terminal.status(f"tokens of {name} ...")
            with torch.no_grad():
                times = interleaved(actions, repeats=repeats, budget=60.0)
        for form, seconds in times.items():
            m = Measurement(kind="token", variant=name, backend=form, unit="times faster", better="higher")
            yield compared(replace(m, baseline=BASELINE), seconds, times[BASELINE])
        if TORCHAO not in forms:
            m = Measurement(kind="token", variant=name, backend=TORCHAO, unit="times faster", better="higher")
            yield replace(m, baseline=BASELINE, note="torchao is not installed")
        if name == "shipped":
            for form, model in forms.items():
                terminal.status(f"bits per byte of {form} ...")
                m = Measurement(kind="quality", variant=name, backend=form, unit="bits per byte", better="lower")
                yield replace(m, value=round(bits_per_byte(model), 5))


def build(name: str) -> Any:
    """``shipped``, the model that comes with the package, or ``large``, 88 million parameters without training."""
    if name == "shipped":
        from cosformer.train import load_model

        return load_model(STDLIB_MODEL).eval()
    if name != "large":
        raise ValueError(f"models={name!r}; known: shipped, large")
    from cosformer.hf import CosformerConfig, CosformerForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {**LARGE, "vocab_size": 4096, "max_position_embeddings": 4096}
    config = CosformerConfig(**sizes, position_embedding_type="sinusoidal", is_decoder=True)
    return CosformerForCausalLM(config).eval()


def forms_of(model: Any) -> Iterator[tuple[str, Any]]:
    from cosformer.hf.weights import shrink_weights

    yield BASELINE, model
    yield "bfloat16", shrink_weights(copy.deepcopy(model), "bf16")
    yield "int8", shrink_weights(copy.deepcopy(model), "int8")
    if find_spec("torchao"):
        from torchao.quantization import Int8WeightOnlyConfig, quantize_  # pyright: ignore[reportMissingImports]

        other = copy.deepcopy(model).bfloat16()
        quantize_(other, Int8WeightOnlyConfig())
        yield TORCHAO, other


def stepper(model: Any) -> Callable[[], Any]:
    """One more token of one text, at every call."""
    from cosformer.hf import StateCache

    cache, token = StateCache(model.config.num_hidden_layers), torch.ones(1, 1, dtype=torch.int64)
    return lambda: model(token, past_key_values=cache).logits


def onnx_stepper(model: Any, folder: Path, threads: int) -> Callable[[], Any]:
    """The same by onnxruntime, with its state in numpy arrays."""
    import onnxruntime

    from cosformer.hf.onnx import STEP, Step, export_step

    export_step(model, folder)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(folder / STEP), options, providers=["CPUExecutionProvider"])
    step = Step(model)
    feed: dict[str, Any] = {name: x.numpy() for name, x in zip(step.inputs, step.example(1), strict=True)}
    after = [name.replace("present.", "past.") for name in step.outputs[1:]]

    def one() -> Any:
        logits, *state = session.run(None, feed)
        feed.update(zip(after, state, strict=True))
        return logits

    return one


def bits_per_byte(model: Any) -> float:
    """Of the shipped model's validation rows."""
    from cosformer.tasks import build_task
    from cosformer.train.engine import scores_of

    return scores_of(build_task(load_experiment(STDLIB_MODEL)), "valid", model, 2)["bits_per_byte"]


def tables(results: Results) -> list[Table]:
    """A row for each form of each model."""
    shown, rows = [], []
    for m in results.find(kind="token"):
        quality = results.one(kind="quality", variant=m.variant, backend=m.backend)
        shown += [m] if quality is None else [m, quality]
        speed = "not run" if m.milliseconds is None else number(1e3 / m.milliseconds)
        bits = "" if quality is None or quality.value is None else f"{quality.value:.4f}"
        rows.append([NAMES.get(m.variant, m.variant), m.backend, speed, cell(m), bits])
    header = ["model", "form", "tokens/s", "times faster than float32", "bits per byte"]
    return [Table("One more token of one text (medians and quartiles).", header, rows), rest(results, shown)]


NAMES = {"shipped": "shipped, 1.2 M parameters", "large": "12 layers of 768, 88 M parameters"}
