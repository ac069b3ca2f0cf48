"""All programs of the sampler, compiled ahead of time: nothing can compile afterwards.

A compiled program refuses other shapes instead of compiling anew. After this module the
sampler makes no other JAX call than these programs, with NumPy arrays as host arguments.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ...sharding.partition import shard
from ..models.config import StoredWeights
from ..models.model import Model
from ..models.parameters import Params
from ..types import Int32s
from .attention_paths import AttentionPath, choose_path, platform_of
from .check_weights import check_weights
from .config import SamplerConfig
from .decode import decode
from .layout import Layout, leading, make_layout
from .packed import decode_packed, pack_rows, prefill_packed
from .packing import pack
from .prefill import prefill
from .rows import NOBODY, DecodeInput, idle_chunk, idle_decode, no_update
from .state import SamplerState, Views, initial_state
from .transfer import PageData, duplicate, extract, extract_experts, insert, to_devices, to_host

Lowered = dict[str, jax.stages.Lowered]
Decode = Callable[
    [Params, SamplerState, Views, DecodeInput], tuple[SamplerState, Views, jax.Array]
]


@dataclass(frozen=True)
class Programs:
    """The compiled programs; each donates the state that it returns, and the views.

    What is told of rows or lanes is packed into one array each, and so is what they sampled.

    Attributes:
      shards: parts of the state along the data axis of the mesh.
      initial_state: makes a state in which every row is idle.
      no_update: makes an update that changes nothing, to stay where dispatches read it.
      place: puts parameters where the programs want them; refuses others (`check_weights`).
      prefill: by window.
      views: by window, makes views that are nobody's.
      decode: by window.
      duplicate: copies pages to others, as many as there are rows.
      extract: brings the pages of a request, which are in the shard named, to the host; the state
        stays. Of the other shards the pages' numbers are the bin.
      insert: writes what was brought back into pages of the same shard.
      read: waits for what was sampled, and brings it to the host.
      experts: reads which experts the tokens of one request per shard took; None where that
        isn't recorded.
    """

    shards: int
    initial_state: Callable[[], SamplerState]
    no_update: Callable[[], jax.Array]
    place: Callable[[Params], Params]
    prefill: Mapping[int, Callable[[Params, SamplerState, Int32s], SamplerState]]
    views: Mapping[int, Callable[[], Views]]
    decode: Mapping[int, Decode]
    duplicate: Callable[[SamplerState, Int32s, Int32s], SamplerState]
    extract: Callable[[SamplerState, Int32s, int], PageData]
    insert: Callable[[SamplerState, Int32s, PageData], SamplerState]
    read: Callable[[jax.Array], Int32s] = np.asarray  # a fifth of what `jax.device_get` takes
    experts: Callable[[SamplerState, Int32s], jax.Array] | None = None


def compile_programs(
    config: SamplerConfig,
    model: Model,
    *,
    mesh: Mesh | None = None,
    path: AttentionPath | None = None,
    compiler_options: Mapping[str, Any] | None = None,
) -> Programs:
    """Compile everything, in parallel; takes seconds and may run on any thread.

    Args:
      mesh: with axes "fsdp", over which rows and pages are cut, and "tensor", over which kv
        heads are; None for one device.
      path: how decoding reads the cache; None chooses by `config.attention` and the platform.
      compiler_options: XLA's, as `jax.jit` takes them.

    Raises:
      ConfigError: for sizes that the mesh can't cut evenly, or that the attention asked for
        doesn't take.
    """
    platform = platform_of(mesh)
    if path is None:
        path = choose_path(config, model, platform=platform, mesh=mesh)
    sizes = _Sizes(config, model, make_layout(config, model, mesh), path, platform)
    lowered = _lower_moves(sizes)
    for window in config.windows:
        lowered |= _lower_window(sizes, window)
    compile_one = partial(_compile, options=compiler_options)
    with ThreadPoolExecutor(thread_name_prefix="compile") as pool:
        compiled = dict(zip(lowered, pool.map(compile_one, lowered.values()), strict=True))
    params = abstract_params(model, config.weights)
    shardings = weight_places(config, model, mesh)
    return Programs(
        shards=sizes.layout.shards,
        initial_state=compiled["initial_state"],
        no_update=compiled["no_update"],
        place=partial(_place, params, shardings),
        prefill={window: compiled[f"prefill {window}"] for window in config.windows},
        views={window: compiled[f"views {window}"] for window in config.windows},
        decode={window: compiled[f"decode {window}"] for window in config.windows},
        duplicate=compiled["duplicate"],
        extract=partial(_extract, compiled["extract"], shards=sizes.layout.shards),
        insert=partial(_insert, compiled["insert"]),
        experts=compiled.get("experts"),
    )


class _Sizes(NamedTuple):
    config: SamplerConfig
    model: Model
    layout: Layout
    path: AttentionPath
    platform: str


def _lower_moves(sizes: _Sizes) -> Lowered:
    layout, config = sizes.layout, sizes.config
    state, axes = _state(sizes)
    rows = np.zeros(config.rows, np.int32)
    pages = np.zeros(layout.shards * config.pages_per_request, np.int32)
    data = jax.eval_shape(extract, state, pages)
    numbers = ("host_rows",)
    of_tokens = leading((data.tokens, data.experts), "pages")
    contents = PageData(leading(data.caches, "kv_heads", "pages"), *of_tokens)
    put = partial(layout.jit, outputs=axes, donate=(0,))
    read = layout.jit(extract, inputs=(axes, numbers), outputs=contents)
    lowered = {
        "initial_state": jax.jit(_maker(sizes), out_shardings=layout.shardings(axes)).lower(),
        "no_update": _lower_no_update(sizes),
        "duplicate": put(duplicate, inputs=(axes, numbers, numbers)).lower(state, rows, rows),
        "extract": read.lower(state, pages),
        "insert": put(insert, inputs=(axes, numbers, contents)).lower(state, pages, data),
    }
    if data.experts is not None:
        read = layout.jit(
            extract_experts, inputs=(axes, numbers), outputs=leading(data.experts, "host_rows")
        )
        lowered["experts"] = read.lower(state, pages)
    return lowered


def _lower_no_update(sizes: _Sizes) -> jax.stages.Lowered:
    update = pack(no_update(sizes.config, sizes.model.vocab_size))
    make = partial(jnp.asarray, update)
    shardings = sizes.layout.shardings(leading(update, "host_rows"))
    return jax.jit(make, out_shardings=shardings).lower()


def _lower_window(sizes: _Sizes, window: int) -> Lowered:
    config, layout = sizes.config, sizes.layout
    params = abstract_params(sizes.model, config.weights)
    state, axes = _state(sizes)
    chunk = idle_chunk(config, window)
    operands = params, state, pack(chunk)
    inputs = _axes(params, config, sizes.model), axes, leading(operands[-1], "host_rows")
    fill = partial(prefill, model=sizes.model)
    into_cache = partial(prefill_packed, prefill=fill, like=chunk)
    prefills = layout.jit(into_cache, inputs=inputs, outputs=axes, donate=(1,))
    lowered = {f"prefill {window}": prefills.lower(*operands)}
    return lowered | _lower_decode(sizes, window, params)


def _lower_decode(sizes: _Sizes, window: int, params: Any) -> Lowered:
    config, layout = sizes.config, sizes.layout
    state, axes = _state(sizes)
    make_views = partial(_make_views, sizes, state, window)
    views = jax.eval_shape(make_views)
    of_views = Views(leading(views.tenures, "rows"), leading(views.layers, "kv_heads", "rows"))
    like = idle_decode(config, sizes.model.vocab_size, window)
    operands = params, state, views, DecodeInput(*map(pack, like))
    told = leading(operands[-1], "host_rows")
    inputs = _axes(params, config, sizes.model), axes, of_views, told
    steps = partial(
        decode,
        steps=config.decode_tokens,
        top_logprobs=config.draws.max_top_logprobs,
        model=sizes.model,
        path=sizes.path,
    )
    sample = partial(decode_packed, decode=steps, like=like)
    *_, sampled = jax.eval_shape(sample, *operands)
    outputs = axes, of_views, leading(sampled, "host_rows")
    decodes = layout.jit(sample, inputs=inputs, outputs=outputs, donate=(1, 2))
    fresh = jax.jit(make_views, out_shardings=layout.shardings(of_views))
    return {
        f"views {window}": fresh.lower(),
        f"decode {window}": decodes.lower(*operands),
    }


def _maker(sizes: _Sizes) -> Callable[[], SamplerState]:
    make = partial(initial_state, sizes.config, sizes.model, platform=sizes.platform)
    return lambda: pack_rows(make(shards=sizes.layout.shards))


def _make_views(sizes: _Sizes, state: SamplerState, window: int) -> Views:
    """Make views that are nobody's; of the state only shapes are used."""
    rows = sizes.config.rows
    layers = sizes.path.new_views(state.caches, rows, window)
    return Views(jnp.full(rows, NOBODY, jnp.int32), layers)


