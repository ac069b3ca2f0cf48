"""Log-probabilities of the tokens of packed rows, without an array of all vocabulary logits.

Invariant: index t is about token t given the tokens before it in its segment. The hidden
state at t - 1 predicts token t, and `states_before` is the only place where this shift happens.
The first token of a segment is predicted by nothing: its logprob is 0 and it never counts.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from ..models.head import Head
from ..models.model import Forward as Forward
from ..types import TrainBatch
from .state import Params
from .vocabulary import score_targets

T = TypeVar("T")


def row_logprobs(
    params: Params,
    rows: TrainBatch,
    *,
    forward: Forward,
    temperature: float,
    counted: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Run the model over the rows of one microbatch and score each of their tokens.

    Args:
      rows: one microbatch: arrays [R, T].
      counted: bool[R, T], whose scores are wanted: those of others may be 0; None for all.

    Returns:
      f32[R, T] logprobs and f32[R, T] entropies; 0 where nothing predicts the token.
    """
    hidden, head = run_rows(params, rows, forward=forward)
    before = states_before(hidden)
    scores = score_targets(before, head, rows.tokens, temperature=temperature, counted=counted)
    known = predicted(rows.segment_ids)
    return jnp.where(known, scores.logprobs, 0.0), jnp.where(known, scores.entropy, 0.0)


def run_rows(params: Params, rows: TrainBatch, *, forward: Forward) -> tuple[jax.Array, Head]:
    """Run the policy over the rows of one microbatch, through the experts that they record."""
    of_tokens = (rows.tokens, rows.positions, rows.segment_ids)
    if rows.experts is None:
        return forward(params, *of_tokens)
    replaying: Callable[..., tuple[jax.Array, Head]] = forward
    return replaying(params, *of_tokens, experts=rows.experts)


def states_before(hidden: jax.Array) -> jax.Array:
    """Give each token the hidden state that it was drawn from, f[R, T, D]: the shift.

    The first one of a row gets its own, which `predicted` leaves out.
    """
    return jnp.concatenate([hidden[:, :1], hidden[:, :-1]], axis=1)


def predicted(segment_ids: jax.Array) -> jax.Array:
    """Tell which tokens follow another one in the same segment.

    Args:
      segment_ids: i32[..., T], 0 for padding.

    Returns:
      bool[..., T].
    """
    first = jnp.zeros_like(segment_ids[..., :1])
    before = jnp.concatenate([first, segment_ids[..., :-1]], axis=-1)
    known: jax.Array = (segment_ids > 0) & (segment_ids == before)
    return known


def counted_tokens(batch: TrainBatch) -> jax.Array:
    """Tell which tokens of a batch count in its loss: bool[A, R, T].

    Those of the loss mask that are predicted, in the microbatches in use.
    """
    used = jnp.arange(batch.tokens.shape[0], dtype=jnp.int32) < batch.microbatches
    counted: jax.Array = batch.loss_mask & predicted(batch.segment_ids) & used[:, None, None]
    return counted


def microbatch(arrays: T, index: jax.Array) -> T:
    """Give one microbatch of a pytree: arrays [A, R, T] become [R, T], scalars stay."""

    def pick(array: jax.Array) -> jax.Array:
        return jnp.asarray(array)[index] if jnp.ndim(array) else array

    rows: T = jax.tree.map(pick, arrays)
    return rows


def batch_logprobs(
    params: Params, batch: TrainBatch, *, forward: Forward, temperature: float = 1.0
) -> jax.Array:
    """Score all tokens of a batch, for example at the start of an update (`old_logprobs`).

    Returns:
      f32[A, R, T], without gradient; 0 where nothing predicts a token and in microbatches
      that are not in use.
    """

    def score(index: jax.Array, found: jax.Array) -> jax.Array:
        rows = microbatch(batch, index)
        logprobs, _ = row_logprobs(params, rows, forward=forward, temperature=temperature)
        return found.at[index].set(logprobs)

    nothing = jnp.zeros(batch.tokens.shape, jnp.float32)
    found: jax.Array = jax.lax.fori_loop(0, batch.microbatches, score, nothing)
    return found
