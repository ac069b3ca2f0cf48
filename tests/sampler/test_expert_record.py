"""Which experts tokens took: what the sampler records, and what the learner makes of it."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import pytest

from headrace.envs import StepResult, Task
from headrace.pipeline.errors import ConfigError
from headrace.pipeline.groups.batching import form_batch
from headrace.pipeline.learner.logprobs import batch_logprobs
from headrace.pipeline.learner.vocabulary import score_targets
from headrace.pipeline.models.adapted import adapted_model
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.decoder import forward
from headrace.pipeline.models.lora import LoraConfig, init_lora
from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.models.parameters import Weight, declare, unstack
from headrace.pipeline.models.traits import ExpertTraits, Traits
from headrace.pipeline.rollout.trajectory import TrajectoryBuilder
from headrace.pipeline.sampler.config import DrawLimits
from headrace.pipeline.sampler.engine import Engine
from headrace.pipeline.sampler.programs import Programs, compile_programs
from headrace.pipeline.sampler.state import initial_state
from headrace.pipeline.types import (
    NOT_RECORDED,
    Completion,
    Int16s,
    SampleRequest,
    StopReason,
    Trajectory,
    TrajectoryGroup,
)
from headrace.sharding.mesh import FSDP, TENSOR, make_mesh
from tests.sampler.helpers import CONFIG, MODEL, VOCAB, make_request

pytestmark = pytest.mark.slow

MIXTURE = ModelConfig(2, 16, 4, 2, 4, 8, traits=Traits(experts=ExpertTraits(count=5, per_token=2)))
# Pages for two of the five rows at full length: some requests are parked and come back.
RECORDING = replace(CONFIG, draws=DrawLimits(record_experts=True))


@cache
def params() -> Any:
    rng = np.random.default_rng(0)

    def draw(weight: Weight) -> np.ndarray:
        around = 0.0 if weight.stddev is not None else 1.0
        spread = 0.4 if weight.stddev is None else 1.2 * weight.stddev
        return (around + spread * rng.standard_normal(weight.shape)).astype(np.float32)

    return jax.tree.map(draw, declare(MIXTURE, VOCAB))


@cache
def programs() -> Programs:
    return compile_programs(RECORDING, decoder_model(MIXTURE, VOCAB))


def make_engine() -> Engine:
    engine = Engine(RECORDING, decoder_model(MIXTURE, VOCAB), programs=programs())
    engine.publish(jax.jit(unstack)(params()), 0)
    return engine


def run(engine: Engine, requests: list[SampleRequest]) -> list[Completion]:
    for ticket, request in enumerate(requests):
        engine.submit(ticket, request)
    answers: dict[int, Any] = {}
    while engine.has_work:
        answers |= dict(engine.step())
    return [answers[ticket] for ticket in range(len(requests))]


def padded(values: np.ndarray, fill: int) -> np.ndarray:
    """One row of a batch, as long as the context."""
    row = np.full((1, CONFIG.context_tokens, *values.shape[1:]), fill, np.int32)
    row[0, : len(values)] = values
    return row


@jax.jit
def learner_logprobs(params: Any, tokens: Any, segments: Any, experts: Any) -> jax.Array:
    """Logprobs of one row's tokens under the recorded experts; those of token t stand at t - 1."""
    positions = np.arange(CONFIG.context_tokens, dtype=np.int32)[None]
    hidden, head = forward(params, tokens, positions, segments, config=MIXTURE, experts=experts)
    return score_targets(hidden[:, :-1], head, tokens[:, 1:])[0][0]


def replayed(params: Any, sequence: np.ndarray, experts: Int16s) -> np.ndarray:
    segments = padded(np.ones(len(sequence), np.int32), 0)
    record = padded(experts, NOT_RECORDED)
    found = learner_logprobs(params, padded(sequence, 0), segments, record)
    return np.asarray(found)


def test_law_8_replayed_experts_give_the_samplers_logprobs_and_neighbours_change_no_choice() -> (
    None
):
    engine = make_engine()
    requests = [make_request(seed, max_tokens=8) for seed in range(10)]
    together = run(engine, requests)
    for request, completion in zip(requests, together, strict=True):
        sequence = np.concatenate([request.tokens, completion.tokens])
        record = completion.experts
        assert record is not None
        assert record.shape == (len(sequence), 2, 2)
        assert (record[-1] == NOT_RECORDED).all()
        known = np.sort(record[:-1], axis=-1)
        assert (known >= 0).all()
        assert (known[..., 0] < known[..., 1]).all(), "experts of a token differ"
        found = replayed(params(), sequence, record)[len(request.tokens) - 1 : len(sequence) - 1]
        np.testing.assert_allclose(found, completion.logprobs, atol=2e-5)
        [alone] = run(make_engine(), [request])
        np.testing.assert_array_equal(alone.experts, record)
        np.testing.assert_array_equal(alone.logprobs, completion.logprobs)


