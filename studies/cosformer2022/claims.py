"""The paper's claims that runs decide, and the experiment that tests each. What benchmarks decide is in ``speed``."""

from dataclasses import dataclass
from typing import Literal

PATHFINDER, LM, MLM = "evidence-pathfinder", "evidence-lm", "evidence-mlm"
PRETRAIN, SST2 = "evidence-reviews", "evidence-sst2-reviews"  # the second starts from the first
LM_LONG, LM_M2, LM_M4, LM_NOPOS = "evidence-lm-long", "evidence-lm-m2", "evidence-lm-m4", "evidence-lm-nopos"
LISTOPS, RECALL_16, RECALL_32 = "evidence-listops", "evidence-recall-16", "evidence-recall-32"
# the second part: what mends cosFormer, and the arena at its own lengths
PARITY, PARITY_LONG, PARITY_MLM = "evidence-parity", "evidence-parity-long", "evidence-parity-mlm"
ARENA_LISTOPS, ARENA_IMAGE = "evidence-arena-listops", "evidence-arena-image"
ARENA_TEXT, ARENA_TEXT_LONG = "evidence-arena-text-1k", "evidence-arena-text-4k"
ARENA = (ARENA_LISTOPS, ARENA_TEXT, ARENA_IMAGE)  # with softmax, which takes hours at 4,096 bytes
MQAR = {
    head: f"evidence-mqar-{head}" for head in (16, 32, 64)
}  # by the width of a head, which decides the state's size
CONTROL = "uniform"  # the attention that cannot attend


Kind = Literal["better", "on_par"]
Pair = tuple[str, Kind, str]  # two attentions, and how the first is to the second


@dataclass(frozen=True)
class Measure:
    """One number of one seed: the score of ``recipe``'s run.

    metric: of the test split where its labels are public, otherwise of the validation split. A run that diverged or
    ends worse than its baseline counts with the baseline's score. area: the mean training loss over all updates
    instead, which is the area under its curve. margin: what "on par" allows.
    """

    recipe: str
    metric: str
    higher_is_better: bool
    unit: str
    margin: float = 0.0
    area: bool = False


@dataclass(frozen=True)
class Comparison:
    """``first`` is better than (or on par with) ``second`` by ``measure``: names of attentions. ``against``: the
    measure of the second, where that is another recipe's."""

    measure: Measure
    first: str
    kind: Kind
    second: str
    against: Measure | None = None


@dataclass(frozen=True)
class Claim:
    """What is said, where, and the comparisons that must all come out. ``gate``: the recipe whose gate and control must
    be passed. ``primary``: judged with five seeds, and together with the others of its kind (Holm) that were written
    down at the same time, its ``family``."""

    key: str
    says: str
    where: str
    test: str
    gate: str
    parts: tuple[Comparison, ...]
    primary: bool = False
    family: int = 1


# what must beat the gate for a claim to be judged; recall asks that of softmax alone, as it asks what the others cannot
# do
MUST_PASS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((PATHFINDER, LM, MLM, SST2, LISTOPS), ("softmax", "cosformer")),
    **dict.fromkeys((RECALL_16, RECALL_32), ("softmax",)),
    **dict.fromkeys((PARITY, PARITY_MLM, *ARENA), ("softmax", "cosformer")),
    **dict.fromkeys(MQAR.values(), ("softmax",)),
}


def loss(recipe: str, *, area: bool = False) -> Measure:
    # 5 % of the perplexity of a masked token; of a word, where tokens are its five or six bytes
    margin = 0.05 if recipe in (MLM, PARITY_MLM) else 0.01
    return Measure(recipe, "loss", higher_is_better=False, unit="nats", margin=margin, area=area)


def accuracy(recipe: str) -> Measure:
    # 2.5 points: the largest gap to softmax in the paper's table 3
    return Measure(recipe, "accuracy", higher_is_better=True, unit="points", margin=2.5)


def plain_measure(recipe: str) -> Measure:
    """The measure by which the runs of ``recipe`` stand against its gate."""
    return loss(recipe) if recipe.startswith(("evidence-lm", "evidence-mlm", PARITY)) else accuracy(recipe)


def _claim(
    key: str,
    says: str,
    where: str,
    measure: Measure,
    *comparisons: Pair,
    test: str = "",
    gate: str = "",
    against: Measure | None = None,
    primary: bool = False,
    family: int = 1,
) -> Claim:
    """``test`` and ``gate``: those of the measure's recipe unless given."""
    parts = tuple(Comparison(measure, *comparison, against) for comparison in comparisons)
    return Claim(key, says, where, test or _TESTS[measure.recipe], gate or measure.recipe, parts, primary, family)


