"""Which tokens top-k, top-p and min-p leave, exactly, whatever the size of the vocabulary.

What is left of a row is always its first tokens in the order of falling logits, equals by
id. So a `Cut` is the last token left. Mostly it lies within the first `HEAD` tokens, which
`lax.top_k` finds; for rows where it doesn't, it is found by bisection over the bits of the
logit. A row's own numbers decide which of the two counts for it, not its neighbours.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .inverse_cdf import nth_set
from .options import DrawOptions

HEAD = 256  # tokens that are ordered
_SIGN = np.uint32(0x80000000)
_BEFORE_INFINITY = 0x007FFFFE  # one below the order of -inf


class Cut(NamedTuple):
    """The last token left of each row.

    Attributes:
      logit: f32[S], its logit; -inf leaves every token.
      token: i32[S], its id.
    """

    logit: jax.Array
    token: jax.Array


class Asked(NamedTuple):
    """The limits of the rows that are to be cut, neutral for the others; see `DrawOptions`.

    Attributes:
      top_k: f32[S], infinite for no limit.
      top_p: f32[S].
      min_p: f32[S].
      total: f32[S], the mass of the whole row.
    """

    top_k: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    total: jax.Array

    @property
    def limits_rank(self) -> jax.Array:
        """Which rows have a limit other than `min_p`, bool[S]."""
        return jnp.isfinite(self.top_k) | (self.top_p < 1)


def cuts(options: DrawOptions, vocab_size: int) -> jax.Array:
    """Which rows may lose tokens, bool[S]; none with temperature 0, which takes the first."""
    limited: jax.Array = (options.top_k > 0) & (options.top_k < vocab_size)
    limited |= (options.top_p < 1) | (options.min_p > 0)
    limited &= options.temperature != 0
    return limited


def left(scaled: jax.Array, mass: jax.Array, options: DrawOptions, asking: jax.Array) -> jax.Array:
    """Tell which tokens can still be drawn, bool[S, V].

    Args:
      scaled: f32[S, V], logits divided by the temperature, no -0 among them.
      mass: f32[S, V], exp of how far each is below the row's highest.
      asking: bool[S], the rows that are to be cut; the others keep all.
    """
    vocab_size = scaled.shape[1]
    limited = asking & (options.top_k > 0) & (options.top_k < vocab_size)
    asked = Asked(
        top_k=jnp.where(limited, options.top_k.astype(jnp.float32), jnp.inf),
        top_p=jnp.where(asking, options.top_p, 1.0),
        min_p=jnp.where(asking, options.min_p, 0.0),
        total=mass.sum(axis=-1),
    )
    nothing = Cut(
        jnp.full(scaled.shape[:1], -jnp.inf, jnp.float32),
        jnp.full(scaled.shape[:1], vocab_size, jnp.int32),
    )
    cut = lax.cond(asked.limits_rank.any(), _ranked, _unranked, scaled, mass, asked, nothing)
    return _kept(scaled, cut) & (mass >= asked.min_p[:, None])


def _kept(scaled: jax.Array, cut: Cut) -> jax.Array:
    """Which tokens are before the cut or at it, bool[S, V]."""
    ids = jnp.arange(scaled.shape[1], dtype=jnp.int32)[None, :]
    logit, token = cut.logit[:, None], cut.token[:, None]
    return (scaled > logit) | ((scaled == logit) & (ids <= token))


def _unranked(scaled: jax.Array, mass: jax.Array, asked: Asked, nothing: Cut) -> Cut:
    return nothing


def _ranked(scaled: jax.Array, mass: jax.Array, asked: Asked, nothing: Cut) -> Cut:
    found, cut = _in_the_head(scaled, mass, asked)
    missing = asked.limits_rank & ~found

    def searched() -> Cut:
        return _choose(missing, _everywhere(scaled, mass, asked, missing), cut)

    def as_it_is() -> Cut:
        return cut

    return _choose(asked.limits_rank, lax.cond(missing.any(), searched, as_it_is), nothing)


def _in_the_head(scaled: jax.Array, mass: jax.Array, asked: Asked) -> tuple[jax.Array, Cut]:
    """Find the cut among the first tokens of each row; also tells in which rows it is there."""
    vocab_size = scaled.shape[1]
    size = min(HEAD, vocab_size)
    logits, tokens = lax.top_k(scaled, size)
    head = jnp.take_along_axis(mass, tokens, axis=1)
    few = asked.top_k <= size
    within = jnp.arange(size, dtype=jnp.float32)[None, :] < asked.top_k[:, None]
    base = jnp.where(few, jnp.where(within, head, 0).sum(axis=-1), asked.total)
    reached = jnp.cumsum(head, axis=-1) >= (asked.top_p * base)[:, None]
    reached &= (asked.top_p < 1)[:, None]
    by_mass = jnp.where(reached.any(axis=-1), lax.argmax(reached, 1, jnp.int32), size - 1)
    by_count = jnp.minimum(asked.top_k, size).astype(jnp.int32) - 1
    last = jnp.minimum(by_mass, by_count)[:, None]
    cut = Cut(
        jnp.take_along_axis(logits, last, axis=1)[:, 0],
        jnp.take_along_axis(tokens, last, axis=1)[:, 0],
    )
    if size == vocab_size:
        return jnp.ones_like(few), cut
    # Without a limit on the number, the mass of all is known; else that of k <= size tokens is.
    by_top_p = ~jnp.isfinite(asked.top_k) & reached.any(axis=-1)
    # A head that reaches below `min_p` holds all that it leaves, so the rest doesn't matter.
    # With both other limits the share is of k tokens, whose mass isn't known.
    base_known = few | ~jnp.isfinite(asked.top_k) | (asked.top_p >= 1)
    by_min_p = base_known & (head[:, -1] < asked.min_p)
    return few | by_top_p | by_min_p, cut


def _everywhere(scaled: jax.Array, mass: jax.Array, asked: Asked, missing: jax.Array) -> Cut:
    """Find the cut of the missing rows over the whole vocabulary."""
    by_count = _search(scaled, jnp.ones_like(mass), asked.top_k, missing)
    mass = jnp.where(_kept(scaled, by_count), mass, 0)
    by_share = missing & (asked.top_p < 1)
    by_mass = _search(scaled, mass, asked.top_p * mass.sum(axis=-1), by_share)
    return _first(by_count, by_mass)


def _search(scaled: jax.Array, weight: jax.Array, target: jax.Array, asking: jax.Array) -> Cut:
    """The first token up to which each asking row's weights add up to the target.

    Sums that only grow with the threshold are compared, always over all tokens in the same
    order, so rounding can't make the bisection contradict itself. The last token where the
    target isn't reached; every token of rows that don't ask.

    Args:
      target: f32[S], above 0.
    """
    asking &= jnp.isfinite(target)

    def above(logit: jax.Array) -> jax.Array:
        return jnp.where(scaled > logit[:, None], weight, 0).sum(axis=-1)

    def is_open(bounds: tuple[jax.Array, jax.Array]) -> jax.Array:
        return (bounds[1] - bounds[0] > 1).any()

    def halve(bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        too_much = above(_from_order(middle)) >= target
        open_ = high - low > 1
        return jnp.where(open_ & too_much, middle, low), jnp.where(open_ & ~too_much, middle, high)

    low = jnp.full(asking.shape, _BEFORE_INFINITY, jnp.uint32)
    high = jnp.where(asking, _order(scaled.max(axis=-1)), low + 1)
    _, order = lax.while_loop(is_open, halve, (low, high))
    logit = _from_order(order)
    equal = scaled == logit[:, None]
    one = jnp.where(equal, weight, 0).max(axis=-1)
    count = jnp.where(one > 0, jnp.ceil((target - above(logit)) / one), 1)
    token = nth_set(equal, jnp.maximum(count, 1))
    last = scaled.shape[1]
    return Cut(jnp.where(asking, logit, -jnp.inf), jnp.where(asking, token, last))


def _first(one: Cut, other: Cut) -> Cut:
    """Of two cuts the one that leaves fewer tokens."""
    earlier = one.logit > other.logit
    earlier |= (one.logit == other.logit) & (one.token <= other.token)
    return _choose(earlier, one, other)


def _choose(which: jax.Array, one: Cut, other: Cut) -> Cut:
    return Cut(jnp.where(which, one.logit, other.logit), jnp.where(which, one.token, other.token))


def _order(value: jax.Array) -> jax.Array:
    """Map floats to unsigned integers in the same order."""
    bits = lax.bitcast_convert_type(value, jnp.uint32)
    return jnp.where(bits >= _SIGN, ~bits, bits | _SIGN)


def _from_order(order: jax.Array) -> jax.Array:
    bits = jnp.where(order >= _SIGN, order & ~_SIGN, ~order)
    return lax.bitcast_convert_type(bits, jnp.float32)
