"""Linear layers applied to few rows."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cosformer.nn import projection
from cosformer.nn.projection import project

pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.fixture
def parts(monkeypatch):
    """The number of parts of each product that was made in parts."""
    found = []
    for name in ("bmm", "baddbmm"):
        inner = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *args, inner=inner: found.append(len(args[-1])) or inner(*args))
    return found


@torch.no_grad()
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1,), (2, 8)])
def test_few_rows_give_the_same_numbers(bias, shape, parts):
    layer, x = nn.Linear(512, 1024, bias=bias), torch.randn(*shape, 512)
    torch.testing.assert_close(project(layer, x), F.linear(x, layer.weight, layer.bias))
    assert parts == [2]


def test_everything_else_goes_the_usual_way(parts):
    layer, x = nn.Linear(512, 1024), torch.randn(1, 1, 512)
    assert project(layer, x).requires_grad
    with torch.no_grad():
        project(layer, torch.randn(projection.FEW_ROWS + 1, 512))
        project(nn.Linear(512, 1023), x)
        project(nn.Linear(16, 16), torch.randn(1, 16))
        project(layer.bfloat16(), x.bfloat16())
        project(layer.double(), x.double())
        project(nn.Sequential(layer.float()), x)
        torch.set_num_threads(1)
        project(layer, x)
    assert parts == []


@torch.no_grad()
def test_hooks_are_called(parts):
    layer, x, seen = nn.Linear(512, 1024), torch.randn(1, 512), []
    handle = layer.register_forward_hook(lambda *_: seen.append("layer"))
    project(layer, x)
    handle.remove()
    handle = nn.modules.module.register_module_forward_pre_hook(lambda *_: seen.append("all"))
    project(layer, x)
    handle.remove()
    assert seen == ["layer", "all"] and parts == []
    project(layer, x)
    assert parts == [2]
