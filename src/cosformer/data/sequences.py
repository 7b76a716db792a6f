"""Streams of text as training wants them: contiguous blocks for language models, packed whole lines for masked ones."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cosformer.data.dataset import Split


@dataclass(frozen=True)
class LMBlocks:
    """The tokens of ``split`` as one stream, cut every ``length`` tokens without regard to lines.

    ``blocks[i]`` is (inputs, targets), each int64 [length] (the last block may be shorter): target t is the token that
    follows input t. The first input of the stream is ``start_id`` (the end token), so that every token is a target
    once.
    """

    split: Split
    length: int
    start_id: int
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length={self.length}; at least 1")

    def __len__(self) -> int:
        tokens = len(self.split.tokens.flat)
        return tokens // self.length if self.drop_last else -(-tokens // self.length)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(f"block {index} of {len(self)}")
        return self.window(index * self.length, (index + 1) * self.length)

    def window(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """(inputs, targets) of any stretch of the stream; for evaluation with overlapping windows."""
        flat = self.split.tokens.flat
        targets = flat[start:stop].astype(np.int64)
        inputs = np.empty_like(targets)
        if len(targets):
            inputs[0] = flat[start - 1] if start else self.start_id
            inputs[1:] = targets[:-1]
        return inputs, targets


class PackedLines:
    """Whole lines packed into rows of at most ``length`` tokens, each preceded by ``<s>``; for masked language models.

    ``rows[i]`` is int64 [<= length]. A line that does not fit into a row of its own is cut into pieces.
    """

    def __init__(self, split: Split, length: int, bos_id: int) -> None:
        if length < 2:
            raise ValueError(f"length={length}; at least 2, for <s> and one token")
        self.split, self.length, self.bos_id = split, length, bos_id
        self.bounds = _packed_bounds(split.tokens.offsets, length - 1)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        body = self.split.tokens.flat[self.bounds[index] : self.bounds[index + 1]]
        return np.concatenate([[self.bos_id], body]).astype(np.int64)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[i] for i in range(len(self)))


def _packed_bounds(offsets: np.ndarray, room: int) -> np.ndarray:
    """Row boundaries in the stream: line ends at most ``room`` apart; only longer lines are cut."""
    bounds = [0]
    lines = np.asarray(offsets)
    while bounds[-1] < lines[-1]:
        start = bounds[-1]
        # the last line end within reach
        end = int(lines[np.searchsorted(lines, start + room, side="right") - 1])
        bounds.append(end if end > start else start + room)
    return np.array(bounds, np.int64)
