"""Logits before the temperature: penalties, biases, allowed tokens, against a loop."""

from collections import Counter

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.sampler.penalties import add_token, adjusted, adjusts
from tests.sampler.draws import (
    Row,
    adjusted_logits,
    count_jit,
    counts_of,
    options_for,
    random_row,
)

VOCABS = [5, 33, 70]  # one word of a mask, two, three
ROWS, WINDOW = 8, 20

adjusted_jit = jax.jit(adjusted)
adjusts_jit = jax.jit(adjusts)


@settings(max_examples=20)
@given(st.sampled_from(VOCABS), st.integers(0, 2**31))
def test_adjusted_logits_are_those_of_the_loop(vocab: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [random_row(rng, vocab) for _ in range(ROWS)]
    logits = np.stack([row.logits for row in rows])
    found = adjusted_jit(logits, options_for(rows), counts_of(rows))
    expected = np.stack([adjusted_logits(row) for row in rows])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_neutral_rows_keep_every_bit_and_only_they_are_neutral() -> None:
    rng = np.random.default_rng(5)
    rows = [random_row(rng, 33) for _ in range(ROWS)]
    rows += [Row(row.logits, prompt=row.prompt, sampled=row.sampled) for row in rows]
    logits = np.stack([row.logits for row in rows])
    logits[-1, :4] = [-0.0, 1e-37, -np.inf, -3e38]
    options = options_for(rows)
    found = np.asarray(adjusted_jit(logits, options, counts_of(rows)))
    np.testing.assert_array_equal(found[ROWS:].view(np.uint32), logits[ROWS:].view(np.uint32))
    changing = np.asarray(adjusts_jit(options))
    assert not changing[ROWS:].any()
    assert changing[(found != logits).any(axis=-1)].all()


def test_without_counts_penalties_are_left_out() -> None:
    rng = np.random.default_rng(6)
    rows = [random_row(rng, 33) for _ in range(ROWS)]
    logits, options = np.stack([row.logits for row in rows]), options_for(rows)
    nothing = np.zeros((ROWS, 33), np.int32)
    np.testing.assert_array_equal(
        adjusted_jit(logits, options, None), adjusted_jit(logits, options, nothing)
    )


@settings(max_examples=20)
@given(st.integers(0, 2**31))
def test_counts_tell_the_prompt_from_sampled_tokens(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 5, (ROWS, WINDOW)).astype(np.int32)
    valid, sampled = rng.random((2, ROWS, WINDOW)) < 0.5
    counts = count_jit(np.where(valid, tokens, -7), valid, sampled, vocab_size=5)
    active, drawn = rng.random(ROWS) < 0.5, rng.integers(0, 5, ROWS).astype(np.int32)
    grown = np.asarray(jax.jit(add_token)(counts, drawn, active))
    for row in range(ROWS):
        prompt = set(tokens[row, valid[row] & ~sampled[row]].tolist())
        times = Counter(tokens[row, valid[row] & sampled[row]].tolist())
        expected = [2 * times[token] + (token in prompt) for token in range(5)]
        assert np.asarray(counts)[row].tolist() == expected
        expected[drawn[row]] += 2 * int(active[row])
        assert grown[row].tolist() == expected
