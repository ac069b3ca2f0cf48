"""The sampler's products of narrow floats, of sizes that XLA's CPU code treats differently."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.pipeline.models.matrices import Adapted, multiply
from headrace.pipeline.models.products import FEATURES_FIRST

NARROW = jnp.bfloat16
PRODUCTS = (
    FEATURES_FIRST.to_heads,
    FEATURES_FIRST.from_heads,
    FEATURES_FIRST.ffn,
    "efd,drt->efrt",
    "def,efrt->drt",
    "vd,rd->vr",
)
SCALE = 0.5
# Letters of `PRODUCTS`; l is an adapter's rank.
SIZES = (
    {"d": 1, "f": 1, "n": 1, "w": 1, "e": 1, "v": 1, "r": 1, "t": 1, "l": 1},
    {"d": 16, "f": 24, "n": 4, "w": 4, "e": 2, "v": 19, "r": 1, "t": 5, "l": 2},
    {"d": 7, "f": 33, "n": 3, "w": 2, "e": 3, "v": 17, "r": 2, "t": 3, "l": 1},
    {"d": 64, "f": 192, "n": 4, "w": 16, "e": 1, "v": 65, "r": 1, "t": 32, "l": 2},
)


def narrow(letters: str, sizes: dict[str, int], rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=[sizes[letter] for letter in letters]).astype(NARROW)


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"width {sizes['d']}")
def test_narrow_products_of_any_size_run_and_are_summed_in_float32(sizes):
    rng = np.random.default_rng(0)
    operands = {}
    for product in PRODUCTS:
        first, second = product.split("->")[0].split(",")
        operands[product] = narrow(second, sizes, rng), narrow(first, sizes, rng)

    @jax.jit
    def run(operands):
        return {
            product: multiply(product, *pair, jnp.float32) for product, pair in operands.items()
        }

    for product, found in run(operands).items():
        x, matrix = (operand.astype(np.float64) for operand in operands[product])
        np.testing.assert_allclose(found, np.einsum(product, matrix, x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"width {sizes['d']}")
def test_narrow_adapters_of_any_size_run(sizes):
    rng = np.random.default_rng(1)
    letters = "fd", "ld", "fl", "drt"
    base, a, b, x = (narrow(some, sizes, rng) for some in letters)
    product = partial(multiply, FEATURES_FIRST.ffn)
    found = jax.jit(product)(x, Adapted(base, a, b, SCALE))
    assert found.dtype == NARROW
    base, a, b, x = (some.astype(np.float64) for some in (base, a, b, x))
    exact = np.einsum("fd,drt->frt", base + SCALE * b @ a, x)
    size = np.einsum("fd,drt->frt", abs(base) + SCALE * abs(b) @ abs(a), abs(x))
    assert (abs(np.asarray(found, np.float64) - exact) <= 4 * 2**-8 * size).all()
