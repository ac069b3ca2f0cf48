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
from ..types import Bools
from .config import SamplerConfig
from .decode import Decoded, decode
from .prefill import prefill
from .rows import PrefillChunk, RowUpdate, idle_chunk, no_update
from .state import SamplerState, initial_state

Decode = Callable[[Any, SamplerState, RowUpdate, Bools], tuple[SamplerState, Decoded]]


@dataclass(frozen=True)
class Programs:
    """The compiled programs.

    Attributes:
      initial_state: makes a state in which every row is idle.
      prefill: by window; the state is donated.
      decode: by window; the state is donated.
    """

    initial_state: Callable[[], SamplerState]
    prefill: Mapping[int, Callable[[Any, SamplerState, PrefillChunk], SamplerState]]
    decode: Mapping[int, Decode]


def compile_programs(config: SamplerConfig, model: ModelConfig, vocab_size: int) -> Programs:
    """Compile everything, in parallel; takes seconds and may run on any thread."""
    params = abstract_params(model, vocab_size)
    make_state = partial(initial_state, config, model)
    state = jax.eval_shape(make_state)
    lowered = [jax.jit(make_state).lower()]
    for window in config.windows:
        into_cache = partial(prefill, window=window, model=model)
        lowered.append(_lower(into_cache, params, state, idle_chunk(config)))
    for window in config.windows:
        sample = partial(decode, steps=config.decode_tokens, window=window, model=model)
        served = np.zeros(config.rows, np.bool_)
        lowered.append(_lower(sample, params, state, no_update(config), served))
    with ThreadPoolExecutor(thread_name_prefix="compile") as pool:
        compiled = list(pool.map(_compile, lowered))
    count = len(config.windows)
    return Programs(
        initial_state=compiled[0],
        prefill=dict(zip(config.windows, compiled[1 : 1 + count], strict=True)),
        decode=dict(zip(config.windows, compiled[1 + count :], strict=True)),
    )


def abstract_params(model: ModelConfig, vocab_size: int) -> Any:
    """Shapes and dtypes of the sampler's parameters."""

    def make(key: jax.Array) -> Any:
        return unstack(init(model, vocab_size, key))

    return jax.eval_shape(make, jax.eval_shape(partial(jax.random.key, 0)))


def _lower(function: Callable[..., Any], *operands: Any) -> jax.stages.Lowered:
    return jax.jit(function, donate_argnums=1).lower(*operands)


def _compile(lowered: jax.stages.Lowered) -> Callable[..., Any]:
    return lowered.compile()
