"""One optimizer step on offline data, and the same objective measured without a step.

Invariant: both are pure; a step is `learner.step`'s own, with the objective of other data.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ..algorithms.inputs import Diagnostics
from ..algorithms.preferences import kto_baseline
from ..algorithms.reductions import masked_sum
from ..learner import step
from ..learner.logprobs import counted_tokens, microbatch
from ..learner.state import LearnerState, Params, with_frozen
from ..learner.step import Found, Metrics, accumulate, descend
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
      The next state, and f32[] metrics, as `train_step`.
    """
    bound, counts = _bound(objective, batch, fixed)
    used, tokens = batch.rows.microbatches, counts.tokens
    state, metrics = descend(state, bound, used, optimizer, usable=tokens > 0)
    return state, metrics | {"tokens": tokens.astype(jnp.float32)}


def measure(
    params: Params, batch: OfflineBatch, fixed: Fixed, *, objective: Objective
) -> tuple[jax.Array, Counts, Found]:
    """Give a batch's loss, what it counts, and the sums of its measurements; no gradient."""
    bound, counts = _bound(objective, batch, fixed)

    def of_microbatch(_nothing: Params, index: jax.Array) -> tuple[jax.Array, Diagnostics]:
        return bound(params, index)

    loss, found, _ = accumulate(of_microbatch, (), batch.rows.microbatches)
    return loss, counts, found


def measure_baseline(logprobs: jax.Array, ref_logprobs: jax.Array, rows: TrainBatch) -> jax.Array:
    """Estimate KTO's baseline, f32[], from logprobs f32[A, R, T] of mismatched answers."""
    counted = counted_tokens(rows)
    total = masked_sum(logprobs - ref_logprobs, counted)
    sequences = jnp.sum((rows.positions == 0) & (rows.segment_ids > 0), dtype=jnp.int32)
    return kto_baseline(total, sequences)


def _bound(
    objective: Objective, batch: OfflineBatch, fixed: Fixed
) -> tuple[step.Objective, Counts]:
    """Bind an objective to a batch: a function of parameters and the number of a microbatch."""
    rows = batch.rows
    counted = counted_tokens(rows)
    ref = rows.rollout_logprobs if fixed.ref_logprobs is None else fixed.ref_logprobs
    baseline = jnp.zeros((), jnp.float32) if fixed.baseline is None else fixed.baseline
    counts = Counts(
        jnp.sum(counted, dtype=jnp.int32),
        jnp.sum(jnp.asarray(batch.chosen) >= 0, dtype=jnp.int32),
        jnp.sum(jnp.asarray(batch.rejected) >= 0, dtype=jnp.int32),
    )
    # All microbatches as one record of arrays [A, …].
    pieces = Piece(rows, counted, batch.chosen, batch.rejected, ref, baseline)

    def of_microbatch(params: Params, index: jax.Array) -> tuple[jax.Array, Diagnostics]:
        trained_and_frozen = with_frozen(params, fixed.frozen)
        return objective(trained_and_frozen, fixed.teacher, microbatch(pieces, index), counts)

    return of_microbatch, counts
