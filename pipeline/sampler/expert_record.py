"""Which experts the tokens of a finished request took, read from its pages for the learner.

The record is of the passes that wrote the cache, under whatever weights that was; so a learner
that replays it runs each token through the experts that its keys and values came from.
"""

import dataclasses

import numpy as np

from ..types import NOT_RECORDED, Completion, Int32s
from .config import SamplerConfig
from .pages import BIN
from .programs import Programs
from .state import SamplerState


def with_experts(
    completion: Completion,
    table: Int32s,
    *,
    prompt_tokens: int,
    shard: int,
    loaded: tuple[Programs, SamplerState],
    config: SamplerConfig,
) -> Completion:
    """Add the record to a completion, before another dispatch takes its pages.

    Args:
      table: i32[n], the request's pages in its shard.
      loaded: programs that record, and the state.
    """
    programs, state = loaded
    assert programs.experts is not None, "it is asked for only where it is recorded"
    numbers = np.full((programs.shards, config.pages_per_request), BIN, np.int32)
    mine = table[: config.pages_per_request]
    numbers[shard, : len(mine)] = mine
    pages = np.asarray(programs.experts(state, numbers.reshape(-1)))
    texts = pages.reshape(programs.shards, -1, *pages.shape[2:])
    length = prompt_tokens + len(completion.tokens)
    experts = texts[shard, :length].copy()
    experts[length - 1 :] = NOT_RECORDED  # nothing has read the last token yet
    return dataclasses.replace(completion, experts=experts)
