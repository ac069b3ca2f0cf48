"""Training by adapters of low rank: pure functions over the parameter tree.

A matrix W of the base gets a change, scale * A B, of rank r; only A and B are trained. B starts
at 0, so a policy with fresh adapters is the base. The base is never written to: what is merged
is a new tree, and taking adapters off gives back the arrays that were there before.

Reference: Hu et al., LoRA (2021), section 4.1; Kalajdzievski, rsLoRA (2023), equation 4.
"""

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..errors import ConfigError, check
from .config import StoredWeights
from .frozen import INPUT_AXES, StoredBase, stack_shape, thaw
from .matrices import Adapted
from .parameters import Params
from .quantize import activations_dtype

# What the sampler gets: whole weights, or the adapters, beside a base that it already has.
Published = Literal["merged", "adapters"]


@dataclass(frozen=True)
class LoraConfig:
    """Which matrices are adapted, and how.

    Raises:
      ConfigError: where a number is out of range or the pattern is no regular expression.

    Example:
      >>> LoraConfig(rank=16, alpha=32.0).scale, LoraConfig(rank=16, rslora=True).scale
      (2.0, 8.0)
    """

    rank: int = 0
    """rank of the change of a matrix; 0 trains all weights"""
    alpha: float = 32.0
    """the change is scaled by alpha / rank"""
    rslora: bool = False
    """scale by alpha / sqrt(rank), so that a higher rank doesn't learn more slowly"""
    targets: str = ".*"
    """regular expression that the whole name of a matrix, as query, or layers.query, must match:
    query|value are these two, .* all matrices of the layers"""
    base: StoredBase = "float32"
    """how the learner stores the weights that aren't trained; bfloat16 takes half the memory, int8
    a quarter, nf4 a seventh"""
    publish: Published = "merged"
    """merged: each publish brings the sampler whole weights; adapters: it keeps the base and gets
    only adapters, so a publish and a version that is alive cost little, and a token a bit more"""

    def __post_init__(self) -> None:
        check(self.rank >= 0, "lora.rank", self.rank, ">= 0; 0 trains all weights")
        check(self.alpha > 0, "lora.alpha", self.alpha, "> 0 and finite")
        hint = "it is about adapters; set --lora.rank too"
        for name, idle in (("base", "float32"), ("publish", "merged")):
            value = getattr(self, name)
            check(
                self.on or value == idle, f"lora.{name}", value, f"{idle!r} with rank 0", hint=hint
            )
        try:
            re.compile(self.targets)
        except re.error as error:
            raise ConfigError(
                f"lora.targets must be a regular expression, got {self.targets!r} ({error}); "
                "for example 'query|value', or '.*' for all"
            ) from error

    @property
    def on(self) -> bool:
        """Whether adapters are trained, and not all weights."""
        return self.rank > 0

    @property
    def scale(self) -> float:
        """What the product of both adapters is multiplied by; there must be a rank."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


class Merged(NamedTuple):
    """Plain weights with the adapters in them, and the base that they were made of.

    Attributes:
      params: as from `parameters.init`, float32.
      base: what `merge` was given.
    """

    params: Params
    base: Params


def init_lora(key: jax.Array, params: Params, config: LoraConfig) -> Params:
    """Draw adapters, float32. The key is consumed.

    Args:
      params: of the learner, plain or from `freeze`; only shapes are used.

    Returns:
      `{"layers": {name: {"a": [L, inputs..., r], "b": [L, r, outputs...]}}}`: a is normal with
      the variance 1 / inputs, b is 0.

    Raises:
      ConfigError: where no matrix has a matching name.
    """
    shapes = {
        name: stack_shape(params["layers"][name]) for name in targets(params["layers"], config)
    }
    halves = {name: _adapter_shapes(name, shape, config.rank) for name, shape in shapes.items()}
    # One generator for all, as in `parameters.init`.
    ends = list(itertools.accumulate(math.prod(into) for into, _ in halves.values()))
    noise = jax.random.normal(key, (ends[-1],), jnp.float32)
    parts = [noise[start:end] for start, end in itertools.pairwise([0, *ends])]
    layers = {
        name: {
            "a": part.reshape(into) / math.sqrt(math.prod(into[1:-1])),
            "b": jnp.zeros(out_of, jnp.float32),
        }
        for part, (name, (into, out_of)) in zip(parts, halves.items(), strict=True)
    }
    return {"layers": layers}


def targets(names: Iterable[str], config: LoraConfig) -> list[str]:
    """Say which of a layer's arrays are adapted, by their names.

    Raises:
      ConfigError: where there is none.
    """
    known = [name for name in names if name in INPUT_AXES]
    pattern = re.compile(config.targets)
    found = [
        name for name in known if pattern.fullmatch(name) or pattern.fullmatch(f"layers.{name}")
    ]
    check(bool(found), "lora.targets", config.targets, f"a pattern that matches one of {known}")
    return found


def adapter_axes(adapters: Params, axes: Params) -> Params:
    """Give the logical axis names of adapters: those that they share with their matrix.

    Args:
      axes: of the base's parameters; see `parameters.logical_axes`.
    """

    def of_pair(name: str) -> Params:
        names, inputs = axes["layers"][name], 1 + INPUT_AXES[name]
        return {"a": (*names[:inputs], None), "b": (names[0], None, *names[inputs:])}

    return {"layers": {name: of_pair(name) for name in adapters["layers"]}}


def adapt(base: Params, adapters: Params, config: LoraConfig) -> Params:
    """Put adapters beside the matrices that they change; nothing is computed or copied.

    Args:
      base: the learner's parameters, or the sampler's with `sampler_adapters`.

    Returns:
      What `decoder.forward` and `forward_cached` take.
    """

    def adapted(layer: Params, pairs: Mapping[str, Params]) -> Params:
        changed = {
            name: Adapted(layer[name], pair["a"], pair["b"], config.scale)
            for name, pair in pairs.items()
        }
        return layer | changed

    layers, pairs = base["layers"], adapters["layers"]
    if isinstance(layers, dict):
        return base | {"layers": adapted(layers, pairs)}
    return base | {"layers": [adapted(*both) for both in zip(layers, pairs, strict=True)]}


def taken_apart(params: Params) -> tuple[Params, Params]:
    """Undo `adapt` for the sampler's parameters, or what is known of each: (base, adapters)."""

    def base(layer: Params) -> Params:
        return {
            name: matrix.base if isinstance(matrix, Adapted) else matrix
            for name, matrix in layer.items()
        }

    def pairs(layer: Params) -> Params:
        adapted = {name: it for name, it in layer.items() if isinstance(it, Adapted)}
        return {name: {"a": it.a, "b": it.b} for name, it in adapted.items()}

    layers = params["layers"]
    return params | {"layers": [*map(base, layers)]}, {"layers": [*map(pairs, layers)]}


