"""One optimizer step on one batch: pure, and usable in anyone's own loop.

Invariant: the gradient is the sum over the batch's counted tokens divided by their number,
which is computed before the first microbatch. So it does not depend on how the batch was
split, packed, padded, ordered or sharded (beyond rounding), and one compiled program serves
batches of every size.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ..algorithms.losses import LossInputs, TokenLoss
from ..algorithms.reductions import (
    Moments,
    masked_mean,
    merge,
    moments,
    no_moments,
    summarise,
)
from ..types import TrainBatch
from .logprobs import Forward, counted_tokens, microbatch, row_logprobs
from .state import LearnerState, Params, with_frozen

Metrics = dict[str, jax.Array]
Objective = Callable[[Params, jax.Array], tuple[jax.Array, dict[str, Moments]]]
Total = tuple[jax.Array, dict[str, Moments], Params]


class Anchors(NamedTuple):
    """Logprobs that stay fixed during an update, f32[A, R, T] each; see `batch_logprobs`.

    Attributes:
      old: of the policy at the start of the update.
      ref: of the reference policy; anything where the loss uses none.
    """

    old: jax.Array
    ref: jax.Array


def train_step(
    state: LearnerState,
    batch: TrainBatch,
    anchors: Anchors | None = None,
    frozen: Params | None = None,
    *,
    forward: Forward,
    loss: TokenLoss,
    optimizer: optax.GradientTransformation,
    temperature: float = 1.0,
) -> tuple[LearnerState, Metrics]:
    """Take one optimizer step on a batch.

    Pure; bind the functions with `functools.partial`, then jit with `donate_argnums=0`. A batch
    without any counted token, or with a gradient that is not finite, changes nothing: the state
    is returned as it was (optimizer moments and weight decay included) and `skipped` is 1.

    Args:
      state: from `init_state`, with the same optimizer.
      batch: token arrays [A, R, T]; only the first `batch.microbatches` of A are used.
      anchors: None takes the batch's rollout logprobs for both.
      frozen: parameters beside the state's that aren't trained: they get no gradient and no
        optimizer state.
      forward: the model; see `Forward`. Where something is frozen, its parameters are the pair
        `(state.params, frozen)`.
      loss: the loss per token, e.g. `partial(grpo_loss, config=AlgorithmConfig())`.
      temperature: > 0, the one that the tokens were sampled with.

    Returns:
      The next state, and f32[] metrics: `loss`, `tokens`, `grad_norm` (before clipping),
      `update_norm`, `skipped`, and a summary of each of the loss's measurements.
    """
    if anchors is None:
        anchors = Anchors(batch.rollout_logprobs, batch.rollout_logprobs)
    counted = counted_tokens(batch)
    count = jnp.sum(counted, dtype=jnp.int32)

    def objective(params: Params, index: jax.Array) -> tuple[jax.Array, dict[str, Moments]]:
        rows, (old, ref), mask = microbatch((batch, anchors, counted), index)
        whole = with_frozen(params, frozen)
        logprobs, entropy = row_logprobs(whole, rows, forward=forward, temperature=temperature)
        per_token, measured = loss(
            LossInputs(logprobs, entropy, old, rows.rollout_logprobs, ref, rows.advantages, mask)
        )
        found = {name: moments(values, mask) for name, values in measured.items()}
        return masked_mean(per_token, mask, count=count), found

    value, found, gradients = _accumulate(objective, state.params, batch.microbatches)
    state, metrics = _apply(state, gradients, optimizer, usable=count > 0)
    measured = {name: summarise(name, m, count=count) for name, m in found.items()}
    return state, {"loss": value, "tokens": count.astype(jnp.float32)} | metrics | measured


def _accumulate(objective: Objective, params: Params, microbatches: jax.Array) -> Total:
    """Sum the objective, its measurements and its gradient over the microbatches in use.

    The gradient is taken inside the loop, whose trip count may thus be a traced number.
    """
    differentiate = jax.value_and_grad(objective, has_aux=True)
    _, names = jax.eval_shape(objective, params, jnp.zeros((), jnp.int32))
    zeros = jax.tree.map(_float32_zeros, params)
    start = (jnp.zeros((), jnp.float32), {name: no_moments() for name in names}, zeros)

    def add(index: jax.Array, total: Total) -> Total:
        value, found, gradients = total
        (more_value, more), gradient = differentiate(params, index)
        merged = {name: merge(found[name], more[name]) for name in found}
        return value + more_value, merged, jax.tree.map(_add_float32, gradients, gradient)

    total: Total = jax.lax.fori_loop(0, microbatches, add, start)
    return total


def _apply(
    state: LearnerState,
    gradients: Params,
    optimizer: optax.GradientTransformation,
    *,
    usable: jax.Array,
) -> tuple[LearnerState, Metrics]:
    """Step the optimizer, unless the gradient is unusable: then keep the state as it is."""
    norm = optax.tree.norm(gradients)
    usable = usable & jnp.isfinite(norm)

    def step() -> tuple[LearnerState, jax.Array]:
        # optax raises floats to integer powers, which strict promotion would refuse.
        with jax.numpy_dtype_promotion("standard"):
            updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
        return LearnerState(params, opt_state, state.step + 1), optax.tree.norm(updates)

    def skip() -> tuple[LearnerState, jax.Array]:
        return state, jnp.zeros_like(norm)

    state, update_norm = jax.lax.cond(usable, step, skip)
    skipped = 1.0 - usable.astype(jnp.float32)
    return state, {"grad_norm": norm, "update_norm": update_norm, "skipped": skipped}


def _float32_zeros(array: jax.Array) -> jax.Array:
    return jnp.zeros_like(array, dtype=jnp.float32)


def _add_float32(total: jax.Array, more: jax.Array) -> jax.Array:
    return total + more.astype(jnp.float32)
