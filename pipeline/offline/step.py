"""One optimizer step on offline data, and the same objective measured without a step.

Invariant: both are pure; a step takes its gradient as `learner.step` does, microbatch by
microbatch, so one compiled program serves batches of every size.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ..algorithms.preferences import kto_baseline
from ..algorithms.reductions import masked_sum, merge, nothing_like, sums
from ..learner.logprobs import counted_tokens, microbatch
from ..learner.state import LearnerState, Params, with_frozen
from ..learner.step import Found, Metrics, accumulate, apply_gradients, summaries
from ..types import TrainBatch
from .batch import OfflineBatch
from .objectives import Counts, Objective, Piece


class Fixed(NamedTuple):
    """What stays as it is during an update.

    Attributes:
      ref_logprobs: f32[A, R, T], of the reference policy; None without one.
      baseline: f32[], see `kto_baseline`; None without one.
      frozen: parameters beside those that are trained, or None.
      teacher: the teacher's parameters, or None.
    """

    ref_logprobs: Any = None
    baseline: Any = None
    frozen: Any = None
    teacher: Any = None


def offline_step(
    state: LearnerState,
    batch: OfflineBatch,
    fixed: Fixed,
    *,
    objective: Objective,
    optimizer: optax.GradientTransformation,
) -> tuple[LearnerState, Metrics]:
    """Take one optimizer step on a batch.

    A batch without any counted token, or with a gradient that is not finite, changes nothing, and
    `skipped` is 1.

    Args:
      state: from `init_state`, with the same optimizer.
      objective: one of `objectives`, bound to a model. Where something is frozen, its parameters
        are the pair `(state.params, fixed.frozen)`.

    Returns:
      The next state, and f32[] metrics: `loss`, `tokens`, those of `apply_gradients`, and a
      summary of each of the objective's measurements.
    """
    pieces, counts = _pieces(batch, fixed)

    def of_microbatch(params: Params, index: jax.Array) -> tuple[jax.Array, Found]:
        whole = with_frozen(params, fixed.frozen)
        piece = microbatch(pieces, index)
        loss, measured = objective(whole, fixed.teacher, piece, counts)
        return loss, {name: sums(name, each) for name, each in measured.items()}

    used = batch.rows.microbatches
    value, found, gradients = accumulate(of_microbatch, state.params, used)
    state, metrics = apply_gradients(state, gradients, optimizer, usable=counts.tokens > 0)
    metrics |= {"loss": value, "tokens": counts.tokens.astype(jnp.float32)}
    return state, metrics | summaries(found)


def measure(
    params: Params, batch: OfflineBatch, fixed: Fixed, *, objective: Objective
) -> tuple[jax.Array, Counts, Found]:
    """Give a batch's loss, what it counts, and the sums of its measurements; no gradient."""
    pieces, counts = _pieces(batch, fixed)
    whole = with_frozen(params, fixed.frozen)

    def of_microbatch(index: jax.Array) -> tuple[jax.Array, Found]:
        loss, measured = objective(whole, fixed.teacher, microbatch(pieces, index), counts)
        return loss, {name: sums(name, each) for name, each in measured.items()}

    def add(index: jax.Array, total: tuple[jax.Array, Found]) -> tuple[jax.Array, Found]:
        loss, found = of_microbatch(index)
        return total[0] + loss, {name: merge(total[1][name], found[name]) for name in found}

    _, shapes = jax.eval_shape(of_microbatch, jnp.zeros((), jnp.int32))
    nothing = {name: nothing_like(shape) for name, shape in shapes.items()}
    start = (jnp.zeros((), jnp.float32), nothing)
    loss, found = jax.lax.fori_loop(0, batch.rows.microbatches, add, start)
    return loss, counts, found


def measure_baseline(logprobs: jax.Array, ref_logprobs: jax.Array, rows: TrainBatch) -> jax.Array:
    """Estimate KTO's baseline, f32[], from logprobs f32[A, R, T] of mismatched answers."""
    counted = counted_tokens(rows)
    total = masked_sum(logprobs - ref_logprobs, counted)
    sequences = jnp.sum((rows.positions == 0) & (rows.segment_ids > 0), dtype=jnp.int32)
    return kto_baseline(total, sequences)


def _pieces(batch: OfflineBatch, fixed: Fixed) -> tuple[Piece, Counts]:
    """Give all microbatches as one record of arrays [A, …], and the counts of the batch."""
    rows = batch.rows
    counted = counted_tokens(rows)
    ref = rows.rollout_logprobs if fixed.ref_logprobs is None else fixed.ref_logprobs
    baseline = jnp.zeros((), jnp.float32) if fixed.baseline is None else fixed.baseline
    counts = Counts(
        jnp.sum(counted, dtype=jnp.int32),
        jnp.sum(jnp.asarray(batch.chosen) >= 0, dtype=jnp.int32),
        jnp.sum(jnp.asarray(batch.rejected) >= 0, dtype=jnp.int32),
    )
    return Piece(rows, counted, batch.chosen, batch.rejected, ref, baseline), counts
