"""Algorithms 1 and 2, line by line as the paper prints them, against ours."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cosformer import cosformer_attention
from cosformer.ops.backends import available_backends
from cosformer.report.table import Table
from cosformer.runs import Run
from studies.cosformer2022 import Request
from studies.cosformer2022.frequency import threshold_frequency

SIZES = ((48, 48), (32, 48), (1, 48), (48, 32))  # queries, keys
LIMITS = {torch.float64: 1e-12, torch.float32: 1e-5}
D_1, D_2 = 16, 24
RANDOM, SIZE = 5, 12  # matrices for algorithm 2
THRESHOLDS = (0.0, 0.5, 0.9, 1.0)


def algorithm1(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``q [N,d1]``, ``k [M,d1]``, ``v [M,d2]`` -> ``[N,d2]``. The printed loops; q and k are non-negative already."""
    n, m = len(q), len(k)
    s_cos, s_sin = (torch.zeros(q.shape[1], v.shape[1], dtype=q.dtype) for _ in range(2))
    t_cos, t_sin = (torch.zeros(q.shape[1], dtype=q.dtype) for _ in range(2))
    for i in range(1, m + 1):
        k_cos, k_sin = (k[i - 1] * f(math.pi * i / (2 * m)) for f in (math.cos, math.sin))
        s_cos += torch.outer(k_cos, v[i - 1])
        s_sin += torch.outer(k_sin, v[i - 1])
        t_cos += k_cos
        t_sin += k_sin
    out = torch.zeros(n, v.shape[1], dtype=q.dtype)
    for i in range(1, n + 1):
        q_cos, q_sin = (q[i - 1] * f(math.pi * i / (2 * m)) for f in (math.cos, math.sin))
        out[i - 1] = (q_cos @ s_cos + q_sin @ s_sin) / (q_cos @ t_cos + q_sin @ t_sin)
    return out


def algorithm2(matrices: Sequence[np.ndarray], threshold: float) -> np.ndarray:
    """The printed loops."""
    d = len(matrices[0])
    found = np.zeros((d, d))
    for matrix in matrices:
        for i in range(d):
            index = np.argsort(-matrix[i], kind="stable")
            p = 0.0
            for j in range(d):
                p += matrix[i][index[j]]
                found[i][index[j]] += 1
                if p > threshold:
                    break
    return found / len(matrices)


def differences() -> list[dict[str, Any]]:
    """The largest relative difference per shape, dtype and backend; ``same`` if within its limit."""
    found = []
    for n, m in SIZES:
        generator = torch.Generator().manual_seed(n + m)
        q, k, v = (torch.randn(*s, dtype=torch.float64, generator=generator) for s in ((n, D_1), (m, D_1), (m, D_2)))
        theirs = algorithm1(q.relu(), k.relu(), v)
        for dtype, limit in LIMITS.items():
            for backend in available_backends(dtype, "cpu"):
                ours = cosformer_attention(*(x.to(dtype)[None, None] for x in (q, k, v)), backend=backend)[0, 0]
                difference = float((ours.double() - theirs).abs().max() / theirs.abs().max())
                which = {"queries": n, "keys": m, "dtype": str(dtype).removeprefix("torch."), "backend": backend}
                found.append(which | {"difference": difference, "same": difference <= limit})
    return found


def show_algorithm1(request: Request, runs: Sequence[Run]) -> None:
    """Print how far the operator is from the printed algorithm."""
    found = differences()
    rows = []
    for x in found:
        # with more queries than keys the printed angle pi i / 2M passes a quarter turn and weights turn negative
        verdict = "the same" if x["same"] else "differs as it must" if x["queries"] > x["keys"] else "DIFFERS"
        shape = [str(x["queries"]), str(x["keys"])]
        rows.append([*shape, x["dtype"], x["backend"], f"{x['difference']:.1e}", verdict])
    header = ["queries", "keys", "dtype", "backend", "relative difference", "verdict"]
    print(f"Algorithm 1, line by line, against the operator\n\n{Table('', header, rows).text}")
    print(
        "\nThe printed angle pi i / 2M takes M, the number of keys, as the longest length. With more queries than keys "
        "it\npasses a quarter turn and weights turn negative; the operator spreads the quarter turn over the longer of "
        "the two."
    )
    print(f"\nEvery row: {request.write_lines(found)}")
    if any(not x["same"] and x["queries"] <= x["keys"] for x in found):
        raise ValueError("the operator differs from algorithm 1; please report the table above and `cosformer check`")


def show_algorithm2(request: Request, runs: Sequence[Run]) -> None:
    """Print whether ours takes the keys that the printed algorithm takes."""
    generator = np.random.default_rng(0)
    matrices = generator.dirichlet(np.full(SIZE, 0.3), size=(RANDOM, SIZE))
    values = []
    for threshold in THRESHOLDS:
        same = np.array_equal(algorithm2(list(matrices), threshold), threshold_frequency(matrices, threshold))
        values.append({"threshold": threshold, "matrices": RANDOM, "size": SIZE, "same": same})
    rows = [[f"{v['threshold']:g}", "the same" if v["same"] else "DIFFERS"] for v in values]
    print(Table("", ["threshold", "algorithm 2, printed loops against ours"], rows).text)
    print(
        f"\nEvery row: {request.write_lines(values)}; `python -m studies.cosformer2022 figure3` applies it to trained "
        "models."
    )
    if not all(value["same"] for value in values):
        raise ValueError("ours differs from algorithm 2; please report the table above")
