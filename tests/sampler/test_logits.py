"""How a token is drawn: the right distribution, by the row's own numbers only."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.sampler.inverse_cdf import uniforms
from headrace.pipeline.sampler.logits import Draw, pick
from headrace.pipeline.sampling import PLAIN, Sampling
from tests.learner.toy import quick_jit
from tests.sampler.draws import (
    MAX_TOP,
    Row,
    behaviour,
    counts_of,
    log_softmax,
    options_for,
    random_logits,
    random_row,
)

VOCABS = [6, 300]  # below a block; not a multiple of one, above the size of the head
ROWS = 8
NEAR = 1e-5  # nearer than this, float32 sums may decide otherwise

pick_jit = jax.jit(partial(pick, top_logprobs=MAX_TOP))
draw_many = quick_jit(partial(pick, top_logprobs=MAX_TOP))


def keys_for(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and positions that differ from row to row."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 2**32, (rows, 2), dtype=np.uint32)
    return keys, rng.integers(0, 90, rows).astype(np.int32)


def pick_rows(rows: list[Row], seed: int = 0, active: np.ndarray | None = None) -> Draw:
    """Draw for at most `ROWS` rows, beside idle ones, so that few programs are compiled."""
    full = rows + [Row(np.zeros_like(rows[0].logits))] * (ROWS - len(rows))
    keys, positions = keys_for(ROWS, seed)
    active = np.arange(ROWS) < len(rows) if active is None else active
    draw = pick_jit(
        np.stack([row.logits for row in full]),
        keys,
        positions,
        options_for(full),
        active=active,
        counts=counts_of(full),
    )
    return jax.tree.map(lambda values: np.asarray(values)[: len(rows)], draw)


def check_against_oracle(rows: list[Row], seed: int) -> int:
    """Check each row's token, logprob and kept mass; returns how many weren't too near to tell."""
    draw, clear = pick_rows(rows, seed), 0
    numbers = np.asarray(uniforms(*keys_for(ROWS, seed)))
    for index, row in enumerate(rows):
        token, logprob = draw.token[index], draw.logprob[index]
        assert np.isclose(logprob, log_softmax(row)[token], rtol=1e-5, atol=2e-5)
        probability, margin = behaviour(row)
        if margin < NEAR:
            continue
        shares = np.cumsum(probability)
        drawn_with = logprob.astype(np.float64) - draw.log_kept_mass[index]
        rounding = 2e-5 + 1e-6 * abs(logprob)
        assert abs(drawn_with - np.log(probability[token])) < rounding, row
        if np.abs(shares - numbers[index]).min() > NEAR:
            clear += 1
            assert token == (shares <= numbers[index]).sum(), row
    return clear


@settings(max_examples=30)
@given(st.sampled_from(VOCABS), st.integers(0, 2**31))
def test_every_combination_of_options_is_the_oracles(vocab: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [random_row(rng, vocab) for _ in range(ROWS)]
    assert check_against_oracle(rows, seed) >= ROWS // 4


@pytest.mark.parametrize("temperature", [0.5, 0.0])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(top_k=2),
        Sampling(top_p=0.6),
        Sampling(min_p=0.3),
        Sampling(repetition_penalty=1.7),
        Sampling(presence_penalty=1.3),
        Sampling(frequency_penalty=0.7),
        Sampling(logit_bias=((2, 3.0), (4, -100.0))),
        Sampling(allowed_tokens=(1, 2, 5)),
        Sampling(allowed_tokens=(0,)),
    ],
    ids=str,
)
def test_each_option_alone_is_the_oracles(sampling: Sampling, temperature: float) -> None:
    rng = np.random.default_rng(2)
    rows = [
        Row(
            rng.standard_normal(6).astype(np.float32),
            sampling,
            temperature,
            prompt=[0, 0, 3],
            sampled=[1, 2, 2, 2],
        )
        for _ in range(ROWS)
    ]
    assert check_against_oracle(rows, 11) >= ROWS - 2


@settings(max_examples=12)
@given(st.sampled_from(VOCABS), st.integers(0, 2**31))
def test_law_7_a_row_has_the_same_bits_beside_any_neighbours(vocab: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [random_row(rng, vocab) for _ in range(ROWS)]
    rows[: ROWS // 2] = [replace(row, sampling=PLAIN) for row in rows[: ROWS // 2]]
    idle = [replace(row, sampling=PLAIN, temperature=1.0) for row in rows]
    together = pick_rows(rows, seed)
    for index in range(ROWS):
        beside = [*idle[:index], rows[index], *idle[index + 1 :]]
        alone = pick_rows(beside, seed)
        unserved = pick_rows(rows, seed, active=np.arange(ROWS) == index)
        for draw in (alone, unserved):
            for one, other in zip(draw[:3], together[:3], strict=True):
                np.testing.assert_array_equal(one[index], other[index])


def test_a_plain_row_keeps_all_its_mass_and_a_greedy_one_had_no_choice() -> None:
    rng = np.random.default_rng(4)
    rows = [Row(random_logits(rng, 300), temperature=float(t)) for t in (0, 1, 0, 0.7, 2, 1, 1)]
    rows.append(Row(rows[0].logits, Sampling(top_k=2)))
    draw = pick_rows(rows)
    greedy = np.array([row.temperature == 0 for row in rows])
    np.testing.assert_array_equal(draw.log_kept_mass[greedy], draw.logprob[greedy])
    np.testing.assert_array_equal(draw.log_kept_mass[:-1][~greedy[:-1]], 0)
    assert draw.log_kept_mass[-1] < 0


def chi_square(row: Row, count: int) -> float:
    """Of so many draws, over the tokens that can be drawn; the others must not be."""
    keys = np.stack([np.arange(count), np.full(count, 9)], axis=1).astype(np.uint32)
    positions = np.arange(count, dtype=np.int32) % 7
    draw = draw_many(
        np.tile(row.logits, (count, 1)),
        keys,
        positions,
        options_for([row] * count),
        active=np.ones(count, np.bool_),
    )
    probability, _ = behaviour(row)
    observed = np.bincount(draw.token, minlength=len(probability))
    possible = probability > 0
    assert not observed[~possible].any()
    np.testing.assert_allclose(draw.logprob, log_softmax(row)[draw.token], rtol=1e-5, atol=1e-5)
    expected = count * probability[possible]
    return float(((observed[possible] - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_draws_follow_the_softmax(temperature: float) -> None:
    row = Row(np.array([0.0, 1.5, -1.0, 0.7, 2.0, -0.4], np.float32), PLAIN, temperature)
    assert chi_square(row, 20_000) < 20.5  # 5 degrees of freedom: a probability of 0.001


def test_draws_follow_the_renormalised_rest_of_a_cut_softmax() -> None:
    logits = np.array([0.0, 1.5, -1.0, 0.7, 2.0, -0.4], np.float32)
    row = Row(logits, Sampling(top_k=5, top_p=0.93, min_p=0.05), 1.3)
    assert (behaviour(row)[0] > 0).sum() == 4
    assert chi_square(row, 20_000) < 16.3  # 3 degrees of freedom: a probability of 0.001


def test_temperature_zero_takes_the_most_likely_token_and_its_unscaled_logprob() -> None:
    logits = np.array([[0, 3, 1, 0, 3, 0], [5, -1, 4.9, 4.9, 0, 0]], np.float32)
    draw = pick_rows([Row(row, temperature=0.0) for row in logits])
    np.testing.assert_array_equal(draw.token, [1, 0])
    expected = logits.max(-1) - np.log(np.exp(logits).sum(-1))
    np.testing.assert_allclose(draw.logprob, expected, rtol=1e-5)


def test_excluded_tokens_are_never_drawn_and_extreme_logits_stay_finite() -> None:
    logits = np.full(6, -np.inf, np.float32)
    logits[3], logits[1] = 3e4, 3e4 - 1
    draws = [pick_rows([Row(logits)] * ROWS, seed) for seed in range(20)]
    assert {int(token) for draw in draws for token in draw.token} == {1, 3}
    assert all(np.isfinite(draw.logprob).all() for draw in draws)


def test_the_top_logprobs_are_those_of_the_softmax_whatever_is_cut() -> None:
    rng = np.random.default_rng(8)
    asked = [Sampling(top_logprobs=n, top_k=n, logit_bias=((0, 4.0),)) for n in range(5)]
    rows = [Row(random_logits(rng, 300), sampling, 0.5) for sampling in asked]
    draw = pick_rows(rows)
    assert draw.top is not None
    assert draw.top.ids.shape == (5, MAX_TOP)
    for index, row in enumerate(rows):
        count = row.sampling.top_logprobs
        order = np.argsort(-row.logits, kind="stable")[:count]
        np.testing.assert_array_equal(draw.top.ids[index, :count], order)
        found = draw.top.logprobs[index, :count]
        np.testing.assert_allclose(found, log_softmax(row)[order], rtol=1e-5, atol=1e-5)
        where = np.flatnonzero(order == draw.token[index])
        assert (found[where] == draw.logprob[index]).all()


def test_a_vocabulary_smaller_than_the_top_returns_all_of_it() -> None:
    logits = np.array([0, 3, 1, 2, 3, -1], np.float32)
    draw = pick_rows([Row(logits, Sampling(top_logprobs=MAX_TOP))])
    assert draw.top is not None
    assert draw.top.ids.tolist() == [[1, 4, 3, 2, 0, 5]]