_TESTS = {
    LM: "language modelling, test loss",
    LM_LONG: "language modelling with four times the updates, test loss",
    MLM: "masked language modelling, test loss",
    SST2: "SST-2 accuracy",
    PATHFINDER: "Pathfinder of 12x12 pixels, accuracy",
    LISTOPS: "ListOps of 50 to 200 tokens, accuracy",
    **dict.fromkeys((RECALL_16, RECALL_32), "recall of 8 pairs in 128 tokens, accuracy"),
    PARITY: "language modelling, test loss, rates searched again",
    PARITY_LONG: "language modelling with four times the updates, test loss, rates searched again",
    PARITY_MLM: "masked language modelling, test loss, rates searched again",
    ARENA_LISTOPS: "ListOps of 500 to 2,000 tokens, accuracy",
    ARENA_TEXT: "reviews of up to 1,024 bytes, accuracy",
    ARENA_TEXT_LONG: "reviews of up to 4,096 bytes, accuracy",
    ARENA_IMAGE: "images of 1,024 pixels, accuracy",
    **{name: f"recall of 4 to 64 pairs, heads of {head}, accuracy" for head, name in MQAR.items()},
}
_ON_PAR: Pair = ("cosformer", "on_par", "softmax")
_REWEIGHTED: Pair = ("cosformer", "better", "relu")
_ITSELF: Pair = ("cosformer", "better", "cosformer")
_ORDERED: tuple[Pair, ...] = (("relu", "better", "leaky_relu"), ("leaky_relu", "better", "identity"))
_ORDER = "Non-negative attention matters: identity is worse than leaky ReLU, which is worse than ReLU"
_HELPS = "The cosine re-weighting helps"
_NEAR = f"{_HELPS}, where near pixels belong together"
_LM_ON_PAR = "On par with softmax in causal language modelling"
_LM_HELPS = f"{_HELPS} (in causal models, which the paper does not ablate)"
_LM_ORDER = f"{_ORDER} (the paper tests it on masked language modelling only)"
_LINEAR = "Better than the Linear Transformer (elu + 1) in causal language modelling"
_FINETUNED = "Fine-tuned, on par with softmax"
_OWN_MODEL = "SST-2 accuracy, each from its own masked language model"
_FASTER = "Converges faster than softmax in masked language modelling"
_AREA = "area under the training loss, same batches"
_RECALLS = "A fixed state recalls as well as softmax: 8 pairs, heads of {} (not claimed by the paper)"
_POSITION = "Without position embeddings the cosine helps: it is a position code (not claimed by the paper)"
_NO_EMBEDDINGS = f"{_TESTS[LM]}, no position embeddings"
_FLATTER = "A cosine {0} times as flat (M = {0}N) is better than M = N (not claimed by the paper)"

_PAPER: tuple[Claim, ...] = (
    _claim("lm", _LM_ON_PAR, "table 2", loss(LM), _ON_PAR, primary=True),
    _claim("reweighting-lm", _LM_HELPS, "section 4.5", loss(LM), _REWEIGHTED, primary=True),
    _claim("reweighting-mlm", _HELPS, "figure 4, table 6", loss(MLM), _REWEIGHTED, primary=True),
    _claim("mlm", "On par with softmax in masked language modelling", "figure 4", loss(MLM), _ON_PAR, primary=True),
    _claim("finetune", _FINETUNED, "table 3", accuracy(SST2), _ON_PAR, test=_OWN_MODEL, primary=True),
    _claim("non-negative-mlm", _ORDER, "table 1", loss(MLM), *_ORDERED, primary=True),
    _claim("non-negative-lm", _LM_ORDER, "table 1", loss(LM), *_ORDERED),
    _claim("lm-long", f"{_LM_ON_PAR}, trained longer", "table 2", loss(LM_LONG), _ON_PAR, gate=LM),
    _claim("reweighting-lm-long", f"{_LM_HELPS}, trained longer", "section 4.5", loss(LM_LONG), _REWEIGHTED, gate=LM),
    _claim("linear-lm", _LINEAR, "table 2", loss(LM), ("cosformer", "better", "linear")),
    _claim("convergence", _FASTER, "figure 4", loss(MLM, area=True), ("cosformer", "better", "softmax"), test=_AREA),
    _claim("reweighting-finetune", _HELPS, "table 6", accuracy(SST2), _REWEIGHTED),
    _claim("reweighting-pathfinder", _NEAR, "table 6", accuracy(PATHFINDER), _REWEIGHTED),
    _claim("pathfinder", "On par with softmax on Pathfinder", "table 4", accuracy(PATHFINDER), _ON_PAR),
    _claim("listops", "On par with softmax on ListOps", "table 4", accuracy(LISTOPS), _ON_PAR),
    _claim("recall-16", _RECALLS.format(16), "", accuracy(RECALL_16), _ON_PAR),
    _claim("recall-32", _RECALLS.format(32), "", accuracy(RECALL_32), _ON_PAR),
    _claim("cosine-is-position", _POSITION, "", loss(LM_NOPOS), _REWEIGHTED, test=_NO_EMBEDDINGS, gate=LM),
    _claim("flatter-2", _FLATTER.format(2), "", loss(LM_M2), _ITSELF, test=_TESTS[LM], gate=LM, against=loss(LM)),
    _claim("flatter-4", _FLATTER.format(4), "", loss(LM_M4), _ITSELF, test=_TESTS[LM], gate=LM, against=loss(LM)),
)


