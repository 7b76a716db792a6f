"""The training rows of a whole run as one list: row i is the same whenever, wherever and however often it is asked for."""

from typing import Any

import numpy as np
from torch.utils.data import Dataset

from cosformer.tasks.base import Task


class Stream(Dataset):
    """``steps * batch`` rows: pass after pass over the task's rows, each in an order drawn from (seed, pass).

    A resumed run reads on at its place, and two processes that share the list see what one would see.
    """

    def __init__(self, task: Task, length: int, seed: int) -> None:
        if task.train_rows < 1:
            raise ValueError("the training split holds no row; is data.length longer than the whole text?")
        self.task, self.length, self.seed = task, length, seed
        self._pass, self._order = -1, np.zeros(0, np.int64)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        number, place = divmod(int(index), self.task.train_rows)
        if number != self._pass:
            self._order = np.random.default_rng([self.seed, number]).permutation(self.task.train_rows)
            self._pass = number
        return self.task.train_row(int(self._order[place]), number)
