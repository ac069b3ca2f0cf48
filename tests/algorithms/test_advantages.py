"""Law 13: group advantages sum to 0 and ignore reward shifts; oracles from the papers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.algorithms.advantages import estimator, group_relative, leave_one_out

rewards = st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=8)
estimators = st.sampled_from(
    [
        estimator("group_relative"),
        estimator("group_relative", normalize_std=False),
        estimator("leave_one_out"),
    ]
)


def array(values):
    return np.array(values, np.float32)


def all_present(values):
    return np.ones(len(values), bool)


@given(rewards, estimators)
def test_law_13_advantages_sum_to_zero(values, estimate):
    found = estimate(array(values), all_present(values))
    assert abs(found.sum()) < 1e-3


@given(rewards, st.integers(-8, 8), estimators)
def test_law_13_a_shift_of_all_rewards_changes_nothing(values, shift, estimate):
    exact = np.round(array(values) * 64) / 64  # so that the shifted rewards are exact too
    present = all_present(values)
    np.testing.assert_array_equal(
        estimate(exact + np.float32(shift), present), estimate(exact, present)
    )


@given(st.floats(-1e3, 1e3, width=32), st.integers(1, 64), estimators)
def test_equal_rewards_give_exactly_zero(value, size, estimate):
    found = estimate(np.full(size, value, np.float32), np.ones(size, bool))
    np.testing.assert_array_equal(found, np.zeros(size, np.float32))


@given(rewards, st.data(), estimators)
def test_absent_members_count_nowhere_whatever_they_hold(values, data, estimate):
    present = np.array([data.draw(st.booleans()) for _ in values])
    holes = np.where(present, array(values), np.float32(np.nan))
    found = estimate(holes, present)
    np.testing.assert_array_equal(found[~present], 0.0)
    if present.any():
        alone = estimate(array(values)[present], np.ones(present.sum(), bool))
        np.testing.assert_allclose(found[present], alone, atol=1e-5)


@given(rewards)
def test_group_relative_is_the_papers_formula(values):
    r = np.array(values, np.float64)
    found = group_relative(array(values), all_present(values))
    np.testing.assert_allclose(found, (r - r.mean()) / (r.std() + 1e-4), rtol=2e-3, atol=2e-3)


@given(rewards)
def test_leave_one_out_compares_with_the_others(values):
    r = np.array(values, np.float64)
    others = [np.delete(r, i).mean() if len(r) > 1 else r[i] for i in range(len(r))]
    found = leave_one_out(array(values), all_present(values))
    np.testing.assert_allclose(found, r - others, atol=1e-4)


@pytest.mark.parametrize("name", ["group_relative", "leave_one_out"])
def test_numpy_jit_and_vmap_agree(name):
    rng = np.random.default_rng(0)
    r, present = rng.normal(size=(5, 8)).astype(np.float32), rng.random((5, 8)) < 0.7
    expected = np.stack([estimator(name)(*group) for group in zip(r, present, strict=True)])
    mapped = jax.jit(jax.vmap(estimator(name)))(jnp.array(r), jnp.array(present))
    np.testing.assert_allclose(mapped, expected, atol=1e-5)
    assert expected.dtype == np.float32


@pytest.mark.parametrize("name", ["group_relative", "leave_one_out"])
def test_a_member_alone_gets_zero(name):
    found = estimator(name)(array([0.7]), np.array([True]))
    np.testing.assert_array_equal(found, [0.0])
