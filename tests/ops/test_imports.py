"""What the operator loads: torch's compiler costs seconds, and eager calls do not need it."""

import subprocess
import sys

CALLS = """
import sys
import torch
before = set(sys.modules)
from cosformer import cosformer_attention
q = torch.randn(1, 2, 300, 8, requires_grad=True)
for causal in (False, True):
    cosformer_attention(q, q, q, causal=causal).sum().backward()
with torch.no_grad():
    one, state = q[:, :, :1], None
    for _ in range(2):
        _, state = cosformer_attention(one, one, one, causal=True, max_len=9, state=state, return_state=True)
print(*sorted({*sys.modules} - before))
"""


def test_eager_calls_do_not_load_the_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, check=True)
    added = done.stdout.split()
    assert "cosformer.ops.operator" in added
    assert not {"torch._dynamo", "sympy", "triton", "torch.distributed.tensor"} & {*added}
    assert len(added) <= 40, f"{len(added)} modules; 25 were enough (0.1 s)"
