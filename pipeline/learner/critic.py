"""A value model beside the policy: the same decoder with one number per token on top.

Invariant: its parameters are its own, also where it begins as a copy of the policy's; the
policy's update never sees a gradient of it.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ..algorithms.critic import value_loss
from ..algorithms.inputs import Diagnostics
from ..algorithms.reductions import Measured, masked_sum
from ..types import TrainBatch
from .logprobs import Forward, counted_tokens, microbatch, predicted, states_before
from .state import LearnerState, Params, with_frozen
from .step import Metrics, descend


@dataclass(frozen=True)
class CriticRule:
    """How the critic learns.

    Attributes:
      optimizer: of the critic's parameters.
      clip: values move at most so much within an update before their loss is cut; 0: freely.
    """

    optimizer: optax.GradientTransformation
    clip: float = 0.2


def init_critic(params: Params, width: int) -> dict[str, Any]:
    """Begin a critic as a copy of the policy's parameters, with 0 as every value.

    Args:
      params: those that are trained.
      width: D, of the hidden states.
    """
    return {"model": jax.tree.map(jnp.copy, params), "value": jnp.zeros((width,), jnp.float32)}


def hidden_width(forward: Forward, params: Params, batch: TrainBatch) -> int:
    """Find the width D of a model's hidden states, without running it."""
    rows = jax.eval_shape(microbatch, batch, jnp.zeros((), jnp.int32))
    hidden, _ = jax.eval_shape(forward, params, rows.tokens, rows.positions, rows.segment_ids)
    return int(hidden.shape[-1])


def row_values(
    params: Params, rows: TrainBatch, frozen: Params | None = None, *, forward: Forward
) -> jax.Array:
    """Value what was read before each token of one microbatch: f32[R, T].

    0 where nothing was read before a token in its segment.
    """
    model = with_frozen(params["model"], frozen)
    hidden, _ = forward(model, rows.tokens, rows.positions, rows.segment_ids)
    values = states_before(hidden).astype(jnp.float32) @ params["value"]
    return jnp.where(predicted(rows.segment_ids), values, 0.0)


def batch_values(
    params: Params, batch: TrainBatch, frozen: Params | None = None, *, forward: Forward
) -> jax.Array:
    """Value all tokens of a batch, for example at the start of an update: f32[A, R, T]."""

    def value(index: jax.Array, found: jax.Array) -> jax.Array:
        rows = microbatch(batch, index)
        return found.at[index].set(row_values(params, rows, frozen, forward=forward))

    nothing = jnp.zeros(batch.tokens.shape, jnp.float32)
    found: jax.Array = jax.lax.fori_loop(0, batch.microbatches, value, nothing)
    return found


def critic_step(
    state: LearnerState,
    batch: TrainBatch,
    old_values: jax.Array,
    frozen: Params | None = None,
    *,
    forward: Forward,
    rule: CriticRule,
) -> tuple[LearnerState, Metrics]:
    """Take one optimizer step of the critic: the token mean of `value_loss`.

    Pure, and independent of the batch's split as `train_step` is.

    Args:
      state: of parameters as from `init_critic`.
      batch: its advantages are the returns to learn.
      old_values: f32[A, R, T], of `batch_values` at the start of the update.

    Returns:
      The next state, and metrics whose names begin with `critic_`.
    """
    counted = counted_tokens(batch)
    count = jnp.sum(counted, dtype=jnp.float32)

    def objective(params: Params, index: jax.Array) -> tuple[jax.Array, Diagnostics]:
        rows, old, mask = microbatch((batch, old_values, counted), index)
        values = row_values(params, rows, frozen, forward=forward)
        values, old, returns = (jnp.where(mask, x, 0.0) for x in (values, old, rows.advantages))
        losses = value_loss(values, old, returns, clip=rule.clip)
        both = Measured(jax.lax.stop_gradient(jnp.stack([values, returns])), mask)
        measured = {"value": Measured(values, mask), "returns_pearson": both}
        return masked_sum(losses, mask) / jnp.maximum(count, 1.0), measured

    used = batch.microbatches
    state, metrics = descend(state, objective, used, rule.optimizer, usable=count > 0)
    return state, {f"critic_{name}": value for name, value in metrics.items()}
