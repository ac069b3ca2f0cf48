"""The decoder: one layer function, shared by the learner's packed rows and the sampler's cache.

The two differ in `attend`, which says where keys and values come from, and in the order of
axes; so the logprobs of both agree up to rounding.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from .attention import attention, packed_mask
from .config import ModelConfig
from .parameters import Params
from .quantize import Matrix, look_up, scaled, unscaled
from .rotary import Rotation, rotate, rotation

UNROLLED_LAYERS = 4

Cache = TypeVar("Cache")
# From (cache, queries [R, T, H, h], keys [R, T, K, h], values [R, T, K, h])
# to (mixed values [R, T, H, h], cache).
Attend = Callable[[Cache, jax.Array, jax.Array, jax.Array], tuple[jax.Array, Cache]]


class Form(NamedTuple):
    """An order of axes: of the residual stream, and of the weights that multiply it.

    Attributes:
      axis: the residual stream's axis of features.
      to_heads: the product that gives queries, keys and values.
      from_heads: the product that takes attention's result back.
      ffn: the feed-forward layer's products.
    """

    axis: int
    to_heads: str
    from_heads: str
    ffn: str


# The learner's: the stream [R, T, D], weights [inputs, outputs].
FEATURES_LAST = Form(-1, "rtd,dnh->rtnh", "rtnh,nhd->rtd", "rtd,df->rtf")
# The sampler's: the stream [D, R, T], weights [outputs, inputs]. A decode step has few tokens
# and many weights. XLA's CPU products pack or stride over their right operand, so the weights
# are the left one, read in order: with 32 rows a step took a quarter less time.
FEATURES_FIRST = Form(0, "nhd,drt->nhrt", "dnh,rtnh->drt", "fd,drt->frt")


def forward(
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    segment_ids: jax.Array,
    *,
    config: ModelConfig,
    remat: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Run packed rows through the decoder; differentiable.

    Args:
      params: from `init`: layers stacked.
      tokens: i32[R, T].
      positions: i32[R, T], counted from 0 within each segment.
      segment_ids: i32[R, T]; tokens see earlier ones of their own segment; 0 is padding,
        which nothing else sees and whose outputs are finite.
      remat: recompute each layer in the backward pass, keeping only plain matrix products.

    Returns:
      hidden f32[R, T, D] after the last norm, head f32[V, D]: logits are `hidden @ head.T`.
    """
    angles = rotation(positions, head_width=config.head_width, theta=config.rope_theta)
    mask = packed_mask(segment_ids)

    def attend(
        cache: None, queries: jax.Array, keys: jax.Array, values: jax.Array
    ) -> tuple[jax.Array, None]:
        return attention(queries, head_major(keys), head_major(values), mask), cache

    def one_layer(x: jax.Array, weights: Params) -> tuple[jax.Array, None]:
        return layer(x, weights, None, rotation=angles, attend=attend, config=config)

    if remat:
        keep = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        one_layer = jax.checkpoint(one_layer, policy=keep)
    # A shallow stack compiles and runs faster as straight code; a deep one compiles too long.
    unroll = config.num_layers if config.num_layers <= UNROLLED_LAYERS else 1
    x, _ = lax.scan(one_layer, params["embedding"][tokens], params["layers"], unroll=unroll)
    return _finish(x, params, config), output_head(params)


def forward_cached(
    params: Params,
    caches: list[Cache],
    tokens: jax.Array,
    positions: jax.Array,
    *,
    attend: Attend[Cache],
    config: ModelConfig,
) -> tuple[jax.Array, list[Cache]]:
    """Run new tokens against a cache per layer.

    Args:
      params: from `sampler_params`: a list of layers.
      caches: one for each layer.
      tokens: i32[R, C].
      positions: i32[R, C], absolute.
      attend: adds the new keys and values to a layer's cache and attends over it.

    Returns:
      hidden [R, C, D] after the last norm, and the new caches.
    """
    angles = rotation(positions, head_width=config.head_width, theta=config.rope_theta)
    x = _kept(look_up(params["embedding"], tokens).transpose(2, 0, 1))
    run = partial(layer, rotation=angles, attend=attend, config=config, form=FEATURES_FIRST)
    new_caches = []
    for weights, cache in zip(params["layers"], caches, strict=True):
        x, new_cache = run(x, weights, cache)
        new_caches.append(new_cache)
    x = rms_norm(x, params["final_norm"], config.norm_eps, axis=0)
    return x.transpose(1, 2, 0), new_caches


