"""A cell of a table: one recipe, one attention, one seed, one run; and which cells each table, figure and claim needs."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cosformer.experiment import Experiment
from cosformer.lab import numbers as paper
from cosformer.lab.paper.claims import IMAGE, LISTOPS, LM, MLM, PATHFINDER, SST2, TEXT
from cosformer.recipes import recipe

SCALES = ("small", "paper")
_FINETUNE = ("qqp", "sst2", "mnli", "imdb", "amazon")
_LRA = ("listops", "text", "retrieval", "image", "pathfinder")
_MLM = {"small": MLM, "paper": "mlm-wikitext103"}
_LM = {"small": LM, "paper": "lm-wikitext103"}
PHI = ("identity", "leaky_relu", "relu", "softmax", "cosformer")
TRIO = ("softmax", "cosformer", "relu")


@dataclass(frozen=True)
class Cell:
    """``start``: the recipe whose run, with the same attention and seed, the weights come from."""

    recipe: str
    attention: str
    seed: int
    start: str | None = None

    @property
    def name(self) -> str:
        """Of its folder, unless it lies in another; `cosformer train` calls it the same."""
        return f"{self.recipe}-{self.attention}-seed{self.seed}"

    @property
    def before(self) -> "Cell | None":
        """The cell that must be done first."""
        return None if self.start is None else Cell(self.start, self.attention, self.seed)

    def experiment(self, start: Path | None = None) -> Experiment:
        """What its run must be; ``start``: the folder of the run before it."""
        plain = recipe(self.recipe)
        model = dataclasses.replace(plain.model, attention=self.attention)
        train = dataclasses.replace(plain.train, seed=self.seed)
        return dataclasses.replace(plain, model=model, train=train, start=plain.start if start is None else str(start))

    def words(self, run: Path, start: Path | None, threads: int | None) -> list[str]:
        """The arguments of ``cosformer`` that train it into the folder ``run``."""
        words = ["train", self.recipe, "--quiet", "--run", str(run), "--model.attention", self.attention]
        words += ["--train.seed", str(self.seed)]
        words += [] if threads is None else ["--train.threads", str(threads)]
        return words if start is None else [*words, "--start", str(start)]


def _suffixed(names: Iterable[str], scale: str) -> tuple[str, ...]:
    return tuple(names) if scale == "paper" else tuple(f"{name}-small" for name in names)


def finetune_recipes(scale: str, sets: Sequence[str] = _FINETUNE) -> tuple[str, ...]:
    return _suffixed((f"finetune-{name}" for name in sets), scale)


def lra_recipes(scale: str) -> tuple[str, ...]:
    return _suffixed((f"lra-{name}" for name in _LRA), scale)


def recipes_of(target: str, scale: str) -> tuple[str, ...]:
    """What a target trains, in order; nothing for those that only measure or draw."""
    table: dict[str, tuple[str, ...]] = {
        "table1": (_MLM[scale], *finetune_recipes(scale, ("qqp", "sst2", "mnli"))),
        "table2": (_LM[scale],),
        "table3": (_MLM[scale], *finetune_recipes(scale)),
        "table4": lra_recipes(scale),
        "table6": (_MLM[scale], *finetune_recipes(scale), *lra_recipes(scale)),
        "figure1": lra_recipes(scale),
        "figure3": (_MLM[scale],),
        "figure4": (_MLM[scale],),
        "samples": _suffixed(("lra-listops", "lra-retrieval"), scale),
    }
    return table.get(target, ())


ATTENTIONS: dict[str, tuple[str, ...]] = {
    "table1": PHI,
    "table2": tuple(paper.TABLE2),
    "table3": tuple(paper.TABLE3),
    "table4": tuple(paper.TABLE4),
    "table6": ("relu", "cosformer"),
    "figure1": ("softmax", "cosformer"),
    "figure3": TRIO,
    "figure4": TRIO,
    "samples": ("softmax", "cosformer"),
}
"""The attentions a target trains unless told otherwise: the paper's rows."""


def cells_of(
    target: str, scale: str, attentions: Sequence[str] | None, seeds: int, recipes: Sequence[str] | None = None
) -> list[Cell]:
    """The cells of a target: all of the first seed, then all of the next. ``recipes``: only these, and what they start from."""
    if target == "ledger":
        cells = [cell for cell in ledger_cells(seeds) if attentions is None or cell.attention in attentions]
    else:
        cells = [
            Cell(name, attention, seed, _MLM[scale] if name.startswith("finetune-") else None)
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


# recipe, attentions, seeds at most; in the order of the queue
_LEDGER: tuple[tuple[str, tuple[str, ...], int], ...] = (
    (LM, ("cosformer", "softmax", "relu", "leaky_relu", "identity"), 3),
    (MLM, ("cosformer", "softmax", "relu", "leaky_relu", "identity"), 3),
    (SST2, ("cosformer", "softmax", "relu"), 3),
    (LISTOPS, ("cosformer", "softmax", "relu"), 3),
    (IMAGE, ("cosformer", "softmax", "relu"), 3),
    (TEXT, ("cosformer", "softmax"), 1),
    (PATHFINDER, ("cosformer", "softmax"), 1),
)


def ledger_cells(seeds: int) -> list[Cell]:
    """Every run behind docs/results.md: each claim gets its first seed before any gets its second."""
    return [
        Cell(name, attention, seed, MLM if name == SST2 else None)
        for seed in range(seeds)
        for name, attentions, most in _LEDGER
        for attention in attentions
        if seed < most
    ]
