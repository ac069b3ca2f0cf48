"""Stored weights in the sampler: how far its logprobs are from the learner's, and meshes."""

from dataclasses import replace
from functools import cache, partial

import jax
import numpy as np
import pytest
import trio
from jax.sharding import Mesh

from headrace.pipeline.models.config import StoredWeights
from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.models.quantize import sampler_params
from headrace.pipeline.sampler.service import NativeSampler
from headrace.pipeline.types import Completion
from headrace.sharding.mesh import FSDP, TENSOR, make_mesh
from tests.sampler.helpers import (
    CONFIG,
    MODEL,
    VOCAB,
    assert_same,
    learner_logprobs,
    learner_params,
    make_request,
    sample_all,
)

FOUR_ROWS = replace(CONFIG, rows=4)  # two for each part of a mesh
REQUESTS = tuple(make_request(seed) for seed in range(12))


def sample(
    weights: StoredWeights, mesh: Mesh | None, *, one_by_one: bool = False
) -> list[Completion]:
    """Sample all requests, together or not, with weights that are stored like this."""
    found: list[Completion] = []
    config = replace(FOUR_ROWS, weights=weights)
    params = jax.jit(partial(sampler_params, weights=weights))(learner_params(0))

    async def main() -> None:
        sampler = NativeSampler(config, decoder_model(MODEL, VOCAB), mesh=mesh)
        sampler.compile()
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                await nursery.start(sampler.serve)
                await sampler.publish(params, 0)
                if one_by_one:
                    found.extend([await sampler.sample(request) for request in REQUESTS])
                else:
                    found.extend(await sample_all(sampler.sample, REQUESTS))
                nursery.cancel_scope.cancel()

    trio.run(main)
    return found


@cache
def on_one_device(weights: StoredWeights) -> list[Completion]:
    return sample(weights, None)


@pytest.mark.parametrize(
    ("weights", "least", "most"),
    [
        pytest.param("float32", 0.0, 2e-6, marks=pytest.mark.slow),
        pytest.param("int8", 1e-4, 2e-2, marks=pytest.mark.slow),
        pytest.param("bfloat16", 1e-4, 2e-2, marks=pytest.mark.slow),
    ],
)
def test_the_mean_mismatch_with_the_learner_is_bounded(weights, least, most):
    distances = [
        np.abs(learner_logprobs(learner_params(0), request, completion) - completion.logprobs)
        for request, completion in zip(REQUESTS, on_one_device(weights), strict=True)
    ]
    assert least <= np.concatenate(distances).mean() < most


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
def test_neighbours_change_no_bit_of_a_request(weights):  # law 7
    for one, many in zip(
        sample(weights, None, one_by_one=True), on_one_device(weights), strict=True
    ):
        assert_same(one, many)


@pytest.mark.slow
def test_int8_weights_on_a_mesh_give_the_tokens_of_one_device():
    mesh = make_mesh(jax.devices()[:4], {FSDP: 2, TENSOR: 2})
    for one, many in zip(on_one_device("int8"), sample("int8", mesh), strict=True):
        np.testing.assert_array_equal(one.tokens, many.tokens)
        np.testing.assert_allclose(one.logprobs, many.logprobs, atol=1e-5)
