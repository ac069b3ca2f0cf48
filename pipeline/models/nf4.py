"""Four bits a weight: one of 16 levels, times the largest magnitude of its block of 64.

Two codes share a byte, and a block has one float32 beside: 4.5 bits a weight. A matrix is cut
into blocks in the order in which it lies, so no weight moves by more than a block's largest
magnitude times 0.152, half of the widest gap between levels.

Reference: Dettmers et al., QLoRA (2023), section 3 and appendix E; without its second
quantisation, of the blocks' magnitudes, which would save another 0.37 bits.
"""

import math
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

BLOCK = 64

# Quantiles of a normal distribution, scaled to -1..1, with an exact 0; from the paper.
LEVELS = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Nf4:
    """A matrix of n weights in four bits each; n is rounded up to whole blocks.

    Attributes:
      codes: u8[n / 2], the even weight of a pair in the low half of the byte.
      largest: f32[n / 64], at least 0.
      shape: of the matrix; static, and without the axis of layers where these are stacked.
    """

    codes: jax.Array
    largest: jax.Array
    shape: tuple[int, ...] = field(metadata={"static": True})


def quantize_nf4(matrix: jax.Array) -> Nf4:
    """Round every weight to the nearest level of its block.

    Example:
      >>> rounded = quantize_nf4(jnp.array([[-2.0, 0.1], [0.0, 2.0]]))
      >>> dequantize_nf4(rounded, jnp.float32).tolist()
      [[-2.0, 0.15916059911251068], [0.0, 2.0]]
    """
    flat = matrix.reshape(-1).astype(jnp.float32)
    blocks = jnp.pad(flat, (0, -flat.size % BLOCK)).reshape(-1, BLOCK)
    largest = jnp.max(jnp.abs(blocks), axis=1)
    relative = blocks / jnp.where(largest == 0, 1.0, largest)[:, None]
    levels = jnp.asarray(LEVELS, jnp.float32)
    # Sorted by the middles between levels: no array of all distances to all levels.
    nearest = jnp.searchsorted((levels[1:] + levels[:-1]) / 2, relative)
    pairs = nearest.astype(jnp.uint8).reshape(-1, 2)
    return Nf4(pairs[:, 0] | pairs[:, 1] << jnp.uint8(4), largest, matrix.shape)


def dequantize_nf4(matrix: Nf4, dtype: DTypeLike) -> jax.Array:
    """Give the matrix in floating point."""
    levels = jnp.asarray(LEVELS, jnp.float32)
    # One look-up gives the two weights of a byte.
    pairs = jnp.stack([jnp.tile(levels, 16), jnp.repeat(levels, 16)], axis=1)
    flat = pairs[matrix.codes.astype(jnp.int32)].reshape(-1, BLOCK) * matrix.largest[:, None]
    return flat.reshape(-1)[: math.prod(matrix.shape)].reshape(matrix.shape).astype(dtype)
