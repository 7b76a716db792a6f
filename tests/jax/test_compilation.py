"""Compilation: one per shape, memory linear in length, donated states; and import without jax."""

import subprocess
import sys
import warnings

import jax.numpy as jnp
import pytest

import jax
from cosformer.jax import LinearState, cosformer_attention
from cosformer.jax.operator import _attend


def test_compiles_once_a_shape():
    before = _attend._cache_size()
    for _ in range(3):
        for n in (37, 38):
            x = jnp.ones((1, 2, n, 4))
            cosformer_attention(x, x, x, causal=True, max_len=64)
    assert _attend._cache_size() == before + 2


def test_decoding_compiles_once_and_its_state_is_donated():
    traces = 0

    def step(x, state):
        nonlocal traces
        traces += 1
        return cosformer_attention(x, x, x, causal=True, max_len=64, state=state, return_state=True)

    step = jax.jit(step, donate_argnums=1)
    state = LinearState.empty(1, 2, 4, 4, 64, jnp.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # jax warns of a buffer that could not be used
        for _ in range(5):
            old = state
            _, state = step(jnp.ones((1, 2, 1, 4), jnp.float32), state)
            assert old.kv.is_deleted()
    assert traces == 1 and state.seen == 5


@pytest.mark.parametrize("causal", [False, True])
def test_memory_of_forward_and_backward_is_linear_in_the_length(causal):
    def temporaries(n, backward):
        shape = jax.ShapeDtypeStruct((1, 4, n, 32), jnp.float32)

        def loss(q, k, v):
            return (cosformer_attention(q, k, v, causal=causal, max_len=65_536) ** 2).sum()

        function = jax.grad(loss, (0, 1, 2)) if backward else loss
        return jax.jit(function).lower(shape, shape, shape).compile().memory_analysis().temp_size_in_bytes

    inputs = 3 * 4 * 65_536 * 32 * 4
    for backward in (False, True):
        small, large = temporaries(16_384, backward), temporaries(65_536, backward)
        # 2.6 times the inputs; were every chunk's weights kept for the backward pass, 5.2
        assert large < 4.2 * small and large < 4 * inputs


def test_without_jax_the_extra_is_named():
    code = "import sys; sys.modules['jax'] = None; import cosformer.jax"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0 and "pip install 'cosformer[jax]'" in done.stderr


def test_importing_the_package_does_not_load_jax():
    code = "import cosformer, sys; cosformer.cosformer_attention; print('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
