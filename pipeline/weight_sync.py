"""Moves weights from the learner to the sampler: one jitted conversion, then a swap.

The sampler never shares a buffer with the learner, whose updates delete their inputs: what
is published is always a copy. A version counts as published only when the sampler has
acknowledged it, so admission may rely on it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from .device_thread import DeviceThread
from .models.adapted import adapted_model, base_for_sampler
from .models.config import StoredWeights
from .models.lora import LoraConfig, adapt, sampler_adapters
from .models.model import Model
from .types import Sampler

Params = Any
Convert = Callable[[Params], Params]


def compile_convert(convert: Convert, params: Params, frozen: Params | None = None) -> Convert:
    """Compile a conversion of the learner's parameters ahead of time.

    Args:
      convert: pure; its outputs are copies, as those of `models.quantize.sampler_params`.
      params: the learner's parameters, of which only shapes and placement are used.
      frozen: those that it doesn't train: `convert` then takes the pair of both. What is returned
        keeps these arrays, and still takes only those that are trained.
    """
    if frozen is None:
        return jax.jit(convert).lower(params).compile()
    compiled = jax.jit(convert).lower((params, frozen)).compile()

    def of_trained(params: Params) -> Params:
        return compiled((params, frozen))

    return of_trained


def compile_lora_convert(
    adapters: Params, base: Params, *, lora: LoraConfig, model: Model, weights: StoredWeights
) -> Convert:
    """Compile what turns trained adapters into the parameters that the sampler uses.

    Where only adapters are published, the base is converted here, once: all versions share its
    arrays, and a publish makes and moves only the adapters.

    Args:
      base: frozen, see `models.frozen.freeze`.
      lora: its `publish` decides.
      model: the decoder without adapters; the sampler has `adapted_model(model, lora)`.
      weights: how the sampler stores its own.
    """
    if lora.publish == "merged":
        whole = adapted_model(model, lora)
        return compile_convert(partial(whole.sampler_params, weights=weights), adapters, base)
    served = jax.jit(partial(base_for_sampler, model=model, weights=weights))(base)
    convert = compile_convert(partial(sampler_adapters, weights=weights), adapters)

    def beside_base(adapters: Params) -> Params:
        return adapt(served, convert(adapters), lora)

    return beside_base


async def publish(
    read_params: Callable[[], Params],
    sampler: Sampler,
    version: int,
    *,
    convert: Convert,
    device: DeviceThread,
) -> None:
    """Bring the learner's present parameters to the sampler as policy `version`.

    Args:
      read_params: gives the learner's parameters; called on `device`, the learner's thread.

    Returns:
      When the sampler uses them.
    """
    params = await device.run(partial(_export, read_params, convert))
    await sampler.publish(params, version)


def _export(read_params: Callable[[], Params], convert: Convert) -> Params:
    return convert(read_params())
