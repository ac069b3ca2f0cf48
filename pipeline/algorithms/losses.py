"""Losses per token. The learner sums them and divides by the tokens of the whole batch.

Invariant: a loss is an elementwise function: token t's loss depends on token t's numbers
only, it is 0 where `loss_mask` is false, and nothing there (NaN included) reaches a loss, a
measurement or a gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from ..errors import check
from .advantages import AdvantageName
from .divergences import k3
from .importance import importance_ratio, mismatch, truncated_weights
from .reductions import keep


@dataclass(frozen=True)
class AlgorithmConfig:
    """GRPO with the changes that proved themselves: clip-higher, token mean, truncated IS."""

    advantage: AdvantageName = "group_relative"
    """How rewards of a group become advantages."""
    normalize: Literal["group", "batch", "none"] = "group"
    """Divide advantages by their group's standard deviation, by the whole batch's, or not.
    With few different rewards in a group, its deviation blows small differences up."""
    clip_low: float = 0.2
    """The importance ratio is clipped below 1 - clip_low; in [0, 1)."""
    clip_high: float = 0.28
    """The importance ratio is clipped above 1 + clip_high; >= 0."""
    entropy_bonus: float = 0.0
    """Weight of the policy's entropy per token, in nats; >= 0."""
    kl_coefficient: float = 0.0
    """Weight of the k3 divergence from the policy at the start of RL; >= 0; 0 leaves it out."""
    importance_cap: float = 2.0
    """Largest weight that corrects for sampler and learner disagreeing; > 0."""
    old_logprobs: Literal["recompute", "rollout"] = "recompute"
    """Where the ratio starts: the learner's logprobs at the start of an update, or the
    sampler's (one forward pass less; the ratio then carries the correction itself)."""

    def __post_init__(self) -> None:
        check(
            self.advantage != "leave_one_out" or self.normalize != "group",
            "algorithm.normalize",
            self.normalize,
            "'batch' or 'none' with leave_one_out, whose members have different baselines",
        )
        check(0 <= self.clip_low < 1, "algorithm.clip_low", self.clip_low, "in [0, 1)")
        for name in ("clip_high", "entropy_bonus", "kl_coefficient"):
            value = getattr(self, name)
            check(value >= 0, f"algorithm.{name}", value, ">= 0 and finite")
        cap = self.importance_cap
        check(cap > 0, "algorithm.importance_cap", cap, "> 0 and finite")


class LossInputs(NamedTuple):
    """What a loss may use; arrays over tokens, all of one shape.

    Attributes:
      logprobs: f32[...], of the policy that learns; carries the gradient.
      entropy: f32[...], of the distribution that the token was drawn from, in nats.
      old_logprobs: f32[...], a constant: the policy at the start of the update.
      rollout_logprobs: f32[...], a constant: recorded while sampling.
      ref_logprobs: f32[...], a constant: the reference policy.
      advantages: f32[...], a constant; for supervised training the weights of the tokens.
      loss_mask: bool[...], the tokens that count.
    """

    logprobs: jax.Array
    entropy: jax.Array
    old_logprobs: jax.Array
    rollout_logprobs: jax.Array
    ref_logprobs: jax.Array
    advantages: jax.Array
    loss_mask: jax.Array


Diagnostics = dict[str, jax.Array]
TokenLoss = Callable[[LossInputs], tuple[jax.Array, Diagnostics]]


def grpo_loss(inputs: LossInputs, *, config: AlgorithmConfig) -> tuple[jax.Array, Diagnostics]:
    """Compute the clipped surrogate of each token, with its entropy and divergence terms.

    `loss_t = -w_t min(r_t A_t, clip(r_t, 1 - e_low, 1 + e_high) A_t) - b H_t + c k3_t` with
    `r_t = pi(t) / pi_old(t)` and the truncated weight `w_t = min(pi_old(t) / pi_rollout(t), C)`.

    Returns:
      f32[...] the loss per token, and measurements per token: names that end in `_max` and
      `_ess` are summarised as such, others by their mean.

    Reference: Schulman et al. 2017, PPO, equation 7; Shao et al. 2024, DeepSeekMath, equation
      3; Yu et al. 2025, DAPO, equation 8 (clip-higher) and 12 (token mean).
    """
    tokens = _counted(inputs)
    ratio = importance_ratio(tokens.logprobs, tokens.old_logprobs)
    clipped = jnp.clip(ratio, 1.0 - config.clip_low, 1.0 + config.clip_high)
    weights = truncated_weights(
        tokens.old_logprobs, tokens.rollout_logprobs, cap=config.importance_cap
    )
    gain = jnp.minimum(ratio * tokens.advantages, clipped * tokens.advantages)
    loss = -weights * gain - config.entropy_bonus * tokens.entropy
    diagnostics = {
        "entropy": tokens.entropy,
        "ratio_max": ratio,
        "clipped_low": ((ratio < clipped) & (tokens.advantages < 0)).astype(jnp.float32),
        "clipped_high": ((ratio > clipped) & (tokens.advantages > 0)).astype(jnp.float32),
        "importance_weight": weights,
        "importance_ess": weights,
        **mismatch(tokens.logprobs, tokens.rollout_logprobs),
    }
    if config.kl_coefficient > 0:
        divergence = k3(tokens.logprobs, tokens.ref_logprobs)
        loss = loss + config.kl_coefficient * divergence
        diagnostics["ref_kl"] = divergence
    return keep(loss, tokens.loss_mask), diagnostics


def sft_loss(inputs: LossInputs) -> tuple[jax.Array, Diagnostics]:
    """Compute the weighted negative log-likelihood of each token, `-a_t log pi(t)`.

    The weights are the batch's `advantages`; a mask alone is a weight of 1.
    """
    tokens = _counted(inputs)
    loss = -tokens.advantages * tokens.logprobs
    return keep(loss, tokens.loss_mask), {"entropy": tokens.entropy}


def _counted(inputs: LossInputs) -> LossInputs:
    """Zero what does not count *before* any arithmetic; only `logprobs`, `entropy` may learn."""
    mask = inputs.loss_mask

    def constant(values: jax.Array) -> jax.Array:
        return jax.lax.stop_gradient(keep(values, mask))

    return LossInputs(
        logprobs=keep(inputs.logprobs, mask),
        entropy=keep(inputs.entropy, mask),
        old_logprobs=constant(inputs.old_logprobs),
        rollout_logprobs=constant(inputs.rollout_logprobs),
        ref_logprobs=constant(inputs.ref_logprobs),
        advantages=constant(inputs.advantages),
        loss_mask=mask,
    )
