"""Losses of the tokens of packed rows, each already divided as its aggregation says.

Invariant: the loss of a batch is the sum over its tokens, however they lie in rows and
microbatches. A token's loss depends on its own sequence's numbers and the batch's counts only,
it is 0 where `loss_mask` is false, and nothing there (NaN included) reaches a loss, a
measurement or a gradient.
"""

import jax
import jax.numpy as jnp

from .aggregations import aggregation, token_mean
from .config import AlgorithmConfig as AlgorithmConfig
from .diagnostics import movement, sampler_agreement, weighing
from .divergences import k2, k3
from .importance import (
    importance_ratio,
    importance_weights,
    interpolated_logprobs,
    sequence_ratio,
    staleness_weights,
)
from .inputs import Diagnostics, LossInputs, counted
from .reductions import Measured, keep
from .sequences import segment_mean
from .surrogates import Gain, cispo, clipped, reinforce


def policy_loss(inputs: LossInputs, *, config: AlgorithmConfig) -> tuple[jax.Array, Diagnostics]:
    """Compute the loss of a policy-gradient method, with its corrections and extra terms.

    `loss_t = a_t (-w_t g_t - b H_t + c KL_t - s [A_t > 0] log pi(t))` with the gain `g_t` of the
    surrogate, the weight `w_t` against the sampler, and `a_t` of the aggregation. For example,
    GRPO has `g_t = min(r_t A_t, clip(r_t, 1 - e, 1 + e) A_t)` and `a_t = 1 / (N |o_i|)`.

    Reference: Hilton et al. 2022, "Batch size-invariance for policy optimization", equation 4
      (three policies); Yue et al. 2025, VAPO, equation 8 (imitation of what did well); those of
      the parts, see `surrogates`, `importance`, `divergences` and `aggregations`.
    """
    tokens = counted(inputs)
    behaviour = _behaviour_logprobs(tokens, config)
    old = tokens.old_logprobs
    if config.importance.old_logprobs == "interpolate":
        old = interpolated_logprobs(tokens.logprobs, behaviour, tokens.lags)
    ratio, gain = _gain(tokens, old, config)
    weights = importance_weights(
        old - behaviour, tokens.loss_mask, tokens.segment_ids, config=config.importance
    )
    fresh = staleness_weights(tokens.lags, power=config.importance.staleness_power)
    extra, measured = _extra_terms(tokens, config)
    weigh = aggregation(config)(tokens.counts, tokens.loss_mask, tokens.segment_ids)
    loss = keep((extra - fresh * weights.used * gain.value) * weigh, tokens.loss_mask)
    measured |= movement(tokens, ratio, gain) | sampler_agreement(tokens)
    return loss, measured | weighing(tokens, weights, level=config.importance.weights)


def sft_loss(inputs: LossInputs) -> tuple[jax.Array, Diagnostics]:
    """Compute the weighted negative log-likelihood: the token mean of `-a_t log pi(t)`.

    The weights are the batch's `advantages`; a mask alone is a weight of 1.
    """
    tokens = counted(inputs)
    loss = -tokens.advantages * tokens.logprobs
    weigh = token_mean(tokens.counts, tokens.loss_mask, tokens.segment_ids)
    measured = {"entropy": Measured(tokens.entropy, tokens.loss_mask)}
    return keep(loss * weigh, tokens.loss_mask), measured


def _behaviour_logprobs(tokens: LossInputs, config: AlgorithmConfig) -> jax.Array:
    """Give the sampler's logprobs, to compare with the learner's.

    Where the sampler cut its distribution, both sides are cut alike ("sampled"): the kept mass
    cancels, to first order in the change of the policy. Or neither is ("full"): then the
    sampler's true probability is larger than the softmax's.
    """
    if config.importance.target == "full":
        return tokens.rollout_logprobs - tokens.log_kept_mass
    return tokens.rollout_logprobs


def _gain(
    tokens: LossInputs, old_logprobs: jax.Array, config: AlgorithmConfig
) -> tuple[jax.Array, Gain]:
    advantages, mask, ids = tokens.advantages, tokens.loss_mask, tokens.segment_ids
    ratio = importance_ratio(tokens.logprobs, old_logprobs)
    if config.ratio != "token":
        ratio = sequence_ratio(tokens.logprobs, old_logprobs, mask, ids)
    if config.ratio == "sequence":
        advantages = segment_mean(advantages, mask, ids)
    if config.surrogate == "clip":
        return ratio, clipped(ratio, advantages, clip=config.clip)
    if config.surrogate == "cispo":
        return ratio, cispo(ratio, tokens.logprobs, advantages, clip=config.clip)
    return ratio, reinforce(tokens.logprobs, advantages)


def _extra_terms(tokens: LossInputs, config: AlgorithmConfig) -> tuple[jax.Array, Diagnostics]:
    """Add up what a loss has beside the gain: entropy, divergence, imitation."""
    extra = -config.entropy_bonus * tokens.entropy
    if config.sft_coefficient > 0:
        did_well = (tokens.advantages > 0).astype(jnp.float32)
        extra = extra - config.sft_coefficient * did_well * tokens.logprobs
    if config.kl.coefficient == 0:
        return extra, {}
    estimate = k2 if config.kl.kind == "k2" else k3
    divergence = estimate(tokens.logprobs, tokens.ref_logprobs)
    if config.kl.kind != "k1_reward":
        extra = extra + config.kl.coefficient * divergence
    return extra, {"ref_kl": Measured(divergence, tokens.loss_mask)}
