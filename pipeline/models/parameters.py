"""Every weight is declared once: its shape, its logical axes, how it starts.

The learner's parameters keep the layers stacked, [L, …], so that one compiled layer is
scanned. The sampler's are a list of per-layer dicts: slices of a stack cost a copy each
in a decode step. Their matrices are turned round, [outputs, inputs]: `decoder.FEATURES_FIRST`
says why.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from .config import ModelConfig

Params = dict[str, Any]

# How the sampler's matrices are turned round, outputs first.
OUTPUTS_FIRST = {
    "query": (1, 2, 0),
    "key": (1, 2, 0),
    "value": (1, 2, 0),
    "output": (2, 0, 1),
    "gate": (1, 0),
    "up": (1, 0),
    "down": (1, 0),
    "router": (1, 0),
    "expert_gate": (0, 2, 1),
    "expert_up": (0, 2, 1),
    "expert_down": (2, 0, 1),  # one output takes the hidden units of all experts
}


@dataclass(frozen=True)
class Weight:
    """One declared weight.

    Attributes:
      shape: in elements.
      axes: a logical name for each dimension; sharding rules map names to mesh axes.
      stddev: of the normal distribution that it starts from; None starts at `start`.
      start: the value that all its elements have without a distribution.
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    stddev: float | None
    start: float = 1.0


def declare(config: ModelConfig, vocab_size: int) -> Params:
    """Declare all weights of a decoder, in the structure of the learner's parameters."""
    embedding = Weight((vocab_size, config.width), ("vocab", "width"), config.width**-0.5)
    experts = config.traits.experts.count
    ffn = _expert_weights(config) if experts else _ffn_weights(config)
    layer = _norms(config) | _attention_weights(config) | _biases(config) | ffn
    weights: Params = {
        "embedding": embedding,
        "layers": {name: _stacked(weight, config.num_layers) for name, weight in layer.items()},
        "final_norm": _norm(config, config.width, "width"),
    }
    if not config.tied_embeddings:
        weights["head"] = embedding
    return weights


def init(config: ModelConfig, vocab_size: int, key: jax.Array) -> Params:
    """Draw the learner's parameters, float32. The key is consumed.

    All weights are slices of one vector of noise: a generator per weight takes XLA's CPU
    compiler more than a second each.
    """
    weights, structure = jax.tree.flatten(declare(config, vocab_size))
    ends = list(itertools.accumulate(math.prod(weight.shape) for weight in weights))
    noise = jax.random.normal(key, (ends[-1],), jnp.float32)
    parts = [noise[start:end] for start, end in itertools.pairwise([0, *ends])]
    params: Params = jax.tree.unflatten(structure, map(_start_value, weights, parts))
    return params


def logical_axes(config: ModelConfig) -> Params:
    """Give the logical axis names of every weight, in the structure of `init`."""
    axes: Params = jax.tree.map(_axes, declare(config, vocab_size=1))
    return axes


def unstacked_axes(config: ModelConfig) -> Params:
    """Give the logical axis names of every weight, in the structure of `unstack`."""
    axes = logical_axes(config)
    layer = {
        name: tuple(stacked[1 + index] for index in _sampler_order(name, len(stacked) - 1))
        for name, stacked in axes["layers"].items()
    }
    return axes | {"layers": [layer] * config.num_layers}


def unstack(params: Params, dtype: DTypeLike = jnp.float32) -> Params:
    """Turn the learner's parameters into the sampler's: per-layer dicts, cast to `dtype`.

    Matrices of the layers get their outputs first: query [H, h, D], output [D, H, h],
    gate [F, D], down [D, F] and so on. Every leaf is a copy, also under `jit`, so the learner
    may donate its own afterwards.
    """
    num_layers = len(params["layers"]["query"])
    copied: Params = jax.tree.map(lambda weight: jnp.array(weight, dtype, copy=True), params)
    layers = [
        {
            name: stack[index].transpose(_sampler_order(name, stack.ndim - 1))
            for name, stack in copied["layers"].items()
        }
        for index in range(num_layers)
    ]
    return copied | {"layers": layers}


