"""Losses of preferences: which of two answers is better, or whether one is good.

Invariant: a loss is about sequences, f32[...] log-probabilities of whole answers, however they
were packed; only those of the policy that learns carry a gradient. Results are finite for all
finite inputs.
"""

import jax
import jax.numpy as jnp

_CLOSEST_TO_ZERO = -1e-6  # a mean logprob of 0 has infinite odds


def dpo_loss(
    margins: jax.Array, ref_margins: jax.Array, *, beta: float, label_smoothing: float = 0.0
) -> jax.Array:
    """Compute direct preference optimization's loss of each pair.

    `-(1 - e) log sigma(b h) - e log sigma(-b h)` with `h = m - m_ref`, where a margin m is
    `log pi(y_w | x) - log pi(y_l | x)`, of the better and the worse answer's summed logprobs.

    Args:
      margins: f32[...], of the policy.
      ref_margins: f32[...], of the reference; a constant.
      beta: > 0; a larger one keeps the policy nearer to the reference.
      label_smoothing: e, the share of pairs that are taken to be labelled the wrong way.

    Example:
      >>> round(float(dpo_loss(jnp.array(0.0), jnp.array(0.0), beta=0.1)), 4)
      0.6931

    Reference: Rafailov et al. 2023, DPO, equation 7; Mitchell 2023, "A note on DPO with noisy
      preferences", equation 3 (label smoothing).
    """
    scaled = beta * (margins - jax.lax.stop_gradient(ref_margins))
    right, wrong = jax.nn.log_sigmoid(scaled), jax.nn.log_sigmoid(-scaled)
    return -(1.0 - label_smoothing) * right - label_smoothing * wrong


def ipo_loss(margins: jax.Array, ref_margins: jax.Array, *, beta: float) -> jax.Array:
    """Compute identity preference optimization's loss of each pair: `(h - 1 / (2 b))^2`.

    Args:
      margins: f32[...], as for `dpo_loss`. The authors' advice is to take margins of mean
        logprobs per token, so that long answers don't dominate.
      beta: > 0, tau in the paper.

    Reference: Azar et al. 2023, "A general theoretical paradigm to understand learning from human
      preferences", equation 17.
    """
    distance = margins - jax.lax.stop_gradient(ref_margins) - 1.0 / (2.0 * beta)
    return distance * distance


def orpo_loss(chosen: jax.Array, rejected: jax.Array, *, beta: float) -> jax.Array:
    """Compute odds-ratio preference optimization's loss of each pair; it needs no reference.

    `-log P(y_w) - b log sigma(log odds(y_w) - log odds(y_l))` with `odds(y) = P(y) / (1 - P(y))`
    and `log P(y)` the mean logprob of the answer's tokens.

    Args:
      chosen: f32[...], mean logprobs of the better answers, <= 0.
      rejected: f32[...], of the worse ones.
      beta: > 0, lambda in the paper.

    Reference: Hong et al. 2024, ORPO, equations 3 to 7.
    """
    log_odds_ratio = _log_odds(chosen) - _log_odds(rejected)
    return -chosen - beta * jax.nn.log_sigmoid(log_odds_ratio)


def kto_loss(
    rewards: jax.Array,
    desirable: jax.Array,
    baseline: jax.Array,
    *,
    beta: float,
    weight: jax.Array | float,
) -> jax.Array:
    """Compute Kahneman-Tversky optimization's loss of each answer, better ones or worse ones.

    `w (1 - sigma(b (r - z)))` of a desirable answer, `w (1 - sigma(b (z - r)))` of another one.

    Args:
      rewards: f32[...], r, the answer's summed `log pi - log pi_ref`.
      desirable: bool[...].
      baseline: f32[], z, the divergence from the reference; see `kto_baseline`. A constant.
      beta: > 0.
      weight: w >= 0, of this kind of answer; f32[...].

    Reference: Ethayarajh et al. 2024, KTO, equation 8.
    """
    gained = rewards - jax.lax.stop_gradient(baseline)
    return weight * (1.0 - jax.nn.sigmoid(beta * jnp.where(desirable, gained, -gained)))


def kto_baseline(total_log_ratio: jax.Array, sequences: jax.Array) -> jax.Array:
    """Estimate `KL(pi || pi_ref)` from answers to other prompts, biased to be at least 0.

    Args:
      total_log_ratio: f32[], the sum over all their tokens of `log pi - log pi_ref`.
      sequences: i32[], how many answers.

    Reference: Ethayarajh et al. 2024, KTO, section 4.1.
    """
    mean = total_log_ratio / jnp.maximum(sequences, 1).astype(jnp.float32)
    return jax.lax.stop_gradient(jnp.maximum(mean, 0.0))


def _log_odds(logprobs: jax.Array) -> jax.Array:
    below = jnp.minimum(logprobs, _CLOSEST_TO_ZERO)
    return below - jnp.log(-jnp.expm1(below))
