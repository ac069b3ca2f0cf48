"""A decoder with adapters is a model like any other: its parameters are the pair (adapters, base).

What the sampler gets of the pair are plain weights with the changes merged into them, or the base
with the adapters beside it; then every version that is alive shares the base's arrays.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax

from .config import StoredWeights
from .frozen import freeze, thaw
from .lora import LoraConfig, adapt, init_lora, merge, sampler_adapters, targets
from .matrices import Adapted
from .model import Forward, Model
from .parameters import Params
from .quantize import OUTPUT_AXES, Quantized

Pair = tuple[Params, Params]  # (adapters, base)


def adapted_model(model: Model, config: LoraConfig) -> Model:
    """Put adapters beside the parameters of a decoder.

    Args:
      model: from `decoder_model`.
      config: there must be a rank.

    Returns:
      The model of which a learner trains the adapters, with the base as its frozen parameters.
    """
    merged = config.publish == "merged"
    return replace(
        model,
        init=partial(_init, model=model, config=config),
        forward=partial(forward_adapted, forward=model.forward, config=config),
        sampler_params=partial(_merged if merged else _beside, model=model, config=config),
        sampler_axes=model.sampler_axes if merged else partial(_axes, model=model, config=config),
    )


def forward_adapted(
    params: Pair, *rows: jax.Array, forward: Forward, config: LoraConfig, **record: jax.Array
) -> tuple[jax.Array, Any]:
    """Run a decoder with adapters.

    Args:
      rows: tokens, positions and segment ids.
      forward: the decoder's own.
      record: `experts`, where there is a record of them.
    """
    adapters, base = params
    return forward(adapt(base, adapters, config), *rows, **record)


def merged_params(params: Pair, *, config: LoraConfig) -> Params:
    """Give the plain parameters of the decoder with the adapters merged into them; pure.

    For saving what was trained. With `weight_sync.compile_convert` it is compiled ahead of time.
    """
    adapters, base = params
    return merge(base, adapters, config).params


def base_for_sampler(base: Params, *, model: Model, weights: StoredWeights) -> Params:
    """Turn the base alone into parameters of the sampler; pure.

    Args:
      model: without adapters.
    """
    served: Params = model.sampler_params(thaw(base), weights)
    return served


def _init(key: jax.Array, *, model: Model, config: LoraConfig) -> Pair:
    of_base, of_adapters = jax.random.split(key)
    base = freeze(model.init(of_base), config.base)
    return init_lora(of_adapters, base, config), base


def _merged(params: Pair, weights: StoredWeights, *, model: Model, config: LoraConfig) -> Params:
    merged: Params = model.sampler_params(merged_params(params, config=config), weights)
    return merged


def _beside(params: Pair, weights: StoredWeights, *, model: Model, config: LoraConfig) -> Params:
    adapters, base = params
    served = base_for_sampler(base, model=model, weights=weights)
    return adapt(served, sampler_adapters(adapters, weights), config)


def _axes(weights: StoredWeights, *, model: Model, config: LoraConfig) -> Params:
    assert model.sampler_axes is not None, "a decoder names its axes"
    axes: Params = model.sampler_axes(weights)
    layers = [_layer_axes(layer, config) for layer in axes["layers"]]
    return axes | {"layers": layers}


def _layer_axes(layer: Params, config: LoraConfig) -> Params:
    """An adapter lies where the axis does that it shares with its matrix; its rank is whole."""
    adapted = {}
    for name in targets(layer, config):
        matrix, outputs = layer[name], OUTPUT_AXES[name]
        names = matrix.values if isinstance(matrix, Quantized) else matrix
        a, b = (None, *names[outputs:]), (*names[:outputs], None)
        adapted[name] = Adapted(matrix, a, b, config.scale)
    return layer | adapted
