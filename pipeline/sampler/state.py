"""What lives on the device between two dispatches; donated to each and returned by it."""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp

from ..errors import check
from ..models.model import Model
from ..types import NOT_RECORDED
from .cache import Cells, LayerCache, allocate, cache_dtype
from .config import SamplerConfig
from .rows import Rows, RowUpdate, idle_rows


@flax.struct.dataclass
class SamplerState:
    """The cache, a list over layers; the ids of the cached positions; the per-row numbers.

    Attributes:
      caches: empty for a model without a cache.
      tokens: i32[P, page].
      rows: packed into one array (`packing`) between two dispatches.
      experts: i16[P, page, L, k], which experts a token took; None where that isn't recorded.
    """

    caches: list[LayerCache]
    tokens: jax.Array
    rows: Rows
    experts: jax.Array | None = None


@flax.struct.dataclass
class Views:
    """Copies of the rows' windows, all of one length; what is true is in the pages.

    Attributes:
      tenures: i32[S], who had the row when its window was copied. As long as he has it, the copy
        holds all positions before his own: it gets what the pages get.
      layers: one `LayerCache` a layer; none where decoding reads the pages, or has no cache.
    """

    tenures: jax.Array
    layers: list[LayerCache]


def initial_state(
    config: SamplerConfig, model: Model, *, platform: str, shards: int = 1
) -> SamplerState:
    """Make a state of all shards in which every row is idle.

    Args:
      platform: of the devices that it will be on, see `cache_dtype`.

    Raises:
      ConfigError: where experts shall be recorded of a model that has none.
    """
    rows = jax.tree.map(jnp.asarray, idle_rows(config, model.vocab_size))
    pages, size = shards * config.num_pages(shards), config.page_tokens
    dtype = cache_dtype(config.weights, platform)
    caches = []
    if model.cached is not None:
        caches = allocate(model.cached.shape, pages=pages, page_tokens=size, dtype=dtype)
    tokens = jnp.zeros((pages, size), jnp.int32)
    experts = _no_experts(tokens.shape, model) if config.draws.record_experts else None
    return SamplerState(caches=caches, tokens=tokens, rows=rows, experts=experts)


def _no_experts(pages: tuple[int, ...], model: Model) -> jax.Array:
    routed = None if model.cached is None else model.cached.routed
    why = "false for a model without a mixture of experts"
    check(routed is not None, "sampler.draws.record_experts", True, why)
    assert routed is not None
    return jnp.full((*pages, routed.num_layers, routed.per_token), NOT_RECORDED, jnp.int16)


def keep_experts(state: SamplerState, experts: jax.Array, where: Cells) -> SamplerState:
    """Write the experts that tokens took, int[S, C, L, k], where the tokens stand: [S, C]."""
    assert state.experts is not None, "there is room for them"
    pages = state.experts.at[where.pages, where.offsets].set(experts.astype(jnp.int16))
    return dataclasses.replace(state, experts=pages)


def apply_update(rows: Rows, update: RowUpdate) -> Rows:
    """Replace the numbers of the changed rows."""

    def choose(new: jax.Array, old: jax.Array) -> jax.Array:
        changed = jnp.expand_dims(update.changed, tuple(range(1, old.ndim)))
        return jnp.where(changed, new, old)

    updated: Rows = jax.tree.map(choose, update.rows, rows)
    return updated
