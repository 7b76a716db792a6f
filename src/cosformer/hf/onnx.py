"""Models as ONNX files: the whole sequence, and of a left-to-right model one token with its state as named tensors."""

import copy
import inspect
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cosformer.attention.base import Attention
from cosformer.attention.key_value_state import KeyValueState
from cosformer.attention.softmax import Softmax
from cosformer.extras import require
from cosformer.nn.short_convolution import ConvolvedState
from cosformer.ops.state import LinearState

WHOLE, STEP = "model.onnx", "step.onnx"
TOLERANCE = 1e-4  # the largest difference between onnxruntime and torch
LENGTH = 96  # of the example

TEXT = ("input_ids", "attention_mask")
# class -> the tensors that its file takes and gives
HEADS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "CosformerModel": (TEXT, ("last_hidden_state",)),
    "CosformerForCausalLM": (TEXT, ("logits",)),
    "CosformerForMaskedLM": (TEXT, ("logits",)),
    "CosformerForSequenceClassification": (TEXT, ("logits",)),
    "CosformerForTokenClassification": (TEXT, ("logits",)),
    "CosformerForQuestionAnswering": (TEXT, ("start_logits", "end_logits")),
    "CosformerForMultipleChoice": (TEXT, ("logits",)),
    "CosformerForPairClassification": ((*TEXT, "input_ids_b", "attention_mask_b"), ("logits",)),
    "CosformerForImageClassification": (("pixel_values",), ("logits",)),
    "CosformerForForecasting": (("input_values", "attention_mask"), ("logits",)),
    "CosformerForConditionalGeneration": ((*TEXT, "decoder_input_ids"), ("logits",)),
}
NOT_OURS = "{} cannot be exported to ONNX: of converted, linearized and stock models of transformers there is no export"
WITH_STEP = ("CosformerForCausalLM", "CosformerForForecasting")


