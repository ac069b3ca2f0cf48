"""Advantages from a value model, and the value model's own loss.

Write V_t for the critic's value of what was read before token t. Only counted tokens are steps:
what the environment says lies between two of them, and takes no part.
"""

import jax
import jax.numpy as jnp

from .reductions import keep
from .sequences import discounted_to_go, next_in_segment


def gae(
    rewards: jax.Array,
    values: jax.Array,
    mask: jax.Array,
    segment_ids: jax.Array,
    *,
    discount: float = 1.0,
    trace: float = 0.95,
) -> jax.Array:
    """Estimate what each token changed, between the rewards alone and the critic's next value.

    `A_t = d_t + discount trace A_{t+1}` with `d_t = r_t + discount V_{t+1} - V_t`, t + 1 being the
    next counted token of the sequence; after the last one V and A are 0.

    Args:
      rewards: f32[..., T].
      values: f32[..., T], a constant.
      mask: bool[..., T], the tokens that count.
      segment_ids: i32[..., T].
      discount: in (0, 1], for each token.
      trace: lambda, in [0, 1].

    Returns:
      f32[..., T], 0 where the mask is false; with `values` added, what a critic learns.

    Reference: Schulman et al. 2016, "High-dimensional continuous control using generalized
      advantage estimation", equations 11, 12 and 16.
    """
    counts = mask.astype(jnp.float32)
    present = keep(jax.lax.stop_gradient(values), mask)
    following = next_in_segment(discounted_to_go(present, 1.0 - counts, segment_ids), segment_ids)
    errors = keep(keep(rewards, mask) + discount * following - present, mask)
    decays = jnp.where(mask, discount * trace, 1.0)
    return keep(discounted_to_go(errors, decays, segment_ids), mask)


def value_loss(
    values: jax.Array, old_values: jax.Array, returns: jax.Array, *, clip: float
) -> jax.Array:
    """Compute half the squared error of values, pessimistic where they moved far.

    `max((V - R)^2, (clip(V, V_old - e, V_old + e) - R)^2) / 2`; without a clip `(V - R)^2 / 2`.

    Args:
      values: f32[...], with the critic's gradient.
      old_values: f32[...], a constant: at the start of the update.
      returns: f32[...], a constant.
      clip: e, >= 0; 0 leaves it out.

    Reference: Schulman et al. 2017, PPO, equation 9; the clip is of its published code.
    """
    errors = jnp.square(values - returns)
    if clip > 0:
        near = old_values + jnp.clip(values - old_values, -clip, clip)
        errors = jnp.maximum(errors, jnp.square(near - returns))
    return 0.5 * errors


def whitened(values: jax.Array, mask: jax.Array, *, epsilon: float = 1e-4) -> jax.Array:
    """Compare values with the mean of all counted ones, in units of their spread (ddof 0).

    Args:
      values: f32[...], of the whole batch.
      mask: bool[...], the tokens that count; the others get 0.
    """
    count = jnp.maximum(jnp.sum(mask, dtype=jnp.float32), 1.0)
    centred = keep(values - jnp.sum(keep(values, mask)) / count, mask)
    return centred / (jnp.sqrt(jnp.sum(centred * centred) / count) + epsilon)
