"""A cell of a table is one run: recipe, attention, seed. Which cells each table, figure and claim needs."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosformer.experiment import Experiment, Option
from cosformer.recipes import recipe
from cosformer.runs import Run
from studies.cosformer2022 import paper, rates
from studies.cosformer2022.blocks import AFTER, BLOCKS
from studies.cosformer2022.variants import model_changes

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
    """``attention``: its name, or that of a variant. ``start``: the recipe whose run, with the same attention and seed,
    the weights come from. ``rate``: of the search of learning rates, which trains for a share of the length; None for a
    run that is scored."""

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
        model = dataclasses.replace(plain.model, **self._model(plain))
        train = dataclasses.replace(plain.train, seed=self.seed, **self._changes(plain))
        data = plain.data if self.rate is None else dataclasses.replace(plain.data, full_test=False)
        start_from = plain.start if start is None else str(start)
        return dataclasses.replace(plain, data=data, model=model, train=train, start=start_from)

    def _model(self, plain: Experiment) -> dict[str, Any]:
        """Fields of ``model`` in which it differs from its recipe."""
        changes = model_changes(self.attention)
        if self.recipe.startswith("lra-") and self.attention in ARENA_OPTIONS:
            changes = changes | {"attention_options": ARENA_OPTIONS[self.attention]}
        whole = {name: getattr(plain.model, name) | value for name, value in changes.items() if isinstance(value, dict)}
        return changes | whole

    def _changes(self, plain: Experiment) -> dict[str, float | int]:
        """Fields of ``train`` in which it differs from its recipe."""
        if self.rate is None:
            found = rates.rate(self.recipe, self.attention)
            return {} if found is None else {"lr": found}
        share = rates.share(self.recipe)
        steps = plain.train.steps // share
        return {"lr": self.rate, "steps": steps, "warmup": plain.train.warmup // share, "eval_every": steps}

    def words(self, run: Path, start: Path | None, threads: int | None) -> list[str]:
        """The arguments of ``cosformer`` that train it into the folder ``run``."""
        plain = recipe(self.recipe)
        attention, *others = self._model(plain).items()
        words = ["train", self.recipe, "--quiet", "--run", str(run), *_words("model", [attention])]
        words += ["--train.seed", str(self.seed)]
        for name, value in others:
            if isinstance(value, dict):
                known = getattr(plain.model, name)
                words += _words(f"model.{name}", [item for item in value.items() if item not in known.items()])
            else:
                words += _words("model", [(name, value)])
        words += _words("train", self._changes(plain).items())
        if self.rate is not None and plain.data.full_test:
            words += ["--data.no-full-test"]  # the validation split alone decides
        words += [] if threads is None else ["--train.threads", str(threads)]
        return words if start is None else [*words, "--start", str(start)]


def _words(part: str, values: Iterable[tuple[str, Any]]) -> list[str]:
    """The options that set fields of ``part``, as on the command line."""
    words = []
    for name, value in values:
        option = f"--{part}.{name}".replace("_", "-")
        if isinstance(value, bool) and "." not in part:
            words.append(option)  # a switch, which no variant turns off
        elif isinstance(value, (bool, dict)):
            words += [option, json.dumps(value)]
        else:
            words += [option, f"{value:g}" if isinstance(value, float) else str(value)]
    return words


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
        cells = [cell for cell in ledger_cells(seeds) if attentions is None or cell.attention in attentions]
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


def ledger_cells(seeds: int, block: str | None = None) -> list[Cell]:
    """Every run behind results.md, or those of a block: recipe by recipe, then seed by seed."""
    return [
        cell
        for name, table in BLOCKS.items()
        if block in (None, name)
        for recipe_name, attentions in table.items()
        for seed in range(seeds)
        for attention, most in attentions.items()
        if seed < most
        for cell in (
            Cell(recipe_name, attention, seed),
            *(
                Cell(x, attention, seed, recipe_name)
                for x, names in AFTER.get(recipe_name, {}).items()
                if attention in names
            ),
        )
    ]


def search_cells(runs: Iterable[Run] = (), block: str | None = None) -> list[Cell]:
    """The learning-rate search of every scored recipe and attention, as far as it can be known from its ``runs``."""
    losses = rates.losses(runs)
    return list(
        dict.fromkeys(
            Cell(cell.recipe, cell.attention, rates.SEED, cell.start, value)
            for cell in ledger_cells(1, block)
            for value in rates.to_try(cell.recipe, losses.get(cell.recipe, {}).get(cell.attention, {}))
        )
    )
