"""On every mesh the sampler draws the tokens of one device."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.sampler.config import SamplerConfig
from headrace.pipeline.sampler.engine import Engine
from headrace.pipeline.types import Completion, SampleRequest
from headrace.sharding.mesh import FSDP, TENSOR, make_mesh
from tests.sampler.helpers import MODEL, VOCAB, make_request, sampler_params

CONFIG = SamplerConfig(
    rows=8, context_tokens=24, decode_tokens=3, page_tokens=4, prefill_lanes=8, prefill_tokens=4
)
TEMPERATURES = (1.0, 0.6, 1.7, 0.0)
ALONE = [make_request(seed, temperature=TEMPERATURES[seed % 4]) for seed in range(12)]
GROUPS = [
    replace(ALONE[index], key=(100 + index, member)) for index in range(4) for member in (0, 1)
]
FIRST_TURNS = ALONE + GROUPS


@cache
def conversations(fsdp: int, tensor: int) -> list[Completion]:
    """Two turns of each conversation, all at once."""
    devices = jax.devices()[: fsdp * tensor]
    mesh = make_mesh(devices, {FSDP: fsdp, TENSOR: tensor}) if len(devices) > 1 else None
    engine = Engine(CONFIG, decoder_model(MODEL, VOCAB), mesh=mesh)
    engine.publish(sampler_params(0), 0)
    first = sample(engine, FIRST_TURNS)
    pairs = zip(FIRST_TURNS, first, strict=True)
    second = [next_turn(request, done) for request, done in pairs if has_room(request, done)]
    completions = first + sample(engine, second)
    assert engine.statistics().pages_free == 1
    return completions


def sample(engine: Engine, requests: list[SampleRequest]) -> list[Completion]:
    for ticket, request in enumerate(requests):
        engine.submit(ticket, request)
    done: dict[int, Completion] = {}
    while engine.has_work:
        done |= dict(engine.step())
    return [done[ticket] for ticket in range(len(requests))]


def has_room(request: SampleRequest, done: Completion) -> bool:
    return len(request.tokens) + len(done.tokens) + 1 < CONFIG.context_tokens


def next_turn(request: SampleRequest, done: Completion) -> SampleRequest:
    tokens = np.concatenate([request.tokens, done.tokens, np.array([5], np.int32)])
    return replace(request, tokens=tokens, max_tokens=4)


@pytest.mark.slow
@pytest.mark.parametrize(("fsdp", "tensor"), [(2, 1), (2, 2), (4, 2)])
def test_the_tokens_are_those_of_one_device(fsdp: int, tensor: int) -> None:
    expected, completions = conversations(1, 1), conversations(fsdp, tensor)
    assert len(completions) == len(expected) > len(FIRST_TURNS)
    for left, right in zip(expected, completions, strict=True):
        np.testing.assert_array_equal(left.tokens, right.tokens)
        np.testing.assert_allclose(left.logprobs, right.logprobs, atol=1e-5)