def export(model: Any, folder: Path, length: int | None = None) -> list[str]:
    """Write ``model.onnx`` to ``folder`` and, where its layers carry states, ``step.onnx``; a line on each of them.

    Batch and length are free, or the length is ``length``. A file on which onnxruntime differs from torch by more than
    :data:`TOLERANCE` is refused.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        require("export", package)
    name = type(model).__name__
    if name not in HEADS:
        raise ValueError(NOT_OURS.format(name))
    if model.config.adaptive_cutoffs is not None:
        raise ValueError("a model with adaptive_cutoffs cannot be exported to ONNX: its shapes depend on the words")
    model = copy.deepcopy(model).float().eval().requires_grad_(False)
    whole = Whole(model, length)
    with tempfile.TemporaryDirectory(dir=folder) as place:  # all files, or none where one is refused
        made = Path(place)
        said = [_write(whole, [whole.example(2, whole.length), whole.example(3, length or 17)], made / WHOLE)]
        if name in WITH_STEP:
            reason = why_no_step(model)
            said.append(f"no {STEP}: {reason}" if reason else export_step(model, made))
        for file in made.iterdir():
            file.replace(folder / file.name)
    return said


def export_step(model: Any, folder: Path) -> str:
    """Write the one-token step of a model in float32 to ``folder``; a line on it."""
    step = Step(model)
    return _write(step, [step.example(2), step.example(3)], folder / STEP)


def load(source: str) -> Any:
    """The model in a folder, or of a hub name, with the class it was saved with."""
    import cosformer.hf
    from cosformer.hf.convert import read_config

    config: Any = read_config(source)
    name = (config.architectures or ["a model without architectures in its config"])[0]
    if name not in HEADS:
        raise ValueError(NOT_OURS.format(name))
    return getattr(cosformer.hf, name).from_pretrained(source)


def _write(module: "Whole | Step", examples: list[tuple[Tensor, ...]], path: Path) -> str:
    """Export with the first example, compare on all of them, and only then put the file in its place."""
    import onnxruntime

    names = ", ".join(sorted({type(layer).__name__ for layer in module.modules() if isinstance(layer, Attention)}))
    options: dict[str, Any] = {"input_names": module.inputs, "output_names": module.outputs}
    options["dynamic_shapes"] = {"tensors": tuple(module.axes())}
    with tempfile.TemporaryDirectory(dir=path.parent) as place:
        made = str(Path(place) / path.name)
        try:
            with _quiet():
                torch.onnx.export(module, examples[0], made, dynamo=True, verbose=False, **options)
            session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
        except OSError:
            raise  # the disk is full, for one
        except Exception as error:  # of any of three packages
            first = str(error.__cause__ or error).strip().partition("\n")[0]
            raise ValueError(f"{path.name}: attention {names} cannot be exported{module.way_out}: {first}") from error
        worst = 0.0
        for example in examples:
            feed = {name: x.numpy() for name, x in zip(module.inputs, example, strict=True)}
            found = session.run(None, feed)
            for one, other in zip(found, module(*example), strict=True):
                worst = max(worst, float((torch.as_tensor(one).double() - other.double()).abs().max()))
        if not worst <= TOLERANCE:
            raise ValueError(
                f"{path.name}: onnxruntime differs from torch by {worst:.1e}, allowed are {TOLERANCE:.0e}; attention "
                f"{names} cannot be exported"
            )
        for part in sorted(Path(place).iterdir()):  # large weights have a file of their own
            os.replace(part, path.parent / part.name)
    return f"{path.name}: onnxruntime differs from torch by at most {worst:.1e}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks, which come as prints, warnings and logs."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


class Whole(nn.Module):
    """A model as a function of tensors, in the order of ``inputs``."""

    def __init__(self, model: Any, length: int | None) -> None:
        super().__init__()
        self.model, config = model, model.config
        self.inputs, self.outputs = HEADS[type(model).__name__]
        if config.num_input_channels is not None and "input_ids" in self.inputs:
            self.inputs = tuple(name.replace("input_ids", "input_values") for name in self.inputs)
        self.fixed, self.length = length, length or min(LENGTH, config.max_position_embeddings)
        self.way_out = "" if length else " for every length (--length N makes a file for N tokens)"
        self.options = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        found = self.model(**dict(zip(self.inputs, tensors, strict=True)), **self.options)
        return tuple(found[name] for name in self.outputs)

    def example(self, batch: int, length: int) -> tuple[Tensor, ...]:
        """Input of each kind, the first and the last row padded."""
        return tuple(self._example(name, batch, length - _second(name) * (not self.fixed)) for name in self.inputs)

    def _example(self, name: str, batch: int, length: int) -> Tensor:
        config, generator = self.model.config, torch.Generator().manual_seed(0)
        shape = (batch, 4, length) if "MultipleChoice" in type(self.model).__name__ else (batch, length)
        if name == "pixel_values":
            return torch.rand(batch, config.num_channels, config.image_size, config.image_size, generator=generator)
        if name == "input_values":
            return torch.randn(*shape, config.num_input_channels, generator=generator)
        if "mask" in name:
            mask = torch.ones(shape, dtype=torch.int64)
            mask[-1, ..., -(length // 2) :] = 0  # padded on the right
            if not config.is_encoder_decoder:
                mask[0, ..., : length // 3] = 0  # on the left
            return mask
        return torch.randint(config.vocab_size, shape, generator=generator)

    def axes(self) -> Iterator[dict[int, Any]]:
        """The dimensions of each input that are free, by number."""
        body, config = getattr(self.model, "model", self.model), self.model.config
        most = config.max_position_embeddings - config.cls_token if getattr(body, "bounded", True) else None
        batch, choices = torch.export.Dim("batch"), torch.export.Dim("choices")
        lengths = [torch.export.Dim(name, min=2, max=most) for name in ("length", "length_b")]
        for name in self.inputs:
            choice = "MultipleChoice" in type(self.model).__name__
            free = {0: batch} | ({1: choices} if choice else {})
            if name != "pixel_values" and not self.fixed:
                free[1 + choice] = lengths[_second(name)]
            yield free


def _second(name: str) -> bool:
    """Whether an input is of the second of two sequences."""
    return name.startswith("decoder") or name.endswith("_b")


class Step(nn.Module):
    """One more token of a left-to-right model: the token, the number of tokens before it and the state -> the logits
    ``[B,C]``, that number plus one, and the next state.

    Tensors go in and out in the order of :attr:`inputs` and :attr:`outputs`. Before the first token all are zeros.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.body, self.way_out = model, model.model, ""
        self.takes = "input_ids" if type(model).__name__ == "CosformerForCausalLM" else "input_values"
        layers: Any = self.body.layers
        self.kinds: list[Kind] = [_kind_of(layer.attention) for layer in layers]
        names = [f"{index}.{name}" for index, kind in enumerate(self.kinds) for name in kind.shapes]
        self.inputs = [self.takes, "past.position", *(f"past.{name}" for name in names)]
        self.outputs = ["logits", "present.position", *(f"present.{name}" for name in names)]

    def start(self, batch: int) -> list[Tensor]:
        """The state before the first token."""
        kinds = [shape for kind in self.kinds for shape in kind.shapes.items()]
        return [torch.zeros(batch, *shape, dtype=torch.bool if name == "key_mask" else None) for name, shape in kinds]

    @torch.no_grad()
    def example(self, batch: int) -> tuple[Tensor, ...]:
        """The third token of ``batch`` texts, after two others."""
        position, state = torch.tensor(0), self.start(batch)
        for number in range(2):
            _, position, *state = self(self._token(batch, number), position, *state)
        return self._token(batch, 2), position, *state

    def _token(self, batch: int, seed: int) -> Tensor:
        config, generator = self.model.config, torch.Generator().manual_seed(seed)
        if self.takes == "input_ids":
            return torch.randint(config.vocab_size, (batch, 1), generator=generator)
        return torch.randn(batch, 1, config.num_input_channels, generator=generator)

    def axes(self) -> Iterator[dict[int, Any]]:
        """The dimensions of each input that are free, by number."""
        batch = torch.export.Dim("batch")
        return ({} if name == "past.position" else {0: batch} for name in self.inputs)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        token, position, *left = tensors
        body, after = self.body, list[Tensor]()
        if torch.compiler.is_exporting():  # what the graph may take for granted; an exported one cannot refuse
            seen = position.item()
            torch._check(seen >= 0)
            torch._check(seen + 1 <= self.model.config.max_position_embeddings)
        places = position.reshape(1, 1)
        given = None if self.takes == "input_ids" else body.embeddings.tokens(token)
        x = body.embeddings(token if given is None else None, given, places, None)
        options = {} if body.rotation is None else {"rotation": body.rotation(x, places)}
        for layer, kind in zip(body.layers, self.kinds, strict=True):
            own, left = left[: len(kind.shapes)], left[len(kind.shapes) :]
            x, state = layer(x, None, kind.build(position, *own), True, **options)
            after += kind.take(state)
        if body.final_norm is not None:
            x = body.final_norm(x)
        if self.takes == "input_ids":
            logits = self.model.lm_head(x)
        else:
            readings = body.embeddings.tokens
            logits = readings.in_units(readings.standardized(token) + self.model.change(x))
        return logits[:, 0], position + 1, *after


