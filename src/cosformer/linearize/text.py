"""Text files as rows of tokens: a stream in rows of one length for decoders, a row per line for encoders."""

import lzma
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class Rows:
    """Rows of tokens, padded on the right; the last ``held_out`` are kept back."""

    def __init__(self, ids: Tensor, mask: Tensor, held_out: int, seed: int) -> None:
        self.ids, self.mask = ids, mask
        self.training = len(ids) - held_out
        self.mean_length = float(mask.sum()) / len(mask)
        self.seed = seed
        self._order: tuple[int, list[int]] | None = None  # of the epoch that was asked for last

    def batch(self, update: int, size: int) -> tuple[Tensor, Tensor]:
        """ids and mask ``[size, length]`` of one update, from the seed and its number alone: runs can resume."""
        first = update * size
        picked = [self._row(i) for i in range(first, first + size)]
        longest = int(self.mask[picked].sum(1).max())
        return self.ids[picked, :longest], self.mask[picked, :longest]

    def held_out(self) -> tuple[Tensor, Tensor]:
        return self.ids[self.training :], self.mask[self.training :]

    def _row(self, i: int) -> int:
        epoch, place = divmod(i, self.training)
        if self._order is None or self._order[0] != epoch:
            generator = torch.Generator().manual_seed(self.seed + 1_000_003 * epoch)
            self._order = epoch, torch.randperm(self.training, generator=generator).tolist()
        return self._order[1][place]


def read_text(files: list[Path]) -> str:
    """The concatenated text of all files; ``.xz`` is unpacked."""
    parts = []
    for path in files:
        try:
            data = path.read_bytes()
            parts.append((lzma.decompress(data) if path.suffix == ".xz" else data).decode("utf-8"))
        except FileNotFoundError:
            raise FileNotFoundError(f"no text file {path}") from None
        except (UnicodeDecodeError, lzma.LZMAError) as error:
            raise ValueError(f"{path} is no UTF-8 text ({error}); give plain text files") from None
        if not parts[-1].strip():
            raise ValueError(f"{path} is empty; give files with text to learn from")
        if "\0" in parts[-1]:
            raise ValueError(f"{path} holds zero bytes: it is no text file")
    return "\n".join(parts)


def rows_of(text: str, tokenizer: Any, *, causal: bool, length: int, held_out: int, seed: int) -> Rows:
    """``text`` in rows of ``length`` tokens at most."""
    if causal:
        ids = torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False).input_ids, dtype=torch.long)
        ids = ids[: len(ids) // length * length].view(-1, length)
        mask = torch.ones_like(ids)
    else:
        lines = [line.strip() for line in text.splitlines() if len(line.split()) > 2]
        if not lines:
            raise ValueError("the text has no line of three words; an encoder learns from lines")
        padded = tokenizer(lines, truncation=True, max_length=length, padding=True, return_tensors="pt")
        ids, mask = padded["input_ids"], padded["attention_mask"]
    if len(ids) <= held_out:
        raise ValueError(
            f"the text makes {len(ids)} rows of {length} tokens, and {held_out} are held out; give more text, or rows "
            "that are shorter"
        )
    return Rows(ids, mask, held_out, seed)
