"""Log-probabilities of the tokens of packed rows, without an array of all vocabulary logits.

Invariant: index t is about token t given the tokens before it in its segment. The hidden
state at t - 1 predicts token t, and `states_before` is the only place where this shift happens.
The first token of a segment is predicted by nothing: its logprob is 0 and it never counts.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp

from ..models.head import Head
from ..models.head import logits as head_logits
from ..models.model import Forward as Forward
from ..types import TrainBatch
from .state import Params

T = TypeVar("T")

CHUNK_TOKENS = 1024  # tokens whose logits exist at once; see `row_logprobs`


def token_logprobs(
    hidden: jax.Array,
    head: Head,
    targets: jax.Array,
    *,
    temperature: float = 1.0,
    chunk_tokens: int = CHUNK_TOKENS,
) -> tuple[jax.Array, jax.Array]:
    """Score one token for each hidden state under the tempered softmax over the vocabulary.

    Logits exist for one chunk at a time, in float32; the backward pass computes them again.

    Args:
      hidden: f[N, D]; `hidden[n]` predicts `targets[n]`.
      head: f[V, D], or a `CappedHead`.
      targets: i32[N] in 0..V-1.
      temperature: > 0; logits are divided by it, as the sampler does.
      chunk_tokens: >= 1.

    Returns:
      f32[N] logprobs and f32[N] entropies in nats.
    """
    size = min(chunk_tokens, targets.shape[0])
    chunks = (_split(hidden, size), _split(targets, size))
    score = jax.checkpoint(partial(_score_chunk, head=head, temperature=temperature))
    scores: tuple[jax.Array, jax.Array] = jax.lax.map(score, chunks)
    logprobs, entropy = (part.reshape(-1)[: targets.shape[0]] for part in scores)
    return logprobs, entropy


def row_logprobs(
    params: Params, rows: TrainBatch, *, forward: Forward, temperature: float
) -> tuple[jax.Array, jax.Array]:
    """Run the model over the rows of one microbatch and score each of their tokens.

    The chunks run along the tokens of a row, not across rows, so that rows may be sharded.

    Args:
      rows: one microbatch: arrays [R, T].

    Returns:
      f32[R, T] logprobs and f32[R, T] entropies; 0 where nothing predicts the token.
    """
    hidden, head = run_rows(params, rows, forward=forward)
    before = states_before(hidden)
    chunk_tokens = max(1, CHUNK_TOKENS // rows.tokens.shape[0])
    score = partial(token_logprobs, temperature=temperature, chunk_tokens=chunk_tokens)
    logprobs, entropy = jax.vmap(score, in_axes=(0, None, 0))(before, head, rows.tokens)
    known = predicted(rows.segment_ids)
    return jnp.where(known, logprobs, 0.0), jnp.where(known, entropy, 0.0)


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


def _score_chunk(
    chunk: tuple[jax.Array, jax.Array], *, head: Head, temperature: float
) -> tuple[jax.Array, jax.Array]:
    hidden, targets = chunk
    logits = head_logits(hidden, head) / temperature
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    mean_logit = jnp.sum(jnp.exp(logits - normaliser[:, None]) * logits, axis=-1)
    return chosen - normaliser, normaliser - mean_logit


def _split(array: jax.Array, size: int) -> jax.Array:
    """Reshape [N, …] to [chunks, size, …], the last chunk padded with zeros."""
    missing = -array.shape[0] % size
    widths = [(0, missing)] + [(0, 0)] * (array.ndim - 1)
    return jnp.pad(array, widths).reshape(-1, size, *array.shape[1:])
