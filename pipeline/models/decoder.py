"""The decoder: the same layers over the learner's packed rows and over the sampler's cache."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .attention import capped
from .config import ModelConfig
from .head import Head, OutputHead
from .layer import Attend, Cache, layer
from .matrices import Matrix, multiply
from .norms import model_norm
from .packed import attend_packed
from .parameters import Params
from .places import place_of, rotations, windowed_layers
from .products import FEATURES_FIRST, kept
from .quantize import look_up
from .remat import Remat, rematerialised

UNROLLED_LAYERS = 12


def forward(
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    segment_ids: jax.Array,
    *,
    config: ModelConfig,
    remat: Remat = "none",
    experts: jax.Array | None = None,
    vocab_parts: int = 1,
) -> tuple[jax.Array, Head]:
    """Run packed rows through the decoder; differentiable.

    Args:
      params: from `init`: layers stacked.
      tokens: i32[R, T].
      positions: i32[R, T], counted from 0 within each segment.
      segment_ids: i32[R, T]; tokens see earlier ones of their own segment; 0 is padding,
        which nothing else sees and whose outputs are finite, whatever its embedding.
      remat: what the backward pass computes again; see `remat.rematerialised`.
      experts: int[R, T, L, k], for a mixture of experts: which ones the sampler took, and
        `NOT_RECORDED` for a token where the router shall choose; None lets it for all.
      vocab_parts: see `OutputHead.parts`.

    Returns:
      hidden [R, T, D] after the last norm, and the head [V, D], so that logits are
      `hidden @ head.T`; an `OutputHead` where the family caps them, or the vocabulary has parts.
      `head.logits` takes both.
    """
    both = rotations(positions, config)
    attend = attend_packed(segment_ids)
    windowed = windowed_layers(config)
    differ = len(set(windowed)) > 1

    def one_layer(x: jax.Array, of_layer: tuple[Params, Any, Any]) -> tuple[jax.Array, None]:
        weights, has_window, taken = of_layer
        where = place_of(config, both, has_window if differ else windowed[0])
        run = partial(layer, place=where, attend=attend, config=config)
        x, cache, _ = run(x, weights, None, experts=taken)
        return x, cache

    # A shallow stack runs faster as straight code: a loop copies what it keeps of each layer. A
    # deep one compiles too long, and in straight code XLA on CPU keeps what remat would leave out.
    straight = remat == "none" and config.num_layers <= UNROLLED_LAYERS
    unroll = config.num_layers if straight else 1
    # The stream has the type of the norms: frozen embeddings may be narrower.
    embedded = params["embedding"][tokens].astype(params["final_norm"].dtype)
    # Padding is zeros: a NaN in its embedding would reach the sums over keys, as 0 times NaN.
    embedded = jnp.where((segment_ids != 0)[:, :, None], _scaled(embedded, config), 0)
    by_layer = None if experts is None else jnp.moveaxis(experts, 2, 0)
    layers = (params["layers"], jnp.array(windowed) if differ else None, by_layer)
    x, _ = lax.scan(rematerialised(one_layer, remat), embedded, layers, unroll=unroll)
    hidden = model_norm(x, params["final_norm"], config, axis=-1)
    return hidden, _head(params, config, vocab_parts)


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
    hidden, caches, _ = _run_cached(
        params, caches, tokens, positions, attend=attend, config=config
    )
    return hidden, caches


def forward_routed(
    params: Params,
    caches: list[Cache],
    tokens: jax.Array,
    positions: jax.Array,
    *,
    attend: Attend[Cache],
    config: ModelConfig,
) -> tuple[jax.Array, list[Cache], jax.Array]:
    """Do what `forward_cached` does, with a mixture of experts, and tell the choices.

    Returns:
      What `forward_cached` does, and the experts that each token took, i32[R, C, L, k].
    """
    hidden, caches, taken = _run_cached(
        params, caches, tokens, positions, attend=attend, config=config
    )
    return hidden, caches, jnp.stack(taken, axis=2)


def _run_cached(
    params: Params,
    caches: list[Cache],
    tokens: jax.Array,
    positions: jax.Array,
    *,
    attend: Attend[Cache],
    config: ModelConfig,
) -> tuple[jax.Array, list[Cache], list[Any]]:
    both = rotations(positions, config)
    x = kept(_scaled(look_up(params["embedding"], tokens), config).transpose(2, 0, 1))
    run = partial(layer, attend=attend, config=config, form=FEATURES_FIRST)
    new_caches, experts = [], []
    each = zip(params["layers"], caches, windowed_layers(config), strict=True)
    for weights, cache, windowed in each:
        x, new_cache, taken = run(x, weights, cache, place=place_of(config, both, windowed))
        new_caches.append(new_cache)
        experts.append(taken)
    x = model_norm(x, params["final_norm"], config, axis=0)
    return x.transpose(1, 2, 0), new_caches, experts


def logits_of(hidden: jax.Array, head: Matrix, cap: float | None = None) -> jax.Array:
    """Multiply `forward_cached`'s output at some tokens, [R, D], by the head [V, D]: f32[R, V]."""
    return capped(kept(multiply("vd,rd->vr", hidden, head, jnp.float32)).T, cap)


def output_head(params: Params) -> Any:
    """The output head [V, D], as it is stored: the embedding where they are tied."""
    return params["head"] if "head" in params else params["embedding"]


def _scaled(embedded: jax.Array, config: ModelConfig) -> jax.Array:
    scale = config.traits.embedding_scale
    return embedded if scale == 1 else embedded * scale


def _head(params: Params, config: ModelConfig, parts: int) -> Head:
    matrix, cap = output_head(params), config.traits.logit_cap
    plain = cap is None and parts == 1
    return matrix if plain else OutputHead(matrix, cap, parts)
