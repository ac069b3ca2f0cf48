"""The programs of a dispatch as they are compiled: each record of rows is one array on the way."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from ..models.parameters import Params
from ..types import Int32s
from .packing import pack, unpack
from .rows import DecodeInput, PrefillChunk
from .state import SamplerState, Views
from .turns import SampledBlock

Decode = Callable[
    [Params, SamplerState, Views, DecodeInput], tuple[SamplerState, Views, SampledBlock]
]
Prefill = Callable[[Params, SamplerState, PrefillChunk], SamplerState]


def decode_packed(
    params: Params,
    state: SamplerState,
    views: Views,
    inputs: DecodeInput,
    *,
    decode: Decode,
    like: DecodeInput,
) -> tuple[SamplerState, Views, jax.Array]:
    """Decode; the state's rows, the inputs' parts and the result (`pack_sampled`) are packed."""
    rows = unpack(state.rows, like.update.rows)
    update, plan = unpack(inputs.update, like.update), unpack(inputs.plan, like.plan)
    opened = dataclasses.replace(state, rows=rows)
    state, views, sampled = decode(params, opened, views, DecodeInput(update, plan))
    return pack_rows(state), views, pack_sampled(sampled)


def prefill_packed(
    params: Params, state: SamplerState, chunk: jax.Array, *, prefill: Prefill, like: PrefillChunk
) -> SamplerState:
    """Prefill a chunk that is packed."""
    return prefill(params, state, unpack(chunk, like))


def pack_rows(state: SamplerState) -> SamplerState:
    """Pack the numbers of the state's rows, as they are between two dispatches."""
    return dataclasses.replace(state, rows=pack(state.rows))


def pack_sampled(sampled: SampledBlock) -> Any:
    """Pack each draw, then the draws of each row, and these with the rest.

    Returns:
      i32[S, k * n + 2], for `unpack_sampled`.
    """
    rows = len(sampled.active)
    draws = pack(jax.tree.map(_steps_as_rows, sampled.draws))
    return pack(sampled._replace(draws=draws.reshape(rows, -1)))


def unpack_sampled(packed: Int32s) -> SampledBlock:
    """Undo `pack_sampled` on the host, but leave the draws packed, as `Turns` keeps them."""
    return SampledBlock(packed[:, :-2], packed[:, -2], packed[:, -1] != 0)


def _steps_as_rows(draws: Any) -> Any:
    """[S, k, ...] to [S * k, ...]."""
    return draws.reshape(-1, *draws.shape[2:])
