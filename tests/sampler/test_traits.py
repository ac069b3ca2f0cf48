"""A sampler of a model with windows, caps and biases: what it records, the learner computes."""

from functools import cache, partial
from typing import Any

import jax
import numpy as np

from headrace.pipeline.learner.logprobs import row_logprobs
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.decoder import forward
from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.models.parameters import init, unstack
from headrace.pipeline.models.traits import AttentionTraits, RopeTraits, Traits
from headrace.pipeline.sampler.engine import Engine
from headrace.pipeline.types import Completion, SampleRequest, TrainBatch
from tests.learner.toy import quick_jit
from tests.sampler.helpers import CONFIG, VOCAB, make_request

# The window ends inside pages and chunks of 4 positions, which prompts fill several times.
TRAITS = Traits(
    attention=AttentionTraits(
        qkv_bias=True, output_bias=True, score_width=2.0, score_cap=3.0, window=5,
        windowed_layers=(0, 2),
    ),
    rope=RopeTraits("linear", 2.0, windowed_theta=20.0),
    ffn_bias=True,
    activation="gelu_tanh",
    norms_add_one=True,
    post_norms=True,
    embedding_scale=3.0,
    logit_cap=2.0,
)  # fmt: skip
MODEL = ModelConfig(3, 16, 4, 2, 6, 12, qk_norm=True, traits=TRAITS)
TEMPERATURE = 0.7


@cache
def params() -> Any:
    """Weights in which biases and norms differ from their start too."""
    rng = np.random.default_rng(1)

    def disturb(weight: jax.Array) -> np.ndarray:
        return np.asarray(weight) + 0.3 * rng.standard_normal(weight.shape).astype(np.float32)

    return jax.tree.map(disturb, quick_jit(partial(init, MODEL, VOCAB))(jax.random.key(0)))


def run(engine: Engine, requests: list[SampleRequest]) -> list[Completion]:
    for ticket, request in enumerate(requests):
        engine.submit(ticket, request)
    answers: dict[int, Any] = {}
    while engine.has_work:
        answers |= dict(engine.step())
    return [answers[ticket] for ticket in range(len(requests))]


def learner_logprobs(request: SampleRequest, completion: Completion) -> np.ndarray:
    sequence = np.concatenate([request.tokens, completion.tokens])
    tokens, segments = np.zeros((2, 1, CONFIG.context_tokens), np.int32)
    tokens[0, : len(sequence)] = sequence
    segments[0, : len(sequence)] = 1
    positions = np.arange(CONFIG.context_tokens, dtype=np.int32)[None]
    rows = TrainBatch(tokens, segments, positions, *[None] * (len(TrainBatch._fields) - 3))
    return np.asarray(_score(params(), rows))[0, len(request.tokens) : len(sequence)]


@quick_jit
def _score(params: Any, rows: TrainBatch) -> jax.Array:
    model = partial(forward, config=MODEL)
    return row_logprobs(params, rows, forward=model, temperature=TEMPERATURE)[0]


def test_laws_7_and_8_hold_left_and_right_of_the_window() -> None:
    engine = Engine(CONFIG, decoder_model(MODEL, VOCAB))
    engine.publish(quick_jit(unstack)(params()), 0)
    requests = [make_request(seed, temperature=TEMPERATURE, max_tokens=8) for seed in range(12)]
    together = run(engine, requests)
    assert max(len(one.tokens) for one in requests) > 2 * MODEL.traits.attention.window
    for request, completion in zip(requests, together, strict=True):
        expected = learner_logprobs(request, completion)
        np.testing.assert_allclose(completion.logprobs, expected, atol=2e-5)
        [alone] = run(engine, [request])
        np.testing.assert_array_equal(alone.tokens, completion.tokens)
        np.testing.assert_array_equal(alone.logprobs, completion.logprobs)
