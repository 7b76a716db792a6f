"""Without a GPU or without Triton nothing changes, nothing warns, and the error says why."""

import os
import subprocess
import sys

import pytest
import torch

from cosformer import cosformer_attention
from cosformer.ops import triton
from cosformer.ops.backends import available_backends
from cosformer.ops.dispatch import choose


def run(code):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return subprocess.run([sys.executable, "-W", "error", "-c", code], env=environment, capture_output=True, text=True)


def test_cpu_tensors_need_the_interpreter(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    x = torch.randn(1, 1, 8, 4)
    with pytest.raises(RuntimeError, match="backend 'triton' cannot run here: the kernels take tensors on cuda"):
        cosformer_attention(x, x, x, backend="triton")
    assert "triton" not in available_backends()


def test_wide_heads_and_other_dtypes_are_named(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(triton, "_installed", lambda: True)
    assert "not float64" in triton.why_not(torch.empty(1, 1, 1, 4, dtype=torch.float64))
    assert "up to 256 channels a head, not 300" in triton.why_not(*(torch.empty(1, 1, 1, n) for n in (4, 4, 300)))
    assert "exact float32 products take up to 128 channels a head, not 200" in triton.why_not(torch.empty(1, 1, 1, 200))
    assert triton.why_not(torch.empty(1, 1, 1, 256, dtype=torch.float16)) == ""


def test_bfloat16_is_refused_in_tritons_interpreter(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(triton, "_installed", lambda: True)
    x = torch.randn(1, 1, 8, 4, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="interpreter computes wrong products of bfloat16; use float32 or float16"):
        cosformer_attention(x, x, x, backend="triton")


def test_nothing_is_imported_and_nothing_warns():
    done = run(
        "import sys, torch\n"
        "from cosformer import cosformer_attention\n"
        "x = torch.randn(1, 2, 300, 8, requires_grad=True)\n"
        "cosformer_attention(x, x, x, causal=True, max_len=300).sum().backward()\n"
        "assert 'cosformer.ops.triton.kernels' not in sys.modules\n"  # torch itself may import triton
    )
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_without_triton_the_error_says_so():
    done = run(
        "import sys; sys.modules['triton'] = None\n"
        "import torch; from cosformer import cosformer_attention\n"
        "x = torch.randn(1, 2, 300, 8)\n"
        "cosformer_attention(x, x, x, causal=True, max_len=300)\n"
        "try: cosformer_attention(x, x, x, backend='triton')\n"
        "except RuntimeError as error: print(error)\n"
    )
    assert "backend 'triton' cannot run here: the triton package is not installed" in done.stdout, done.stderr


class Elsewhere:
    """A tensor on another device, as far as the choice of a form looks at it."""

    def __init__(self, length, dtype=torch.float32):
        self.shape, self.dtype, self.device = (1, 2, length, 8), dtype, torch.device("cuda")


@pytest.mark.parametrize("installed", [True, False])
def test_auto_takes_triton_on_a_gpu_where_it_is_installed(monkeypatch, installed):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(triton, "_installed", lambda: installed)
    long = Elsewhere(4096)
    assert choose(long, long, long, None) == ("triton" if installed else "plain")
    wide = Elsewhere(4096, torch.float64)
    assert choose(wide, wide, wide, None) == "plain"
    assert choose(*[Elsewhere(100)] * 3, None) == "dense"
