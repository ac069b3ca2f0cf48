"""From a file straight into arrays on devices; each device's block is read by itself.

On the host there is one weight beside the arrays, in parts as large as the devices' blocks, and
of those before it what JAX hasn't let go yet.
"""

import gc
import itertools
from collections.abc import Iterable

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding
from jax.typing import DTypeLike

from ...errors import ConfigError
from ..parameters import Params
from .convert import put, weight_at
from .layouts import Entry, Shape, Slices
from .tensors import Tensors

COLLECTED_BYTES = 1 << 24  # so much on the host is worth a collection of garbage


def load_params(
    tensors: Tensors,
    entries: Iterable[Entry],
    declared: Params,
    *,
    shardings: Params | None = None,
    dtype: DTypeLike = np.float32,
) -> Params:
    """Read all parameters.

    Args:
      tensors: checked by `check_tensors`.
      declared: from `parameters.declare`: says the shapes.
      shardings: a `Sharding` for each weight; None puts all on the first local device.
      dtype: of the arrays; float32 holds every bfloat16 and float16 exactly.

    Returns:
      Arrays in the structure of `parameters.init`.

    Raises:
      ConfigError: for an axis that the devices can't share evenly.
    """
    default = SingleDeviceSharding(jax.local_devices()[0])
    params: Params = {}
    garbage_bytes = 0
    for entry in entries:
        shape = weight_at(declared, entry.path).shape
        sharding = default if shardings is None else weight_at(shardings, entry.path)
        array = _load(tensors, entry, shape, sharding=sharding, dtype=np.dtype(dtype))
        put(params, entry.path, array)
        garbage_bytes += array.nbytes
        if garbage_bytes >= COLLECTED_BYTES:
            gc.collect()  # only then JAX lets go of the blocks on the host
            garbage_bytes = 0
    return params


def _load(
    tensors: Tensors, entry: Entry, shape: Shape, *, sharding: Sharding, dtype: np.dtype
) -> jax.Array:
    _check_divides(entry, shape, sharding)
    blocks: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

    def block_of(index: Slices | None) -> np.ndarray:  # devices with equal blocks share one
        parts = index or (slice(None),) * len(shape)
        ranges = tuple(part.indices(size)[:2] for part, size in zip(parts, shape, strict=True))
        if ranges not in blocks:
            block = tuple(slice(*ends) for ends in ranges)
            blocks[ranges] = read_block(tensors, entry, shape, block, dtype=dtype)
        return blocks[ranges]

    array = jax.make_array_from_callback(shape, sharding, block_of, dtype=dtype)
    array.block_until_ready()  # type: ignore[no-untyped-call]
    return array


def read_block(
    tensors: Tensors, entry: Entry, shape: Shape, block: Slices, *, dtype: np.dtype
) -> np.ndarray:
    """Read a block of one weight, and little else of the file.

    Args:
      shape: of the whole weight.
      block: a slice with ends and step 1 for each of its axes.
    """
    stacked = entry.stacked_axes
    one, within = shape[stacked:], block[stacked:]
    sizes = [part.stop - part.start for part in block]
    result = np.empty(sizes, dtype)
    ranges = (range(part.start, part.stop) for part in block[:stacked])
    names = [entry.tensor_name(indices) for indices in itertools.product(*ranges)]
    parts = tensors.read(names, entry.layout.file_slices(one, within))
    for place, part in zip(result.reshape(-1, *sizes[stacked:]), parts, strict=True):
        place[...] = entry.layout.cut_ours(part, one, within)
    return result


def _check_divides(entry: Entry, shape: Shape, sharding: Sharding) -> None:
    try:
        sharding.shard_shape(shape)
    except ValueError as error:
        raise ConfigError(
            f"the weight {'/'.join(entry.path)} of shape {list(shape)} can't be cut evenly by "
            f"{sharding}; choose mesh axes that divide the model's sizes"
        ) from error
