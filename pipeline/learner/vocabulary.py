"""Logprobs and entropies over a vocabulary of any size, in tiles of tokens and entries.

Invariant: logits exist for one tile at a time, forward and backward, so the memory beside the
head and its gradient does not grow with the vocabulary. Sums over the entries run on from tile
to tile, relative to the largest logit so far (an online softmax).

On a mesh the vocabulary may lie in parts on several devices (`OutputHead.parts`). A tile has as
many entries of each part, and all sums are kept by part until the last tile: so no entry is sent
from device to device, and none waits for another one inside of the loop over tiles.

Reference: Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", algorithm 3;
  Wijmans et al. 2024, "Cut your losses in large-vocabulary language models" (backward in tiles).
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..models.head import Head, OutputHead, as_output_head
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


class _Tile(NamedTuple):
    """Entries of the vocabulary that are looked at together, v of each of G parts.

    The last tile begins early enough to be a whole one; what was seen before is not new.

    Attributes:
      start: i32[], the first entry in each part.
      entries: i32[G, 1, v].
      new: bool[1, 1, v].
    """

    start: jax.Array
    entries: jax.Array
    new: jax.Array

    @property
    def size(self) -> int:
        """How many they are in each part: v."""
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
      head: f[V, D], or an `OutputHead`.
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
    entries: int  # of all parts together
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
        states = _for_parts(hidden, head)

        def add(index: jax.Array, sums: _Sums) -> _Sums:
            tile = _tile(index, head, rule)
            logits = _logits(states, _cut(head, tile), rule)
            return _added(sums, logits, tile, targets)

        nothing = jnp.zeros((_parts(head), targets.size), jnp.float32)
        start = _Sums(jnp.full_like(nothing, _LOWEST), nothing, nothing, nothing)
        sums = _of_all_parts(lax.fori_loop(0, _num_tiles(head, rule), add, start))
        spread = jnp.log(sums.mass)
        normaliser = sums.largest + spread
        entropy = spread - sums.moment / sums.mass
        scores = Scores(sums.chosen - normaliser, entropy, normaliser)
        return Scores(*(score.reshape(targets.shape) for score in scores))

    chunks = lax.map(chunk, (_split(hidden, rule), _split(targets, rule)))
    return Scores(*(_join(part, targets.shape[1]) for part in chunks))


def _added(sums: _Sums, logits: jax.Array, tile: _Tile, targets: jax.Array) -> _Sums:
    logits = jnp.where(tile.new, logits, _LOWEST)
    largest = jnp.maximum(sums.largest, jnp.max(logits, axis=-1))
    below = logits - largest[..., None]
    mass, shift = jnp.exp(below), sums.largest - largest
    shrunk = jnp.exp(shift)
    hit = _hits(tile, _of_every_entry(targets))
    return _Sums(
        largest,
        sums.mass * shrunk + _sum_of_entries(mass),
        (sums.moment + sums.mass * shift) * shrunk + _sum_of_entries(mass * below),
        sums.chosen + _sum_of_entries(jnp.where(hit, logits, 0.0)),
    )


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
    start = None if learns is None else jnp.zeros(_by_part(head).shape, jnp.float32)

    def chunk(of_head: Any, part: tuple[jax.Array, _Gradients]) -> tuple[Any, jax.Array]:
        hidden, given = part

        def add(index: jax.Array, totals: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            of_hidden, of_head = totals
            tile = _tile(index, head, rule)
            logits, pull_back = jax.vjp(partial(_logits, rule=rule), states, _cut(head, tile))
            more_hidden, more_head = pull_back(_of_logits(logits, tile, given))
            if of_head is not None:
                of_head = _add_rows(of_head, more_head.matrix, tile)
            return of_hidden + more_hidden.astype(jnp.float32), of_head

        states = _for_parts(hidden, head)
        none_yet = jnp.zeros(states.shape, jnp.float32)
        of_hidden, of_head = lax.fori_loop(0, _num_tiles(head, rule), add, (none_yet, of_head))
        of_tokens = jnp.sum(of_hidden, axis=0).reshape(hidden.shape)
        return of_head, of_tokens.astype(hidden.dtype)

    parts = jax.tree.map(partial(_split, rule=rule), (hidden, given))
    total, of_hidden = lax.scan(chunk, start, parts)
    return _join(of_hidden, targets.shape[1]), _like_head(total, head), None


def _of_logits(logits: jax.Array, tile: _Tile, given: _Gradients) -> jax.Array:
    """Compute `g_y (1[y] - p) - g_H p (log p + H)`: the gradient of each logit of a tile."""
    targets, scores, of_logprobs, of_entropy = jax.tree.map(_of_every_entry, given)
    logprobs = logits - scores.normaliser
    pushed = jnp.exp(logprobs) * (of_logprobs + of_entropy * (logprobs + scores.entropy))
    pulled = jnp.where(_hits(tile, targets), of_logprobs, 0.0)
    return jnp.where(tile.new, pulled - pushed, 0.0)


def _of_every_entry(of_tokens: jax.Array) -> jax.Array:
    """Set [R, n] beside the entries of every part: [1, m, 1]."""
    return of_tokens.reshape(1, -1, 1)


_score.defvjp(_score_forward, _score_backward, symbolic_zeros=True)


def _logits(hidden: jax.Array, head: OutputHead, rule: _Rule) -> jax.Array:
    """Multiply states [G, m, D] by the entries [G, v, D] of their part: f32[G, m, v]."""
    return jax.vmap(head_logits)(hidden, head) / rule.temperature


def _tile(index: jax.Array, head: Head, rule: _Rule) -> _Tile:
    parts, length, _ = _by_part(head).shape
    size = _tile_size(head, rule)
    wanted = index * size
    start = jnp.minimum(wanted, length - size)
    places = start + jnp.arange(size, dtype=jnp.int32)
    first = length * jnp.arange(parts, dtype=jnp.int32)
    return _Tile(start, first[:, None, None] + places[None, None], (places >= wanted)[None, None])


def _hits(tile: _Tile, targets: jax.Array) -> jax.Array:
    """Tell which new entries are the targets, i32[1, m, 1]: bool[G, m, v]."""
    hits: jax.Array = (targets == tile.entries) & tile.new
    return hits


def _num_tiles(head: Head, rule: _Rule) -> int:
    return -(-(_entries(head) // _parts(head)) // _tile_size(head, rule))


def _tile_size(head: Head, rule: _Rule) -> int:
    """Count a tile's entries of each part: v."""
    parts = _parts(head)
    return max(1, min(rule.entries, _entries(head)) // parts)


def _entries(head: Head) -> int:
    return int(as_output_head(head).matrix.shape[0])


def _parts(head: Head) -> int:
    return as_output_head(head).parts


def _for_parts(hidden: jax.Array, head: Head) -> jax.Array:
    """Give every part the states [R, n, D]: [G, m, D], products of two plain matrices for each.

    Their backward pass is quicker on CPU, and sums over matrices are than those over more axes.
    """
    flat = hidden.reshape(-1, hidden.shape[-1])
    return jnp.broadcast_to(flat, (_parts(head), *flat.shape))


def _by_part(head: Head) -> jax.Array:
    """Give the matrix as [G, V / G, D]."""
    matrix = as_output_head(head).matrix
    by_part: jax.Array = matrix.reshape(_parts(head), -1, matrix.shape[-1])
    return by_part


def _like_head(total: jax.Array | None, head: Head) -> Head | None:
    """Give the gradient f32[G, V / G, D] the form and the type of its head."""
    if total is None:
        return None
    matrix = as_output_head(head).matrix
    summed = total.reshape(matrix.shape).astype(matrix.dtype)
    return replace(head, matrix=summed) if isinstance(head, OutputHead) else summed


def _cut(head: Head, tile: _Tile) -> OutputHead:
    """Cut a tile's entries [G, v, D] out of the head."""
    rows = lax.dynamic_slice_in_dim(_by_part(head), tile.start, tile.size, axis=1)
    return replace(as_output_head(head), matrix=rows)


def _add_rows(total: jax.Array, more: jax.Array, tile: _Tile) -> jax.Array:
    before = lax.dynamic_slice_in_dim(total, tile.start, tile.size, axis=1)
    summed = before + more.astype(jnp.float32)
    return lax.dynamic_update_slice_in_dim(total, summed, tile.start, axis=1)


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
