"""Attention with a mask; queries without a key stay finite."""

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.models.attention import attention, cached_attention, packed_mask

R, T, H, K, N, h = 2, 3, 4, 2, 5, 3
attend = jax.jit(attention)
attend_cached = jax.jit(cached_attention)


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


def cached_inputs(seed: int, rows: int, window: int) -> tuple[np.ndarray, ...]:
    """One query a row; positions in the first half of the window, noise behind them."""
    rng = np.random.default_rng(seed)
    queries = rng.standard_normal((rows, H, h)).astype(np.float32)
    keys, values = rng.standard_normal((2, K, rows, window, h)).astype(np.float32)
    positions = rng.integers(0, window // 2, rows).astype(np.int32)
    return queries, np.ascontiguousarray(keys.swapaxes(2, 3)), values, positions


@settings(max_examples=20)
@given(st.integers(0, 2**31))
def test_cached_attention_equals_attention_up_to_each_rows_position(seed: int) -> None:
    queries, keys, values, positions = cached_inputs(seed, rows=3, window=8)
    seen = np.arange(8) <= positions[:, None]
    expected = attend(
        queries[:, None], keys.transpose(1, 0, 3, 2), values.swapaxes(0, 1), seen[:, None]
    )
    got = attend_cached(queries, keys, values, positions)
    np.testing.assert_allclose(got, expected[:, 0], atol=1e-5)


def test_cached_attention_of_a_row_has_the_same_bits_beside_others_and_in_a_wider_window() -> None:
    queries, keys, values, positions = cached_inputs(3, rows=8, window=256)
    expected = np.asarray(attend_cached(queries, keys, values, positions))
    narrow = attend_cached(queries, keys[..., :128], values[:, :, :128], positions)
    np.testing.assert_array_equal(narrow, expected)
    order = np.random.default_rng(4).permutation(8)
    queries, positions = queries[order], positions[order]
    keys, values = keys[:, order], values[:, order]
    # Another row, other neighbours, and other numbers behind each row's position.
    kept = order < 4
    queries[~kept] *= -1
    for row, position in enumerate(positions):
        keys[:, row, :, position + 1 :], values[:, row, position + 1 :] = 5, -7
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
