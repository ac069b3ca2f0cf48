"""Prompts into the cache: R rows of C tokens a dispatch.

Chunks start at multiples of C in every prompt, so how a prompt is cut, and with it every
bit of the cache, doesn't depend on who else is being prefilled. Only tokens before the last
one are prefilled: the last is the first input of `decode`, which draws the first new token.
"""

import dataclasses

import jax
import jax.numpy as jnp

from ..models.attention import attention
from ..models.config import ModelConfig
from ..models.decoder import forward_cached, head_major
from ..models.parameters import Params
from .cache import LayerCache, fill, read
from .rows import PrefillChunk
from .state import SamplerState


def prefill(
    params: Params, state: SamplerState, chunk: PrefillChunk, *, window: int, model: ModelConfig
) -> SamplerState:
    """Write the keys and values of one chunk of each lane's prompt; the state is donated.

    Args:
      window: positions that are attended over, at least every lane's start + C. Static.
    """
    positions = chunk.starts[:, None] + jnp.arange(chunk.tokens.shape[1], dtype=jnp.int32)[None]
    mask = jnp.arange(window)[None, None, :] <= positions[:, :, None]

    def attend(
        cache: LayerCache, queries: jax.Array, keys: jax.Array, values: jax.Array
    ) -> tuple[jax.Array, LayerCache]:
        new = LayerCache(head_major(keys), head_major(values))
        cache = fill(cache, new, chunk.rows, chunk.starts)
        seen = read(cache, window, chunk.rows)
        return attention(queries, seen.keys, seen.values, mask), cache

    _, caches = forward_cached(
        params, state.caches, chunk.tokens, positions, attend=attend, config=model
    )
    return dataclasses.replace(state, caches=caches)
