"""The vocabulary seen through its likeliest tokens; see `tiles` for the memory that it takes.

Invariant: index t is about the distribution that token t was drawn from. Categories cover
everything: k tokens and, last, all others together.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..models.head import Head
from .logprobs import states_before
from .tiles import (
    DEFAULT_TILE,
    LOWEST,
    Given,
    Tile,
    TileSize,
    Tokens,
    fold,
    fold_differentiably,
    rule_of,
)
from .vocabulary import score_targets

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
    hidden: jax.Array,
    head: Head,
    *,
    k: int,
    temperature: float = 1.0,
    entries: int | None = None,
    tile: TileSize = DEFAULT_TILE,
) -> TopTokens:
    """Find the likeliest tokens; no gradient flows. Of equal ones the first are taken.

    Args:
      hidden: f[R, T, D], the model's output.
      k: 1..V.
      temperature: > 0; logits are divided by it.
      entries: the vocabulary's first so many entries take part, k at least; None: all.
    """
    states, head = jax.lax.stop_gradient((states_before(hidden), head))
    rule = rule_of(_Likeliest(k, entries), states, head, temperature=temperature, tile=tile)
    top: TopTokens = fold(Tokens(states, ()), head, rule)
    return top


def logprobs_of(
    hidden: jax.Array,
    head: Head,
    ids: jax.Array,
    *,
    temperature: float = 1.0,
    tile: TileSize = DEFAULT_TILE,
) -> jax.Array:
    """Score given tokens, and all others together, differentiably.

    Args:
      hidden: f[R, T, D], the model's output.
      ids: i32[R, T, k], different ones at each place.

    Returns:
      f32[R, T, k + 1].
    """
    states = states_before(hidden)
    rule = rule_of(_Named(ids.shape[-1]), states, head, temperature=temperature, tile=tile)
    found: _Categories = fold_differentiably(Tokens(states, ids), head, rule)
    return found.logprobs


def ranked_logprobs(
    hidden: jax.Array, head: Head, targets: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Score tokens i32[R, T]: f32[R, T] logprobs, and bool[R, T] whether none is likelier."""
    scores = score_targets(states_before(hidden), head, targets)
    return scores.logprobs, scores.behind <= 0


class _Categories(NamedTuple):
    """Of each token.

    Attributes:
      logprobs: f32[m, k + 1].
      rest: f32[m], log of the sum of exp(logits) of all others.
    """

    logprobs: jax.Array
    rest: jax.Array


class _Seen(NamedTuple):
    """Of the entries so far of each of G parts, for m tokens.

    Attributes:
      logits: f32[G, m, k], of the k tokens.
      rest: f32[G, m], log of the sum of exp(logits) of all others.
    """

    logits: jax.Array
    rest: jax.Array


@dataclass(frozen=True)
class _Named:
    """The `Folding` of k given tokens."""

    k: int

    def start(self, parts: int, tokens: int) -> _Seen:
        logits = jnp.zeros((parts, tokens, self.k), jnp.float32)
        return _Seen(logits, jnp.full((parts, tokens), LOWEST, jnp.float32))

    def add(self, seen: _Seen, logits: jax.Array, tile: Tile, ids: jax.Array) -> _Seen:
        places = tile.places_of(ids)
        there = jnp.take_along_axis(logits, jnp.minimum(places, tile.size - 1), axis=-1)
        named = seen.logits + jnp.where(places < tile.size, there, 0.0)
        others = _put(jnp.where(tile.new, logits, LOWEST), places, LOWEST)
        return _Seen(named, _and(seen.rest, others))

    def finish(self, seen: _Seen) -> _Categories:
        rest = jax.nn.logsumexp(seen.rest, axis=0)
        return _categories(jnp.sum(seen.logits, axis=0), rest)

    def of_logits(self, logits: jax.Array, tile: Tile, given: Given) -> jax.Array:
        """Share a category's gradient `g_c - p_c sum(g)` by the tokens' probabilities in it."""
        logprobs, rest = given.found
        of, _ = given.gradients
        of_category = of - jnp.exp(logprobs) * jnp.sum(of, axis=-1, keepdims=True)
        share = jnp.exp(jnp.where(tile.new, logits, LOWEST) - rest[None, :, None])
        of_others = share * of_category[None, :, -1:]
        return _put(of_others, tile.places_of(given.operands), of_category[None, :, :-1])


