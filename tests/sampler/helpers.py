"""A tiny model, and requests that all differ."""

from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import trio
from numpy.typing import NDArray

from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.decoder import forward
from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.models.parameters import init, unstack
from headrace.pipeline.sampler.config import DrawLimits, SamplerConfig
from headrace.pipeline.sampler.engine import SamplerStatistics
from headrace.pipeline.sampler.programs import Programs, compile_programs
from headrace.pipeline.sampler.service import NativeSampler
from headrace.pipeline.sampler.turns import SampledBlock
from headrace.pipeline.types import Bools, Completion, Float32s, Int32s, Sample, SampleRequest
from tests.learner.toy import quick_jit

VOCAB = 19
STOP = 3
MODEL = ModelConfig(2, 16, 4, 2, 4, 24, qk_norm=True)
# Pages for two of the five rows at full length: whoever samples long texts is short of them.
CONFIG = SamplerConfig(
    rows=5,
    context_tokens=32,
    decode_tokens=3,
    prefill_lanes=2,
    prefill_tokens=4,
    max_stop_ids=2,
    page_tokens=4,
    pages=20,
    draws=DrawLimits(max_logit_bias=3, max_top_logprobs=3, token_masks=True),
)


@cache
def _compiled_init() -> Any:
    return quick_jit(partial(init, MODEL, VOCAB))


@cache
def learner_params(version: int) -> Any:
    """Weights of a version; versions differ strongly."""
    return _compiled_init()(jax.random.key(version))


@cache
def sampler_params(version: int) -> Any:
    return quick_jit(unstack)(learner_params(version))


def make_request(
    seed: int, *, temperature: float = 1.0, max_tokens: int | None = None, priority: int = 0
) -> SampleRequest:
    """A request decided by its seed: prompt of 1 to 14 tokens, budget of 1 to 8."""
    rng = np.random.default_rng(seed)
    return SampleRequest(
        tokens=rng.integers(0, VOCAB, rng.integers(1, 15)).astype(np.int32),
        max_tokens=int(rng.integers(1, 9)) if max_tokens is None else max_tokens,
        stop_ids=(STOP,),
        key=(seed, 7 * seed + 1),
        temperature=temperature,
        priority=priority,
    )


@cache
def _compiled_forward() -> Any:
    return quick_jit(partial(forward, config=MODEL))


def learner_logits(params: Any, sequence: Int32s) -> NDArray[np.float64]:
    """Logits f64[n, V] by the learner's forward pass; those of token t stand at t - 1."""
    length = CONFIG.context_tokens
    tokens, segments = np.zeros((2, 1, length), np.int32)
    tokens[0, : len(sequence)] = sequence
    segments[0, : len(sequence)] = 1
    hidden, head = _compiled_forward()(
        params, tokens, np.arange(length, dtype=np.int32)[None], segments
    )
    logits = np.asarray(hidden[0], np.float64) @ np.asarray(head, np.float64).T
    return np.asarray(logits[: len(sequence)])


def learner_logprobs(params: Any, request: SampleRequest, completion: Completion) -> Float32s:
    """Logprobs of the sampled tokens by the learner's forward pass, at the temperature."""
    sequence = np.concatenate([request.tokens, completion.tokens])
    logits = learner_logits(params, sequence) / (request.temperature or 1.0)
    logprobs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    sampled = np.arange(len(request.tokens), len(sequence))
    return logprobs[sampled - 1, sequence[sampled]].astype(np.float32)


async def sample_all(sample: Sample, requests: Sequence[SampleRequest]) -> list[Completion]:
    """Sample all requests at the same time; completions in the order of the requests."""
    completions: dict[int, Completion] = {}

    async def one(index: int) -> None:
        completions[index] = await sample(requests[index])

    async with trio.open_nursery() as nursery:
        for index in range(len(requests)):
            nursery.start_soon(one, index)
    return [completions[index] for index in range(len(requests))]


Body = Callable[[NativeSampler], Awaitable[None]]


@cache
def native_programs() -> Programs:
    """Compiled once for all tests."""
    return compile_programs(CONFIG, decoder_model(MODEL, VOCAB))


def run_native(
    body: Body, programs: Programs | None = None, config: SamplerConfig = CONFIG
) -> None:
    """Run `body` with a native sampler that serves, with other programs if some are given.

    Args:
      config: that of the programs.
    """

    async def main() -> None:
        model = decoder_model(MODEL, VOCAB)
        sampler = NativeSampler(config, model, programs=programs or native_programs())
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                await nursery.start(sampler.serve)
                await body(sampler)
                nursery.cancel_scope.cancel()

    trio.run(main)


async def until_idle(sampler: NativeSampler) -> SamplerStatistics:
    """Wait until no request is left in the sampler."""
    while True:
        statistics = await sampler.device.run(sampler.statistics)
        if statistics.rows_busy == statistics.waiting == 0:
            return statistics
        await trio.sleep(0.001)


def sampled(decoded: SampledBlock) -> Bools:
    """Which draws of a dispatch are tokens, bool[S, k]."""
    steps = np.arange(decoded.draws.token.shape[1])
    which: Bools = steps < np.asarray(decoded.num_sampled)[:, None]
    return which


def assert_same(left: Completion, right: Completion) -> None:
    """Bit for bit: tokens and logprobs."""
    np.testing.assert_array_equal(left.tokens, right.tokens)
    np.testing.assert_array_equal(left.logprobs, right.logprobs)
    assert left.finish == right.finish
