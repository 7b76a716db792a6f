"""Adaptive input and adaptive softmax for large vocabularies, tied band by band (Baevski and Auli 2019)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.models.config import IGNORE


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


class WordTable(nn.Embedding):
    """An embedding table that says how it starts: normal with ``std``, the padding row zero."""

    def __init__(self, size: int, width: int, *, std: float, padding_idx: int | None = None) -> None:
        super().__init__(size, width, padding_idx=padding_idx)
        self.std = std


class BandProjection(nn.Linear):
    """From a band's width to the model's; starts Xavier uniform."""


class AdaptiveEmbedding(nn.Module):
    """Token embeddings in bands: frequent ids (small numbers) get wide vectors, rare ones narrow ones.

    ``cutoffs`` end the bands before the last. Band i has width ``hidden_size // factor**i`` and a bias-free projection
    to ``hidden_size``, the first band included.
    """

    def __init__(
        self, vocab_size: int, hidden_size: int, cutoffs: list[int], *, factor: int = 4, padding_idx: int | None = None
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.ends = [0, *cutoffs, vocab_size]
        widths = [hidden_size // factor**i for i in range(len(cutoffs) + 1)]
        sizes = [end - start for start, end in zip(self.ends, self.ends[1:], strict=False)]
        # the padding id, if any, is a row of the band that holds it
        pads = [
            padding_idx - start if padding_idx is not None and start <= padding_idx < start + size else None
            for start, size in zip(self.ends, sizes, strict=False)
        ]
        self.bands = nn.ModuleList(
            WordTable(size, width, std=width**-0.5, padding_idx=pad)
            for size, width, pad in zip(sizes, widths, pads, strict=True)
        )
        self.projections = nn.ModuleList(BandProjection(width, hidden_size, bias=False) for width in widths)

    def forward(self, ids: Tensor) -> Tensor:
        """int [...] -> [..., hidden_size]"""
        out = self.projections[0].weight.new_zeros(*ids.shape, self.hidden_size)  # pyright: ignore
        for i, band in enumerate(self.bands):
            inside = (ids >= self.ends[i]) & (ids < self.ends[i + 1])
            vectors = self.projections[i](band((ids - self.ends[i])[inside]))
            out = out.masked_scatter(inside.unsqueeze(-1), vectors.to(out.dtype))
        return out

    def narrow(self, hidden: Tensor, band: int) -> Tensor:
        """``[T, hidden_size]`` -> ``[T, width]`` of a band, by the input's projection transposed."""
        return F.linear(hidden, self.projections[band].weight.mT)  # pyright: ignore

    def scores(self, narrow: Tensor, band: int) -> Tensor:
        """``[T, width]`` against every word of a band: ``[T, size]``."""
        return F.linear(narrow, self.bands[band].weight)  # pyright: ignore[reportArgumentType]


class AdaptiveSoftmax(nn.Module):
    """The first band's words and one logit per later band in the head; a later band's words in a softmax of its own.

    Words are scored with the weights of the embedding that is passed in; only the bands' own logits are learned here.
    ``dropout`` acts on the input and, in the later bands, once more after the projection.
    """

    def __init__(self, hidden_size: int, num_tails: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.clusters = nn.Linear(hidden_size, num_tails, bias=False)
        self.dropout = nn.Dropout(dropout)

    def log_prob(self, hidden: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """``[..., hidden_size]`` -> log-probabilities of every word, ``[..., vocab_size]``."""
        flat = self.dropout(hidden.flatten(0, -2))
        head = self._head(flat, embedding)
        words = head.shape[-1] - self.clusters.out_features
        pieces = [head[:, :words]]
        for tail in range(self.clusters.out_features):
            inside = self._tail(flat, embedding, tail)
            pieces.append(inside + head[:, words + tail, None])
        return torch.cat(pieces, dim=-1).unflatten(0, hidden.shape[:-1])

    def loss(self, hidden: Tensor, targets: Tensor, embedding: AdaptiveEmbedding) -> tuple[Tensor, Tensor]:
        """Summed negative log-likelihood of ``targets [...]`` and how many count (those that are not -100)."""
        return self.losses(hidden, targets, embedding).sum(), (targets != IGNORE).sum()

    def losses(self, hidden: Tensor, targets: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """Negative log-likelihood of each of ``targets [...]``, 0 where the target is -100.

        Each band's softmax runs on its own targets only.
        """
        counted = targets != IGNORE
        flat, inside = self.dropout(hidden[counted]), targets[counted]
        first, ends = embedding.ends[1], embedding.ends
        band = torch.bucketize(inside, torch.tensor(ends[1:-1], device=inside.device), right=True)
        in_head = torch.where(band == 0, inside, first + band - 1)
        losses = F.nll_loss(self._head(flat, embedding), in_head, reduction="none")
        for tail in range(self.clusters.out_features):
            rows = band == tail + 1
            words = inside[rows] - ends[tail + 1]
            extra = F.nll_loss(self._tail(flat[rows], embedding, tail), words, reduction="none")
            losses = losses.index_add(0, rows.nonzero().squeeze(1), extra)
        return losses.new_zeros(targets.shape).masked_scatter(counted, losses)

    def _head(self, hidden: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        words = embedding.scores(embedding.narrow(hidden, 0), 0)
        return torch.cat((words, self.clusters(hidden)), dim=-1).log_softmax(-1, dtype=_wide(hidden.dtype))

    def _tail(self, hidden: Tensor, embedding: AdaptiveEmbedding, tail: int) -> Tensor:
        narrow = self.dropout(embedding.narrow(hidden, tail + 1))
        return embedding.scores(narrow, tail + 1).log_softmax(-1, dtype=_wide(hidden.dtype))
