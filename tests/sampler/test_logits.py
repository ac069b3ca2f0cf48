"""How a token is drawn: the right distribution, by the row's own numbers only."""

import jax
import numpy as np
import pytest

from headrace.pipeline.sampler.logits import Draw, pick
from headrace.pipeline.sampler.options import OptionSizes, neutral_options

pick_jit = jax.jit(pick)


def pick_plain(
    logits: np.ndarray, keys: np.ndarray, positions: np.ndarray, temperature: np.ndarray
) -> Draw:
    rows, vocab = logits.shape
    options = neutral_options(rows, OptionSizes(vocab))._replace(temperature=temperature)
    return pick_jit(logits, keys, positions, options, active=np.ones(rows, np.bool_))


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_draws_follow_the_softmax(temperature: float) -> None:
    count, logits = 20_000, np.array([0.0, 1.5, -1.0, 0.7, 2.0, -0.4], np.float32)
    keys = np.stack([np.arange(count), np.full(count, 9)], axis=1).astype(np.uint32)
    draws = pick_plain(
        np.tile(logits, (count, 1)),
        keys,
        np.arange(count, dtype=np.int32) % 7,
        np.full(count, temperature, np.float32),
    )
    probability = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
    observed = np.bincount(draws.token, minlength=6)
    expected = count * probability
    chi_square = ((observed - expected) ** 2 / expected).sum()
    assert chi_square < 20.5  # 5 degrees of freedom: a probability of 0.001
    np.testing.assert_allclose(
        draws.logprob, np.log(probability)[draws.token], rtol=1e-5, atol=1e-5
    )


def test_temperature_zero_takes_the_most_likely_token_and_its_unscaled_logprob() -> None:
    logits = np.array([[0.0, 3.0, 1.0], [5.0, -1.0, 4.9]], np.float32)
    keys, positions = np.zeros((2, 2), np.uint32), np.zeros(2, np.int32)
    draws = pick_plain(logits, keys, positions, np.zeros(2, np.float32))
    np.testing.assert_array_equal(draws.token, [1, 0])
    expected = logits.max(-1) - np.log(np.exp(logits).sum(-1))
    np.testing.assert_allclose(draws.logprob, expected, rtol=1e-5)


def test_excluded_tokens_are_never_drawn_and_extreme_logits_stay_finite() -> None:
    logits = np.full((200, 5), -np.inf, np.float32)
    logits[:, 3], logits[:, 1] = 3e4, 3e4 - 1
    keys = np.arange(400, dtype=np.uint32).reshape(200, 2)
    draws = pick_plain(logits, keys, np.zeros(200, np.int32), np.ones(200, np.float32))
    assert set(np.asarray(draws.token).tolist()) == {1, 3}
    assert np.isfinite(draws.logprob).all()
