"""The paper's qualitative samples: inputs with the answers of cosFormer, the vanilla transformer, the truth."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cosformer.runs import NOT_RUN, Run
from studies.cosformer2022 import Request
from studies.cosformer2022.cells import Cell, recipes_of
from studies.cosformer2022.state import finished, task_and_model

OURS, VANILLA = "cosformer", "softmax"
SHOWN = 3  # of each kind
ROWS = 200  # of the split that counts
WIDTH = 160  # characters of an input that are shown
_BATCH = 20
_KINDS = {  # by whether cosFormer is right, and whether the Transformer is
    (True, False): "only cosFormer right",
    (False, True): "only the Transformer right",
    (True, True): "both right",
    (False, False): "both wrong",
}


@dataclass(frozen=True)
class Sample:
    """One row: its documents, shortened, and the answers by the names of their classes."""

    recipe: str
    inputs: tuple[str, ...]
    truth: str
    cosformer: str
    softmax: str

    @property
    def kind(self) -> str:
        return _KINDS[self.cosformer == self.truth, self.softmax == self.truth]


def show(request: Request, runs: Sequence[Run]) -> None:
    """Print how often each is right, and a few samples of either kind; write every row as JSON lines."""
    found: list[Sample] = []
    for recipe in recipes_of("samples", request.scale):
        folders = {name: finished(Cell(recipe, name, 0), request.runs) for name in (OURS, VANILLA)}
        missing = [name for name, path in folders.items() if path is None]
        if missing:
            print(f"{recipe}: {NOT_RUN} ({' and '.join(missing)})\n")
            continue
        try:
            samples = answers(recipe, {name: path for name, path in folders.items() if path is not None})
        except (FileNotFoundError, ValueError) as error:
            print(f"skipped: {error}", file=sys.stderr)
            continue
        found += samples
        print(as_text(recipe, samples))
    if found:
        print(f"Every row: {request.write_lines(asdict(sample) | {'kind': sample.kind} for sample in found)}")


def answers(recipe: str, runs: dict[str, Path], rows: int = ROWS) -> list[Sample]:
    """What both runs say to the first rows of the split that counts."""
    import torch

    loaded = {name: task_and_model(path) for name, path in runs.items()}
    task, _ = loaded[OURS]
    which = "test" if "test" in task.final else task.final[0]
    names = task.dataset.class_names
    found = []
    for start in range(0, min(rows, task.eval_size(which)), _BATCH):
        batch = task.eval_batch(which, start, min(start + _BATCH, rows))
        labels = batch.pop("labels")
        with torch.no_grad():
            said = {name: model(**batch).logits.argmax(-1) for name, (_, model) in loaded.items()}
        for i, label in enumerate(labels.tolist()):
            documents = []
            for side in (side for side in ("", "_b") if f"input_ids{side}" in batch):
                ids, mask = batch[f"input_ids{side}"][i], batch[f"attention_mask{side}"][i]
                documents.append(shortened(task.dataset.vocabulary.decode(ids[mask.bool()].numpy())))
            picked = (label, int(said[OURS][i]), int(said[VANILLA][i]))
            found.append(Sample(recipe, tuple(documents), *(names[x] if names else str(x) for x in picked)))
    return found


def as_text(recipe: str, samples: Sequence[Sample]) -> str:
    """Counts, then samples: those the paper shows (only cosFormer right) and as many of the other kind."""
    kinds = [sample.kind for sample in samples]
    counts = ", ".join(f"{kind} {kinds.count(kind)}" for kind in _KINDS.values())
    parts = [f"{recipe}, seed 0, the first {len(samples)} rows: {counts}"]
    for kind in list(_KINDS.values())[:2]:
        chosen = [sample for sample in samples if sample.kind == kind][:SHOWN]
        parts.append(f"{kind[0].upper()}{kind[1:]}{':' if chosen else ': none'}")
        for sample in chosen:
            texts = "\n".join(f"  {text}" for text in sample.inputs)
            said = f"cosFormer {sample.cosformer}, Transformer {sample.softmax}, truth {sample.truth}"
            parts.append(f"{texts}\n    {said}")
    return "\n\n".join(parts) + "\n"


def shortened(text: str, width: int = WIDTH) -> str:
    """One line of at most ``width`` characters: the beginning and the end, cut between words where there are any."""
    text = " ".join(text.split())
    if len(text) <= width:
        return text
    half = (width - 5) // 2
    start, end = text[: half + 1], text[-half - 1 :]
    start = start[: start.rindex(" ")] if " " in start else start[:-1]
    end = end[end.index(" ") + 1 :] if " " in end else end[1:]
    return f"{start} ... {end}"
