"""One layer of the decoder, for the learner's packed rows and the sampler's cache alike.

The two differ in `attend`, which says where keys and values come from, and in the order of
axes; so the logprobs of both agree up to rounding.
"""

from collections.abc import Callable
from typing import TypeVar

import jax

from .attention import Heads, Sight
from .config import ModelConfig
from .gated import gated
from .matrices import multiply
from .moe import mixture
from .norms import model_norm
from .parameters import Params
from .places import Place
from .products import FEATURES_LAST, Form, along, tokens_first
from .rotary import rotate

Cache = TypeVar("Cache")
# From (cache, heads, how the layer looks) to (mixed values [R, T, H, h], cache).
Attend = Callable[[Cache, Heads, Sight], tuple[jax.Array, Cache]]


def layer(
    x: jax.Array,
    weights: Params,
    cache: Cache,
    *,
    place: Place,
    attend: Attend[Cache],
    config: ModelConfig,
    form: Form = FEATURES_LAST,
    experts: jax.Array | None = None,
) -> tuple[jax.Array, Cache, jax.Array | None]:
    """Apply one layer to the residual stream: attention, then the gated ffn.

    Args:
      experts: i32[R, T, k], which experts each token is sent to; see `moe.mixture`.

    Returns:
      The stream, the cache, and the experts that were taken; None without a mixture.
    """
    normed = model_norm(x, weights["attention_norm"], config, axis=form.axis)
    queries, keys, values = _project(normed, weights, config, form)
    heads = Heads(rotate(queries, place.rotation), rotate(keys, place.rotation), values)
    mixed, cache = attend(cache, heads, place.sight)
    added = _biased(multiply(form.from_heads, mixed, weights["output"]), weights, "output", form)
    x = x + _post_norm(added, weights, "attention", config=config, form=form)
    normed = model_norm(x, weights["ffn_norm"], config, axis=form.axis)
    added, taken = _feed_forward(normed, weights, config, form=form, experts=experts)
    return x + _post_norm(added, weights, "ffn", config=config, form=form), cache, taken


def _project(
    normed: jax.Array, weights: Params, config: ModelConfig, form: Form
) -> tuple[jax.Array, jax.Array, jax.Array]:
    queries, keys, values = (
        tokens_first(multiply(form.to_heads, normed, weights[name]), form)
        for name in ("query", "key", "value")
    )
    if config.traits.attention.qkv_bias:
        queries, keys, values = (
            heads + weights[f"{name}_bias"].astype(heads.dtype)[None, None]
            for name, heads in (("query", queries), ("key", keys), ("value", values))
        )
    if config.qk_norm:
        queries = model_norm(queries, weights["query_norm"], config, axis=-1)
        keys = model_norm(keys, weights["key_norm"], config, axis=-1)
    return queries, keys, values


def _feed_forward(
    normed: jax.Array,
    weights: Params,
    config: ModelConfig,
    *,
    form: Form,
    experts: jax.Array | None,
) -> tuple[jax.Array, jax.Array | None]:
    traits, activation = config.traits.experts, config.traits.activation
    if traits.count:
        return mixture(normed, weights, traits, activation=activation, form=form, recorded=experts)
    gate, up = (
        _biased(multiply(form.ffn, normed, weights[name]), weights, name, form)
        for name in ("gate", "up")
    )
    down = multiply(form.ffn, gated(activation, gate, up), weights["down"])
    return _biased(down, weights, "down", form), None


def _biased(x: jax.Array, weights: Params, name: str, form: Form) -> jax.Array:
    """Add the bias of a matrix, if it has one."""
    if f"{name}_bias" not in weights:
        return x
    return x + along(weights[f"{name}_bias"].astype(x.dtype), x, form.axis)


def _post_norm(
    added: jax.Array, weights: Params, name: str, *, config: ModelConfig, form: Form
) -> jax.Array:
    if not config.traits.post_norms:
        return added
    return model_norm(added, weights[f"{name}_post_norm"], config, axis=form.axis)
