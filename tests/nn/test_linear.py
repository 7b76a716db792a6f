"""The linear layer: nn.Linear for whoever looks, and what every model's projections are made of."""

import torch
from torch import nn

from cosformer.nn.linear import Linear


def test_is_a_linear_layer():
    torch.manual_seed(0)
    ours = Linear(64, 80)
    torch.manual_seed(0)
    theirs = nn.Linear(64, 80)
    assert isinstance(ours, nn.Linear)
    assert all(a.equal(b) for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True))
    few, many = torch.randn(3, 64), torch.randn(2, 16384, 64)
    assert ours(few).equal(theirs(few))
    torch.testing.assert_close(ours(many), theirs(many))


def test_training_on_many_rows_is_the_same():
    """An update through the kernels against one through torch's products."""
    torch.manual_seed(0)
    x, target = torch.randn(2, 8192, 64), torch.randn(2, 8192, 64)
    gradients = []
    for kind in (Linear, nn.Linear):
        torch.manual_seed(1)
        layers = nn.Sequential(kind(64, 128), nn.ReLU(inplace=True), kind(128, 64))
        nn.functional.mse_loss(layers(x), target).backward()
        gradients.append([p.grad for p in layers.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)