class TracedState(LinearState):
    """A state whose number of tokens a graph knows."""

    @property
    def seen(self) -> int:
        return self.position.item()  # pyright: ignore[reportReturnType]


class Sums:
    """The sums of a linear attention as tensors, and a state made of them."""

    def __init__(self, state: LinearState) -> None:
        self.like = state
        self.shapes = {"kv": state.kv.shape[1:], "z": state.z.shape[1:]}

    def build(self, position: Tensor, kv: Tensor, z: Tensor) -> LinearState:
        return TracedState(kv, z, position, self.like.max_len, self.like.decay)

    def take(self, state: LinearState) -> list[Tensor]:
        return [state.kv, state.z]


class Window:
    """The last keys and values of a sliding window, which of them are there, and a state made of them."""

    def __init__(self, state: KeyValueState, window: int) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, x in (("k", state.k), ("v", state.v)):
            self.shapes[name] = (x.shape[1], window, x.shape[3])
        self.shapes["key_mask"] = (window,)

    def build(self, position: Tensor, k: Tensor, v: Tensor, key_mask: Tensor) -> KeyValueState:
        return KeyValueState(k, v, key_mask, position)

    def take(self, state: KeyValueState) -> list[Tensor]:
        assert state.key_mask is not None
        return [state.k, state.v, state.key_mask]


class Convolved:
    """The rows that a short convolution looks back at, and its mechanism's state."""

    def __init__(self, state: ConvolvedState, inner: "Kind") -> None:
        self.inner = inner
        self.shapes = {"rows": state.rows.shape[1:]} | inner.shapes

    def build(self, position: Tensor, rows: Tensor, *inner: Tensor) -> ConvolvedState:
        return ConvolvedState(rows, self.inner.build(position, *inner))

    def take(self, state: ConvolvedState) -> list[Tensor]:
        return [state.rows, *self.inner.take(state.state)]


Kind = Sums | Window | Convolved


def why_no_step(model: Any) -> str:
    """Which layer of a left-to-right model has no state of one size; an empty string: all have one."""
    for index, layer in enumerate(model.model.layers):
        mechanism = layer.attention.attention
        name = type(mechanism).__name__
        if not layer.attention.streaming:
            return f"attention {name} of layer {index} carries no state from token to token"
        if isinstance(mechanism, Softmax):
            return f"attention {name} of layer {index} keeps every key, so its state has no fixed size"
    return ""


@torch.no_grad()
def _kind_of(attention: Any) -> Kind:
    """How the state of a layer's ``MultiHead`` is taken apart; the state after one token tells."""
    mechanism = attention.attention
    x = torch.zeros(1, 1, attention.query.in_features)
    rotation = (torch.ones(1, 1, mechanism.head_dim), torch.zeros(1, 1, mechanism.head_dim))
    _, state = attention(x, None, None, True, rotation=rotation)

    def kind(state: Any) -> Kind:
        return Sums(state) if isinstance(state, LinearState) else Window(state, mechanism.window)

    return Convolved(state, kind(state.state)) if isinstance(state, ConvolvedState) else kind(state)