class _Best(NamedTuple):
    """The k likeliest entries so far of each of G parts, for m tokens; and `_Seen`.

    Attributes:
      ids: i32[G, m, k].
    """

    ids: jax.Array
    seen: _Seen


@dataclass(frozen=True)
class _Likeliest:
    """The `Folding` that finds k tokens among the first so many entries."""

    k: int
    entries: int | None

    def start(self, parts: int, tokens: int) -> _Best:
        shape = (parts, tokens, self.k)
        none = jnp.full(shape, LOWEST, jnp.float32)
        return _Best(jnp.zeros(shape, jnp.int32), _Seen(none, none[..., 0]))

    def add(self, best: _Best, logits: jax.Array, tile: Tile, _: tuple[()]) -> _Best:
        counts = tile.new if self.entries is None else tile.new & (tile.entries < self.entries)
        ids = jnp.broadcast_to(tile.entries, logits.shape)
        return self._best(
            jnp.concatenate([best.seen.logits, jnp.where(counts, logits, LOWEST)], axis=-1),
            jnp.concatenate([best.ids, ids], axis=-1),
            best.seen.rest,
        )

    def finish(self, best: _Best) -> TopTokens:
        logits, ids = (_in_one_part(array) for array in (best.seen.logits, best.ids))
        whole = self._best(logits, ids, jax.nn.logsumexp(best.seen.rest, axis=0)[None])
        return TopTokens(whole.ids[0], _categories(whole.seen.logits[0], whole.seen.rest[0])[0])

    def _best(self, logits: jax.Array, ids: jax.Array, rest: jax.Array) -> _Best:
        """Keep k of [G, m, any]; the others join the rest, f32[G, m]."""
        flat = logits.reshape(-1, logits.shape[-1])  # XLA has a fast top_k for matrices alone
        top, places = (found.reshape(*rest.shape, self.k) for found in jax.lax.top_k(flat, self.k))
        others = _put(logits, places, LOWEST)
        return _Best(jnp.take_along_axis(ids, places, axis=-1), _Seen(top, _and(rest, others)))


def _in_one_part(of_parts: jax.Array) -> jax.Array:
    """Set what all parts found in one line: [G, m, k] becomes [1, m, G * k]."""
    tokens = of_parts.shape[1]
    return jnp.moveaxis(of_parts, 0, 1).reshape(1, tokens, -1)


def _put(of_entries: jax.Array, places: jax.Array, values: jax.Array | float) -> jax.Array:
    """Replace what stands at places i32[G, m, k] of [G, m, v]; nothing at a place of v."""
    parts, tokens, _ = of_entries.shape
    part = jnp.arange(parts, dtype=jnp.int32)[:, None, None]
    token = jnp.arange(tokens, dtype=jnp.int32)[None, :, None]
    return of_entries.at[part, token, places].set(values, mode="drop")


def _and(rest: jax.Array, others: jax.Array) -> jax.Array:
    """Add logits [G, m, any] to the logarithm of a sum, f32[G, m]."""
    return jnp.logaddexp(rest, jax.nn.logsumexp(others, axis=-1))


def _categories(logits: jax.Array, rest: jax.Array) -> _Categories:
    """Normalise. The rest was summed, not subtracted from 1, which would lose its bits."""
    both = jnp.concatenate([logits, rest[:, None]], axis=-1)
    logprobs = both - jax.nn.logsumexp(both, axis=-1, keepdims=True)
    return _Categories(jnp.maximum(logprobs, _NOTHING), rest)
