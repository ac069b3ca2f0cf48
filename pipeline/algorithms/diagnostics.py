"""What an update tells about itself: per token, summarised over the batch by the name's ending.

Invariant: measurements are constants and change no loss. Those whose names begin with
`mismatch` compare the policy that learns with what the sampler recorded.
"""

import jax
import jax.numpy as jnp

from .config import LevelName
from .importance import Weights, bounded_exp
from .inputs import Diagnostics, LossInputs
from .reductions import Measured
from .sequences import last_counted
from .surrogates import Gain


def sampler_agreement(tokens: LossInputs) -> Diagnostics:
    """Measure how far the policy that learns is from the one that sampled.

    Tokens of lag 0 show the engines' mismatch alone (and caches of older versions, where a
    publish keeps them), older tokens staleness as well.

    Returns:
      `mismatch_abs`: `|log pi - log pi_rollout|`; `mismatch_max`: the largest.
      `mismatch_kl`: an unbiased, non-negative estimate of `KL(pi_rollout || pi)`,
        `r - 1 - log r` with `r = pi / pi_rollout`; `…_fresh` over tokens of lag 0, `…_stale` over
        the others.
      `mismatch_pearson`: the correlation of the two probabilities.

    Reference: Schulman 2020, "Approximating KL divergence" (k3).
    """
    mask, fresh = tokens.loss_mask, tokens.lags == 0
    logprobs = jax.lax.stop_gradient(tokens.logprobs)
    log_ratio = logprobs - tokens.rollout_logprobs
    distance = Measured(jnp.abs(log_ratio), mask)
    divergence = bounded_exp(log_ratio) - 1.0 - log_ratio
    return {
        "mismatch_abs": distance,
        "mismatch_max": distance,
        "mismatch_kl": Measured(divergence, mask),
        "mismatch_kl_fresh": Measured(divergence, mask & fresh),
        "mismatch_kl_stale": Measured(divergence, mask & ~fresh),
        "mismatch_pearson": Measured(
            bounded_exp(jnp.stack([logprobs, tokens.rollout_logprobs])), mask
        ),
    }


def movement(tokens: LossInputs, ratio: jax.Array, gain: Gain) -> Diagnostics:
    """Measure how far the policy has moved within the update.

    Returns:
      `entropy` and `advantage_abs`, means; `ratio_max` and `ratio_min`, the extremes of
      pi / pi_old; `clipped_low` and `clipped_high`, shares of the tokens that were cut.
    """
    mask = tokens.loss_mask
    extremes = Measured(jax.lax.stop_gradient(ratio), mask)
    return {
        "entropy": Measured(tokens.entropy, mask),
        "advantage_abs": Measured(jnp.abs(tokens.advantages), mask),
        "ratio_max": extremes,
        "ratio_min": extremes,
        "clipped_low": _share(gain.clipped_low, mask),
        "clipped_high": _share(gain.clipped_high, mask),
    }


def weighing(tokens: LossInputs, weights: Weights, *, level: LevelName) -> Diagnostics:
    """Measure what the corrections against the sampler do.

    Returns:
      `importance_weight` and `importance_max`, of the weights in use;
      `importance_ess` of the ratios before they are cut (of sequences, where they are weighed as
      such), `importance_used_ess` of the weights in use; `importance_clipped` and
      `importance_masked`, shares of the tokens.
    """
    mask = tokens.loss_mask
    whole = level in ("sequence", "geometric")
    units = last_counted(mask, tokens.segment_ids) if whole else mask
    used = Measured(weights.used, mask)
    return {
        "importance_weight": used,
        "importance_max": used,
        "importance_ess": Measured(weights.ratio, units),
        "importance_used_ess": Measured(weights.used, units),
        "importance_clipped": _share(weights.clipped, mask),
        "importance_masked": _share(weights.masked, mask),
    }


def _share(marked: jax.Array, mask: jax.Array) -> Measured:
    return Measured(marked.astype(jnp.float32), mask)
