"""Which tokens are left: an oracle's set, exactly, below and above the size of the head."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.sampler.options import DrawOptions
from headrace.pipeline.sampler.truncate import HEAD, cuts, left
from headrace.pipeline.sampling import PLAIN, Sampling
from tests.sampler.draws import Row, left_of, options_for, random_cuts, random_logits

VOCABS = [5, HEAD, 700]
ROWS = 8
NEAR = 1e-5  # nearer than this, float32 sums may decide otherwise


@jax.jit
def left_jit(logits: jax.Array, options: DrawOptions) -> jax.Array:
    scaled = jax.numpy.where(logits == 0, 0, logits)
    mass = jax.numpy.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return left(scaled, mass, options, cuts(options, logits.shape[1]))


def check_rows(rows: list[Row]) -> int:
    """Compare with the oracle; returns how many rows weren't too near to tell."""
    kept = np.asarray(left_jit(np.stack([row.logits for row in rows]), options_for(rows)))
    clear = 0
    for row, flags in zip(rows, kept, strict=True):
        expected = left_of(row.logits.astype(np.float64), row.sampling)
        possible = np.exp(row.logits - row.logits.max()) > 0
        if expected.margin > NEAR:
            clear += 1
            wanted = {token for token in expected.ids if possible[token]}
            assert set(np.flatnonzero(flags & possible).tolist()) == wanted, row
    return clear


@settings(max_examples=30)
@given(st.sampled_from(VOCABS), st.integers(0, 2**31))
def test_the_tokens_left_are_the_oracles(vocab: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [Row(random_logits(rng, vocab), random_cuts(rng, vocab)) for _ in range(ROWS)]
    assert check_rows(rows) >= ROWS // 4


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(top_p=0.77),
        Sampling(top_k=300),
        Sampling(top_k=HEAD),
        Sampling(top_k=HEAD + 1),
        Sampling(top_k=500, top_p=0.9),
        Sampling(top_k=500, top_p=0.2),
        Sampling(top_k=500, min_p=0.9),
        Sampling(top_p=0.9, min_p=0.8),
        Sampling(top_k=400, top_p=0.8, min_p=0.85),
        Sampling(top_p=1e-9),
    ],
    ids=str,
)
def test_flat_distributions_are_cut_exactly_where_the_head_is_too_short(
    sampling: Sampling,
) -> None:
    rng = np.random.default_rng(3)
    rows = [Row(0.1 * rng.standard_normal(700).astype(np.float32), sampling) for _ in range(3)]
    rows += [Row(rng.integers(0, 2, 700).astype(np.float32) / 8, sampling) for _ in range(2)]
    rows += [Row(np.zeros(700, np.float32), sampling)]
    rows += [Row(10 * rng.standard_normal(700).astype(np.float32)), Row(rows[0].logits)]
    assert check_rows(rows) >= 6


def test_a_share_is_of_the_top_k_even_where_min_p_ends_within_the_head() -> None:
    rng = np.random.default_rng(1)
    likely = rng.permutation(700) < 100
    logits = np.where(likely, 0, np.log(0.85)).astype(np.float32)
    # Of 400 tokens the mass is 355, of all of them 610: the share is 71 tokens, not 100 or more.
    row = Row(logits, Sampling(top_k=400, top_p=0.199, min_p=0.9))
    assert len(left_of(logits.astype(np.float64), row.sampling).ids) == 71
    assert check_rows([row] * ROWS) == ROWS


def test_equals_are_taken_by_lower_id() -> None:
    logits = np.array([1, 0, 1, -0.0, 0, 1, 1, 0], np.float32)
    wanted = {1: {0}, 2: {0, 2}, 4: {0, 2, 5, 6}, 5: {0, 1, 2, 5, 6}, 6: {0, 1, 2, 3, 5, 6}}
    for top_k, ids in wanted.items():
        row = Row(logits, Sampling(top_k=top_k))
        kept = np.asarray(left_jit(logits[None], options_for([row])))[0]
        assert set(np.flatnonzero(kept).tolist()) == ids


def test_law_7_a_neighbour_that_needs_the_search_changes_no_cut() -> None:
    rng = np.random.default_rng(0)
    rows = [Row(random_logits(rng, 700), random_cuts(rng, 700)) for _ in range(ROWS)]
    flat = Row(np.zeros(700, np.float32), Sampling(top_p=0.9))
    alone = np.asarray(
        [
            left_jit(
                np.stack([row.logits] * ROWS),
                options_for([row] + [replace(row, sampling=PLAIN)] * (ROWS - 1)),
            )[0]
            for row in rows
        ]
    )
    for neighbour in (rows[0], flat):
        beside = [*rows[:-1], neighbour]
        kept = left_jit(np.stack([row.logits for row in beside]), options_for(beside))
        np.testing.assert_array_equal(np.asarray(kept)[:-1], alone[:-1])
