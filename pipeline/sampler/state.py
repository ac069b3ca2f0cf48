"""What lives on the device between two dispatches; donated to each and returned by it."""

import flax.struct
import jax
import jax.numpy as jnp

from ..models.config import ModelConfig
from .cache import LayerCache, allocate
from .config import SamplerConfig
from .rows import Rows, RowUpdate, idle_rows


@flax.struct.dataclass
class SamplerState:
    """The cache, a list over layers; the ids of the cached positions; the per-row numbers.

    Attributes:
      tokens: i32[P, page].
    """

    caches: list[LayerCache]
    tokens: jax.Array
    rows: Rows


def initial_state(config: SamplerConfig, model: ModelConfig, vocab_size: int) -> SamplerState:
    """Make a state in which every row is idle."""
    rows = jax.tree.map(jnp.asarray, idle_rows(config, vocab_size))
    tokens = jnp.zeros((config.num_pages, config.page_tokens), jnp.int32)
    return SamplerState(caches=allocate(config, model), tokens=tokens, rows=rows)


def apply_update(rows: Rows, update: RowUpdate) -> Rows:
    """Replace the numbers of the changed rows."""

    def choose(new: jax.Array, old: jax.Array) -> jax.Array:
        changed = jnp.expand_dims(update.changed, tuple(range(1, old.ndim)))
        return jnp.where(changed, new, old)

    updated: Rows = jax.tree.map(choose, update.rows, rows)
    return updated
