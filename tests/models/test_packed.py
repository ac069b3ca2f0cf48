"""Attention of packed rows in blocks, and its backward pass, against plain attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.models import packed
from headrace.pipeline.models.attention import (
    PLAIN_SIGHT,
    Heads,
    Sight,
    attention,
    packed_mask,
    within_row,
)
from headrace.pipeline.models.packed import attend_packed, head_major, query_blocks

R, T, H, K, h = 2, 9, 4, 2, 3
SIGHTS = {
    "plain": PLAIN_SIGHT,
    "all": Sight(score_width=5.0, score_cap=0.7, window=3),
}


def in_blocks(segments, heads, sight):
    return attend_packed(segments)(None, heads, sight)[0]


def at_once(segments, heads, sight):
    mask = within_row(packed_mask(segments), sight)
    keys, values = head_major(heads.keys), head_major(heads.values)
    mixed = attention(heads.queries, keys, values, mask, sight=sight)
    return jnp.where((segments > 0)[:, :, None, None], mixed, 0.0)


def with_gradient(attend, sight):
    def run(segments, heads, weights):
        mixed, pull_back = jax.vjp(lambda heads: attend(segments, heads, sight), heads)
        return mixed, pull_back(weights)[0]

    return jax.jit(run)


@pytest.fixture(scope="module", params=SIGHTS)
def pair(request):
    """The two ways, compiled, for rows of three blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "SMALLEST_BLOCK", 4)
        assert query_blocks(T) == [(0, 4), (4, 8), (8, 9)]
        sight = SIGHTS[request.param]
        segments = jax.ShapeDtypeStruct((R, T), jnp.int32)
        queries, keys = (jax.ShapeDtypeStruct((R, T, n, h), jnp.float32) for n in (H, K))
        given = segments, Heads(queries, keys, keys), queries
        return [with_gradient(way, sight).lower(*given).compile() for way in (in_blocks, at_once)]


@settings(max_examples=20)
@given(st.integers(0, 2**31))
def test_blocks_give_what_attention_gives_and_its_gradients_and_padding_gives_0(pair, seed):
    rng = np.random.default_rng(seed)
    segments = np.sort(rng.integers(0, 3, (R, T)), axis=1)[:, ::-1].astype(np.int32)
    heads = Heads(*(rng.normal(0, 2, (R, T, n, h)).astype(np.float32) for n in (H, K, K)))
    weights = rng.normal(size=(R, T, H, h)).astype(np.float32)
    (mixed, gradients), (expected, exact) = (way(segments, heads, weights) for way in pair)
    np.testing.assert_allclose(mixed, expected, atol=1e-5)
    for found, right in zip(gradients, exact, strict=True):
        np.testing.assert_allclose(found, right, atol=5e-5)
