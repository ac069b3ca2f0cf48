"""Attention with a mask; queries without a key stay finite."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.models.attention import (
    Sight,
    attention,
    cached_attention,
    packed_mask,
    within,
)

R, T, H, K, N, h = 2, 3, 4, 2, 5, 3
attend = jax.jit(attention, static_argnames="sight")
attend_cached = jax.jit(cached_attention, static_argnames="sight")


def inputs(seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    queries = rng.standard_normal((R, T, H, h)).astype(np.float32)
    keys, values = rng.standard_normal((2, R, K, N, h)).astype(np.float32)
    return queries, keys, values, rng.random((R, T, N)) < 0.5


@settings(max_examples=30)
@given(st.integers(0, 2**31))
def test_attention_is_the_masked_average(seed: int) -> None:
    queries, keys, values, mask = inputs(seed)
    mask[0, 0] = False  # a query that sees nothing
    got = np.asarray(attend(queries, keys, values, mask))
    assert np.isfinite(got).all()
    for row, token, head in np.ndindex(R, T, H):
        seen = np.flatnonzero(mask[row, token])
        if len(seen) == 0:
            continue
        group = head // (H // K)
        scores = keys[row, group, seen] @ queries[row, token, head] / h**0.5
        shares = np.exp(scores) / np.exp(scores).sum()
        expected = shares @ values[row, group, seen]
        np.testing.assert_allclose(got[row, token, head], expected, atol=1e-5)


@settings(max_examples=10)
@given(st.integers(0, 2**31))
def test_masked_keys_and_values_change_nothing(seed: int) -> None:
    queries, keys, values, mask = inputs(seed)
    mask[:, :, 1] = False
    mask[:, :, 0] = True
    expected = attend(queries, keys, values, mask)
    keys[:, :, 1], values[:, :, 1] = 1e3, -1e3
    np.testing.assert_array_equal(attend(queries, keys, values, mask), expected)


def cached_inputs(
    seed: int, rows: int, window: int, *, block: int = 64, heads: int = H
) -> tuple[np.ndarray, ...]:
    """One query a row; positions in the first half of the window, noise behind them."""
    rng = np.random.default_rng(seed)
    queries = rng.standard_normal((rows, heads, h)).astype(np.float32)
    keys, values = rng.standard_normal((2, K, rows, window, h)).astype(np.float32)
    positions = rng.integers(0, window // 2, rows).astype(np.int32)
    blocks = keys.reshape(K, rows, window // block, block, h)
    return queries, np.ascontiguousarray(blocks.swapaxes(3, 4)), values, positions


@pytest.mark.parametrize(
    ("block", "heads", "sight"),
    [
        (8, H, Sight()),
        (2, K, Sight(window=3)),  # one query head for each of the keys'
        (4, H, Sight(score_cap=0.5, score_width=7.0)),
    ],
)
@settings(max_examples=10)
@given(st.integers(0, 2**31))
def test_cached_attention_equals_attention_up_to_each_rows_position(
    block: int, heads: int, sight: Sight, seed: int
) -> None:
    sizes = {"rows": 3, "window": 8, "block": block, "heads": heads}
    queries, keys, values, positions = cached_inputs(seed, **sizes)
    at, own = np.arange(8)[None], positions[:, None]
    seen = within(at <= own, at, own, sight)
    flat = keys.swapaxes(3, 4).reshape(values.shape).swapaxes(0, 1)
    expected = attention(queries[:, None], flat, values.swapaxes(0, 1), seen[:, None], sight=sight)
    got = cached_attention(queries, keys, values, positions, sight=sight)
    np.testing.assert_allclose(got, expected[:, 0], atol=1e-5)


def test_cached_attention_of_a_row_has_the_same_bits_beside_others_and_in_a_wider_window() -> None:
    queries, keys, values, positions = cached_inputs(3, rows=8, window=256)
    expected = np.asarray(attend_cached(queries, keys, values, positions))
    narrow = attend_cached(queries, keys[:, :, :2], values[:, :, :128], positions)
    np.testing.assert_array_equal(narrow, expected)
    order = np.random.default_rng(4).permutation(8)
    queries, positions = queries[order], positions[order]
    keys, values = keys[:, order], values[:, order]
    # Another row, other neighbours, and other numbers behind each row's position.
    kept = order < 4
    queries[~kept] *= -1
    for row, position in enumerate(positions):
        behind = np.arange(position + 1, 256)
        keys[:, row, behind // 64, :, behind % 64], values[:, row, behind] = 5, -7
    got = np.asarray(attend_cached(queries, keys, values, positions))
    np.testing.assert_array_equal(got[kept], expected[order][kept])


def test_packed_rows_see_earlier_tokens_of_their_own_segment() -> None:
    segments = np.array([[1, 1, 2, 2, 0]], np.int32)
    expected = [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0],
    ]
    np.testing.assert_array_equal(packed_mask(segments)[0], np.array(expected, bool))
