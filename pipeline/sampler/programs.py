"""All programs of the sampler, compiled ahead of time: nothing can compile afterwards.

A compiled program refuses other shapes instead of compiling anew. After this module the
sampler makes no other JAX call than these programs, with NumPy arrays as host arguments.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from ..models.config import ModelConfig
from ..models.parameters import init, unstack
from ..types import Int32s
from .config import SamplerConfig
from .decode import Decoded, decode
from .prefill import prefill
from .rows import DecodeInput, PrefillChunk, idle_chunk, idle_decode
from .state import SamplerState, initial_state
from .transfer import PageData, duplicate, extract, insert

Decode = Callable[[Any, SamplerState, DecodeInput], tuple[SamplerState, Decoded]]


@dataclass(frozen=True)
class Programs:
    """The compiled programs; each donates the state that it returns.

    Attributes:
      initial_state: makes a state in which every row is idle.
      prefill: by window.
      decode: by window.
      duplicate: copies pages to others, as many as there are rows.
      extract: reads the pages of one request; the state stays.
      insert: writes the pages of one request.
    """

    initial_state: Callable[[], SamplerState]
    prefill: Mapping[int, Callable[[Any, SamplerState, PrefillChunk], SamplerState]]
    decode: Mapping[int, Decode]
    duplicate: Callable[[SamplerState, Int32s, Int32s], SamplerState]
    extract: Callable[[SamplerState, Int32s], PageData]
    insert: Callable[[SamplerState, Int32s, PageData], SamplerState]


def compile_programs(config: SamplerConfig, model: ModelConfig, vocab_size: int) -> Programs:
    """Compile everything, in parallel; takes seconds and may run on any thread."""
    params = abstract_params(model, vocab_size)
    make_state = partial(initial_state, config, model, vocab_size)
    state = jax.eval_shape(make_state)
    rows = np.zeros(config.rows, np.int32)
    pages = np.zeros(config.pages_per_request, np.int32)
    lowered: dict[tuple[str, int], jax.stages.Lowered] = {
        ("initial_state", 0): jax.jit(make_state).lower(),
        ("duplicate", 0): jax.jit(duplicate, donate_argnums=0).lower(state, rows, rows),
        ("extract", 0): jax.jit(extract).lower(state, pages),
        ("insert", 0): jax.jit(insert, donate_argnums=0).lower(
            state, pages, jax.eval_shape(extract, state, pages)
        ),
    }
    into_cache = jax.jit(partial(prefill, model=model), donate_argnums=1)
    sample = jax.jit(
        partial(
            decode,
            steps=config.decode_tokens,
            top_logprobs=config.max_top_logprobs,
            model=model,
        ),
        donate_argnums=1,
    )
    for window in config.windows:
        chunk, inputs = idle_chunk(config, window), idle_decode(config, vocab_size, window)
        lowered["prefill", window] = into_cache.lower(params, state, chunk)
        lowered["decode", window] = sample.lower(params, state, inputs)
    with ThreadPoolExecutor(thread_name_prefix="compile") as pool:
        compiled = dict(zip(lowered, pool.map(_compile, lowered.values()), strict=True))
    return Programs(
        initial_state=compiled["initial_state", 0],
        prefill={window: compiled["prefill", window] for window in config.windows},
        decode={window: compiled["decode", window] for window in config.windows},
        duplicate=compiled["duplicate", 0],
        extract=compiled["extract", 0],
        insert=compiled["insert", 0],
    )


def abstract_params(model: ModelConfig, vocab_size: int) -> Any:
    """Shapes and dtypes of the sampler's parameters."""

    def make(key: jax.Array) -> Any:
        return unstack(init(model, vocab_size, key))

    return jax.eval_shape(make, jax.eval_shape(partial(jax.random.key, 0)))


def _compile(lowered: jax.stages.Lowered) -> Callable[..., Any]:
    return lowered.compile()