def test_the_record_is_replayed_where_the_learners_router_would_choose_others() -> None:
    request = make_request(3, max_tokens=8)
    [completion] = run(make_engine(), [request])
    sequence = np.concatenate([request.tokens, completion.tokens])
    inverted = {**params(), "layers": {**params()["layers"]}}
    inverted["layers"]["router"] = -params()["layers"]["router"]
    one, other = (
        replayed(inverted, sequence, experts)
        for experts in (completion.experts, np.full_like(completion.experts, NOT_RECORDED))
    )
    end = len(sequence) - 1
    assert np.abs(one[:end] - other[:end]).max() > 0.05


def trajectory_of_two_turns() -> Trajectory:
    engine = make_engine()
    first = make_request(5, max_tokens=4)
    builder = TrajectoryBuilder(first.tokens.tolist())
    for _ in range(2):
        [answer] = run(engine, [replace(first, tokens=builder.tokens)])
        builder.act(answer, sample_seconds=0.0)
        builder.answered(StepResult(), env_seconds=0.0)
        builder.observe([1, 2])
    return builder.finish(StopReason.MAX_TURNS, seconds=0.0)


@pytest.mark.parametrize("adapted", [False, True])
def test_a_batch_carries_the_record_to_the_learner(adapted: bool) -> None:
    trajectory = trajectory_of_two_turns()
    group = TrajectoryGroup(0, Task("a"), (trajectory,))
    batch, _ = form_batch([group], lambda r, p: r, batch=0, group_size=1, shape=(1, 1, 32))
    inverted = {**params(), "layers": {**params()["layers"]}}
    inverted["layers"]["router"] = -params()["layers"]["router"]
    model = decoder_model(MIXTURE, VOCAB)
    if adapted:
        lora = LoraConfig(rank=2)
        model, adapters = adapted_model(model, lora), init_lora(jax.random.key(0), params(), lora)

    @jax.jit
    def score(params: Any, batch: Any) -> jax.Array:
        whole = (adapters, params) if adapted else params
        return batch_logprobs(whole, batch, forward=model.forward)

    mask = batch.loss_mask
    found, router = score(params(), batch), score(inverted, batch._replace(experts=None))
    np.testing.assert_allclose(found[mask], batch.rollout_logprobs[mask], atol=2e-5)
    again = score(inverted, batch)
    assert np.abs(np.asarray(again - router))[mask].max() > 0.05, "the record decides"


def test_a_later_turn_has_the_record_of_the_earlier_one_in_front() -> None:
    engine = make_engine()
    first = make_request(5, max_tokens=4)
    [answer] = run(engine, [first])
    said = np.concatenate([first.tokens, answer.tokens])
    second = replace(first, tokens=np.concatenate([said, np.array([1, 2], np.int32)]))
    [later] = run(engine, [second])
    np.testing.assert_array_equal(later.experts[: len(said) - 1], answer.experts[:-1])
    assert (later.experts[:-1] != NOT_RECORDED).all()


@pytest.mark.slow
def test_on_a_mesh_the_record_is_that_of_one_device() -> None:
    config = replace(RECORDING, rows=4, pages=40)
    requests = [make_request(seed, max_tokens=8) for seed in range(10)]
    answers = []
    for mesh in (None, make_mesh(jax.devices()[:4], {FSDP: 2, TENSOR: 2})):
        engine = Engine(config, decoder_model(MIXTURE, VOCAB), mesh=mesh)
        engine.publish(jax.jit(unstack)(params()), 0)
        answers.append(run(engine, requests))
    for one, other in zip(*answers, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.experts, other.experts)


def test_experts_are_not_recorded_of_a_model_that_has_none() -> None:
    model = decoder_model(MODEL, VOCAB)
    with pytest.raises(ConfigError, match="record_experts must be false for a model without"):
        jax.eval_shape(partial(initial_state, RECORDING, model, platform="cpu"))
