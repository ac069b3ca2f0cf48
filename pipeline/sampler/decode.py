"""Several tokens of every row a dispatch; rows that end inside it stay silent to its end.

Idle rows compute along and are masked: the program's shape is fixed, so a row's bits don't
depend on its neighbours. Rows of another policy version than the dispatch's are idle in it.

Each row's window is copied out of the pages once, grows in place, and what is new goes back to
the pages at the end; so a step neither gathers nor scatters pages.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..models.attention import attention
from ..models.config import ModelConfig
from ..models.decoder import forward_cached, output_head
from ..models.parameters import Params
from .cache import LayerCache, append, cells, slice_view, view, write
from .logits import Draw, pick
from .prefill import rows_first
from .rows import DecodeInput, Rows
from .state import SamplerState, apply_update


class Decoded(NamedTuple):
    """What one dispatch sampled.

    Attributes:
      tokens: i32[k, S].
      logprobs: f32[k, S].
      was_active: bool[k, S], which of them were sampled; a stop token was.
      active: bool[S], the rows that go on, those that weren't served included.
    """

    tokens: jax.Array
    logprobs: jax.Array
    was_active: jax.Array
    active: jax.Array


class _Carry(NamedTuple):
    """What one step hands to the next. `inputs` are the tokens that were fed, i32[k, S]."""

    step: jax.Array
    rows: Rows
    views: list[LayerCache]
    inputs: jax.Array
    out: Decoded


def decode(
    params: Params, state: SamplerState, inputs: DecodeInput, *, steps: int, model: ModelConfig
) -> tuple[SamplerState, Decoded]:
    """Apply the update, then sample up to `steps` tokens a served row; the state is donated.

    Rows that aren't served keep every bit of their numbers and their cache. It leaves early
    when no served row is active any more.

    Args:
      inputs: its tables hold at least every served active row's position + k positions.
      steps: k, static.
    """
    updated = apply_update(state.rows, inputs.update)
    # From here on "active" means "active and served"; the others wake up at the end.
    asleep = updated.active & ~inputs.served
    rows = updated._replace(active=updated.active & inputs.served)
    count = rows.token.shape[0]
    start = _Carry(
        step=jnp.int32(0),
        rows=rows,
        views=[view(cache, inputs.tables) for cache in state.caches],
        inputs=jnp.zeros((steps, count), jnp.int32),
        out=Decoded(
            tokens=jnp.zeros((steps, count), jnp.int32),
            logprobs=jnp.zeros((steps, count), jnp.float32),
            was_active=jnp.zeros((steps, count), jnp.bool_),
            active=rows.active,
        ),
    )

    def goes_on(carry: _Carry) -> jax.Array:
        any_active: jax.Array = carry.rows.active.any()
        return (carry.step < steps) & any_active

    def one_token(carry: _Carry) -> _Carry:
        return _one_token(params, carry, model)

    end = lax.while_loop(goes_on, one_token, start)
    active = end.rows.active | asleep
    state = _keep(state, end, first=rows.position, tables=inputs.tables)
    state = dataclasses.replace(state, rows=end.rows._replace(active=active))
    return state, end.out._replace(active=active)


def advance(rows: Rows, draw: Draw) -> Rows:
    """Move the active rows to the drawn token; a row ends at a stop id or at its limit."""
    stopped = (draw.token[:, None] == rows.stop_ids).any(axis=-1)
    full = rows.position + 2 >= rows.limit
    return rows._replace(
        token=jnp.where(rows.active, draw.token, rows.token),
        position=rows.position + rows.active.astype(jnp.int32),
        active=rows.active & ~stopped & ~full,
    )


def _one_token(params: Params, carry: _Carry, model: ModelConfig) -> _Carry:
    step, rows, out = carry.step, carry.rows, carry.out
    logits, views = _next_logits(params, carry.views, rows, model)
    draw = pick(logits, rows.key, rows.position + 1, rows.temperature)
    new_rows = advance(rows, draw)
    return _Carry(
        step=step + 1,
        rows=new_rows,
        views=views,
        inputs=carry.inputs.at[step].set(rows.token),
        out=Decoded(
            tokens=out.tokens.at[step].set(draw.token),
            logprobs=out.logprobs.at[step].set(draw.logprob),
            was_active=out.was_active.at[step].set(rows.active),
            active=new_rows.active,
        ),
    )


def _next_logits(
    params: Params, views: list[LayerCache], rows: Rows, model: ModelConfig
) -> tuple[jax.Array, list[LayerCache]]:
    window = views[0].keys.shape[2]
    mask = jnp.arange(window)[None, None, :] <= rows.position[:, None, None]

    def attend(
        seen: LayerCache, queries: jax.Array, keys: jax.Array, values: jax.Array
    ) -> tuple[jax.Array, LayerCache]:
        new = LayerCache(keys[:, 0].swapaxes(0, 1), values[:, 0].swapaxes(0, 1))
        seen = append(seen, new, rows.position)
        return attention(queries, rows_first(seen.keys), rows_first(seen.values), mask), seen

    hidden, views = forward_cached(
        params, views, rows.token[:, None], rows.position[:, None], attend=attend, config=model
    )
    logits = jnp.einsum(
        "sd,vd->sv", hidden[:, 0], output_head(params), preferred_element_type=jnp.float32
    )
    return logits, views


def _keep(
    state: SamplerState, end: _Carry, *, first: jax.Array, tables: jax.Array
) -> SamplerState:
    """Write what the rows fed into the pages: the positions from `first` to their last."""
    steps = end.inputs.shape[0]
    offset = jnp.arange(steps, dtype=jnp.int32)[None]
    positions = first[:, None] + offset
    valid = offset < (end.rows.position - first)[:, None]
    where = cells(tables, positions, valid, state.tokens.shape[1])
    caches = [
        write(cache, slice_view(seen, positions), where)
        for cache, seen in zip(state.caches, end.views, strict=True)
    ]
    tokens = state.tokens.at[where.pages, where.offsets].set(end.inputs.T)
    return dataclasses.replace(state, caches=caches, tokens=tokens)
