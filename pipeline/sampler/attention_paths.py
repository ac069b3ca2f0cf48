"""Where decoding reads keys and values: in copies of each row's window, or in the pages.

*Windows* run anywhere and are the reference: each row's window is copied out of the pages when
the row starts, grows in place, and what is new goes to the pages at the end of a dispatch, too;
so a step neither gathers nor scatters pages. *Pages* need a kernel of the platform: each new
position goes to its page at once, and the kernel finds pages by block table. Both leave the same
positions in the pages; their sums are made in another order, so bits differ between them.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from ...sharding.mesh import TENSOR
from ...sharding.rules import SAMPLER_RULES, partition_spec
from ..errors import check
from ..models.attention import Sight, cached_attention, scaled_queries
from ..models.model import Model
from .attention_kernels import KERNELS, Kernel, requirements
from .cache import (
    Cells,
    LayerCache,
    append,
    cells,
    new_views,
    refresh,
    take_positions,
    write,
)
from .config import SamplerConfig

Layers = list[LayerCache]


class Spots(NamedTuple):
    """Where the rows of one step are.

    Attributes:
      tables: i32[S, n], the pages of each row's window.
      positions: i32[S], of the queries, and of the keys and values that come with them.
      active: bool[S]; what another row sees doesn't matter, but is finite. What it writes is at
        its position, which its own next step writes again before anything looks there.
    """

    tables: jax.Array
    positions: jax.Array
    active: jax.Array


class AttentionPath(NamedTuple):
    """How the layers' caches are read and written in a dispatch; a list has one for each layer.

    Attributes:
      new_views: from the pages, rows and window to the views that dispatches get and return;
        none where the pages are read.
      open: from (pages, views, tables, which rows' views are stale, bool[S]) to what the steps
        hand on.
      append: writes one position of every row into a layer, [K, S, h] each.
      attend: mixes values for one query a row, [S, H, h], as far as the layer looks.
      close: from (pages before the dispatch, what the last step handed on, positions i32[S, k]
        and where these stand in the pages) to the pages with the positions in them, and the views.
    """

    new_views: Callable[[Layers, int, int], Layers]
    open: Callable[[Layers, Layers, jax.Array, jax.Array], Layers]
    append: Callable[[LayerCache, LayerCache, Spots], LayerCache]
    attend: Callable[[jax.Array, LayerCache, Spots, Sight], jax.Array]
    close: Callable[[Layers, Layers, jax.Array, Cells], tuple[Layers, Layers]]


def choose_path(
    config: SamplerConfig, model: Model, *, platform: str, mesh: Mesh | None = None
) -> AttentionPath:
    """Choose by setting and platform.

    "auto" takes the kernel on a TPU if it fits the sizes, and windows elsewhere.

    Args:
      platform: of the devices: "cpu", "gpu", "tpu" or another.
      mesh: as for `compile_programs`.

    Raises:
      ConfigError: where pages are asked for and the platform has no kernel, or one that the
        sizes don't fit.
    """
    if config.attention == "windows" or (config.attention == "auto" and platform != "tpu"):
        return WINDOWS
    if model.cached is None:
        return WINDOWS  # nothing is attended over
    if config.attention == "pages":
        check(
            platform in KERNELS,
            "sampler.attention",
            config.attention,
            f'"auto" or "windows" on {platform!r}, since only {_listed(KERNELS)} have a kernel',
        )
    asked = requirements(platform, model.cached.shape, config.page_tokens)
    if config.attention == "auto" and not all(one.met for one in asked):
        return WINDOWS
    for one in asked:
        hint = 'change it or set --sampler.attention to "windows"'
        check(one.met, one.setting, one.value, one.condition, hint=hint)
    kernel = KERNELS[platform]
    return pages_path(kernel if mesh is None else by_heads(kernel))


def platform_of(mesh: Mesh | None) -> str:
    """Name the platform of a mesh; of this process's default device without one."""
    if mesh is None:
        return jax.default_backend()
    platform: str = mesh.devices.flat[0].platform
    return platform


def pages_path(kernel: Kernel) -> AttentionPath:
    """Read pages by a kernel; what the steps hand on is the pages themselves."""
    return AttentionPath(
        new_views=_no_views,
        open=_pages_themselves,
        append=_append_to_pages,
        attend=partial(_attend_to_pages, kernel=kernel),
        close=_pages_as_they_are,
    )


def by_heads(kernel: Kernel) -> Kernel:
    """Run a kernel once for every part of the kv heads along the mesh's tensor axis.

    The compiler can't cut a kernel. To be called in a program that is mapped over the other axes
    of the mesh; outside of one, where only its shapes are asked for, the kernel is whole.
    """
    of_pages = partition_spec(("kv_heads",), SAMPLER_RULES)
    of_queries = partition_spec((None, "heads"), SAMPLER_RULES)
    whole = partition_spec((), SAMPLER_RULES)

    def parts(
        queries: jax.Array, pages: LayerCache, tables: jax.Array, lengths: jax.Array
    ) -> jax.Array:
        if TENSOR not in jax.sharding.get_abstract_mesh().axis_names:
            return kernel(queries, pages, tables, lengths)
        mapped: Kernel = jax.shard_map(
            kernel,
            in_specs=(of_queries, of_pages, whole, whole),
            out_specs=of_queries,
            axis_names={TENSOR},
            check_vma=False,
        )
        return mapped(queries, pages, tables, lengths)

    return parts


def _append_to_window(seen: LayerCache, new: LayerCache, spots: Spots) -> LayerCache:
    return append(seen, new, spots.positions)


def _attend_to_window(
    queries: jax.Array, seen: LayerCache, spots: Spots, sight: Sight
) -> jax.Array:
    return cached_attention(queries, seen.keys, seen.values, spots.positions, sight=sight)


def _windows_to_pages(
    pages: Layers, seen: Layers, positions: jax.Array, where: Cells
) -> tuple[Layers, Layers]:
    filled = [
        write(of_layer, take_positions(window, positions), where)
        for of_layer, window in zip(pages, seen, strict=True)
    ]
    return filled, seen


WINDOWS = AttentionPath(
    new_views, refresh, _append_to_window, _attend_to_window, _windows_to_pages
)


def _no_views(caches: Layers, rows: int, window: int) -> Layers:
    return []


def _pages_themselves(pages: Layers, views: Layers, tables: jax.Array, stale: jax.Array) -> Layers:
    return pages


def _append_to_pages(pages: LayerCache, new: LayerCache, spots: Spots) -> LayerCache:
    tables, positions, active = spots
    page_tokens = pages.keys.shape[2]
    where = cells(tables, positions[:, None], active[:, None], page_tokens)
    return write(pages, LayerCache(new.keys[:, :, None], new.values[:, :, None]), where)


def _attend_to_pages(
    queries: jax.Array, pages: LayerCache, spots: Spots, sight: Sight, *, kernel: Kernel
) -> jax.Array:
    # A row that isn't active may stand beyond its table, which a kernel must never read.
    lengths = jnp.where(spots.active, spots.positions + 1, 1)
    scaled = scaled_queries(queries, sight)
    mixed = kernel(scaled.astype(pages.keys.dtype), pages, spots.tables, lengths)
    return mixed.astype(queries.dtype)


def _pages_as_they_are(
    pages: Layers, seen: Layers, positions: jax.Array, where: Cells
) -> tuple[Layers, Layers]:
    return seen, []


def _listed(names: dict[str, Kernel]) -> str:
    return " and ".join(repr(name) for name in sorted(names))
