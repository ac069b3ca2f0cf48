"""What a token gains: the objective of the policy-gradient family, before weights and means.

Invariant: elementwise and finite for finite operands; at a ratio of 1 the gradient of each is
that of `A log pi`, which the papers' methods share.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .config import ClipConfig


class Gain(NamedTuple):
    """What to maximise, and where the ratio was cut so that a token's gradient changed.

    Attributes:
      value: f32[...].
      clipped_low: bool[...], at the lower bound.
      clipped_high: bool[...], at the upper bound.
    """

    value: jax.Array
    clipped_low: jax.Array
    clipped_high: jax.Array


def clipped(ratio: jax.Array, advantages: jax.Array, *, clip: ClipConfig) -> Gain:
    """Take the worse of a token's ratio and the ratio cut to the trusted range, times A.

    `min(r A, clip(r, 1 - e_low, 1 + e_high) A)`; with dual clip c, where A < 0,
    `max(min(r A, clip(r) A), c A)`: a token that became far likelier has a bounded gain.

    Args:
      ratio: f32[...], with the gradient of the policy.
      advantages: f32[...], a constant.

    Reference: Schulman et al. 2017, PPO, equation 7; Yu et al. 2025, DAPO, equation 8
      (clip-higher); Ye et al. 2020, "Mastering complex control in MOBA games", equation 5
      (dual clip).
    """
    within = jnp.clip(ratio, 1.0 - clip.low, 1.0 + clip.high)
    gain = jnp.minimum(ratio * advantages, within * advantages)
    low = (ratio < within) & (advantages < 0)
    high = (ratio > within) & (advantages > 0)
    if clip.dual > 0:
        gain = jnp.where(advantages < 0, jnp.maximum(gain, clip.dual * advantages), gain)
        high = high | ((ratio > clip.dual) & (advantages < 0))
    return Gain(gain, low, high)


def cispo(
    ratio: jax.Array, logprobs: jax.Array, advantages: jax.Array, *, clip: ClipConfig
) -> Gain:
    """Weigh every token's log probability by its clipped ratio, a constant.

    `sg(clip(r, 1 - e_low, 1 + e_high)) A log pi`: no token loses its gradient, however far it
    moved; its weight is bounded instead.

    Reference: MiniMax 2025, MiniMax-M1, equations 4 and 5 (CISPO).
    """
    weight = jax.lax.stop_gradient(jnp.clip(ratio, 1.0 - clip.low, 1.0 + clip.high))
    return Gain(weight * advantages * logprobs, ratio < weight, ratio > weight)


def reinforce(logprobs: jax.Array, advantages: jax.Array) -> Gain:
    """Weigh every token's log probability by its advantage: `A log pi`.

    Reference: Williams 1992, "Simple statistical gradient-following algorithms", equation 11.
    """
    never = jnp.zeros_like(logprobs, dtype=bool)
    return Gain(advantages * logprobs, never, never)
