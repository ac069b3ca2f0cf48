"""Logprobs and entropies over a vocabulary of any size, in tiles of tokens and entries.

Invariant: logits exist for one tile at a time, forward and backward, so the memory beside the
head and its gradient does not grow with the vocabulary. Sums over the entries run on from tile
to tile, relative to the largest logit so far (an online softmax).

Reference: Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", algorithm 3;
  Wijmans et al. 2024, "Cut your losses in large-vocabulary language models" (backward in tiles).
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..models.head import CappedHead, Head
from ..models.head import logits as head_logits

_LOWEST = -1e30  # below every logit, and finite: a product with 0 stays 0


@dataclass(frozen=True)
class TileSize:
    """How many logits exist at once; both numbers bound memory only.

    Attributes:
      entries: of the vocabulary, at most; >= 1.
      logits: tokens times entries, about; at least one token of each row is taken.
    """

    entries: int = 2048
    logits: int = 2**20


DEFAULT_TILE = TileSize()


class Scores(NamedTuple):
    """Of each token, f32[R, N].

    Attributes:
      logprobs: of the target.
      entropy: of the distribution, in nats.
      normaliser: log of the sum of exp(logits).
    """

    logprobs: jax.Array
    entropy: jax.Array
    normaliser: jax.Array


class _Sums(NamedTuple):
    """Over the entries so far, f32[R, n] each.

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


class _Tile(NamedTuple):
    """Entries of the vocabulary that are looked at together.

    The last tile begins early enough to be a whole one; what was seen before is not new.

    Attributes:
      start: i32[], the first entry.
      entries: i32[1, 1, v].
      new: bool[1, 1, v].
    """

    start: jax.Array
    entries: jax.Array
    new: jax.Array

    @property
    def size(self) -> int:
        """How many they are: v."""
        return self.entries.shape[-1]


def score_targets(
    hidden: jax.Array,
    head: Head,
    targets: jax.Array,
    *,
    temperature: float = 1.0,
    tile: TileSize = DEFAULT_TILE,
) -> tuple[jax.Array, jax.Array]:
    """Score one token for each hidden state under the tempered softmax over the vocabulary.

    Exact up to rounding for every tile; gradients of hidden states and head are summed in float32.
    Rows may be sharded: tiles run along their tokens.

    Args:
      hidden: f[R, N, D]; `hidden[r, n]` predicts `targets[r, n]`.
      head: f[V, D], or a `CappedHead`.
      targets: i32[R, N] in 0..V-1.
      temperature: > 0; logits are divided by it, as the sampler does.

    Returns:
      f32[R, N] logprobs and f32[R, N] entropies in nats.
    """
    rows, length = targets.shape
    tokens = tile.logits // (min(tile.entries, _entries(head)) * max(1, rows))
    rule = _Rule(temperature, tile.entries, min(max(1, tokens), max(1, length)))
    return _score(hidden, head, targets, rule)


@dataclass(frozen=True)
class _Rule:
    temperature: float
    entries: int
    tokens: int  # n, of each row


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _score(
    hidden: jax.Array, head: Head, targets: jax.Array, rule: _Rule
) -> tuple[jax.Array, jax.Array]:
    scores = _scores(hidden, head, targets, rule)
    return scores.logprobs, scores.entropy


def _score_forward(hidden: Any, head: Any, targets: Any, rule: _Rule) -> tuple[Any, Any]:
    learns = any(leaf.perturbed for leaf in jax.tree.leaves(head, is_leaf=_is_primal))
    hidden, head, targets = jax.tree.map(
        lambda leaf: leaf.value, (hidden, head, targets), is_leaf=_is_primal
    )
    scores = _scores(hidden, head, targets, rule)
    # None stands for a frozen head, whose gradient is never made: it is as large as the head.
    return scores[:2], (hidden, head, targets, scores, () if learns else None)


def _is_primal(leaf: Any) -> bool:
    return isinstance(leaf, jax.custom_derivatives.CustomVJPPrimal)


def _scores(hidden: jax.Array, head: Head, targets: jax.Array, rule: _Rule) -> Scores:
    def chunk(part: tuple[jax.Array, jax.Array]) -> Scores:
        hidden, targets = part

        def add(index: jax.Array, sums: _Sums) -> _Sums:
            tile = _tile(index, head, rule)
            logits = _logits(hidden, _cut(head, tile), rule)
            return _added(sums, logits, tile, targets)

        nothing = jnp.zeros(targets.shape, jnp.float32)
        start = _Sums(jnp.full_like(nothing, _LOWEST), nothing, nothing, nothing)
        sums = lax.fori_loop(0, _num_tiles(head, rule), add, start)
        spread = jnp.log(sums.mass)
        normaliser = sums.largest + spread
        entropy = spread - sums.moment / sums.mass
        return Scores(sums.chosen - normaliser, entropy, normaliser)

    chunks = lax.map(chunk, (_split(hidden, rule), _split(targets, rule)))
    return Scores(*(_join(part, targets.shape[1]) for part in chunks))


def _added(sums: _Sums, logits: jax.Array, tile: _Tile, targets: jax.Array) -> _Sums:
    logits = jnp.where(tile.new, logits, _LOWEST)
    largest = jnp.maximum(sums.largest, jnp.max(logits, axis=-1))
    below = logits - largest[..., None]
    mass, shift = jnp.exp(below), sums.largest - largest
    shrunk = jnp.exp(shift)
    hit = _hits(tile, targets)
    return _Sums(
        largest,
        sums.mass * shrunk + jnp.sum(mass, axis=-1),
        (sums.moment + sums.mass * shift) * shrunk + jnp.sum(mass * below, axis=-1),
        sums.chosen + jnp.sum(jnp.where(hit, logits, 0.0), axis=-1),
    )


