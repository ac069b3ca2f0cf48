"""Corrections for tokens that another distribution sampled than the one that learns.

Invariant: weights are constants (no gradient flows through them) and bounded, so that one
token can never dominate an update, whatever the two logprobs are.
"""

import jax
import jax.numpy as jnp

# exp(20) is about 5e8: far beyond any useful ratio, and its square still fits in float32.
LARGEST_LOG_RATIO = 20.0


def bounded_exp(log_ratio: jax.Array) -> jax.Array:
    """Compute `exp(log_ratio)`, cut off at `exp(-20)` and `exp(20)`, without gradient beyond."""
    return jnp.exp(jnp.clip(log_ratio, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO))


def importance_ratio(logprobs: jax.Array, base_logprobs: jax.Array) -> jax.Array:
    """Compute `pi(t) / pi_base(t)` from two logprobs, finite for all finite logprobs."""
    return bounded_exp(logprobs - base_logprobs)


def truncated_weights(
    old_logprobs: jax.Array, rollout_logprobs: jax.Array, *, cap: float
) -> jax.Array:
    """Weigh tokens by how much likelier the learner found them than the sampler did.

    `w_t = min(pi_old(t) / pi_rollout(t), cap)`, without gradient. It corrects for sampler and
    learner disagreeing at equal weights (kernels, precision) and for lag.

    Args:
      old_logprobs: f32[...], the learner's at the start of the update.
      rollout_logprobs: f32[...], recorded while sampling.
      cap: > 0; bounds the variance at the price of a bias.

    Returns:
      f32[...] in (0, cap].

    Reference: Ionides 2008, Truncated Importance Sampling, equation 4; Yao et al. 2025, "Your
      efficient RL framework secretly brings you off-policy RL training" (token level).
    """
    return jax.lax.stop_gradient(
        jnp.minimum(importance_ratio(old_logprobs, rollout_logprobs), cap)
    )


def mismatch(logprobs: jax.Array, rollout_logprobs: jax.Array) -> dict[str, jax.Array]:
    """Measure, for each token, how far the learner is from the sampler that drew it.

    Returns:
      `mismatch_abs`: `|log pi - log pi_rollout|`.
      `mismatch_kl`: an unbiased, non-negative estimate of `KL(pi_rollout || pi)`,
        `r - 1 - log r` with `r = pi / pi_rollout`.
      `mismatch_max`: the largest `mismatch_abs`.

    Reference: Schulman 2020, "Approximating KL divergence" (k3).
    """
    log_ratio = jax.lax.stop_gradient(logprobs) - rollout_logprobs
    distance = jnp.abs(log_ratio)
    divergence = bounded_exp(log_ratio) - 1.0 - log_ratio
    return {"mismatch_abs": distance, "mismatch_kl": divergence, "mismatch_max": distance}
