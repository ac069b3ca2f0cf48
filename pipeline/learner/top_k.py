"""The vocabulary seen through its likeliest tokens, without an array of all logits.

Invariant: index t is about the distribution that token t was drawn from. Logits exist for a
chunk of tokens at a time, forward and backward. Categories cover everything: k tokens and, last,
all others together.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..models.head import Head
from ..models.head import logits as head_logits
from .logprobs import states_before

CHUNK_TOKENS = 1024  # tokens of all rows together whose logits exist at once
_NOTHING = -1e4  # stands for the logarithm of 0: finite, and exp gives 0


class TopTokens(NamedTuple):
    """The k likeliest tokens at each place.

    Attributes:
      ids: i32[R, T, k], the likeliest first.
      logprobs: f32[R, T, k + 1], theirs and, last, that of all other tokens together.
    """

    ids: jax.Array
    logprobs: jax.Array


def top_tokens(
    hidden: jax.Array, head: Head, *, k: int, temperature: float = 1.0, entries: int | None = None
) -> TopTokens:
    """Find the likeliest tokens; no gradient flows.

    Args:
      hidden: f[R, T, D], the model's output.
      k: 1..V.
      temperature: > 0; logits are divided by it.
      entries: the vocabulary's first so many entries take part, k at least; None: all.
    """
    score = partial(_top, k=k, temperature=temperature, entries=entries)
    ids, logprobs = _by_chunks(score, jax.lax.stop_gradient(hidden), head)
    return TopTokens(ids, jax.lax.stop_gradient(logprobs))


def logprobs_of(
    hidden: jax.Array, head: Head, ids: jax.Array, *, temperature: float = 1.0
) -> jax.Array:
    """Score given tokens, and all others together, differentiably.

    Args:
      hidden: f[R, T, D], the model's output.
      ids: i32[R, T, k], different ones at each place.

    Returns:
      f32[R, T, k + 1].
    """
    scored: jax.Array = _by_chunks(partial(_at, temperature=temperature), hidden, head, ids)
    return scored


def ranked_logprobs(
    hidden: jax.Array, head: Head, targets: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Score tokens i32[R, T]: f32[R, T] logprobs, and bool[R, T] whether none is likelier."""
    logprobs, best = _by_chunks(_ranked, hidden, head, targets)
    return logprobs, best


def _by_chunks(score: Callable[..., Any], hidden: jax.Array, head: Head, *operands: Any) -> Any:
    """Apply `score(states [C, D], *operands [C, ...], head=head)` chunk by chunk of each row."""
    rows, length, _ = hidden.shape
    size = min(length, max(1, CHUNK_TOKENS // rows))
    of_chunk = jax.checkpoint(partial(_of_chunk, score=partial(score, head=head)))

    def of_row(row: tuple[jax.Array, ...]) -> Any:
        chunks = tuple(_split(array, size) for array in row)
        scored = jax.lax.map(of_chunk, chunks)
        return jax.tree.map(lambda part: part.reshape(-1, *part.shape[2:])[:length], scored)

    return jax.vmap(of_row)((states_before(hidden), *operands))


def _of_chunk(chunk: tuple[jax.Array, ...], *, score: Callable[..., Any]) -> Any:
    return score(*chunk)


def _top(
    states: jax.Array, *, head: Head, k: int, temperature: float, entries: int | None
) -> tuple[jax.Array, jax.Array]:
    logits = head_logits(states, head)[:, :entries] / temperature
    _, ids = jax.lax.top_k(logits, k)
    return ids, _categories(logits, ids)


def _at(states: jax.Array, ids: jax.Array, *, head: Head, temperature: float) -> jax.Array:
    return _categories(head_logits(states, head) / temperature, ids)


def _ranked(states: jax.Array, targets: jax.Array, *, head: Head) -> tuple[jax.Array, jax.Array]:
    logits = head_logits(states, head)
    chosen = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    return chosen - normaliser, chosen >= jnp.max(logits, axis=-1)


def _categories(logits: jax.Array, ids: jax.Array) -> jax.Array:
    """Give f32[C, k + 1]. The rest is summed, not subtracted from 1, which would lose its bits."""
    places = jnp.arange(ids.shape[0], dtype=jnp.int32)[:, None]
    chosen = jnp.take_along_axis(logits, ids, axis=-1)
    others = logits.at[places, ids].set(_NOTHING)
    both = jnp.concatenate([chosen, jax.nn.logsumexp(others, axis=-1, keepdims=True)], axis=-1)
    categories: jax.Array = both - jax.nn.logsumexp(both, axis=-1, keepdims=True)
    return categories


def _split(array: jax.Array, size: int) -> jax.Array:
    """Reshape [T, …] to [chunks, size, …], the last chunk padded with zeros."""
    missing = -array.shape[0] % size
    widths = [(0, missing)] + [(0, 0)] * (array.ndim - 1)
    return jnp.pad(array, widths).reshape(-1, size, *array.shape[1:])
