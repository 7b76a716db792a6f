"""Dynamic masking for masked language models: RoBERTa's rule, drawn anew for every row and epoch."""

import numpy as np

IGNORED = -100  # the label of a token that does not count in the loss


def mask_tokens(
    ids: np.ndarray,
    rng: np.random.Generator,
    *,
    mask_id: int,
    random_ids: np.ndarray,
    never: np.ndarray | None = None,
    chance: float = 0.15,
) -> tuple[np.ndarray, np.ndarray]:
    """(inputs, labels), both int64 [N], of one row.

    int(chance * N + U(0, 1)) tokens are chosen without replacement; of those 80 % become ``mask_id``, 10 % one of
    ``random_ids``, 10 % stay. Labels are the original ids there and -100 elsewhere. Positions where ``never`` (bool
    [N]) is True are not chosen and do not count in N.
    """
    if not 0 <= chance <= 1:
        raise ValueError(f"chance={chance}; it must be between 0 and 1")
    inputs = np.array(ids, np.int64)
    labels = np.full(len(inputs), IGNORED, np.int64)
    open_places = np.arange(len(inputs)) if never is None else np.flatnonzero(~never)
    count = min(int(chance * len(open_places) + rng.random()), len(open_places))
    chosen = rng.choice(open_places, count, replace=False)
    labels[chosen] = inputs[chosen]
    fate = rng.random(count)
    inputs[chosen[fate < 0.8]] = mask_id
    replaced = chosen[(fate >= 0.8) & (fate < 0.9)]
    inputs[replaced] = rng.choice(random_ids, len(replaced))
    return inputs, labels
