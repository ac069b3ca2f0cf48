"""Sums over a vocabulary of any size, in tiles of tokens and entries, forward and backward.

Invariant: logits exist for one tile at a time, forward and backward, so the memory beside the
head and its gradient does not grow with the vocabulary. What is summed runs on from tile to
tile; a `Folding` says what that is.

On a mesh the vocabulary may lie in parts on several devices (`OutputHead.parts`). A tile has as
many entries of each part, and all sums are kept by part until the last tile: so no entry is sent
from device to device, and none waits for another one inside of the loop over tiles.

Reference: Wijmans et al. 2024, "Cut your losses in large-vocabulary language models".
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from ..models.head import Head, OutputHead, as_output_head
from ..models.head import logits as head_logits

LOWEST = -1e30  # below every logit, and finite: a product with 0 stays 0


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


class Tile(NamedTuple):
    """Entries of the vocabulary that are looked at together, v of each of G parts.

    The last tile begins early enough to be a whole one; what was seen before is not new.

    Attributes:
      start: i32[], the first entry in each part.
      seen: i32[], how many of each part aren't new.
      entries: i32[G, 1, v].
      new: bool[1, 1, v].
    """

    start: jax.Array
    seen: jax.Array
    entries: jax.Array
    new: jax.Array

    @property
    def size(self) -> int:
        """How many they are in each part: v."""
        return self.entries.shape[-1]

    def places_of(self, ids: jax.Array) -> jax.Array:
        """Tell where new entries i32[m, k] stand: i32[G, m, k], v for what isn't there."""
        places = ids[None] - self.entries[:, :, :1]
        there = (places >= self.seen) & (places < self.size)
        return jnp.where(there, places, self.size)


class Given(NamedTuple):
    """What the gradient of a tile's logits is made of; index m is about a token.

    Attributes:
      operands: as `Tokens` has them.
      found: what it gave.
      gradients: of that.
    """

    operands: Any
    found: Any
    gradients: Any


class Tokens(NamedTuple):
    """What goes through the head.

    Attributes:
      hidden: f[R, N, D].
      operands: pytree of arrays [R, N, ...].
      chunks: i32[], how many of the rows' chunks are gone through; None for all. See `chunks_of`.
    """

    hidden: jax.Array
    operands: Any
    chunks: jax.Array | None = None


class Folding(Protocol):
    """What is made of the logits of each token."""

    def start(self, parts: int, tokens: int) -> Any:
        """Give the sums over no entry: arrays [G, m, ...]."""
        ...

    def add(self, sums: Any, logits: jax.Array, tile: Tile, operands: Any) -> Any:
        """Add a tile's logits, f32[G, m, v], of which only the new ones count."""
        ...

    def finish(self, sums: Any) -> Any:
        """Put the parts together: arrays [m, ...]."""
        ...


class Differentiable(Folding, Protocol):
    """The same, with a backward pass."""

    def of_logits(self, logits: jax.Array, tile: Tile, given: Given) -> jax.Array:
        """Give the gradient of a tile's logits, f32[G, m, v]; 0 for those that aren't new."""
        ...


F = TypeVar("F", bound=Folding)
F_co = TypeVar("F_co", bound=Folding, covariant=True)


@dataclass(frozen=True)
class Rule(Generic[F_co]):
    """What is made of the logits, and how they are made, tile by tile.

    Attributes:
      folding: what is made of them.
      temperature: they are divided by it.
      entries: of a tile, all parts together.
      tokens: of a tile and of each row.
    """

    folding: F_co
    temperature: float
    entries: int
    tokens: int


def rule_of(
    folding: F, hidden: jax.Array, head: Head, *, temperature: float, tile: TileSize
) -> Rule[F]:
    """Choose the tiles for hidden states [R, N, D]."""
    rows, length, _ = hidden.shape
    tokens = tile.logits // (min(tile.entries, _entries(head)) * max(1, rows))
    return Rule(folding, temperature, tile.entries, min(max(1, tokens), max(1, length)))


