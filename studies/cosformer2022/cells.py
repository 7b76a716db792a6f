"""A cell of a table is one run: recipe, attention, seed. Which cells each table, figure and claim needs."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cosformer.experiment import Experiment, Option
from cosformer.recipes import recipe
from studies.cosformer2022 import claims, paper, rates

_TEXTS = {"small": "wikitext2-small", "paper": "wikitext103"}  # that both kinds of language models are trained on
_FINETUNE = tuple(f"finetune-{name}" for name in paper.FINETUNE)
_LRA = tuple(f"lra-{name}" for name in paper.LRA)
PHI = ("identity", "leaky_relu", "relu", "softmax", "cosformer")
# target -> what it trains, in order, and the attentions it trains unless told otherwise: the paper's rows
_TRAINED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "table1": (("mlm", "finetune-qqp", "finetune-sst2", "finetune-mnli"), PHI),
    "table2": (("lm",), tuple(paper.TABLE2)),
    "table3": (("mlm", *_FINETUNE), tuple(paper.TABLE3)),
    "table4": (_LRA, tuple(paper.TABLE4)),
    "table6": (("mlm", *_FINETUNE, *_LRA), ("relu", "cosformer")),
    "figure1": (_LRA, tuple(paper.TABLE4)),
    "figure3": (("mlm",), paper.FIGURE4),
    "figure4": (("mlm",), paper.FIGURE4),
    "samples": (("lra-listops", "lra-retrieval"), ("softmax", "cosformer")),
}
ATTENTIONS = {target: attentions for target, (_, attentions) in _TRAINED.items()}
# Long Range Arena's rank, and the Synthesizer that keeps to its rule: at most a tenth more parameters (Pathfinder's
# model is so small that this one has a fifth more)
ARENA_OPTIONS: dict[str, dict[str, Option]] = {"linformer": {"rank": 16}, "synthesizer": {"kind": "factorised_dense"}}


@dataclass(frozen=True)
class Cell:
    """``start``: the recipe whose run, with the same attention and seed, the weights come from. ``rate``: of the search
    of learning rates, which trains a quarter as long; None for a run that is scored."""

    recipe: str
    attention: str
    seed: int
    start: str | None = None
    rate: float | None = None

    @property
    def name(self) -> str:
        """Of its folder, unless it lies in another; `cosformer train` calls it the same."""
        searched = "" if self.rate is None else f"-rate{self.rate:g}"
        return f"{self.recipe}-{self.attention}-seed{self.seed}{searched}"

    @property
    def before(self) -> "Cell | None":
        """The cell that must be done first; in the search it is the one with the best rate, once that is known."""
        if self.start is None:
            return None
        first = None if self.rate is None else rates.rate(self.start, self.attention)
        return Cell(self.start, self.attention, self.seed, rate=first)

    def experiment(self, start: Path | None = None) -> Experiment:
        """What its run must be; ``start``: the folder of the run before it."""
        plain = recipe(self.recipe)
        model = dataclasses.replace(plain.model, attention=self.attention, attention_options=self._options)
        train = dataclasses.replace(plain.train, seed=self.seed, **self._changes(plain))
        data = plain.data if self.rate is None else dataclasses.replace(plain.data, full_test=False)
        start_from = plain.start if start is None else str(start)
        return dataclasses.replace(plain, data=data, model=model, train=train, start=start_from)

    @property
    def _options(self) -> dict[str, Option]:
        return ARENA_OPTIONS.get(self.attention, {}) if self.recipe.startswith("lra-") else {}

    def _changes(self, plain: Experiment) -> dict[str, float | int]:
        """Fields of ``train`` in which it differs from its recipe."""
        if self.rate is None:
            found = rates.rate(self.recipe, self.attention)
            return {} if found is None else {"lr": found}
        steps = plain.train.steps // rates.QUARTER
        return {"lr": self.rate, "steps": steps, "warmup": plain.train.warmup // rates.QUARTER, "eval_every": steps}

    def words(self, run: Path, start: Path | None, threads: int | None) -> list[str]:
        """The arguments of ``cosformer`` that train it into the folder ``run``."""
        words = ["train", self.recipe, "--quiet", "--run", str(run), "--model.attention", self.attention]
        words += ["--train.seed", str(self.seed)]
        for name, value in self._options.items():
            words += [f"--model.attention-options.{name}", str(value)]
        for name, value in self._changes(recipe(self.recipe)).items():
            words += [f"--train.{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
        if self.rate is not None and recipe(self.recipe).data.full_test:
            words += ["--data.no-full-test"]  # the validation split alone decides
        words += [] if threads is None else ["--train.threads", str(threads)]
        return words if start is None else [*words, "--start", str(start)]


def recipes_of(target: str, scale: str) -> tuple[str, ...]:
    """What a target trains, in order; nothing for those that only measure or draw."""
    names, _ = _TRAINED.get(target, ((), ()))
    suffix = "" if scale == "paper" else "-small"
    return tuple(f"{name}-{_TEXTS[scale]}" if name in ("mlm", "lm") else f"{name}{suffix}" for name in names)


def cells_of(
    target: str, scale: str, attentions: Sequence[str] | None, seeds: int, recipes: Sequence[str] | None = None
) -> list[Cell]:
    """The cells of a target, seed by seed. ``recipes``: only these, and the ones they start from."""
    if target in ("ledger", "rates"):
        every = ledger_cells(seeds) if target == "ledger" else search_cells()
        cells = [cell for cell in every if attentions is None or cell.attention in attentions]
    else:
        cells = [
            Cell(name, attention, seed, f"mlm-{_TEXTS[scale]}" if name.startswith("finetune-") else None)
            for seed in range(seeds)
            for name in recipes_of(target, scale)
            for attention in attentions or ATTENTIONS.get(target, ())
        ]
    known = dict.fromkeys(cell.recipe for cell in cells)
    for name in recipes or ():
        if name not in known:
            raise ValueError(f"{target} at scale {scale} has no recipe {name!r}; it has: {', '.join(known) or 'none'}")
    chosen = [cell for cell in cells if recipes is None or cell.recipe in recipes]
    firsts = {cell.before for cell in chosen}
    return [cell for cell in cells if cell in chosen or cell in firsts]


# recipe, attentions and how many seeds each has at most; in the order of the queue
_ORDERED: tuple[tuple[str, dict[str, int]], ...] = (
    (
        claims.LM,
        {"softmax": 5, "cosformer": 5, "relu": 5, "linear": 3, "leaky_relu": 3, "identity": 3, "uniform": 3},
    ),
    (claims.MLM, {**dict.fromkeys(("softmax", "cosformer", "relu", "leaky_relu", "identity"), 5), "uniform": 3}),
    (claims.PRETRAIN, {"softmax": 5, "cosformer": 5, "uniform": 5, "relu": 3}),
    (claims.PATHFINDER, {"softmax": 5, "cosformer": 5, "relu": 5, "uniform": 3}),
    (claims.LM_LONG, {"softmax": 3, "cosformer": 3, "relu": 3}),
    (claims.RECALL_16, {"softmax": 3, "cosformer": 3, "linear": 3, "relu": 3, "uniform": 3}),
    (claims.RECALL_32, {"softmax": 3, "cosformer": 3, "linear": 3, "relu": 3, "uniform": 3}),
    (claims.LM_NOPOS, {"cosformer": 3, "relu": 3}),
    (claims.LM_M2, {"cosformer": 3}),
    (claims.LM_M4, {"cosformer": 3}),
    (claims.LISTOPS, {"softmax": 3, "cosformer": 3, "relu": 3, "uniform": 3}),
)
# fine-tunings follow their pre-training at once, as weights are not kept for long
_AFTER: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    claims.PRETRAIN: ((claims.SST2, ("softmax", "cosformer", "uniform", "relu")),),
}
LEDGER_SEEDS = 5


def ledger_cells(seeds: int) -> list[Cell]:
    """Every run behind results.md, block by block, within a block seed by seed."""
    return [
        cell
        for name, attentions in _ORDERED
        for seed in range(seeds)
        for attention, most in attentions.items()
        if seed < most
        for cell in (
            Cell(name, attention, seed),
            *(Cell(after, attention, seed, name) for after, those in _AFTER.get(name, ()) if attention in those),
        )
    ]


def search_cells() -> list[Cell]:
    """The learning-rate search: three rates at a quarter of the length for every scored recipe and attention."""
    found: dict[Cell, None] = {}
    for cell in ledger_cells(1):
        for value in rates.TRIED.get(cell.recipe, ()):
            found[Cell(cell.recipe, cell.attention, rates.SEED, cell.start, value)] = None
    return list(found)
