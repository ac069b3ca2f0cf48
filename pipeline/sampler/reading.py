"""How a step of decoding gets from a token to logits: from a cache, or from the whole text.

A model that can't go on from a cache reads each row's text again for every token, padded to the
dispatch's window. That runs any model at all, and nothing of it can be stale, but a token costs
as much as a prompt of that length.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..models.attention import Heads, Sight
from ..models.head import logits as head_logits
from ..models.layer import Attend
from ..models.model import Cached, Forward, Model
from ..models.parameters import Params
from .attention_paths import AttentionPath, Layers, Spots
from .cache import Cells, LayerCache
from .rows import Rows
from .state import SamplerState

Seen = Any  # what the steps of a dispatch hand on
Step = tuple[jax.Array, Seen, jax.Array | None]


class Reading(NamedTuple):
    """What a dispatch does with texts.

    Attributes:
      open: from (state, views, tables, which rows' views are stale, bool[S]) to what the first
        step gets.
      next_logits: from (parameters, what the step before handed on, rows, tables) to logits
        f32[S, V], what is handed on, and the experts that the tokens took, i32[S, L, k], or None.
      close: from (state, what the last step handed on, positions i32[S, k] and where these stand
        in the pages) to the caches with the positions in them, and the views.
    """

    open: Callable[[SamplerState, Layers, jax.Array, jax.Array], Seen]
    next_logits: Callable[[Params, Seen, Rows, jax.Array], Step]
    close: Callable[[SamplerState, Seen, jax.Array, Cells], tuple[Layers, Layers]]


def reading_of(model: Model, path: AttentionPath, *, record: bool = False) -> Reading:
    """Choose by whether the model has a cache.

    Args:
      record: whether to tell which experts tokens took.
    """
    if model.cached is None:
        read_again = partial(_read_again, forward=model.forward)
        return Reading(_texts, read_again, _caches_as_they_are)
    return Reading(
        partial(_open, path=path),
        partial(_from_cache, model=model.cached, path=path, record=record),
        partial(_close, path=path),
    )


def _open(
    state: SamplerState,
    views: Layers,
    tables: jax.Array,
    stale: jax.Array,
    *,
    path: AttentionPath,
) -> Seen:
    return path.open(state.caches, views, tables, stale)


def _from_cache(
    params: Params,
    seen: Seen,
    rows: Rows,
    tables: jax.Array,
    *,
    model: Cached,
    path: AttentionPath,
    record: bool,
) -> Step:
    spots = Spots(tables, rows.position, rows.active)

    def attend(cache: LayerCache, heads: Heads, sight: Sight) -> tuple[jax.Array, LayerCache]:
        queries, keys, values = (part[0] for part in heads)
        new = LayerCache(keys.swapaxes(0, 1), values.swapaxes(0, 1))
        cache = path.append(cache, new, spots)
        return path.attend(queries, cache, spots, sight)[None], cache

    run = partial(run_cached, model=model, attend=attend, record=record)
    # All tokens are one row to the model, which tells texts apart by `attend` alone: XLA's CPU
    # code vectorises sums over [D, 1, S], but not over [D, S, 1].
    hidden, seen, experts = run(params, seen, rows.token[None], rows.position[None])
    taken = None if experts is None else experts[0]
    return model.logits(params, hidden[0]), seen, taken


def run_cached(
    params: Params,
    caches: list[LayerCache],
    tokens: jax.Array,
    positions: jax.Array,
    *,
    model: Cached,
    attend: Attend[LayerCache],
    record: bool,
) -> tuple[jax.Array, list[LayerCache], jax.Array | None]:
    """Run the model over new tokens, and record the experts that they take or don't."""
    if record:
        assert model.routed is not None, "the state has no room for what there isn't"
        return model.routed.forward(params, caches, tokens, positions, attend=attend)
    return (*model.forward(params, caches, tokens, positions, attend=attend), None)


def _close(
    state: SamplerState, seen: Seen, positions: jax.Array, where: Cells, *, path: AttentionPath
) -> tuple[Layers, Layers]:
    return path.close(state.caches, seen, positions, where)


def _texts(state: SamplerState, views: Layers, tables: jax.Array, stale: jax.Array) -> jax.Array:
    """The tokens that are in the pages, i32[S, W]."""
    return state.tokens[tables].reshape(tables.shape[0], -1)


def _read_again(
    params: Params, texts: jax.Array, rows: Rows, tables: jax.Array, *, forward: Forward
) -> Step:
    row = jnp.arange(texts.shape[0])
    texts = texts.at[row, rows.position].set(rows.token, mode="drop")
    positions = jnp.broadcast_to(jnp.arange(texts.shape[1], dtype=jnp.int32), texts.shape)
    segment_ids = (positions <= rows.position[:, None]).astype(jnp.int32)
    hidden, head = forward(params, texts, positions, segment_ids)
    last = hidden.at[row, rows.position].get(mode="clip")
    return head_logits(last, head), texts, None


def _caches_as_they_are(
    state: SamplerState, seen: Seen, positions: jax.Array, where: Cells
) -> tuple[Layers, Layers]:
    return state.caches, []
