"""How the memory of each mechanism grows with the length, and the options that it refuses."""

from typing import Any

import pytest
import torch

from cosformer.attention import build_attention

HEADS, DIM = 2, 8
FORMS = ("bidirectional", "causal")
FEATURE_MAPS = ("cosformer", "relu", "leaky_relu", "identity", "uniform", "linear", "performer", "rfa_gaussian")
FEATURE_MAPS += ("rfa_arccos", "rotary_linear", "spe")
# mechanism, its options, its forms
LINEAR: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    *((name, {}, FORMS) for name in FEATURE_MAPS),
    ("rfa_gate_gaussian", {}, ("causal",)),
    ("rfa_gate_arccos", {}, ("causal",)),
    ("softmax", {}, FORMS),
    ("local", {"window": 64}, FORMS),
    ("longformer", {"window": 64}, FORMS),
    ("longformer", {"window": 64, "num_global": 4}, FORMS),
    ("bigbird", {"block": 16}, ("bidirectional",)),
    ("reformer", {"chunk": 16, "num_buckets": 8}, FORMS),
    ("smyrf", {"cluster_size": 16, "num_hashes": 2}, ("bidirectional",)),
    ("clustered", {"num_clusters": 10, "topk": 8}, ("bidirectional",)),
    ("linformer", {"rank": 16}, ("bidirectional",)),
    ("nystrom", {"num_landmarks": 16}, ("bidirectional",)),
    ("inducing", {"num_inducing": 16}, ("bidirectional",)),
]
GROWTH = [(*case, 1024, 2048, 2.1) for case in LINEAR]
GROWTH += [("sparse", {"pattern": pattern}, FORMS, 2048, 4096, 2**1.6) for pattern in ("fixed", "strided")]
GROWTH += [("routing", {}, FORMS, 1024, 4096, 8.2)]  # 4^1.5
CASES = [(name, options, form, *sizes) for name, options, forms, *sizes in GROWTH for form in forms]


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize(("name", "options", "form", "short", "long", "factor"), CASES)
def test_memory_grows_with_the_length_not_its_square(
    name: str, options: dict[str, Any], form: str, short: int, long: int, factor: float, masked: bool, largest_tensor
) -> None:
    def largest(n: int) -> int:
        sizes = {"num_heads": HEADS, "head_dim": DIM, "max_len": n, "causal": form == "causal"}
        attention = build_attention(name, **sizes, **options).eval()
        q, k, v = torch.randn(3, 1, HEADS, n, DIM).requires_grad_()
        return largest_tensor(lambda: attention(q, k, v, torch.arange(n)[None] < n - 100 if masked else None))

    found = largest(short)
    assert largest(long) < factor * found
    assert found < HEADS * 4 * short**2, "the scores of all pairs"


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("rotary_linear", {"head_dim": 5}, "head_dim=5"),
    ("spe", {"num_sines": 0}, "num_sines=0.*at least 1"),
    ("spe", {"num_realizations": 0}, "num_realizations=0.*at least 1"),
    ("longformer", {"window": 0}, "window=0"),
    ("longformer", {"window": 7}, "window=7"),
    ("longformer", {"num_global": 65}, "num_global=65"),
    ("sparse", {"pattern": "random"}, "pattern='random'; known: fixed, strided"),
    ("sparse", {"pattern": "strided", "columns": 4}, "columns=4 has no meaning"),
    ("sparse", {"stride": 8, "columns": 9}, "columns=9, stride=8"),
    ("sparse", {"stride": 8, "columns": 0}, "columns=0, stride=8"),
    ("sparse", {"stride": 0, "columns": 1}, "columns=1, stride=0"),
    ("bigbird", {"block": 0}, "block=0"),
    ("bigbird", {"num_random": -1}, "num_random=-1"),
    ("reformer", {"num_hashes": 0}, "num_hashes=0"),
    ("reformer", {"chunk": 0}, "chunk=0"),
    ("reformer", {"num_buckets": 3}, "num_buckets=3; it must be 1 or even"),
    ("sinkhorn", {"block": 0}, "block=0"),
    ("sinkhorn", {"iterations": 0}, "iterations=0"),
    ("sinkhorn", {"temperature": 0}, "temperature=0"),
    ("smyrf", {"num_hashes": 0}, "num_hashes=0"),
    ("smyrf", {"cluster_size": 0}, "cluster_size=0"),
    ("smyrf", {"width": 0}, "width=0"),
    ("routing", {"num_clusters": 0}, "num_clusters=0"),
    ("routing", {"window": 0}, "window=0"),
    ("routing", {"decay": 2}, "decay=2"),
    ("clustered", {"num_clusters": 0}, "num_clusters=0"),
    ("clustered", {"bits": 0}, "bits=0"),
    ("clustered", {"iterations": 0}, "iterations=0"),
    ("clustered", {"topk": 0}, "topk=0"),
    ("linformer", {"rank": 0}, "rank=0"),
    ("linformer", {"sharing": "all"}, "unknown sharing 'all'.*headwise"),
    ("nystrom", {"num_landmarks": 0}, "num_landmarks=0"),
    ("nystrom", {"conv_kernel": 4}, "conv_kernel=4; it must be odd"),
    ("inducing", {"num_inducing": 0}, "num_inducing=0"),
    ("synthesizer", {"kind": "dense", "rank": 3}, "rank=3 is for kind='factorised_random' only"),
    ("synthesizer", {"kind": "factorised_random", "rank": 0}, "rank=0"),
    ("synthesizer", {"kind": "sparse"}, "unknown kind 'sparse'.*factorised_dense"),
]


@pytest.mark.parametrize(("name", "options", "message"), WRONG)
def test_wrong_options_are_named(name: str, options: dict[str, Any], message: str) -> None:
    sizes: dict[str, Any] = {"num_heads": HEADS, "head_dim": DIM, "max_len": 64, "causal": False}
    with pytest.raises(ValueError, match=message):
        build_attention(name, **sizes | options)
