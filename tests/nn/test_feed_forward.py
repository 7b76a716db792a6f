"""The feed-forward network: its definition, its shapes and what its backward pass does not do."""

import pytest
import torch
import torch.nn.functional as F

from cosformer.nn.feed_forward import ACTIVATIONS, FeedForward


def nodes(tensor):
    """The names of the steps that the backward pass of ``tensor`` takes."""
    found, seen, open_ = [], set(), [tensor.grad_fn]
    while open_:
        node = open_.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found.append(node.name())
        open_ += [following for following, _ in node.next_functions]
    return found


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (2, 3, 4, 5), (0, 5)])
def test_it_is_the_definition_and_keeps_leading_dimensions(shape, act):
    layer = FeedForward(5, 7, act=act)
    x = torch.randn(shape)
    wide = ACTIVATIONS[act](F.linear(x, layer.widen.weight, layer.widen.bias))
    torch.testing.assert_close(layer(x), F.linear(wide, layer.narrow.weight, layer.narrow.bias))


def test_input_that_is_not_contiguous():
    layer = FeedForward(5, 7)
    x = torch.randn(3, 2, 5).transpose(0, 1)
    torch.testing.assert_close(layer(x), layer(x.contiguous()))


@pytest.mark.parametrize("act", sorted(ACTIVATIONS))
def test_gradients(act):
    torch.manual_seed(0)
    layer = FeedForward(3, 4, act=act).double()
    assert torch.autograd.gradcheck(layer, torch.randn(2, 2, 3, dtype=torch.double, requires_grad=True))


@pytest.mark.parametrize("act", sorted(ACTIVATIONS))
def test_no_activation_in_place_on_a_view(act):
    """Autograd's CopySlices would copy the widened tensor three times in every backward pass."""
    out = FeedForward(3, 4, act=act)(torch.randn(2, 2, 3, requires_grad=True))
    assert not [name for name in nodes(out) if "CopySlices" in name]


def test_activations_are_what_they_are_called():
    x = torch.linspace(-3, 3, 50, dtype=torch.float64)
    torch.testing.assert_close(ACTIVATIONS["gelu"](x), x * 0.5 * (1 + torch.erf(x / 2**0.5)))
    torch.testing.assert_close(
        ACTIVATIONS["gelu_new"](x), 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    )
    torch.testing.assert_close(ACTIVATIONS["silu"](x), x * torch.sigmoid(x))
    with pytest.raises(ValueError, match=r"unknown activation 'swish'; known: gelu"):
        FeedForward(4, 4, act="swish")
