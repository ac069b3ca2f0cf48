"""What a loss is given, and what it gives back.

Invariant: what does not count is zeroed before any arithmetic, and only the logprobs and the
entropy of the policy that learns carry a gradient.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax

from .aggregations import Counts
from .reductions import Measured, keep


class LossInputs(NamedTuple):
    """What a loss may use; arrays over tokens [R, T] but the counts.

    Attributes:
      logprobs: f32, of the policy that learns; carries the gradient.
      entropy: f32, of the distribution that the token was drawn from, in nats.
      old_logprobs: f32, a constant: the policy at the start of the update.
      rollout_logprobs: f32, a constant: recorded while sampling, of the whole softmax.
      log_kept_mass: f32, a constant: `rollout_logprobs - log_kept_mass` is the exact log
        probability with which the token was drawn.
      ref_logprobs: f32, a constant: the reference policy.
      advantages: f32, a constant; for supervised training the weights of the tokens.
      lags: i32, versions between the policy that sampled the token and the one that learns.
      loss_mask: bool, the tokens that count.
      segment_ids: i32, one number for the tokens of a sequence.
      counts: of the whole batch.
    """

    logprobs: jax.Array
    entropy: jax.Array
    old_logprobs: jax.Array
    rollout_logprobs: jax.Array
    log_kept_mass: jax.Array
    ref_logprobs: jax.Array
    advantages: jax.Array
    lags: jax.Array
    loss_mask: jax.Array
    segment_ids: jax.Array
    counts: Counts


Diagnostics = dict[str, Measured]
TokenLoss = Callable[[LossInputs], tuple[jax.Array, Diagnostics]]
"""Gives f32[R, T], whose sum over the batch is its loss, and measurements, summarised as their
names say (see `reductions.sums`)."""


def counted(inputs: LossInputs) -> LossInputs:
    """Zero what does not count *before* any arithmetic; only `logprobs`, `entropy` may learn."""
    mask = inputs.loss_mask

    def constant(values: jax.Array) -> jax.Array:
        return jax.lax.stop_gradient(keep(values, mask))

    return inputs._replace(
        logprobs=keep(inputs.logprobs, mask),
        entropy=keep(inputs.entropy, mask),
        old_logprobs=constant(inputs.old_logprobs),
        rollout_logprobs=constant(inputs.rollout_logprobs),
        log_kept_mass=constant(inputs.log_kept_mass),
        ref_logprobs=constant(inputs.ref_logprobs),
        advantages=constant(inputs.advantages),
        lags=constant(inputs.lags),
    )
