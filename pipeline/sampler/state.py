"""What lives on the device between two dispatches; donated to each and returned by it."""

import flax.struct
import jax
import jax.numpy as jnp

from ..models.model import Model
from ..models.quantize import activations_dtype
from .cache import LayerCache, allocate
from .config import SamplerConfig
from .rows import Rows, RowUpdate, idle_rows


@flax.struct.dataclass
class SamplerState:
    """The cache, a list over layers; the ids of the cached positions; the per-row numbers.

    Attributes:
      caches: empty for a model without a cache.
      tokens: i32[P, page].
    """

    caches: list[LayerCache]
    tokens: jax.Array
    rows: Rows


def initial_state(config: SamplerConfig, model: Model, *, shards: int = 1) -> SamplerState:
    """Make a state of all shards in which every row is idle."""
    rows = jax.tree.map(jnp.asarray, idle_rows(config, model.vocab_size))
    pages, size = shards * config.num_pages(shards), config.page_tokens
    dtype = activations_dtype(config.weights)
    caches = []
    if model.cached is not None:
        caches = allocate(model.cached.shape, pages=pages, page_tokens=size, dtype=dtype)
    return SamplerState(caches=caches, tokens=jnp.zeros((pages, size), jnp.int32), rows=rows)


def apply_update(rows: Rows, update: RowUpdate) -> Rows:
    """Replace the numbers of the changed rows."""

    def choose(new: jax.Array, old: jax.Array) -> jax.Array:
        changed = jnp.expand_dims(update.changed, tuple(range(1, old.ndim)))
        return jnp.where(changed, new, old)

    updated: Rows = jax.tree.map(choose, update.rows, rows)
    return updated