def logits_of(hidden: jax.Array, head: Matrix) -> jax.Array:
    """Multiply `forward_cached`'s output at some tokens, [R, D], by the head [V, D]: f32[R, V]."""
    return _kept(_multiply("vd,rd->vr", hidden, head, jnp.float32)).T


def layer(
    x: jax.Array,
    weights: Params,
    cache: Cache,
    *,
    rotation: Rotation,
    attend: Attend[Cache],
    config: ModelConfig,
    form: Form = FEATURES_LAST,
) -> tuple[jax.Array, Cache]:
    """Apply one layer to the residual stream: attention, then the gated ffn."""
    normed = rms_norm(x, weights["attention_norm"], config.norm_eps, axis=form.axis)
    queries, keys, values = _project(normed, weights, config, form)
    mixed, cache = attend(cache, rotate(queries, rotation), rotate(keys, rotation), values)
    x = x + _multiply(form.from_heads, mixed, weights["output"])
    normed = rms_norm(x, weights["ffn_norm"], config.norm_eps, axis=form.axis)
    gate, up = (_multiply(form.ffn, normed, weights[name]) for name in ("gate", "up"))
    return x + _multiply(form.ffn, jax.nn.silu(gate) * up, weights["down"]), cache


def rms_norm(x: jax.Array, weight: jax.Array, eps: float, *, axis: int = -1) -> jax.Array:
    """Scale an axis to a root mean square of 1, in f32, then by `weight`."""
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(jnp.square(wide), axis=axis, keepdims=True) + eps)
    others = [other for other in range(x.ndim) if other != axis % x.ndim]
    weight = lax.expand_dims(weight.astype(jnp.float32), others)
    return (wide * scale * weight).astype(x.dtype)


def head_major(heads: jax.Array) -> jax.Array:
    """[R, T, K, h] to [R, K, T, h], the order of the cache."""
    return heads.swapaxes(1, 2)


def output_head(params: Params) -> Any:
    """The output head [V, D], as it is stored: the embedding where they are tied."""
    return params["head"] if "head" in params else params["embedding"]


def _project(
    normed: jax.Array, weights: Params, config: ModelConfig, form: Form
) -> tuple[jax.Array, jax.Array, jax.Array]:
    queries, keys, values = (
        _tokens_first(_multiply(form.to_heads, normed, weights[name]), form)
        for name in ("query", "key", "value")
    )
    if config.qk_norm:
        queries = rms_norm(queries, weights["query_norm"], config.norm_eps)
        keys = rms_norm(keys, weights["key_norm"], config.norm_eps)
    return queries, keys, values


def _tokens_first(heads: jax.Array, form: Form) -> jax.Array:
    """[R, T, heads, h], whatever the form."""
    if form is FEATURES_LAST:
        return heads
    return _kept(heads).transpose(2, 3, 0, 1)


def _multiply(
    product: str, x: jax.Array, weight: Matrix, dtype: DTypeLike | None = None
) -> jax.Array:
    """Multiply; the product's order of operands counts, and those with an `r` are the stream's."""
    first, _ = product.split(",")
    plain = unscaled(weight, x)
    operands = (x, plain) if "r" in first else (plain, x)
    return scaled(jnp.einsum(product, *operands, preferred_element_type=dtype), weight)


def _kept(x: jax.Array) -> jax.Array:
    """The same array; no transposition is moved across it, into a product or out of it."""
    kept: jax.Array = lax.optimization_barrier(x)  # type: ignore[no-untyped-call]
    return kept


def _finish(x: jax.Array, params: Params, config: ModelConfig) -> jax.Array:
    return rms_norm(x, params["final_norm"], config.norm_eps)
