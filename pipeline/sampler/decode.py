"""Several tokens of every row a dispatch; rows that end inside it stay silent to its end.

Idle rows compute along and are masked: the program's shape is fixed, so a row's bits don't
depend on its neighbours. Rows of another policy version than the dispatch's are idle in it.
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
from .cache import LayerCache, append, read
from .logits import Draw, pick
from .options import OptionSizes, neutral_options
from .rows import Rows, RowUpdate
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


def decode(
    params: Params,
    state: SamplerState,
    update: RowUpdate,
    served: jax.Array,
    *,
    steps: int,
    window: int,
    model: ModelConfig,
) -> tuple[SamplerState, Decoded]:
    """Apply the update, then sample up to `steps` tokens a served row; the state is donated.

    Rows that aren't served keep every bit of their numbers and their cache. It leaves early
    when no served row is active any more.

    Args:
      served: bool[S], the rows that sample with these weights; idle ones may be among them.
      steps: k, static.
      window: positions that are attended over, at least every served active row's position + k.
        Static.
    """
    updated = apply_update(state.rows, update)
    # From here on "active" means "active and served"; the others wake up at the end.
    asleep = updated.active & ~served
    rows = updated._replace(active=updated.active & served)
    count = rows.token.shape[0]
    blank = Decoded(
        tokens=jnp.zeros((steps, count), jnp.int32),
        logprobs=jnp.zeros((steps, count), jnp.float32),
        was_active=jnp.zeros((steps, count), jnp.bool_),
        active=rows.active,
    )

    def goes_on(carry: tuple[jax.Array, SamplerState, Decoded]) -> jax.Array:
        step, state, _ = carry
        any_active: jax.Array = state.rows.active.any()
        return (step < steps) & any_active

    def one_token(
        carry: tuple[jax.Array, SamplerState, Decoded],
    ) -> tuple[jax.Array, SamplerState, Decoded]:
        step, state, out = carry
        logits, caches = _next_logits(params, state, window, model)
        rows = state.rows
        options = neutral_options(count, OptionSizes(logits.shape[1]))
        options = options._replace(temperature=rows.temperature)
        draw = pick(logits, rows.key, rows.position + 1, options, active=rows.active)
        new_rows = advance(rows, draw)
        out = Decoded(
            tokens=out.tokens.at[step].set(draw.token),
            logprobs=out.logprobs.at[step].set(draw.logprob),
            was_active=out.was_active.at[step].set(rows.active),
            active=new_rows.active,
        )
        return step + 1, SamplerState(caches=caches, rows=new_rows), out

    start = (jnp.int32(0), dataclasses.replace(state, rows=rows), blank)
    _, state, decoded = lax.while_loop(goes_on, one_token, start)
    active = decoded.active | asleep
    rows = state.rows._replace(active=active)
    return dataclasses.replace(state, rows=rows), decoded._replace(active=active)


def advance(rows: Rows, draw: Draw) -> Rows:
    """Move the active rows to the drawn token; a row ends at a stop id or at its limit."""
    stopped = (draw.token[:, None] == rows.stop_ids).any(axis=-1)
    full = rows.position + 2 >= rows.limit
    return rows._replace(
        token=jnp.where(rows.active, draw.token, rows.token),
        position=rows.position + rows.active.astype(jnp.int32),
        active=rows.active & ~stopped & ~full,
    )


def _next_logits(
    params: Params, state: SamplerState, window: int, model: ModelConfig
) -> tuple[jax.Array, list[LayerCache]]:
    rows = state.rows
    mask = jnp.arange(window)[None, None, :] <= rows.position[:, None, None]

    def attend(
        cache: LayerCache, queries: jax.Array, keys: jax.Array, values: jax.Array
    ) -> tuple[jax.Array, LayerCache]:
        new = LayerCache(keys[:, 0], values[:, 0])
        cache = append(cache, new, rows.position, rows.active)
        seen = read(cache, window)
        return attention(queries, seen.keys, seen.values, mask), cache

    hidden, caches = forward_cached(
        params,
        state.caches,
        rows.token[:, None],
        rows.position[:, None],
        attend=attend,
        config=model,
    )
    logits = jnp.einsum(
        "sd,vd->sv", hidden[:, 0], output_head(params), preferred_element_type=jnp.float32
    )
    return logits, caches
