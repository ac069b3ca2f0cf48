"""What the pipeline asks of a model: a few pure functions over a pytree of parameters.

Nothing else in the learner and the sampler knows how a model computes, so a module of flax (nnx
or linen) or plain functions can be the policy. The decoder of this package is one such record.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from ..errors import check
from .config import ModelConfig, StoredWeights
from .decoder import forward, forward_cached, forward_routed, logits_of, output_head
from .head import Head
from .layer import Attend
from .parameters import Params, init
from .quantize import sampler_axes, sampler_params
from .remat import Remat

Tree = Any  # parameters, as the model's own functions know them

Forward = Callable[[Tree, jax.Array, jax.Array, jax.Array], tuple[jax.Array, Head]]
"""`forward(params, tokens i32[R, T], positions i32[R, T], segment_ids i32[R, T])` gives hidden
states [R, T, D] and the output head [V, D], or an `OutputHead`, both of the parameters' type;
finite everywhere, also in padding. A token sees itself and those before it in its segment;
segment 0 is padding. Where a batch has a record of experts, `experts=i16[R, T, L, k]` follows:
see `Routed`."""


class ForwardCached(Protocol):
    """The model over new tokens, against a cache for each of its layers."""

    def __call__(
        self,
        params: Tree,
        caches: list[Any],
        tokens: jax.Array,
        positions: jax.Array,
        *,
        attend: Attend[Any],
    ) -> tuple[jax.Array, list[Any]]:
        """Take tokens i32[R, C] at absolute positions; give hidden [R, C, D] and new caches.

        Each layer calls `attend(cache, Heads(queries, keys, values), sight)`
        once: it adds keys and values to the cache and gives the mixed values [R, C, H, h] and
        the new cache. `Sight()` is plain attention to everything before.
        """
        ...


class ForwardRouted(Protocol):
    """The same, of a model that sends each token to some experts, with their numbers."""

    def __call__(
        self,
        params: Tree,
        caches: list[Any],
        tokens: jax.Array,
        positions: jax.Array,
        *,
        attend: Attend[Any],
    ) -> tuple[jax.Array, list[Any], jax.Array]:
        """Do what `ForwardCached` does; also give the experts taken, i32[R, C, L, k]."""
        ...


class SamplerParams(Protocol):
    """From the learner's parameters to those of the sampler, which stores them as `weights`."""

    def __call__(self, params: Tree, /, weights: StoredWeights) -> Tree:
        """Return copies."""
        ...


@dataclass(frozen=True)
class AttentionShape:
    """What a cache, and a kernel that reads it, must know of a model's attention.

    Attributes:
      num_layers: L, a cache for each.
      num_heads: H, query heads; a multiple of num_kv_heads.
      num_kv_heads: K.
      head_width: h.
      window: positions that some layer's queries see, where that isn't all; see `Sight`.
      score_cap: of some layer's scores; see `Sight`.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    window: int | None = None
    score_cap: float | None = None


@dataclass(frozen=True)
class Routed:
    """What a model with a mixture of experts can tell of each token.

    Attributes:
      num_layers: L.
      per_token: k, experts that a token goes to in each layer.
      forward: takes the place of `Cached.forward` where the choices are recorded. Then
        `Model.forward` must take `experts` and send tokens there; see `decoder.forward`.
    """

    num_layers: int
    per_token: int
    forward: ForwardRouted


@dataclass(frozen=True)
class Cached:
    """How a model goes on from a cache.

    Attributes:
      shape: of what is cached.
      forward: the model over new tokens.
      logits: `logits(params, hidden [N, D])` gives f32[N, V].
      routed: None without experts.
    """

    shape: AttentionShape
    forward: ForwardCached
    logits: Callable[[Tree, jax.Array], jax.Array]
    routed: Routed | None = None


def cast(params: Tree, weights: StoredWeights) -> Tree:
    """Copy parameters for the sampler: floats in the type in which it stores them.

    Raises:
      ConfigError: for int8, which needs to know which arrays are matrices.
    """
    plain = weights != "int8"
    check(plain, "sampler.weights", weights, "float32 or bfloat16 for a model of one's own")

    def copied(leaf: jax.Array) -> jax.Array:
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.array(leaf, jnp.dtype(weights) if floating else leaf.dtype, copy=True)

    return jax.tree.map(copied, params)


@dataclass(frozen=True)
class Model:
    """A policy's model. All functions are pure and can be jitted.

    Attributes:
      vocab_size: V.
      init: draws the learner's parameters from a key.
      forward: the model over packed rows, differentiable; the learner needs no more.
      cached: None reads each row's whole text again for every token: slow, but correct.
      sampler_params: turns the learner's parameters into those of the sampler, whose forward
        pass may know them in another form; every array is a copy.
      sampler_axes: logical axis names of every array of these; None puts them whole on each
        device of a mesh.
      cut: sizes, by the names of their settings, that the tensor axis of a mesh cuts.
    """

    vocab_size: int
    init: Callable[[jax.Array], Tree]
    forward: Forward
    cached: Cached | None = None
    sampler_params: SamplerParams = cast
    sampler_axes: Callable[[StoredWeights], Tree] | None = None
    cut: Mapping[str, int] = field(default_factory=dict)


def decoder_model(
    config: ModelConfig, vocab_size: int, *, remat: Remat = "none", vocab_parts: int = 1
) -> Model:
    """Describe this package's decoder.

    Args:
      remat: see `remat.rematerialised`.
      vocab_parts: the size of the learner's tensor axis, where it has a mesh; it must divide the
        vocabulary. See `OutputHead.parts`.

    Raises:
      ConfigError: for parts of unequal sizes.

    Example:
      >>> model = decoder_model(ModelConfig(num_layers=3), vocab_size=17)
      >>> jax.eval_shape(model.init, jax.random.key(0))["embedding"].shape
      (17, 64)
    """
    even = vocab_parts >= 1 and vocab_size % vocab_parts == 0
    check(even, "vocab_parts", vocab_parts, f"a divisor of the vocabulary's {vocab_size} entries")
    return Model(
        vocab_size=vocab_size,
        init=partial(init, config, vocab_size),
        forward=partial(forward, config=config, remat=remat, vocab_parts=vocab_parts),
        cached=Cached(
            shape=attention_shape(config),
            forward=partial(forward_cached, config=config),
            logits=partial(_logits, cap=config.traits.logit_cap),
            routed=_routed(config),
        ),
        sampler_params=sampler_params,
        sampler_axes=partial(sampler_axes, config),
        cut={"model.num_kv_heads": config.num_kv_heads, "model.ffn_width": config.ffn_width},
    )


def _routed(config: ModelConfig) -> Routed | None:
    experts = config.traits.experts
    if not experts.count:
        return None
    return Routed(config.num_layers, experts.per_token, partial(forward_routed, config=config))


def attention_shape(config: ModelConfig) -> AttentionShape:
    """Give the decoder's."""
    traits = config.traits.attention
    return AttentionShape(
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_width=config.head_width,
        window=traits.window,
        score_cap=traits.score_cap,
    )


def _logits(params: Params, hidden: jax.Array, *, cap: float | None) -> jax.Array:
    return logits_of(hidden, output_head(params), cap)