def merge(base: Params, adapters: Params, config: LoraConfig) -> Merged:
    """Add the adapters' changes to the base, in float32; pure.

    A weight whose change is 0 keeps its bits. The others are rounded, and rounding can't be
    undone: subtracting the change again wouldn't give back the base. So the base is kept beside
    the result, and `unmerge` is exact.

    Args:
      base: the learner's parameters, plain or from `freeze`.
    """
    params = thaw(base)
    layers = dict(params["layers"])
    for name, pair in adapters["layers"].items():
        change = config.scale * _product(pair).reshape(layers[name].shape)
        layers[name] = jnp.where(change == 0, layers[name], layers[name] + change)
    return Merged(params | {"layers": layers}, base)


def unmerge(merged: Merged) -> Params:
    """Take the adapters off again: the base, bit for bit, and stored as it was."""
    return merged.base


def sampler_adapters(adapters: Params, weights: StoredWeights = "float32") -> Params:
    """Turn adapters into what belongs beside the sampler's parameters; pure.

    Args:
      weights: how the sampler stores its own.

    Returns:
      A list of layers, outputs first: a [r, inputs...], b [outputs..., r]; every leaf a copy.
    """
    dtype = activations_dtype(weights)
    pairs = adapters["layers"]
    count = len(next(iter(pairs.values()))["a"])

    def turned(pair: Params, layer: int) -> Params:
        return {
            "a": jnp.array(jnp.moveaxis(pair["a"][layer], -1, 0), dtype, copy=True),
            "b": jnp.array(jnp.moveaxis(pair["b"][layer], 0, -1), dtype, copy=True),
        }

    layers = [
        {name: turned(pair, layer) for name, pair in pairs.items()} for layer in range(count)
    ]
    return {"layers": layers}


def _adapter_shapes(
    name: str, shape: tuple[int, ...], rank: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    inputs = 1 + INPUT_AXES[name]
    return (*shape[:inputs], rank), (shape[0], rank, *shape[inputs:])


def _product(pair: Mapping[str, Any]) -> jax.Array:
    """A times B of every layer, [L, inputs, outputs], with all their bits on any platform."""
    a, b = pair["a"], pair["b"]
    layers, rank = b.shape[:2]
    into, out_of = a.reshape(layers, -1, rank), b.reshape(layers, rank, -1)
    return jnp.einsum("lir,lro->lio", into, out_of, precision=lax.Precision.HIGHEST)
