"""The paper's claims that runs decide, and the small experiment that tests each. What benchmarks decide is in ``speed``."""

from dataclasses import dataclass
from typing import Literal

LM, MLM = "lm-wikitext2-small", "mlm-wikitext2-small"
SST2 = "finetune-sst2-small"
LISTOPS, IMAGE = "lra-listops-small", "lra-image-small"
TEXT, PATHFINDER = "lra-text-small", "lra-pathfinder-small"


@dataclass(frozen=True)
class Measure:
    """One number of one seed.

    recipes: whose scores are averaged. metric: of the test split where its labels are public, otherwise of the validation
    split. early: the mean of the validation ``metric`` over the evaluations of the first half of the updates instead.
    resolution: a difference that would matter; see ``verdict.on_par``. split: another split than the one that counts.
    floor: a run that diverged or ends worse than its baseline counts with the baseline's score; without it, as it is.
    """

    recipes: tuple[str, ...]
    metric: str
    higher_is_better: bool
    unit: str
    resolution: float
    early: bool = False
    split: str | None = None
    floor: bool = True


@dataclass(frozen=True)
class Comparison:
    """``first`` is better than (or on par with) ``second`` by ``measure``: names of attentions."""

    measure: Measure
    first: str
    kind: Literal["better", "on_par"]
    second: str


@dataclass(frozen=True)
class Claim:
    """What the paper says, where, and the comparisons that must all come out."""

    key: str
    says: str
    where: str
    test: str
    parts: tuple[Comparison, ...]


def _nats(recipe: str, early: bool = False) -> Measure:
    # 5 % of the perplexity of a masked token; of a word, where tokens are its five or six bytes
    resolution = 0.01 if recipe == LM else 0.05
    return Measure((recipe,), "loss", higher_is_better=False, unit="nats", resolution=resolution, early=early)


def _accuracy(*recipes: str) -> Measure:
    return Measure(recipes, "accuracy", higher_is_better=True, unit="points", resolution=2.5)


def _order(measure: Measure) -> tuple[Comparison, ...]:
    """identity < leaky ReLU < ReLU."""
    return (
        Comparison(measure, "relu", "better", "leaky_relu"),
        Comparison(measure, "leaky_relu", "better", "identity"),
    )


_ORDER = "Non-negative attention matters: identity is worse than leaky ReLU, which is worse than ReLU"
_REWEIGHTING = "The cosine re-weighting helps"

CLAIMS: tuple[Claim, ...] = (
    Claim("non-negative-mlm", _ORDER, "table 1", "masked language modelling, test loss", _order(_nats(MLM))),
    Claim(
        "non-negative-lm",
        f"{_ORDER} (the paper tests it on masked language modelling only)",
        "table 1",
        "language modelling, test loss",
        _order(_nats(LM)),
    ),
    Claim(
        "reweighting-mlm",
        _REWEIGHTING,
        "figure 4, table 6",
        "masked language modelling, test loss",
        (Comparison(_nats(MLM), "cosformer", "better", "relu"),),
    ),
    Claim(
        "reweighting-lm",
        f"{_REWEIGHTING} (in causal models, which the paper does not ablate)",
        "section 4.5",
        "language modelling, test loss",
        (Comparison(_nats(LM), "cosformer", "better", "relu"),),
    ),
    Claim(
        "reweighting-lra",
        _REWEIGHTING,
        "table 6",
        "average accuracy on ListOps and Image",
        (Comparison(_accuracy(LISTOPS, IMAGE), "cosformer", "better", "relu"),),
    ),
    Claim(
        "reweighting-finetune",
        _REWEIGHTING,
        "table 6",
        "SST-2 accuracy",
        (Comparison(_accuracy(SST2), "cosformer", "better", "relu"),),
    ),
    Claim(
        "lm",
        "On par with softmax in causal language modelling",
        "table 2",
        "language modelling, test loss",
        (Comparison(_nats(LM), "cosformer", "on_par", "softmax"),),
    ),
    Claim(
        "mlm",
        "On par with softmax in masked language modelling",
        "figure 4",
        "masked language modelling, test loss",
        (Comparison(_nats(MLM), "cosformer", "on_par", "softmax"),),
    ),
    Claim(
        "convergence",
        "Converges faster than softmax in masked language modelling",
        "figure 4",
        "mean validation loss over the first half of the updates",
        (Comparison(_nats(MLM, early=True), "cosformer", "better", "softmax"),),
    ),
    Claim(
        "finetune",
        "Fine-tuned, on par with softmax",
        "table 3",
        "SST-2 accuracy, each from its own masked language model",
        (Comparison(_accuracy(SST2), "cosformer", "on_par", "softmax"),),
    ),
    Claim(
        "lra",
        "The best average on the Long-Range Arena",
        "table 4",
        "average accuracy on ListOps and Image, against softmax and ReLU",
        tuple(Comparison(_accuracy(LISTOPS, IMAGE), "cosformer", "better", other) for other in ("softmax", "relu")),
    ),
)
