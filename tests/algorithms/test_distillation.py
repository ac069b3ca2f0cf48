"""Divergences from a teacher equal NumPy oracles, and behave as divergences do."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.algorithms.distillation import (
    divergence,
    forward_kl,
    jensen_shannon,
    reverse_kl,
)

NAMES = ("forward", "reverse", "jensen_shannon")


def draw(seed, shape=(4, 7)):
    logits = 3.0 * np.random.default_rng(seed).normal(size=shape)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def kl(p, q):
    return (np.exp(p) * (p - q)).sum(-1)


def oracle(name, p, q, b=0.5):
    if name == "jensen_shannon":
        m = np.log(b * np.exp(p) + (1 - b) * np.exp(q))
        return b * kl(p, m) + (1 - b) * kl(q, m)
    return kl(p, q) if name == "forward" else kl(q, p)


def single(array):
    return jnp.array(array, jnp.float32)


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_equations(name):
    p, q = draw(0), draw(1)
    weight = 0.3 if name == "jensen_shannon" else 0.5
    found = divergence(name, weight=weight)(single(p), single(q))
    np.testing.assert_allclose(found, oracle(name, p, q, weight), rtol=1e-4, atol=1e-6)


@given(st.integers(0, 10_000), st.sampled_from(NAMES))
def test_they_are_0_for_equals_and_fall_when_categories_are_merged(seed, name):
    p, q = draw(seed), draw(seed + 1)
    distance = divergence(name)
    whole = np.asarray(distance(single(p), single(q)))
    merged = [np.stack([x[..., 0], np.log1p(-np.exp(x[..., 0]))], axis=-1) for x in (p, q)]
    coarse = np.asarray(distance(*map(single, merged)))
    assert (whole >= coarse - 1e-4).all()
    assert (coarse >= -1e-4).all()
    np.testing.assert_allclose(distance(single(p), single(p)), 0.0, atol=1e-6)


def test_jensen_shannon_has_both_as_limits_and_is_bounded():
    p, q = (jax.nn.log_softmax(single(0.3 * draw(seed))) for seed in (2, 3))
    small = 1e-3
    low = jensen_shannon(p, q, weight=small) / small
    np.testing.assert_allclose(low, forward_kl(p, q), rtol=0.05)
    high = jensen_shannon(p, q, weight=1 - small) / small
    np.testing.assert_allclose(high, reverse_kl(p, q), rtol=0.05)
    assert (jensen_shannon(p, q) <= np.log(2)).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_category_of_probability_0_is_finite_and_the_teacher_has_no_gradient(name):
    p = jnp.array([[0.0, -1e4], [-1e4, 0.0]], jnp.float32)
    distance = divergence(name)

    def total(teacher, student):
        return jnp.sum(distance(teacher, jax.nn.log_softmax(student)))

    of_teacher, of_student = jax.grad(total, argnums=(0, 1))(p, jnp.zeros((2, 2)))
    assert not np.asarray(of_teacher).any()
    assert np.isfinite(of_student).all()
    assert np.isfinite(partial(distance, p)(p)).all()
