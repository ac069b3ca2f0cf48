"""Several completions of one prompt: the same request under keys of its own each."""

from dataclasses import replace

import numpy as np
import trio

from ..types import Completion, Sample, SampleRequest


async def sample_many(sample: Sample, request: SampleRequest, n: int) -> list[Completion]:
    """Sample `n` completions of a prompt at the same time; it is prefilled once.

    Completion i depends on the request's key and on i alone: a larger `n` adds completions and
    changes none.

    Args:
      sample: a sampler's.
      n: >= 1.

    Raises:
      ValueError: for n < 1; and what `sample` raises.
    """
    if n < 1:
        raise ValueError(f"n must be >= 1, got {n}")
    completions: dict[int, Completion] = {}
    refused: list[ValueError] = []

    async def one(index: int) -> None:
        key = member_key(request.key, index)
        try:
            completions[index] = await sample(replace(request, key=key))
        except ValueError as error:
            refused.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for index in range(n):
            nursery.start_soon(one, index)
    if refused:
        raise refused[0]
    return [completions[index] for index in range(n)]


def member_key(key: tuple[int, int], index: int) -> tuple[int, int]:
    """The key of one of several completions; two uint32.

    Example:
      >>> member_key((1, 2), 0) != member_key((1, 2), 1)
      True
    """
    first, second = np.random.SeedSequence([*key, index]).generate_state(2).tolist()
    return first, second