def _sampler_order(name: str, ndim: int) -> tuple[int, ...]:
    return OUTPUTS_FIRST.get(name, tuple(range(ndim)))


def _norms(config: ModelConfig) -> dict[str, Weight]:
    names = ["attention_norm", "ffn_norm"]
    if config.traits.post_norms:
        names += ["attention_post_norm", "ffn_post_norm"]
    norms = {name: _norm(config, config.width, "width") for name in names}
    if config.qk_norm:
        norms["query_norm"] = _norm(config, config.head_width, "head_width")
        norms["key_norm"] = _norm(config, config.head_width, "head_width")
    return norms


def _attention_weights(config: ModelConfig) -> dict[str, Weight]:
    width, head_width = config.width, config.head_width
    heads, kv_heads = config.num_heads, config.num_kv_heads
    scale = width**-0.5
    return {
        "query": Weight((width, heads, head_width), ("width", "heads", "head_width"), scale),
        "key": Weight((width, kv_heads, head_width), ("width", "kv_heads", "head_width"), scale),
        "value": Weight((width, kv_heads, head_width), ("width", "kv_heads", "head_width"), scale),
        "output": Weight(
            (heads, head_width, width),
            ("heads", "head_width", "width"),
            _residual_stddev(config, heads * head_width),
        ),
    }


def _biases(config: ModelConfig) -> dict[str, Weight]:
    attention, traits = config.traits.attention, config.traits
    heads, kv_heads, head_width = config.num_heads, config.num_kv_heads, config.head_width
    biases = {}
    if attention.qkv_bias:
        biases["query_bias"] = _bias((heads, head_width), ("heads", "head_width"))
        biases["key_bias"] = _bias((kv_heads, head_width), ("kv_heads", "head_width"))
        biases["value_bias"] = _bias((kv_heads, head_width), ("kv_heads", "head_width"))
    if attention.output_bias:
        biases["output_bias"] = _bias((config.width,), ("width",))
    if traits.ffn_bias:
        biases["gate_bias"] = _bias((config.ffn_width,), ("ffn",))
        biases["up_bias"] = _bias((config.ffn_width,), ("ffn",))
        biases["down_bias"] = _bias((config.width,), ("width",))
    return biases


def _ffn_weights(config: ModelConfig) -> dict[str, Weight]:
    width, ffn = config.width, config.ffn_width
    return {
        "gate": Weight((width, ffn), ("width", "ffn"), width**-0.5),
        "up": Weight((width, ffn), ("width", "ffn"), width**-0.5),
        "down": Weight((ffn, width), ("ffn", "width"), _residual_stddev(config, ffn)),
    }


def _expert_weights(config: ModelConfig) -> dict[str, Weight]:
    experts, width = config.traits.experts.count, config.width
    weights = {"router": Weight((width, experts), ("width", "experts"), width**-0.5)}
    for name, one in _ffn_weights(config).items():
        weights[f"expert_{name}"] = Weight(
            (experts, *one.shape), ("experts", *one.axes), one.stddev
        )
    return weights


def _residual_stddev(config: ModelConfig, fan_in: int) -> float:
    """Keep the residual stream's variance independent of the depth: 2 L sums enter it."""
    return 1.0 / math.sqrt(fan_in * 2 * config.num_layers)


def _norm(config: ModelConfig, width: int, axis: str) -> Weight:
    return Weight((width,), (axis,), None, start=0.0 if config.traits.norms_add_one else 1.0)


def _bias(shape: tuple[int, ...], axes: tuple[str, ...]) -> Weight:
    return Weight(shape, axes, None, start=0.0)


def _stacked(weight: Weight, num_layers: int) -> Weight:
    return Weight((num_layers, *weight.shape), ("layers", *weight.axes), weight.stddev)


def _start_value(weight: Weight, noise: jax.Array) -> jax.Array:
    if weight.stddev is None:
        return jnp.full(weight.shape, weight.start, jnp.float32)
    return weight.stddev * noise.reshape(weight.shape)


def _axes(weight: Weight) -> tuple[str, ...]:
    return weight.axes
