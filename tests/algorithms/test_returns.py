"""Returns and penalties for length, by the definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.algorithms.returns import discounted_returns, overlong_penalty, turn_returns

rewards = st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=9)


@given(rewards, st.sampled_from([1.0, 0.9, 0.5]), st.data())
def test_a_return_is_the_sum_of_what_follows_discounted_by_steps(values, discount, data):
    steps = np.cumsum([data.draw(st.integers(0, 2)) for _ in values])
    expected = [
        sum(discount ** (steps[s] - steps[t]) * values[s] for s in range(t, len(values)))
        for t in range(len(values))
    ]
    found = discounted_returns(
        np.array(values, np.float32), steps.astype(np.int32), discount=discount
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_turns_are_steps():
    found = turn_returns(np.array([1, 2, 4], np.float32), discount=0.5)
    np.testing.assert_array_equal(found, [3.0, 4.0, 4.0])


@pytest.mark.parametrize("tokens", [0, 60, 80, 81, 95, 100, 101, 900])
def test_the_penalty_for_length_is_the_papers_in_tokens(tokens):
    limit, cache = 100, 20  # DAPO's equation 13
    if tokens <= limit - cache:
        expected = 0.0
    elif tokens <= limit:
        expected = ((limit - cache) - tokens) / cache
    else:
        expected = -1.0
    assert overlong_penalty(tokens, limit=limit, buffer=cache) == pytest.approx(expected)
    assert overlong_penalty(tokens, limit=0, buffer=0) == 0.0
    assert overlong_penalty(tokens, limit=limit, buffer=0) == (-1.0 if tokens > limit else 0.0)
