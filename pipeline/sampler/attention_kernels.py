"""Kernels of JAX that attend over pages where they lie, and what each asks of the sizes.

A kernel reads block tables itself, so a step copies no window. All take the cache's own layout,
[K, P, page, h]. That is why the TPU's kernel is `paged_attention` and not
`ragged_paged_attention`: the latter wants keys and values in one array, [P, page, 2 K, h], and
what it adds, many queries of a row in one call, a decode step doesn't have.

The kernels are imported when they are called: they are slow to import, and the one for GPUs
is deprecated from JAX 0.12 on and says so in a warning. A later JAX may lack it.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax

from ..models.model import AttentionShape
from .cache import LayerCache

# From (queries [S, H, h], already scaled; pages [K, P, page, h] each; tables i32[S, n];
# lengths i32[S], how many positions each row sees, 1 to n * page) to [S, H, h].
Kernel = Callable[[jax.Array, LayerCache, jax.Array, jax.Array], jax.Array]

# Positions that a kernel loads at once. They divide every window, so a row's sum is made of the
# same parts whatever window its neighbours need. Neither number was tuned on hardware.
TPU_BLOCK = 128
GPU_BLOCK = 64

# Tiles of bf16 in the TPU's vector memory, 16 sublanes of 128 lanes; those of f32 are lower.
TPU_LANES = 128
TPU_SUBLANES = 16
# The smallest side of a matrix product in a Triton kernel.
GPU_SIDE = 16


class Requirement(NamedTuple):
    """One condition of a kernel; the first four are the operands of `errors.check`."""

    met: bool
    setting: str
    value: float | None
    condition: str


def tpu_paged_attention(
    queries: jax.Array, pages: LayerCache, tables: jax.Array, lengths: jax.Array
) -> jax.Array:
    """Run the TPU's Pallas kernel; it rounds keys and values to bf16, whatever the cache has."""
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention  # noqa: PLC0415

    at_once = pages_at_once(tables.shape[1], pages.keys.shape[2], TPU_BLOCK)
    # It mixes f32 and bf16, which a strict setting of the caller's would refuse.
    with jax.numpy_dtype_promotion("standard"):
        mixed: jax.Array = paged_attention(
            queries, pages.keys, pages.values, lengths, tables, pages_per_compute_block=at_once
        )
    return mixed


def gpu_paged_attention(
    queries: jax.Array,
    pages: LayerCache,
    tables: jax.Array,
    lengths: jax.Array,
    *,
    interpret: bool = False,
) -> jax.Array:
    """Run the GPU's Pallas kernel, which Triton compiles; or interpret it, on any platform."""
    from jax.experimental.pallas.ops.gpu.paged_attention import paged_attention  # noqa: PLC0415

    at_once = pages_at_once(tables.shape[1], pages.keys.shape[2], GPU_BLOCK)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        mixed: jax.Array = paged_attention(
            queries,
            pages.keys,
            pages.values,
            tables,
            lengths,
            pages_per_compute_block=at_once,
            k_splits=1,  # more would cut a row's sum by the window
            interpret=interpret,
        )
    return mixed


KERNELS: dict[str, Kernel] = {"tpu": tpu_paged_attention, "gpu": gpu_paged_attention}


def requirements(platform: str, attention: AttentionShape, page_tokens: int) -> list[Requirement]:
    """What the platform's kernel asks of the model and the sizes.

    Example:
      >>> shape = AttentionShape(num_layers=2, num_heads=4, num_kv_heads=4, head_width=64)
      >>> [asked.met for asked in requirements("tpu", shape, 16)]
      [True, True, False, True]
    """
    return _of_sight(attention) + _of_sizes(platform, attention.head_width, page_tokens)


def _of_sight(attention: AttentionShape) -> list[Requirement]:
    window, cap = attention.window, attention.score_cap
    none = "not set for a kernel, which would see everything"
    uncapped = "not set for a kernel, which doesn't cap"
    at = "model.traits.attention."
    return [
        Requirement(window is None, f"{at}window", window, none),
        Requirement(cap is None, f"{at}score_cap", cap, uncapped),
    ]


def _of_sizes(platform: str, width: int, page_tokens: int) -> list[Requirement]:
    if platform == "tpu":
        lanes = f"a multiple of {TPU_LANES} for the TPU's kernel"
        rows = f">= {TPU_SUBLANES} for the TPU's kernel"
        return [
            Requirement(width % TPU_LANES == 0, "model.head_width", width, lanes),
            Requirement(page_tokens >= TPU_SUBLANES, "sampler.page_tokens", page_tokens, rows),
        ]
    square = width >= GPU_SIDE and width.bit_count() == 1
    power = f"a power of two >= {GPU_SIDE} for the GPU's kernel"
    rows = f">= {GPU_SIDE} for the GPU's kernel"
    return [
        Requirement(square, "model.head_width", width, power),
        Requirement(page_tokens >= GPU_SIDE, "sampler.page_tokens", page_tokens, rows),
    ]


def pages_at_once(count: int, page_tokens: int, block: int) -> int:
    """How many pages of a table of `count` make a block: they divide it, and are a power of two.

    Example:
      >>> pages_at_once(24, 16, 128)
      8
    """
    return math.gcd(count, max(1, block // page_tokens))
