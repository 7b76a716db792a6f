"""What the JAX tests share: double precision and random arrays."""

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'cosformer[jax]'")
pytest.importorskip("flax", reason="flax is not installed: pip install 'cosformer[jax]'")


@pytest.fixture(scope="module", autouse=True)
def double_precision():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.fixture(scope="session")
def make():
    """q, k, v of (B, H, Hk, N, S, D, E) as numpy arrays."""

    def arrays(b, h, hk, n, s, d, e):
        random = np.random.default_rng(0)
        return [random.standard_normal(shape) for shape in ((b, h, n, d), (b, hk, s, d), (b, hk, s, e))]

    return arrays
