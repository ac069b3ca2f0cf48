"""Several tokens of every row a dispatch; rows that end inside it stay silent to its end.

Idle rows compute along and are masked: the program's shape is fixed, so a row's bits don't
depend on its neighbours. Rows of another policy version than the dispatch's are idle in it.

Where keys and values are meanwhile, an attention path decides; at the end they are in the pages.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..models.model import Model
from ..models.parameters import Params
from .attention_paths import AttentionPath, Layers
from .cache import cells
from .logits import Draw, no_draws, pick
from .penalties import add_token, count_tokens, penalises
from .reading import Reading, Seen, Step, reading_of
from .rows import DecodeInput, Rows
from .state import SamplerState, Views, apply_update, keep_experts
from .turns import SampledBlock

NextLogits = Callable[[Seen, Rows], Step]


class _Carry(NamedTuple):
    """What one step hands to the next.

    Attributes:
      rested: bool[S], rows that go on, but not in this dispatch.
      counts: i32[S, V], what penalties need of the tokens so far.
      fed: i32[k, S], the tokens that went in.
      experts: i16[k, S, L, k'], which experts these took; None where that isn't recorded.
      draws: [k, S, ...].
    """

    step: jax.Array
    rows: Rows
    rested: jax.Array
    seen: Seen
    counts: jax.Array
    fed: jax.Array
    experts: jax.Array | None
    draws: Draw


def decode(
    params: Params,
    state: SamplerState,
    views: Views,
    inputs: DecodeInput,
    *,
    steps: int,
    top_logprobs: int,
    model: Model,
    path: AttentionPath,
) -> tuple[SamplerState, Views, SampledBlock]:
    """Apply the update, then sample up to `steps` tokens a served row.

    State and views are donated. What a served row's view lacks is copied out of the pages first.

    Rows that aren't served keep every bit of their numbers and their cache. It leaves early
    when no served row is active any more.

    Args:
      inputs: its tables hold at least every served active row's position + k positions.
      steps: k, static.
      top_logprobs: most likely tokens returned per sampled one, static.
      path: how the cache is read and written, static.
    """
    update, (served, tenures, tables) = inputs
    updated = apply_update(state.rows, update)
    # From here on "active" means "active and served"; the others wake up at the end.
    asleep = updated.active & ~served
    rows = updated._replace(active=updated.active & served)
    reading = reading_of(model, path, record=state.experts is not None)

    def next_logits(seen: Seen, rows: Rows) -> Step:
        return reading.next_logits(params, seen, rows, tables)

    one_token = partial(_one_token, next_logits, top_logprobs=top_logprobs)
    stale = served & (tenures != views.tenures)
    seen = reading.open(state, views.layers, tables, stale)
    counts = _counts(state.tokens, rows, tables, model.vocab_size)
    start = _start(rows, seen, counts, steps=steps, top_logprobs=top_logprobs)
    if state.experts is not None:
        room = jnp.zeros((*start.fed.shape, *state.experts.shape[2:]), state.experts.dtype)
        start = start._replace(experts=room)

    def goes_on(carry: _Carry) -> jax.Array:
        any_active: jax.Array = carry.rows.active.any()
        return (carry.step < steps) & any_active

    end = lax.while_loop(goes_on, one_token, start)
    active = end.rows.active | end.rested | asleep
    state, layers = _keep(state, end, first=rows.position, tables=tables, reading=reading)
    state = dataclasses.replace(state, rows=end.rows._replace(active=active))
    views = Views(jnp.where(stale, tenures, views.tenures), layers)
    draws = jax.tree.map(partial(jnp.swapaxes, axis1=0, axis2=1), end.draws)
    return state, views, SampledBlock(draws, end.rows.position - rows.position, active)


def _start(rows: Rows, seen: Seen, counts: jax.Array, *, steps: int, top_logprobs: int) -> _Carry:
    count, vocab_size = counts.shape
    shape = (steps, count)
    return _Carry(
        step=jnp.int32(0),
        rows=rows,
        rested=jnp.zeros(count, jnp.bool_),
        seen=seen,
        counts=counts,
        fed=jnp.zeros(shape, jnp.int32),
        experts=None,
        draws=no_draws(shape, min(top_logprobs, vocab_size)),
    )


def _counts(tokens: jax.Array, rows: Rows, tables: jax.Array, vocab_size: int) -> jax.Array:
    """Count the tokens that are in the cache and the last one, if a row has penalties."""

    def count() -> jax.Array:
        seen = tokens[tables].reshape(tables.shape[0], -1)
        position = jnp.arange(seen.shape[1], dtype=jnp.int32)[None]
        seen = jnp.where(position == rows.position[:, None], rows.token[:, None], seen)
        valid = position <= rows.position[:, None]
        return count_tokens(seen, valid, position >= rows.prompt[:, None], vocab_size)

    def nothing() -> jax.Array:
        return jnp.zeros((tables.shape[0], vocab_size), jnp.int32)

    wanted = (penalises(rows.options) & rows.active).any()
    counts: jax.Array = lax.cond(wanted, count, nothing)
    return counts


def advance(rows: Rows, token: jax.Array) -> Rows:
    """Move the active rows to the drawn token; a row ends at a stop id or at its limit."""
    stopped = (token[:, None] == rows.stop_ids).any(axis=-1)
    full = rows.position + 2 >= rows.limit
    return rows._replace(
        token=jnp.where(rows.active, token, rows.token),
        position=rows.position + rows.active.astype(jnp.int32),
        active=rows.active & ~stopped & ~full,
    )


def _one_token(next_logits: NextLogits, carry: _Carry, *, top_logprobs: int) -> _Carry:
    step, rows = carry.step, carry.rows
    logits, seen, experts = next_logits(carry.seen, rows)
    draw = pick(
        logits,
        rows.key,
        rows.position + 1,
        rows.options,
        active=rows.active,
        counts=carry.counts,
        top_logprobs=top_logprobs,
    )

    def put(all_steps: jax.Array, this: jax.Array) -> jax.Array:
        return all_steps.at[step].set(this.astype(all_steps.dtype))

    moved = advance(rows, draw.token)
    return _Carry(
        step=step + 1,
        rows=moved._replace(active=moved.active & ~rows.single),
        rested=carry.rested | (moved.active & rows.single),
        seen=seen,
        counts=add_token(carry.counts, draw.token, rows.active),
        fed=put(carry.fed, rows.token),
        experts=jax.tree.map(put, carry.experts, experts),
        draws=jax.tree.map(put, carry.draws, draw),
    )


def _keep(
    state: SamplerState,
    end: _Carry,
    *,
    first: jax.Array,
    tables: jax.Array,
    reading: Reading,
) -> tuple[SamplerState, Layers]:
    """Write what the rows fed into the pages: the positions from `first` to their last.

    Returns:
      The state, and the layers of the views.
    """
    steps = end.fed.shape[0]
    offset = jnp.arange(steps, dtype=jnp.int32)[None]
    positions = first[:, None] + offset
    valid = offset < (end.rows.position - first)[:, None]
    where = cells(tables, positions, valid, state.tokens.shape[1])
    caches, layers = reading.close(state, end.seen, positions, where)
    tokens = state.tokens.at[where.pages, where.offsets].set(end.fed.T)
    state = dataclasses.replace(state, caches=caches, tokens=tokens)
    if end.experts is not None:
        state = keep_experts(state, end.experts.swapaxes(0, 1), where)
    return state, layers
