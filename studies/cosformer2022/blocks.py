"""The runs behind the ledger as a table: block, recipe, attentions or variants, and how many seeds each has at most."""

from studies.cosformer2022.claims import (
    ARENA,
    ARENA_TEXT_LONG,
    LISTOPS,
    LM,
    LM_LONG,
    LM_M2,
    LM_M4,
    LM_NOPOS,
    MLM,
    MQAR,
    PARITY,
    PARITY_LONG,
    PARITY_MLM,
    PATHFINDER,
    PRETRAIN,
    RECALL_16,
    RECALL_32,
    SST2,
)

SEEDS = 5  # the most that any has
Block = dict[str, dict[str, int]]


def _each(seeds: int, *names: str) -> dict[str, int]:
    return dict.fromkeys(names, seeds)


_RECALL = _each(3, "softmax", "cosformer", "linear", "relu", "uniform")
_LANGUAGE = _each(5, "softmax-rotary-gated", "softmax-gated", "multiscale-nopos-gated")
_LANGUAGE |= _each(3, "softmax", "softmax-rotary", "cosformer", "linear", "multiscale", "multiscale-nopos")
_LANGUAGE |= _each(3, "local-cosformer", "local-multiscale", "hybrid-1-of-3")
_ARENA = _each(3, "softmax", "cosformer", "relu", "multiscale", "uniform")
_MQAR = _each(3, "softmax", "cosformer", "linear", "multiscale", "hybrid-1-of-2", "uniform")
# in the order of the queue; within a recipe seed by seed
BLOCKS: dict[str, Block] = {
    "P": {
        LM: _each(5, "softmax", "cosformer", "relu") | _each(3, "linear", "leaky_relu", "identity", "uniform"),
        MLM: _each(5, "softmax", "cosformer", "relu", "leaky_relu", "identity") | _each(3, "uniform"),
        PRETRAIN: _each(5, "softmax", "cosformer", "uniform") | _each(3, "relu"),
        PATHFINDER: _each(5, "softmax", "cosformer", "relu") | _each(3, "uniform"),
        LM_LONG: _each(3, "softmax", "cosformer", "relu"),
        RECALL_16: _RECALL,
        RECALL_32: _RECALL,
        LM_NOPOS: _each(3, "cosformer", "relu"),
        LM_M2: _each(3, "cosformer"),
        LM_M4: _each(3, "cosformer"),
        LISTOPS: _each(3, "softmax", "cosformer", "relu", "uniform"),
    },
    "Q": {PARITY: _LANGUAGE | _each(3, "multiscale-nopos-cosine", "uniform"), PARITY_LONG: _LANGUAGE},
    "R": {
        PARITY_MLM: _each(3, "softmax", "softmax-rotary", "cosformer", "multiscale", "multiscale-nopos", "uniform"),
        PATHFINDER: _each(3, "multiscale"),
    },
    # softmax takes hours at 4,096 bytes
    "T": dict.fromkeys(ARENA, _ARENA) | {ARENA_TEXT_LONG: _each(3, "cosformer", "relu", "multiscale")},
    "M": dict.fromkeys(MQAR.values(), _MQAR),
}
# fine-tunings follow their pre-training at once, as weights are not kept for long
AFTER: dict[str, dict[str, tuple[str, ...]]] = {PRETRAIN: {SST2: ("softmax", "cosformer", "uniform", "relu")}}
