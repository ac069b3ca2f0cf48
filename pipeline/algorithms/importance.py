"""Corrections for tokens that another distribution sampled than the one that learns.

Three policies take part: the one that sampled (the sampler's, at the version of the token),
the old one (the learner's, where the update begins) and the one that learns. The ratio of old
to sampled corrects for lag and for sampler and learner disagreeing; the surrogate clips the ratio
of the one that learns to the old one.

Invariant: weights are constants (no gradient flows through them) and bounded, so that one
token can never dominate an update, whatever the two logprobs are. Equal logprobs give exactly 1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .config import ImportanceConfig, LevelName
from .sequences import segment_mean, segment_sum

# exp(20) is about 5e8: far beyond any useful ratio, and its square still fits in float32.
LARGEST_LOG_RATIO = 20.0
# Far beyond the logs of any probabilities, and sums over a sequence stay finite.
_LARGEST_TERM = 1e4


class Weights(NamedTuple):
    """What tokens weigh, and why.

    Attributes:
      used: f32[...], what the gain is multiplied by; 0 where a token is left out.
      ratio: f32[...], the ratio at the weights' level, before it was cut.
      clipped: bool[...], where the weight was cut to the cap.
      masked: bool[...], where a token is left out.
    """

    used: jax.Array
    ratio: jax.Array
    clipped: jax.Array
    masked: jax.Array


def bounded_exp(log_ratio: jax.Array) -> jax.Array:
    """Compute `exp(log_ratio)`, cut off at `exp(-20)` and `exp(20)`, without gradient beyond."""
    return jnp.exp(jnp.clip(log_ratio, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO))


def importance_ratio(logprobs: jax.Array, base_logprobs: jax.Array) -> jax.Array:
    """Compute `pi(t) / pi_base(t)` from two logprobs, finite for all finite logprobs."""
    return bounded_exp(logprobs - base_logprobs)


def sequence_ratio(
    logprobs: jax.Array, base_logprobs: jax.Array, mask: jax.Array, segment_ids: jax.Array
) -> jax.Array:
    """Give every token its sequence's ratio, per token, with the gradient of its own logprob.

    `s_i = (pi(o_i) / pi_base(o_i))^(1 / |o_i|)` as `s_{i,t} = sg(s_i) pi(t) / sg(pi(t))`. Where
    all tokens of a sequence have one advantage, the mean of `s_{i,t}` over its tokens has the
    value and the gradient of `s_i`.

    Args:
      logprobs: f32[..., T], 0 where the mask is false, as `base_logprobs`.
      mask: bool[..., T], the tokens that count.
      segment_ids: i32[..., T].

    Reference: Zheng et al. 2025, GSPO, equations 7 (sequence) and 14 (token form).
    """
    ratio = bounded_exp(segment_mean(_finite(logprobs - base_logprobs), mask, segment_ids))
    return ratio * jnp.exp(logprobs - jax.lax.stop_gradient(logprobs))


def importance_weights(
    log_ratio: jax.Array, mask: jax.Array, segment_ids: jax.Array, *, config: ImportanceConfig
) -> Weights:
    """Weigh tokens by how much likelier the learner found them than the sampler did.

    With `x_t = log pi_old(t) - log pi_rollout(t)`, the ratio of a token is `exp(x_t)`, of a
    sequence `exp(sum_t x_t)`, and geometric `exp(mean_t x_t)`. The weight is `min(ratio, cap)`;
    it is 0 where the mask's ratio is outside of its bounds. The denominators of the loss stay.

    Args:
      log_ratio: f32[..., T], a constant, 0 where the mask is false.
      mask: bool[..., T], the tokens that count.
      segment_ids: i32[..., T].

    Reference: Ionides 2008, equation 4 (truncation); Yao et al. 2025, "Your efficient RL framework
      secretly brings you off-policy RL training" (TIS); Liu et al. 2025, "When speed kills
      stability" (sequence level, masked: MIS); Ling team 2025, IcePop (two-sided token mask).
    """
    ratio = _at_level(log_ratio, mask, segment_ids, level=config.weights)
    guarded = _at_level(log_ratio, mask, segment_ids, level=config.mask)
    outside = (guarded < config.mask_low) | (guarded > config.mask_high)
    masked = outside & mask if config.mask != "none" else jnp.zeros_like(mask)
    weights = jnp.where(masked, 0.0, jnp.minimum(ratio, config.cap))
    return Weights(weights, ratio, ratio > config.cap, masked)


def staleness_weights(lags: jax.Array, *, power: float) -> jax.Array:
    """Trust older tokens less: `(1 + lag)^-power`, for lags >= 0 in versions.

    Reference: Zhang et al. 2016, "Staleness-aware async-SGD", equation 5 (power 1).
    """
    return (1.0 + lags.astype(jnp.float32)) ** -power


def interpolated_logprobs(
    logprobs: jax.Array, behaviour_logprobs: jax.Array, lags: jax.Array
) -> jax.Array:
    """Guess the old policy's logprobs from the sampler's and the present ones, as a constant.

    `log pi_old = a log pi_rollout + (1 - a) log pi` with `a = 1 / lag`, and 0 for a lag of 0:
    for a lag of 1 the old policy is the sampler's, and the older a token, the less so.

    Reference: Li et al. 2025, A-3PO, equation 3 (log-linear proximal policy).
    """
    share = jnp.where(lags > 0, 1.0 / jnp.maximum(lags, 1).astype(jnp.float32), 0.0)
    present = jax.lax.stop_gradient(logprobs)
    return share * behaviour_logprobs + (1.0 - share) * present


def _at_level(
    log_ratio: jax.Array, mask: jax.Array, segment_ids: jax.Array, *, level: LevelName
) -> jax.Array:
    constant = jax.lax.stop_gradient(log_ratio)
    if level == "none":
        return jnp.ones_like(constant)
    if level == "token":
        return bounded_exp(constant)
    if level == "sequence":
        return bounded_exp(segment_sum(_finite(constant), segment_ids))
    return bounded_exp(segment_mean(_finite(constant), mask, segment_ids))


def _finite(log_ratio: jax.Array) -> jax.Array:
    return jnp.clip(log_ratio, -_LARGEST_TERM, _LARGEST_TERM)
