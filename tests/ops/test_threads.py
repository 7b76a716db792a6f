"""The same bits from every thread, process and number of threads."""

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cosformer import cosformer_attention
from cosformer.ops.backends import available_backends

FORMS = ("causal", "whole", "masked", "packed", "steps", "short")
DTYPES = (torch.float32, torch.bfloat16)
CALLS = [(form, dtype) for form in FORMS for dtype in DTYPES]
BACKENDS = [name for name in available_backends() if name != "dense"]


def call(index: int, backend: str = "auto") -> list[Tensor]:
    """Output and gradients of call ``index``, the same in every process."""
    form, dtype = CALLS[index % len(CALLS)]
    generator = torch.Generator().manual_seed(index)
    n = {"short": 40, "steps": 70}.get(form, 300)
    b = 1 if form == "packed" else 2
    shapes = ((b, 4, n, 24), (b, 2, n, 24), (b, 2, n, 40))
    q, k, v = (torch.randn(shape, generator=generator).to(dtype).requires_grad_(form != "steps") for shape in shapes)
    if form == "steps":
        return _steps(q, k, v, backend)
    options: dict[str, object] = {"causal": form in ("causal", "packed", "short"), "max_len": 300, "backend": backend}
    if form == "masked":
        options["key_mask"] = torch.rand(b, n, generator=generator) > 0.3
    if form == "packed":
        options["cu_seqlens"] = torch.tensor([0, 1, 1, 130, 300])
    out = cosformer_attention(q, k, v, **options)  # type: ignore[arg-type]
    weight = torch.randn(out.shape, generator=generator).to(dtype)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), weight)]


def _steps(q: Tensor, k: Tensor, v: Tensor, backend: str) -> list[Tensor]:
    outs, state, bounds = [], None, [0, 60, *range(61, q.shape[2] + 1)]
    for start, stop in itertools.pairwise(bounds):
        pieces = (x[:, :, start:stop] for x in (q, k, v))
        out, state = cosformer_attention(
            *pieces, causal=True, max_len=300, state=state, return_state=True, backend=backend
        )
        outs.append(out)
    assert state is not None
    return [torch.cat(outs, dim=2), state.kv, state.z]


@pytest.fixture(scope="module")
def serial() -> list[list[Tensor]]:
    """What one thread computes, one call after the other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    found = [call(i) for i in range(len(CALLS))]
    torch.set_num_threads(before)
    return found


def differing(found: list[list[Tensor]], wanted: list[list[Tensor]]) -> list[str]:
    """Names of the calls whose bits differ."""
    pairs = zip(CALLS, found, wanted, strict=True)
    return [str(name) for name, a, b in pairs if not all(torch.equal(x, y) for x, y in zip(a, b, strict=True))]


@pytest.mark.parametrize("threads", [1, 2])
def test_eight_python_threads(threads: int, serial: list[list[Tensor]]) -> None:
    torch.set_num_threads(threads)
    wrong: list[str] = []

    def work(first: int) -> None:
        torch.set_num_threads(threads)  # which a new thread does not inherit
        for turn in range(2):
            order = [(first + turn + i) % len(CALLS) for i in range(len(CALLS))]
            found = dict(zip(order, map(call, order), strict=True))
            wrong.extend(differing([found[i] for i in range(len(CALLS))], serial))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.parametrize("backend", BACKENDS)
def test_changing_the_number_of_threads(backend: str) -> None:
    torch.set_num_threads(1)
    wanted = [call(i, backend) for i in range(len(CALLS))]
    for threads in (2, 4, 1, 3):
        torch.set_num_threads(threads)
        assert not differing([call(i, backend) for i in range(len(CALLS))], wanted), f"{threads} threads"


def all_calls() -> list[list[Any]]:
    """As arrays: tensors would be shared through file descriptors of a process that is about to end."""
    torch.set_num_threads(1)
    return [[x.float().numpy() for x in call(i)] for i in range(len(CALLS))]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_other_processes(start: str, serial: list[list[Tensor]]) -> None:
    """Fork with one thread only: OpenMP's other threads do not exist in the child, nor for torch's operators."""
    torch.set_num_threads(1)
    call(0)  # the library is in use before the fork
    # unlike multiprocessing.Pool it notices a child that dies
    with ProcessPoolExecutor(1, multiprocessing.get_context(start)) as pool:
        found = [[torch.from_numpy(x.copy()) for x in row] for row in pool.submit(all_calls).result()]
    assert not differing(found, [[x.float() for x in row] for row in serial])


FORK_AFTER_TWO_THREADS = """
import os
import torch
from cosformer import cosformer_attention
torch.set_num_threads(2)
q, k, v = (torch.randn(1, 4, 500, 32, requires_grad=True) for _ in range(3))
weight = torch.randn(1, 4, 500, 32)
def results():
    out = cosformer_attention(q, k, v, causal=True, max_len=500, backend="native")
    return [x.detach().numpy().tobytes() for x in (out, *torch.autograd.grad(out, (q, k, v), weight))]
before = results()
child = os.fork()
if child == 0:
    os._exit(0 if results() == before else 3)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif("native" not in BACKENDS, reason="the kernels were not built")
def test_a_fork_after_two_threads_were_used() -> None:
    """The kernels do not wait for OpenMP's threads, which the child lacks. Torch's own operators would."""
    command, environment = [sys.executable, "-c", FORK_AFTER_TWO_THREADS], os.environ | {"OMP_NUM_THREADS": "2"}
    with subprocess.Popen(command, env=environment, start_new_session=True) as process:
        try:
            assert process.wait(60) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a child that hangs outlives its parent


class Calls(Dataset[list[Tensor]]):
    def __len__(self) -> int:
        return len(CALLS)

    def __getitem__(self, index: int) -> list[Tensor]:
        return call(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader_workers(workers: int, serial: list[list[Tensor]]) -> None:
    torch.set_num_threads(1)
    loader = DataLoader(Calls(), batch_size=None, num_workers=workers)
    assert not differing(list(loader), serial)


def test_the_comparison_can_fail(serial: list[list[Tensor]]) -> None:
    changed = [[x.clone() for x in row] for row in serial]
    changed[3][0].view(-1)[5] += 1
    assert differing(changed, serial) == [str(CALLS[3])]
