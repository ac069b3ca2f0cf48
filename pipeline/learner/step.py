"""One optimizer step on one batch: pure, and usable in anyone's own loop.

Invariant: the gradient is the sum over the batch's counted tokens, each divided by numbers of
the whole batch that are counted before the first microbatch. So it does not depend on how the
batch was split, packed, padded, ordered or sharded (beyond rounding), and one compiled program
serves batches of every size.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ..algorithms.aggregations import count
from ..algorithms.inputs import Diagnostics, LossInputs, TokenLoss
from ..algorithms.reductions import Sums, masked_sum, merge, nothing_like, summarise, sums
from ..types import TrainBatch
from .logprobs import Forward, counted_tokens, microbatch, row_logprobs
from .state import LearnerState, Params, with_frozen

Metrics = dict[str, jax.Array]
Found = dict[str, Sums]  # of measurements, by name
Objective = Callable[[Params, jax.Array], tuple[jax.Array, Diagnostics]]
"""`(params, number of a microbatch)` gives its part of the batch's loss, f32[], and measurements,
summarised as their names say (`reductions.sums`)."""
Total = tuple[jax.Array, Found, Params]


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
      loss: the loss per token, e.g. `partial(policy_loss, config=AlgorithmConfig())`.
      temperature: > 0, the one that the tokens were sampled with.

    Returns:
      The next state, and f32[] metrics: `loss`, `tokens`, `grad_norm` (before clipping),
      `update_norm`, `moved_share` (of the numbers in the parameters, those that the update
      changed), `skipped`, and a summary of each of the loss's measurements.
    """
    if anchors is None:
        anchors = Anchors(batch.rollout_logprobs, batch.rollout_logprobs)
    counted = counted_tokens(batch)
    counts = count(counted, batch.segment_ids)

    def objective(params: Params, index: jax.Array) -> tuple[jax.Array, Diagnostics]:
        rows, (old, ref), mask = microbatch((batch, anchors, counted), index)
        whole = with_frozen(params, frozen)
        logprobs, entropy = row_logprobs(
            whole, rows, forward=forward, temperature=temperature, counted=mask
        )
        per_token, measured = loss(
            LossInputs(
                logprobs=logprobs,
                entropy=entropy,
                old_logprobs=old,
                rollout_logprobs=rows.rollout_logprobs,
                log_kept_mass=rows.log_kept_mass,
                ref_logprobs=ref,
                advantages=rows.advantages,
                lags=rows.lags,
                loss_mask=mask,
                segment_ids=rows.segment_ids,
                counts=counts,
            )
        )
        return masked_sum(per_token, mask), measured

    used, tokens = batch.microbatches, counts.tokens
    state, metrics = descend(state, objective, used, optimizer, usable=tokens > 0)
    return state, metrics | {"tokens": tokens.astype(jnp.float32)}


def accumulate(objective: Objective, params: Params, microbatches: jax.Array) -> Total:
    """Sum the objective, its measurements and its gradient over the microbatches in use.

    The gradient is taken inside the loop, whose trip count may thus be a traced number.
    """

    def reduced(params: Params, index: jax.Array) -> tuple[jax.Array, Found]:
        value, measured = objective(params, index)
        return value, {name: sums(name, each) for name, each in measured.items()}

    differentiate = jax.value_and_grad(reduced, has_aux=True)
    _, found = jax.eval_shape(reduced, params, jnp.zeros((), jnp.int32))
    zeros = jax.tree.map(_float32_zeros, params)
    nothing = {name: nothing_like(total) for name, total in found.items()}
    start = (jnp.zeros((), jnp.float32), nothing, zeros)

    def add(index: jax.Array, total: Total) -> Total:
        value, found, gradients = total
        (more_value, more), gradient = differentiate(params, index)
        summed = jax.tree.map(_add_float32, gradients, gradient)
        merged = {name: merge(found[name], more[name]) for name in found}
        return value + more_value, merged, summed

    # Not a scan over all of them: microbatches that a batch doesn't use would cost as much.
    total: Total = jax.lax.fori_loop(0, microbatches, add, start)
    return total


def descend(
    state: LearnerState,
    objective: Objective,
    microbatches: jax.Array,
    optimizer: optax.GradientTransformation,
    *,
    usable: jax.Array,
) -> tuple[LearnerState, Metrics]:
    """Take one step down an objective's gradient: what the steps on all kinds of data share.

    Args:
      microbatches: i32[], those in use.
      usable: bool[], whether anything counts. If not, or if the gradient is not finite, the state
        stays as it is.

    Returns:
      As `train_step`, but for `tokens`.
    """
    value, found, gradients = accumulate(objective, state.params, microbatches)
    norm = optax.tree.norm(gradients)
    usable = usable & jnp.isfinite(norm)

    def step() -> tuple[LearnerState, jax.Array, jax.Array]:
        # optax raises floats to integer powers, which strict promotion would refuse.
        with jax.numpy_dtype_promotion("standard"):
            updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
        moved = _moved_share(state.params, params)
        return LearnerState(params, opt_state, state.step + 1), optax.tree.norm(updates), moved

    def skip() -> tuple[LearnerState, jax.Array, jax.Array]:
        return state, jnp.zeros_like(norm), jnp.zeros_like(norm)

    state, update_norm, moved = jax.lax.cond(usable, step, skip)
    skipped = 1.0 - usable.astype(jnp.float32)
    metrics = {"loss": value, "grad_norm": norm, "update_norm": update_norm, "skipped": skipped}
    summaries = {name: summarise(name, total) for name, total in found.items()}
    return state, metrics | {"moved_share": moved} | summaries


def _moved_share(before: Params, after: Params) -> jax.Array:
    """Tell which share of all numbers has changed: 0 where updates are lost to rounding."""
    leaves = list(zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True))
    moved = [jnp.sum(old != new, dtype=jnp.float32) for old, new in leaves]
    share: jax.Array = sum(moved, jnp.zeros(())) / max(1, sum(old.size for old, _ in leaves))
    return share


def _float32_zeros(array: jax.Array) -> jax.Array:
    return jnp.zeros_like(array, dtype=jnp.float32)


def _add_float32(total: jax.Array, more: jax.Array) -> jax.Array:
    return total + more.astype(jnp.float32)
