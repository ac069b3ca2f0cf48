"""Moves weights from the learner to the sampler: one jitted conversion, then a swap.

The sampler never shares a buffer with the learner, whose updates delete their inputs: what
is published is always a copy. A version counts as published only when the sampler has
acknowledged it, so admission may rely on it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from ..sharding.reshard import choose_strategy, make_reshard
from .device_thread import DeviceThread
from .learner.placement import mesh_of
from .models.adapted import adapted_model, base_for_sampler
from .models.config import StoredWeights
from .models.lora import LoraConfig, adapt, sampler_adapters, taken_apart
from .models.model import Model
from .types import Sampler

Params = Any
Convert = Callable[[Params], Params]


def compile_convert(
    convert: Convert, params: Params, frozen: Params | None = None, *, places: Any = None
) -> Convert:
    """Compile a conversion of the learner's parameters ahead of time.

    Args:
      convert: pure; its outputs are copies, as those of `models.quantize.sampler_params`.
      params: the learner's parameters, of which only shapes and placement are used.
      frozen: those that it doesn't train: `convert` then takes the pair of both. What is returned
        keeps these arrays, and still takes only those that are trained.
      places: shardings of what the sampler gets, on its mesh (`NativeSampler.places`); None leaves
        it where the learner is.
    """
    if frozen is None:
        return _compiled(convert, params, places)
    compiled = _compiled(convert, (params, frozen), places)

    def of_trained(params: Params) -> Params:
        return compiled((params, frozen))

    return of_trained


def compile_lora_convert(
    adapters: Params,
    base: Params,
    *,
    lora: LoraConfig,
    model: Model,
    weights: StoredWeights,
    places: Any = None,
) -> Convert:
    """Compile what turns trained adapters into the parameters that the sampler uses.

    Where only adapters are published, the base is converted here, once: all versions share its
    arrays, and a publish makes and moves only the adapters.

    Args:
      base: frozen, see `models.frozen.freeze`.
      lora: its `publish` decides.
      model: the decoder without adapters; the sampler has `adapted_model(model, lora)`.
      weights: how the sampler stores its own.
      places: as for `compile_convert`.
    """
    if lora.publish == "merged":
        merged = partial(adapted_model(model, lora).sampler_params, weights=weights)
        return compile_convert(merged, adapters, base, places=places)
    of_base, of_adapters = (None, None) if places is None else taken_apart(places)
    serve = partial(base_for_sampler, model=model, weights=weights)
    served = compile_convert(serve, base, places=of_base)(base)
    convert = compile_convert(
        partial(sampler_adapters, weights=weights), adapters, places=of_adapters
    )

    def beside_base(adapters: Params) -> Params:
        return adapt(served, convert(adapters), lora)

    return beside_base


def _compiled(convert: Convert, params: Params, places: Any) -> Convert:
    if places is None:
        return jax.jit(convert).lower(params).compile()
    source = mesh_of(params)
    move = make_reshard(source, places, transform=convert, like=params)
    if choose_strategy(source, places) == "same_devices":
        return move

    def arrived(params: Params) -> Params:
        # The learner's thread waits: the sampler goes on with older weights until these are there.
        return jax.block_until_ready(move(params))  # type: ignore[no-untyped-call]

    return arrived


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
