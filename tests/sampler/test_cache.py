"""Views of the cache: what is appended is found again, and attention finds it in its block."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.models.model import AttentionShape
from headrace.pipeline.sampler.cache import (
    LayerCache,
    allocate,
    append,
    blocked,
    gather,
    take_positions,
    view,
)

K, ROWS, WIDTH, PAGE = 2, 3, 4, 16
SHAPE = AttentionShape(num_layers=1, num_heads=K, num_kv_heads=K, head_width=WIDTH)
appended, taken = jax.jit(append), jax.jit(take_positions)


def pages_and_tables(seed: int, window: int) -> tuple[LayerCache, np.ndarray]:
    rng = np.random.default_rng(seed)
    each = window // PAGE
    (zeros,) = allocate(SHAPE, pages=1 + ROWS * each, page_tokens=PAGE, dtype=jnp.float32)
    pages = jax.tree.map(lambda zero: jnp.asarray(rng.normal(size=zero.shape), jnp.float32), zeros)
    return pages, rng.permutation(1 + ROWS * each)[: ROWS * each].reshape(ROWS, each)


@pytest.mark.parametrize(("window", "block"), [(16, 16), (48, 16), (96, 32), (128, 64)])
def test_a_view_has_the_pages_keys_in_blocks(window: int, block: int) -> None:
    pages, tables = pages_and_tables(window, window)
    seen, expected = view(pages, tables), gather(pages, tables)
    assert seen.keys.shape == (K, ROWS, window // block, WIDTH, block)
    keys = np.asarray(seen.keys).swapaxes(3, 4).reshape(K, ROWS, window, WIDTH)
    np.testing.assert_array_equal(keys, expected.keys)
    np.testing.assert_array_equal(seen.values, expected.values)


@settings(max_examples=15)
@given(st.integers(0, 2**31), st.lists(st.integers(0, 130), min_size=ROWS, max_size=ROWS))
def test_what_is_appended_is_found_and_nothing_else_changes(
    seed: int, positions: list[int]
) -> None:
    window, at = 128, np.array(positions, np.int32)
    pages, tables = pages_and_tables(7, window)
    keys, values = np.random.default_rng(seed).normal(size=(2, K, ROWS, WIDTH)).astype(np.float32)
    # Never cached:
    keys[0, 0, 0], values[-1, 0, 1], keys[1, 0, 1] = np.nan, np.inf, -1e20
    got = appended(view(pages, tables), LayerCache(keys, values), at)
    expected = jax.tree.map(np.array, gather(pages, tables))
    for row, position in enumerate(at):
        if position < window:
            for cached, new in zip(expected, (keys[:, row], values[:, row]), strict=True):
                cached[:, row, position] = np.where(np.abs(new) < 1e15, new, 0)
    np.testing.assert_array_equal(got.keys, blocked(jnp.asarray(expected.keys)))
    np.testing.assert_array_equal(got.values, expected.values)
    everywhere = np.broadcast_to(np.arange(window, dtype=np.int32), (ROWS, window))
    jax.tree.map(np.testing.assert_array_equal, taken(got, everywhere), LayerCache(*expected))
