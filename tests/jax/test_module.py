"""The flax module: equal to torch's, in the place of flax's own attention, and token by token."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import linen as nn

import cosformer
import jax
from cosformer.jax import CosformerAttention, from_numpy, to_numpy


def inputs(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


@pytest.mark.parametrize("causal", [False, True])
def test_equals_the_torch_module_with_its_weights(causal):
    theirs = cosformer.CosformerAttention(24, 3, causal=causal, max_len=64, batch_first=True, dtype=torch.float64)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    params = from_numpy({name: x.numpy() for name, x in theirs.state_dict().items()}, num_heads=3)
    ours = CosformerAttention(num_heads=3, causal=causal, max_len=64)
    x, keep = inputs(2, 50, 24), np.random.default_rng(1).random((2, 50)) > 0.2
    expected = theirs(*[torch.from_numpy(np.array(x))] * 3, key_padding_mask=torch.from_numpy(~keep))[0]
    for mask in (jnp.asarray(keep), jnp.asarray(keep)[:, None, None]):
        found = ours.apply({"params": params}, x, mask=mask)
        np.testing.assert_allclose(found, expected.detach().numpy(), atol=1e-12)
    for name, array in to_numpy(params).items():
        np.testing.assert_array_equal(array, theirs.state_dict()[name].numpy())


def test_the_parameters_are_those_of_flax_own_attention():
    x = inputs(2, 10, 24)
    ours = CosformerAttention(num_heads=3, max_len=64).init(jax.random.key(0), x)["params"]
    theirs = nn.MultiHeadDotProductAttention(num_heads=3).init(jax.random.key(0), x, x)["params"]
    assert jax.tree.map(jnp.shape, ours) == jax.tree.map(jnp.shape, theirs)


@pytest.mark.parametrize("sizes", [[1] * 40, [17, 1, 1, 20, 1]])
def test_decoding_equals_the_full_pass(sizes):
    module = CosformerAttention(num_heads=3, causal=True, max_len=40)
    x = inputs(2, 40, 24)
    params = module.init(jax.random.key(0), x)["params"]
    step = CosformerAttention(num_heads=3, causal=True, max_len=40, decode=True)
    cache = step.init(jax.random.key(0), x)["cache"]
    outs, at = [], 0
    for size in sizes:
        out, changed = step.apply({"params": params, "cache": cache}, x[:, at : at + size], mutable=["cache"])
        cache, at = changed["cache"], at + size
        outs.append(out)
    np.testing.assert_allclose(jnp.concatenate(outs, 1), module.apply({"params": params}, x), atol=1e-12)


def test_an_encoder_of_the_arenas_shape_takes_a_training_step():
    """Four layers of 256 channels and 4 heads, as the arena's text encoder, on bytes."""

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, mask):
            x = x + CosformerAttention(num_heads=4, qkv_features=256, max_len=64)(nn.LayerNorm()(x), mask=mask)
            return x + nn.Dense(256)(nn.gelu(nn.Dense(1024)(nn.LayerNorm()(x))))

    class Encoder(nn.Module):
        @nn.compact
        def __call__(self, tokens, mask):
            x = nn.Embed(256, 256)(tokens) + self.param("places", nn.initializers.normal(0.02), (tokens.shape[1], 256))
            for _ in range(4):
                x = Block()(x, mask)
            return nn.Dense(2)(nn.LayerNorm()(x).mean(1))

    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 256, (2, 64)))
    labels, mask = jnp.asarray([0, 1]), jnp.ones((2, 1, 1, 64), bool)

    model, optimizer = Encoder(), optax.adam(3e-5)
    params = model.init(jax.random.key(0), tokens, mask)

    def loss(params):
        logits = model.apply(params, tokens, mask)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    @jax.jit
    def update(params, state):
        value, gradient = jax.value_and_grad(loss)(params)
        change, state = optimizer.update(gradient, state)
        return value, optax.apply_updates(params, change), state

    first, params, state = update(params, optimizer.init(params))
    second, *_ = update(params, state)
    assert bool(jnp.isfinite(first)) and second < first


def test_mistakes_are_named():
    x = inputs(2, 6, 24)
    with pytest.raises(ValueError, match="24 features do not split over num_heads=5"):
        CosformerAttention(num_heads=5).init(jax.random.key(0), x)
    with pytest.raises(ValueError, match=r"mask has shape \(2, 1, 6, 6\)"):
        CosformerAttention(num_heads=3, max_len=8).init(jax.random.key(0), x, mask=nn.make_causal_mask(x[..., 0]))
    with pytest.raises(ValueError, match="decode=True needs causal=True and max_len"):
        CosformerAttention(num_heads=3, decode=True).init(jax.random.key(0), x)
    with pytest.raises(ValueError, match=r"out_proj\.weight missing"):
        from_numpy({f"{name}.weight": np.zeros((4, 4)) for name in ("q_proj", "k_proj", "v_proj")}, num_heads=2)
