"""Logprobs and entropies over a vocabulary of any size; see `tiles`.

Invariant: sums over the entries run on from tile to tile, relative to the largest logit so far
(an online softmax).

Reference: Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", algorithm 3.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..models.head import Head
from .tiles import (
    DEFAULT_TILE,
    LOWEST,
    Given,
    Tile,
    TileSize,
    Tokens,
    chunks_of,
    fold_differentiably,
    rule_of,
)


class Scores(NamedTuple):
    """Of each token, f32[R, N].

    Attributes:
      logprobs: of the target.
      entropy: of the distribution, in nats.
      normaliser: log of the sum of exp(logits); no gradient flows.
      behind: the largest logit minus the target's, 0 where none is likelier; no gradient flows.
    """

    logprobs: jax.Array
    entropy: jax.Array
    normaliser: jax.Array
    behind: jax.Array


class _Sums(NamedTuple):
    """Over the entries so far of each of G parts, for m tokens: f32[G, m] each.

    Attributes:
      largest: logit m.
      mass: sum of exp(z - m).
      moment: sum of exp(z - m) (z - m).
      chosen: the target's logit, once its tile was seen; 0 before.
    """

    largest: jax.Array
    mass: jax.Array
    moment: jax.Array
    chosen: jax.Array


def score_targets(
    hidden: jax.Array,
    head: Head,
    targets: jax.Array,
    *,
    temperature: float = 1.0,
    counted: jax.Array | None = None,
    tile: TileSize = DEFAULT_TILE,
) -> Scores:
    """Score one token for each hidden state under the tempered softmax over the vocabulary.

    Exact up to rounding for every tile. Rows may be sharded: tiles run along their tokens.

    Args:
      hidden: f[R, N, D]; `hidden[r, n]` predicts `targets[r, n]`.
      head: f[V, D], or an `OutputHead`.
      targets: i32[R, N] in 0..V-1.
      temperature: > 0; logits are divided by it, as the sampler does.
      counted: bool[R, N], whose scores are wanted; those of others may be 0, and cost less: each
        row's counted tokens go first. None for all.
    """
    rule = rule_of(_Targets(), hidden, head, temperature=temperature, tile=tile)
    scores: Scores
    if counted is None or hidden.shape[1] <= rule.tokens:
        scores = fold_differentiably(Tokens(hidden, targets), head, rule)
        return scores
    order = jnp.argsort(~counted, axis=1, stable=True)
    back = jnp.argsort(order, axis=1)
    chunks = chunks_of(counted.sum(axis=1, dtype=jnp.int32), rule)
    states, targets = (_permuted(array, order, back) for array in (hidden, targets))
    scores = fold_differentiably(Tokens(states, targets, chunks), head, rule)
    return Scores(*(_permuted(score, back, order) for score in scores))


@jax.custom_vjp
def _permuted(of_tokens: jax.Array, order: jax.Array, back: jax.Array) -> jax.Array:
    """Put each row's tokens [R, N, ...] into an order, i32[R, N]; `back` is its inverse.

    So the backward pass permutes, too, where that of a gather adds up, which is slower.
    """
    return _in_order(of_tokens, order)


def _in_order(of_tokens: jax.Array, order: jax.Array) -> jax.Array:
    places = order.reshape(*order.shape, *[1] * (of_tokens.ndim - 2))
    return jnp.take_along_axis(of_tokens, places, axis=1, mode="promise_in_bounds")


def _permuted_forward(
    of_tokens: jax.Array, order: jax.Array, back: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _in_order(of_tokens, order), back


def _permuted_backward(back: jax.Array, gradient: jax.Array) -> tuple[jax.Array, None, None]:
    return _in_order(gradient, back), None, None


_permuted.defvjp(_permuted_forward, _permuted_backward)


@dataclass(frozen=True)
class _Targets:
    """The `Folding` of one target for each token."""

    def start(self, parts: int, tokens: int) -> _Sums:
        nothing = jnp.zeros((parts, tokens), jnp.float32)
        return _Sums(jnp.full_like(nothing, LOWEST), nothing, nothing, nothing)

    def add(self, sums: _Sums, logits: jax.Array, tile: Tile, targets: jax.Array) -> _Sums:
        logits = jnp.where(tile.new, logits, LOWEST)
        largest = jnp.maximum(sums.largest, jnp.max(logits, axis=-1))
        below = logits - largest[..., None]
        mass, shift = jnp.exp(below), sums.largest - largest
        shrunk = jnp.exp(shift)
        hit = _hits(tile, targets)
        return _Sums(
            largest,
            sums.mass * shrunk + _sum_of_entries(mass),
            (sums.moment + sums.mass * shift) * shrunk + _sum_of_entries(mass * below),
            sums.chosen + _sum_of_entries(jnp.where(hit, logits, 0.0)),
        )

    def finish(self, sums: _Sums) -> Scores:
        sums = _of_all_parts(sums)
        spread = jnp.log(sums.mass)
        normaliser = sums.largest + spread
        entropy = spread - sums.moment / sums.mass
        behind = sums.largest - sums.chosen
        return Scores(sums.chosen - normaliser, entropy, normaliser, behind)

    def of_logits(self, logits: jax.Array, tile: Tile, given: Given) -> jax.Array:
        """Compute `g_y (1[y] - p) - g_H p (log p + H)`."""
        scores = Scores(*(_of_every_entry(score) for score in given.found))
        of = Scores(*(_of_every_entry(gradient) for gradient in given.gradients))
        logprobs = logits - scores.normaliser
        pushed = jnp.exp(logprobs) * (of.logprobs + of.entropy * (logprobs + scores.entropy))
        pulled = jnp.where(_hits(tile, given.operands), of.logprobs, 0.0)
        return jnp.where(tile.new, pulled - pushed, 0.0)


def _sum_of_entries(of_entries: jax.Array) -> jax.Array:
    """Sum [G, m, v] to [G, m]: as one matrix, since XLA's CPU code is slow for a G of 1."""
    sums = jnp.sum(of_entries.reshape(-1, of_entries.shape[-1]), axis=-1)
    return sums.reshape(of_entries.shape[:-1])


def _of_all_parts(sums: _Sums) -> _Sums:
    """Add up the parts: f32[m] each."""
    largest = jnp.max(sums.largest, axis=0)
    shift = sums.largest - largest[None]
    shrunk = jnp.exp(shift)
    return _Sums(
        largest,
        jnp.sum(sums.mass * shrunk, axis=0),
        jnp.sum((sums.moment + sums.mass * shift) * shrunk, axis=0),
        jnp.sum(sums.chosen, axis=0),
    )


def _of_every_entry(of_tokens: jax.Array) -> jax.Array:
    """Set [m] beside the entries of every part: [1, m, 1]."""
    return of_tokens[None, :, None]


def _hits(tile: Tile, targets: jax.Array) -> jax.Array:
    """Tell which new entries are the targets, i32[m]: bool[G, m, v]."""
    hits: jax.Array = (_of_every_entry(targets) == tile.entries) & tile.new
    return hits