class _Gradients(NamedTuple):
    """Of the result, and what is needed to pass them on; f32[R, N] each but the targets."""

    targets: jax.Array
    scores: Scores
    of_logprobs: jax.Array
    of_entropy: jax.Array


def _score_backward(rule: _Rule, kept: Any, gradients: Any) -> tuple[Any, Any, None]:
    hidden, head, targets, scores, learns = kept
    nothing = jnp.zeros(targets.shape, jnp.float32)
    given = _Gradients(targets, scores, *(nothing if _is_zero(g) else g for g in gradients))
    start = None if learns is None else jnp.zeros(_matrix(head).shape, jnp.float32)

    def chunk(of_head: Any, part: tuple[jax.Array, _Gradients]) -> tuple[Any, jax.Array]:
        hidden, given = part

        def add(index: jax.Array, totals: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            of_hidden, of_head = totals
            tile = _tile(index, head, rule)
            logits, pull_back = jax.vjp(partial(_logits, rule=rule), hidden, _cut(head, tile))
            more_hidden, more_head = pull_back(_of_logits(logits, tile, given))
            if of_head is not None:
                of_head = _add_rows(of_head, _matrix(more_head), tile)
            return of_hidden + more_hidden.astype(jnp.float32), of_head

        none_yet = jnp.zeros(hidden.shape, jnp.float32)
        of_hidden, of_head = lax.fori_loop(0, _num_tiles(head, rule), add, (none_yet, of_head))
        return of_head, of_hidden.astype(hidden.dtype)

    parts = jax.tree.map(partial(_split, rule=rule), (hidden, given))
    total, of_hidden = lax.scan(chunk, start, parts)
    of_head = None if total is None else _with_matrix(head, total.astype(_matrix(head).dtype))
    return _join(of_hidden, targets.shape[1]), of_head, None


def _of_logits(logits: jax.Array, tile: _Tile, given: _Gradients) -> jax.Array:
    """Compute `g_y (1[y] - p) - g_H p (log p + H)`: the gradient of each logit of a tile."""
    logprobs = logits - given.scores.normaliser[..., None]
    surprise = given.of_entropy[..., None] * (logprobs + given.scores.entropy[..., None])
    pushed = jnp.exp(logprobs) * (given.of_logprobs[..., None] + surprise)
    pulled = jnp.where(_hits(tile, given.targets), given.of_logprobs[..., None], 0.0)
    return jnp.where(tile.new, pulled - pushed, 0.0)


_score.defvjp(_score_forward, _score_backward, symbolic_zeros=True)


def _logits(hidden: jax.Array, head: Head, rule: _Rule) -> jax.Array:
    # A product of two plain matrices, whose backward pass is quicker on CPU.
    logits = head_logits(hidden.reshape(-1, hidden.shape[-1]), head) / rule.temperature
    return logits.reshape(*hidden.shape[:-1], -1)


def _tile(index: jax.Array, head: Head, rule: _Rule) -> _Tile:
    size = min(rule.entries, _entries(head))
    wanted = index * size
    start = jnp.minimum(wanted, _entries(head) - size)
    entries = start + jnp.arange(size, dtype=jnp.int32)[None, None]
    return _Tile(start, entries, entries >= wanted)


def _hits(tile: _Tile, targets: jax.Array) -> jax.Array:
    """Tell which new entries are the targets: bool[R, n, v]."""
    hits: jax.Array = (targets[..., None] == tile.entries) & tile.new
    return hits


def _num_tiles(head: Head, rule: _Rule) -> int:
    return -(-_entries(head) // rule.entries)


def _entries(head: Head) -> int:
    return int(_matrix(head).shape[0])


def _matrix(head: Head) -> jax.Array:
    matrix: jax.Array = head.matrix if isinstance(head, CappedHead) else head
    return matrix


def _with_matrix(head: Head, matrix: jax.Array) -> Head:
    return replace(head, matrix=matrix) if isinstance(head, CappedHead) else matrix


def _cut(head: Head, tile: _Tile) -> Head:
    rows = lax.dynamic_slice_in_dim(_matrix(head), tile.start, tile.size)
    return _with_matrix(head, rows)


def _add_rows(total: jax.Array, more: jax.Array, tile: _Tile) -> jax.Array:
    summed = lax.dynamic_slice_in_dim(total, tile.start, tile.size) + more.astype(jnp.float32)
    return lax.dynamic_update_slice_in_dim(total, summed, tile.start, axis=0)


def _is_zero(gradient: Any) -> bool:
    return isinstance(gradient, jax.custom_derivatives.SymbolicZero)


def _split(array: jax.Array, rule: _Rule) -> jax.Array:
    """Cut [R, N, …] into [chunks, R, n, …], the last chunk padded with zeros."""
    rows, length, *rest = array.shape
    missing = -length % rule.tokens
    widths = [(0, 0), (0, missing)] + [(0, 0)] * len(rest)
    padded = jnp.pad(array, widths).reshape(rows, -1, rule.tokens, *rest)
    return jnp.moveaxis(padded, 1, 0)


def _join(chunks: jax.Array, length: int) -> jax.Array:
    """Undo `_split`."""
    _, rows, _, *rest = chunks.shape
    return jnp.moveaxis(chunks, 0, 1).reshape(rows, -1, *rest)[:, :length]
