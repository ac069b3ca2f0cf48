"""Prompts into the cache: R lanes of C positions a dispatch.

Lanes start at multiples of C in every text, so neither how a text is cut nor who else is being
prefilled changes a bit of the cache. All lanes write before any of them reads, so the lanes of
a dispatch may follow each other in one text. Only tokens before the last one are prefilled: the
last is the first input of `decode`, which draws the first new token.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from ..models.attention import Heads, Sight, attention, within
from ..models.model import Model
from ..models.parameters import Params
from .cache import LayerCache, cells, gather, write
from .reading import run_cached
from .rows import PrefillChunk
from .state import SamplerState, keep_experts


def prefill(
    params: Params, state: SamplerState, chunk: PrefillChunk, *, model: Model
) -> SamplerState:
    """Write the keys and values of one chunk of each lane's text; the state is donated."""
    size = chunk.tokens.shape[1]
    positions = chunk.starts[:, None] + jnp.arange(size, dtype=jnp.int32)[None]
    valid = (positions >= chunk.first[:, None]) & (positions < chunk.end[:, None])
    page_tokens = state.tokens.shape[1]
    where = cells(chunk.tables, positions, valid, page_tokens)
    window = chunk.tables.shape[1] * page_tokens
    keys_at, queries_at = jnp.arange(window)[None, None, :], positions[:, :, None]
    mask = keys_at <= queries_at

    def attend(cache: LayerCache, heads: Heads, sight: Sight) -> tuple[jax.Array, LayerCache]:
        new = LayerCache(heads_first(heads.keys), heads_first(heads.values))
        cache = write(cache, new, where)
        seen = gather(cache, chunk.tables)
        keys, values = rows_first(seen.keys), rows_first(seen.values)
        allowed = within(mask, keys_at, queries_at, sight)
        return attention(heads.queries, keys, values, allowed, sight=sight), cache

    caches, experts = state.caches, None
    if model.cached is not None:
        record = state.experts is not None
        run = partial(run_cached, model=model.cached, attend=attend, record=record)
        _, caches, experts = run(params, caches, chunk.tokens, positions)
    tokens = state.tokens.at[where.pages, where.offsets].set(chunk.tokens)
    state = dataclasses.replace(state, caches=caches, tokens=tokens)
    return state if experts is None else keep_experts(state, experts, where)


def heads_first(heads: jax.Array) -> jax.Array:
    """[R, T, K, h] to [K, R, T, h], the order of the cache."""
    return jnp.moveaxis(heads, 2, 0)


def rows_first(heads: jax.Array) -> jax.Array:
    """[K, R, T, h] to [R, K, T, h]."""
    return heads.swapaxes(0, 1)