# --- the second part (protocol.md). A claim of parity holds only if it holds against every softmax that it names, so
# against the best of them.

_SOFTMAXES, _GATED_SOFTMAXES = ("softmax-rotary", "softmax"), ("softmax-rotary-gated", "softmax-gated")


def _on_par(name: str, others: tuple[str, ...]) -> tuple[Pair, ...]:
    return tuple((name, "on_par", other) for other in others)


# key, what is said, the comparisons; the first is primary
_LANGUAGE: tuple[tuple[str, str, tuple[Pair, ...]], ...] = (
    (
        "parity",
        "Decays with a convolution and a gate are on par with the best softmax that has both",
        _on_par("multiscale-nopos-gated", _GATED_SOFTMAXES),
    ),
    ("parity-plain", "Decays alone are on par with the best softmax", _on_par("multiscale-nopos", _SOFTMAXES)),
    ("decays", "Decays help cosFormer", (("multiscale", "better", "cosformer"),)),
    ("nopos", "With decays, positions do harm", (("multiscale-nopos", "better", "multiscale"),)),
    ("gated", "A convolution and a gate help decays", (("multiscale-nopos-gated", "better", "multiscale-nopos"),)),
    ("rotary", "Rotary positions help softmax", (("softmax-rotary", "better", "softmax"),)),
    ("linear-again", f"{_LINEAR}, the rates searched further", (("cosformer", "better", "linear"),)),
    ("window", "cosFormer and a softmax window by turns are on par", _on_par("local-cosformer", _SOFTMAXES)),
    ("window-decays", "Decays and a softmax window by turns are on par", _on_par("local-multiscale", _SOFTMAXES)),
    ("hybrid", "Decays with one layer of softmax in three are on par", _on_par("hybrid-1-of-3", _SOFTMAXES)),
)
_COSINE: Pair = ("multiscale-nopos-cosine", "better", "multiscale-nopos")
_DECAYS: Pair = ("multiscale", "better", "cosformer")
_LONGER_DECAYS = "Decays help at the arena's own length"
_SECOND: tuple[Claim, ...] = (
    *(
        _claim(f"{key}{more}", says, "", loss(recipe), *pairs, gate=PARITY, primary=key == "parity", family=2)
        for recipe, more in ((PARITY, ""), (PARITY_LONG, "-long"))
        for key, says, pairs in _LANGUAGE
    ),
    _claim("cosine-and-decays", "The cosine helps beside decays", "", loss(PARITY), _COSINE, family=2),
    _claim(
        "parity-mlm",
        "Decays in both directions are on par with the best softmax in masked language modelling",
        "",
        loss(PARITY_MLM),
        *_on_par("multiscale", _SOFTMAXES),
        family=2,
    ),
    _claim("decays-mlm", "Decays help in masked language modelling", "", loss(PARITY_MLM), _DECAYS, family=2),
    _claim("decays-pathfinder", "Decays help on Pathfinder", "", accuracy(PATHFINDER), _DECAYS, family=2),
    *(
        _claim(f"{name.removeprefix('evidence-')}{more}", says, where, accuracy(name), pair, family=2)
        for name in ARENA
        for more, says, where, pair in (
            ("", "On par with softmax at the arena's own length", "table 4", _ON_PAR),
            ("-decays", _LONGER_DECAYS, "", _DECAYS),
        )
    ),
    _claim("arena-text-4k-decays", _LONGER_DECAYS, "", accuracy(ARENA_TEXT_LONG), _DECAYS, gate=ARENA_TEXT, family=2),
    _claim(
        "arena-text-longer",
        "cosFormer reads a review better if it sees 4,096 bytes instead of 1,024",
        "",
        accuracy(ARENA_TEXT_LONG),
        _ITSELF,
        gate=ARENA_TEXT,
        against=accuracy(ARENA_TEXT),
        family=2,
    ),
    *(
        _claim(f"mqar-{head}{more}", says.format(head), "", accuracy(name), (first, "on_par", "softmax"), family=2)
        for head, name in MQAR.items()
        for more, first, says in (
            ("", "cosformer", "cosFormer recalls 4 to 64 pairs as well as softmax, heads of {}"),
            ("-hybrid", "hybrid-1-of-2", "With one layer of softmax in two, 4 to 64 pairs are recalled, heads of {}"),
        )
    ),
)
CLAIMS = (*_PAPER, *_SECOND)