def chunks_of(counts: jax.Array, rule: Rule[Folding]) -> jax.Array:
    """Count the chunks in which every row's first `counts`, i32[R], tokens stand: i32[]."""
    chunks: jax.Array = -(-jnp.max(counts) // rule.tokens)
    return chunks


def fold(tokens: Tokens, head: Head, rule: Rule[Folding]) -> Any:
    """Go through all logits of the tokens; not to be differentiated.

    Args:
      head: f[V, D], or an `OutputHead`.

    Returns:
      What `rule.folding.finish` gives, as arrays [R, N, ...]; 0 in the other chunks.
    """
    hidden, operands, chunks = tokens
    rows, length, _ = hidden.shape

    def chunk(_: None, part: tuple[jax.Array, Any]) -> tuple[None, Any]:
        hidden, operands = part
        states, of_tokens = _for_parts(hidden, head), _flat(operands)

        def add(index: jax.Array, sums: Any) -> Any:
            tile = _tile(index, head, rule)
            logits = _logits(states, _cut(head, tile), rule)
            return rule.folding.add(sums, logits, tile, of_tokens)

        start = rule.folding.start(*states.shape[:2])
        found = rule.folding.finish(lax.fori_loop(0, _num_tiles(head, rule), add, start))
        return None, jax.tree.map(lambda array: array.reshape(rows, -1, *array.shape[1:]), found)

    _, found = _scan(chunk, None, _split((hidden, operands), rule), chunks)
    return _join(found, length)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def fold_differentiably(tokens: Tokens, head: Head, rule: Rule[Differentiable]) -> Any:
    """Do what `fold` does; gradients of hidden states and head are summed in float32."""
    return fold(tokens, head, rule)


def _fold_forward(tokens: Any, head: Any, rule: Rule[Differentiable]) -> tuple[Any, Any]:
    learns = any(leaf.perturbed for leaf in jax.tree.leaves(head, is_leaf=_is_primal))
    tokens, head = jax.tree.map(lambda leaf: leaf.value, (tokens, head), is_leaf=_is_primal)
    found = fold(tokens, head, rule)
    # None stands for a frozen head, whose gradient is never made: it is as large as the head.
    return found, (tokens, head, found, () if learns else None)


def _is_primal(leaf: Any) -> bool:
    return isinstance(leaf, jax.custom_derivatives.CustomVJPPrimal)


def _fold_backward(
    rule: Rule[Differentiable], kept: Any, gradients: Any
) -> tuple[Tokens, Head | None]:
    (hidden, operands, chunks), head, found, learns = kept
    given = Given(operands, found, jax.tree.map(_whole, gradients, is_leaf=_is_zero))
    start = None if learns is None else jnp.zeros(_by_part(head).shape, jnp.float32)

    def chunk(of_head: Any, part: tuple[jax.Array, Given]) -> tuple[Any, jax.Array]:
        hidden, given = part
        states, of_tokens = _for_parts(hidden, head), _flat(given)

        def add(index: jax.Array, totals: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            of_hidden, of_head = totals
            tile = _tile(index, head, rule)
            logits, pull_back = jax.vjp(partial(_logits, rule=rule), states, _cut(head, tile))
            more_hidden, more_head = pull_back(rule.folding.of_logits(logits, tile, of_tokens))
            if of_head is not None:
                of_head = _add_rows(of_head, more_head.matrix, tile)
            return of_hidden + more_hidden.astype(jnp.float32), of_head

        none_yet = jnp.zeros(states.shape, jnp.float32)
        of_hidden, of_head = lax.fori_loop(0, _num_tiles(head, rule), add, (none_yet, of_head))
        of_rows = jnp.sum(of_hidden, axis=0).reshape(hidden.shape)
        return of_head, of_rows.astype(hidden.dtype)

    total, of_hidden = _scan(chunk, start, _split((hidden, given), rule), chunks)
    of_tokens = Tokens(_join(of_hidden, hidden.shape[1]), None)
    return of_tokens, _like_head(total, head)


fold_differentiably.defvjp(_fold_forward, _fold_backward, symbolic_zeros=True)


def _scan(chunk: Any, start: Any, parts: Any, chunks: jax.Array | None) -> tuple[Any, Any]:
    """Do what `lax.scan` does over the first few chunks; of others it stacks zeros."""

    def part(index: Any) -> Any:
        return jax.tree.map(lambda array: array[index], parts)

    def step(index: jax.Array, both: tuple[Any, Any]) -> tuple[Any, Any]:
        total, stacked = both
        total, one = chunk(total, part(index))
        return total, jax.tree.map(lambda array, found: array.at[index].set(found), stacked, one)

    count = len(jax.tree.leaves(parts)[0])
    _, one = jax.eval_shape(chunk, start, part(0))
    nothing = jax.tree.map(lambda of: jnp.zeros((count, *of.shape), of.dtype), one)
    both: tuple[Any, Any] = lax.fori_loop(
        0, count if chunks is None else chunks, step, (start, nothing)
    )
    return both


def _is_zero(gradient: Any) -> bool:
    return isinstance(gradient, jax.custom_derivatives.SymbolicZero)


def _whole(gradient: Any) -> jax.Array:
    return jnp.zeros(gradient.shape, jnp.float32) if _is_zero(gradient) else gradient


def _logits(states: jax.Array, head: OutputHead, rule: Rule[Folding]) -> jax.Array:
    """Multiply states [G, m, D] by the entries [G, v, D] of their part: f32[G, m, v]."""
    return jax.vmap(head_logits)(states, head) / rule.temperature


def _tile(index: jax.Array, head: Head, rule: Rule[Folding]) -> Tile:
    parts, length, _ = _by_part(head).shape
    size = _tile_size(head, rule)
    wanted = index * size
    start = jnp.minimum(wanted, length - size)
    within = jnp.arange(size, dtype=jnp.int32)
    first = length * jnp.arange(parts, dtype=jnp.int32)
    entries = first[:, None, None] + (start + within)[None, None]
    seen = wanted - start
    return Tile(start, seen, entries, (within >= seen)[None, None])


def _num_tiles(head: Head, rule: Rule[Folding]) -> int:
    return -(-(_entries(head) // _parts(head)) // _tile_size(head, rule))


def _tile_size(head: Head, rule: Rule[Folding]) -> int:
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
    flat = _flat(hidden)
    return jnp.broadcast_to(flat, (_parts(head), *flat.shape))


def _flat(of_tokens: Any) -> Any:
    """Set the tokens of all rows in one line: [R, n, ...] becomes [m, ...]."""
    return jax.tree.map(lambda array: array.reshape(-1, *array.shape[2:]), of_tokens)


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


def _cut(head: Head, tile: Tile) -> OutputHead:
    """Cut a tile's entries [G, v, D] out of the head."""
    rows = lax.dynamic_slice_in_dim(_by_part(head), tile.start, tile.size, axis=1)
    return replace(as_output_head(head), matrix=rows)


def _add_rows(total: jax.Array, more: jax.Array, tile: Tile) -> jax.Array:
    before = lax.dynamic_slice_in_dim(total, tile.start, tile.size, axis=1)
    summed = before + more.astype(jnp.float32)
    return lax.dynamic_update_slice_in_dim(total, summed, tile.start, axis=1)


def _split(arrays: Any, rule: Rule[Folding]) -> Any:
    """Cut [R, N, …] into [chunks, R, n, …], the last chunk padded with zeros."""

    def split(array: jax.Array) -> jax.Array:
        rows, length, *rest = array.shape
        missing = -length % rule.tokens
        widths = [(0, 0), (0, missing)] + [(0, 0)] * len(rest)
        padded = jnp.pad(array, widths).reshape(rows, -1, rule.tokens, *rest)
        return jnp.moveaxis(padded, 1, 0)

    return jax.tree.map(split, arrays)


def _join(chunks: Any, length: int) -> Any:
    """Undo `_split`."""

    def join(array: jax.Array) -> jax.Array:
        _, rows, _, *rest = array.shape
        return jnp.moveaxis(array, 0, 1).reshape(rows, -1, *rest)[:, :length]

    return jax.tree.map(join, chunks)
