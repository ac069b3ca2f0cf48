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
from .types import Sampler

Params = Any
Convert = Callable[[Params], Params]


def compile_convert(convert: Convert, params: Params) -> Convert:
    """Compile a conversion of the learner's parameters ahead of time.

    Args:
      convert: pure; its outputs are copies, as those of `models.quantize.sampler_params`.
      params: the learner's parameters, of which only shapes and placement are used.
    """
    return jax.jit(convert).lower(params).compile()


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
