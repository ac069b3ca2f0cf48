"""How one token is drawn: with one uniform number a row, which only key and position decide.

What a row draws depends on its own numbers alone. Work that only some rows ask for is done
if one of them does, beside the work that all rows share and never instead of it: so a
neighbour's options don't change a row's bits.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .inverse_cdf import draw_from_mass, most_likely, uniforms
from .options import DrawOptions
from .penalties import adjusted, adjusts
from .truncate import cuts, left


class TopTokens(NamedTuple):
    """The n most likely tokens of each row that asks for some, the most likely first.

    Attributes:
      ids: i32[S, n].
      logprobs: f32[S, n], of the same distribution as `Draw.logprob`.
    """

    ids: jax.Array
    logprobs: jax.Array


class Draw(NamedTuple):
    """One token a row.

    Attributes:
      token: i32[S].
      logprob: f32[S], of the temperature-scaled distribution, before cuts and adjustments; of
        the unscaled one where the temperature is 0.
      log_kept_mass: f32[S]; `logprob - log_kept_mass` is the log probability with which the
        token was drawn, also where logits were adjusted. With temperature 0 the token had
        probability 1, so it is the logprob. 0 where the row is neither.
      top: None unless `pick` was compiled to return some.
    """

    token: jax.Array
    logprob: jax.Array
    log_kept_mass: jax.Array
    top: TopTokens | None


def no_draws(shape: tuple[int, ...], top_logprobs: int = 0) -> Draw:
    """Make room for so many draws: each field has this shape in front."""
    zeros, top = jnp.zeros(shape, jnp.float32), (*shape, top_logprobs)
    tokens = TopTokens(jnp.zeros(top, jnp.int32), jnp.zeros(top, jnp.float32))
    return Draw(jnp.zeros(shape, jnp.int32), zeros, zeros, tokens if top_logprobs else None)


class _Softmax(NamedTuple):
    """The probability of token t is exp(scaled[t] - highest - log_total).

    Attributes:
      scaled: f32[S, V].
      highest: f32[S, 1].
      mass: f32[S, V], exp(scaled - highest), 0 for tokens that can't be drawn.
      log_total: f32[S, 1].
    """

    scaled: jax.Array
    highest: jax.Array
    mass: jax.Array
    log_total: jax.Array


def pick(
    logits: jax.Array,
    keys: jax.Array,
    positions: jax.Array,
    options: DrawOptions,
    *,
    active: jax.Array,
    counts: jax.Array | None = None,
    top_logprobs: int = 0,
) -> Draw:
    """Draw the token at an absolute position of each row.

    An option costs where an active row has a value of it that isn't neutral.

    Args:
      logits: f32[S, V]; -inf excludes a token. At least one allowed token must be finite.
      keys: u32[S, 2], the trajectories' keys.
      positions: i32[S], where the drawn tokens will stand.
      active: bool[S]; of the other rows nothing is promised.
      counts: i32[S, V], of `count_tokens`, for penalties, which are ignored without.
      top_logprobs: how many most likely tokens to return for rows that ask; static.
    """
    greedy = (options.temperature == 0) & active
    plain = _softmax(logits, options.temperature)
    uniform = uniforms(keys, positions)
    token = _draw(plain.mass, uniform, logits, greedy)
    changing = adjusts(options) & active
    cutting = cuts(options, logits.shape[1]) & active
    special = changing | cutting

    def draw_specially() -> tuple[jax.Array, jax.Array]:
        changed = lax.cond(changing.any(), adjusted, _as_they_are, logits, options, counts)
        return _draw_left(changed, uniform, options, cutting)

    def draw_nothing() -> tuple[jax.Array, jax.Array]:
        return jnp.zeros_like(token), jnp.zeros_like(uniform)

    special_token, behaviour = lax.cond(special.any(), draw_specially, draw_nothing)
    token = jnp.where(special, special_token, token)
    logprob = _logprob(plain, token)
    kept = jnp.where(special, logprob - behaviour, 0)
    wanting = (options.top_logprobs > 0) & active
    return Draw(
        token=token,
        logprob=logprob,
        log_kept_mass=jnp.where(greedy, logprob, kept),
        top=_top_tokens(plain, top_logprobs, wanting) if top_logprobs else None,
    )


def _draw_left(
    logits: jax.Array, uniform: jax.Array, options: DrawOptions, cutting: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Draw of what is left of adjusted logits; also its log probability."""
    softmax = _softmax(logits, options.temperature)
    scaled = jnp.where(softmax.scaled == 0, 0, softmax.scaled)  # -0, which has an order of its own
    keep = left(scaled, softmax.mass, options, cutting)
    mass = jnp.where(keep, softmax.mass, 0)
    token = _draw(mass, uniform, logits, options.temperature == 0)
    log_total = jnp.log(mass.sum(axis=-1, keepdims=True))
    return token, _logprob(softmax._replace(log_total=log_total), token)


def _softmax(logits: jax.Array, temperature: jax.Array) -> _Softmax:
    scaled = logits / jnp.where(temperature == 0, 1.0, temperature)[:, None]
    highest = scaled.max(axis=-1, keepdims=True)
    mass = jnp.exp(scaled - highest)
    return _Softmax(scaled, highest, mass, jnp.log(mass.sum(axis=-1, keepdims=True)))


def _draw(mass: jax.Array, uniform: jax.Array, logits: jax.Array, greedy: jax.Array) -> jax.Array:
    drawn = draw_from_mass(mass, uniform)

    def with_greedy() -> jax.Array:
        return jnp.where(greedy, most_likely(logits), drawn)

    def without() -> jax.Array:
        return drawn

    token: jax.Array = lax.cond(greedy.any(), with_greedy, without)
    return token


def _logprob(softmax: _Softmax, token: jax.Array) -> jax.Array:
    chosen = jnp.take_along_axis(softmax.scaled, token[:, None], axis=1)
    return (chosen - softmax.highest - softmax.log_total)[:, 0]


def _as_they_are(logits: jax.Array, options: DrawOptions, counts: jax.Array | None) -> jax.Array:
    return logits


def _top_tokens(softmax: _Softmax, count: int, wanting: jax.Array) -> TopTokens:
    rows, vocab_size = softmax.scaled.shape
    count = min(count, vocab_size)

    def find() -> TopTokens:
        scaled, ids = lax.top_k(softmax.scaled, count)
        logprobs = scaled - softmax.highest - softmax.log_total
        return TopTokens(ids, logprobs)

    def nothing() -> TopTokens:
        shape = (rows, count)
        return TopTokens(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32))

    found: TopTokens = lax.cond(wanting.any(), find, nothing)
    return found
