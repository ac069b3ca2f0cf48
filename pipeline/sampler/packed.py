"""The programs of a dispatch as they are compiled: each record of rows is one array on the way."""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import numpy as np

from ..models.parameters import Params
from .config import SamplerConfig
from .logits import no_draws
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
    """Decode; the state's rows, the inputs' parts and the result (`sampled_like`) are packed."""
    rows = unpack(state.rows, like.update.rows)
    update, plan = unpack(inputs.update, like.update), unpack(inputs.plan, like.plan)
    opened = dataclasses.replace(state, rows=rows)
    state, views, sampled = decode(params, opened, views, DecodeInput(update, plan))
    return pack_rows(state), views, pack(sampled)


def prefill_packed(
    params: Params, state: SamplerState, chunk: jax.Array, *, prefill: Prefill, like: PrefillChunk
) -> SamplerState:
    """Prefill a chunk that is packed."""
    return prefill(params, state, unpack(chunk, like))


def pack_rows(state: SamplerState) -> SamplerState:
    """Pack the numbers of the state's rows, as they are between two dispatches."""
    return dataclasses.replace(state, rows=pack(state.rows))


def sampled_like(config: SamplerConfig, vocab_size: int) -> SampledBlock:
    """The shapes of what a decode dispatch sampled, to unpack it."""
    top = min(config.draws.max_top_logprobs, vocab_size)
    draws = jax.eval_shape(partial(no_draws, (config.rows, config.decode_tokens), top))
    return SampledBlock(draws, np.zeros(config.rows, np.int32), np.zeros(config.rows, np.bool_))