def _state(sizes: _Sizes) -> tuple[SamplerState, Any]:
    """Shapes and dtypes of the state, and the axes of its arrays."""
    state = jax.eval_shape(_maker(sizes))
    caches = leading(state.caches, "kv_heads", "pages")
    tokens, experts = leading((state.tokens, state.experts), "pages")
    rows = leading(state.rows, "rows")
    return state, SamplerState(caches=caches, tokens=tokens, rows=rows, experts=experts)


def _extract(
    read: Callable[[SamplerState, Int32s], PageData],
    state: SamplerState,
    pages: Int32s,
    shard: int,
    *,
    shards: int,
) -> PageData:
    return to_host(read(state, pages), shard, shards)


def _insert(
    write: Callable[[SamplerState, Int32s, PageData], SamplerState],
    state: SamplerState,
    pages: Int32s,
    data: PageData,
) -> SamplerState:
    return write(state, pages, to_devices(data))


def _place(expected: Any, shardings: Any, params: Params) -> Params:
    check_weights(params, expected)
    return params if shardings is None else shard(params, shardings)


def weight_places(config: SamplerConfig, model: Model, mesh: Mesh | None) -> Any:
    """Say where the sampler's parameters lie on a mesh: a tree of shardings; None without one.

    Raises:
      ConfigError: for sizes that the mesh can't cut evenly.
    """
    axes = _axes(abstract_params(model, config.weights), config, model)
    return make_layout(config, model, mesh).shardings(axes)


def _axes(params: Any, config: SamplerConfig, model: Model) -> Any:
    """The axes of the parameters; without names where the model gives none: whole everywhere."""
    axes = model.sampler_axes
    return leading(params) if axes is None else axes(config.weights)


def abstract_params(model: Model, weights: StoredWeights) -> Any:
    """Shapes and dtypes of the sampler's parameters."""

    def make(key: jax.Array) -> Any:
        return model.sampler_params(model.init(key), weights)

    return jax.eval_shape(make, jax.eval_shape(partial(jax.random.key, 0)))


def _compile(
    lowered: jax.stages.Lowered, *, options: Mapping[str, Any] | None
) -> Callable[..., Any]:
    return lowered.compile(None if options is None else dict(options))
