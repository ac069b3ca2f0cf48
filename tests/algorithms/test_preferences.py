"""Losses of preferences equal NumPy oracles from the papers, and push the right way."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.algorithms.preferences import (
    dpo_loss,
    ipo_loss,
    kto_baseline,
    kto_loss,
    orpo_loss,
)
from tests.learner.toy import quick_jit

MARGINS = np.array([-3.0, -0.5, 0.0, 0.7, 4.0], np.float32)
REF = np.array([0.2, -1.0, 0.0, 0.7, -2.0], np.float32)
CHOSEN = np.array([-2.0, -0.3, -1e-3, -5.0, -0.7], np.float32)
REJECTED = np.array([-1.0, -2.5, -0.4, -5.0, -0.1], np.float32)
GOOD = np.array([True, False, True, False, True])


def sigma(x):
    return 1.0 / (1.0 + np.exp(-x))


def as_double(*arrays):
    return [np.asarray(array, np.float64) for array in arrays]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_dpo_is_the_papers_equation_7_with_the_notes_smoothing(smoothing):
    m, ref = as_double(MARGINS, REF)
    h = 0.3 * (m - ref)
    expected = -(1 - smoothing) * np.log(sigma(h)) - smoothing * np.log(sigma(-h))
    loss = dpo_loss(jnp.array(MARGINS), jnp.array(REF), beta=0.3, label_smoothing=smoothing)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_ipo_is_the_papers_equation_17():
    m, ref = as_double(MARGINS, REF)
    loss = ipo_loss(jnp.array(MARGINS), jnp.array(REF), beta=0.25)
    np.testing.assert_allclose(loss, (m - ref - 1 / (2 * 0.25)) ** 2, rtol=1e-5)


def test_orpo_is_the_papers_equations_with_odds():
    c, r = as_double(CHOSEN, REJECTED)
    odds = [np.exp(x) / (1 - np.exp(x)) for x in (c, r)]
    expected = -c - 0.4 * np.log(sigma(np.log(odds[0] / odds[1])))
    loss = orpo_loss(jnp.array(CHOSEN), jnp.array(REJECTED), beta=0.4)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


def test_kto_is_the_papers_equation_8():
    r, z, weight = np.asarray(MARGINS, np.float64), 0.6, np.where(GOOD, 1.5, 0.5)
    value = np.where(GOOD, sigma(0.2 * (r - z)), sigma(0.2 * (z - r)))
    loss = kto_loss(
        jnp.array(MARGINS),
        jnp.array(GOOD),
        jnp.array(z, jnp.float32),
        beta=0.2,
        weight=jnp.array(weight, jnp.float32),
    )
    np.testing.assert_allclose(loss, weight * (1 - value), rtol=1e-5)


@pytest.mark.parametrize(("total", "sequences", "expected"), [(6.0, 3, 2.0), (-6.0, 3, 0.0)])
def test_ktos_baseline_is_a_mean_and_at_least_0(total, sequences, expected):
    found = kto_baseline(jnp.array(total, jnp.float32), jnp.array(sequences))
    assert float(found) == expected


@quick_jit
def values_and_slopes(m, r):
    below, other = -jnp.abs(m), -jnp.abs(r)
    of_orpo = partial(orpo_loss, beta=0.5)
    return (
        *jax.value_and_grad(lambda x: dpo_loss(x, r, beta=0.5))(m),
        of_orpo(below, other),
        *jax.grad(of_orpo, argnums=(0, 1))(below, other),
    )


NUMBERS = st.floats(-300.0, 300.0, width=32)


@given(NUMBERS, NUMBERS)
def test_losses_and_gradients_are_finite_and_push_margins_up(margin, ref):
    found = values_and_slopes(jnp.array(margin, jnp.float32), jnp.array(ref, jnp.float32))
    assert np.isfinite(found).all()
    _, slope, _, better, worse = found
    assert -0.5 <= slope <= 0
    assert better <= 0 <= worse


def test_only_the_policy_has_a_gradient():
    slope = jax.grad(lambda ref: dpo_loss(jnp.array(1.0), ref, beta=0.1))(jnp.array(0.5))
    assert float(slope) == 0.0
    kto = jax.grad(lambda z: kto_loss(jnp.array(1.0), jnp.array(True), z, beta=1.0, weight=1.0))
    assert float(kto(jnp.array(0.5))) == 0.0
