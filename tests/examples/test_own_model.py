"""Own modules: with a cache or without, sampler and learner agree; and the example learns."""

import importlib.util
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen

from headrace import ConfigError, SampleRequest
from headrace.pipeline.learner.logprobs import row_logprobs
from headrace.pipeline.models.model import Model, cast
from headrace.pipeline.sampler.config import SamplerConfig
from headrace.pipeline.sampler.engine import Engine
from headrace.pipeline.sampler.programs import compile_programs
from headrace.pipeline.types import TrainBatch
from headrace.sharding.mesh import make_mesh
from tests.learner.toy import QUICK, quick_jit

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model.py"
CONFIG = SamplerConfig(
    rows=4, context_tokens=16, decode_tokens=3, prefill_lanes=2, prefill_tokens=4, page_tokens=4
)
TEMPERATURE = 0.7
VOCAB = 8


@cache
def nnx_model():
    spec = importlib.util.spec_from_file_location("own_model_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # Room for the longer texts of these tests.
    module.SIZES = replace(module.SIZES, context_tokens=CONFIG.context_tokens)
    return module.own_model()


class Smooth(linen.Module):
    """Each token's logits come from the mean over all before it: nothing that attends."""

    @linen.compact
    def __call__(self, tokens, segment_ids):
        x = linen.Embed(VOCAB, 6)(tokens)
        length = tokens.shape[1]
        seen = segment_ids[:, :, None] == segment_ids[:, None, :]
        seen &= jnp.tril(jnp.ones((length, length), bool))[None]
        weights = seen.astype(jnp.float32)
        shares = weights / weights.sum(-1, keepdims=True)
        return jnp.tanh(linen.Dense(6)(x + jnp.einsum("rts,rsd->rtd", shares, x)))


def linen_model():
    """A linen module as a model without a cache."""
    module = Smooth()
    rows = jnp.zeros((1, 1), jnp.int32)

    def init(key):
        of_module, of_head = jax.random.split(key)
        head = jax.random.normal(of_head, (VOCAB, 6))
        return {"module": module.init(of_module, rows, rows)["params"], "head": head}

    def forward(params, tokens, positions, segment_ids):
        return module.apply({"params": params["module"]}, tokens, segment_ids), params["head"]

    return Model(VOCAB, init, forward)


def draw_params(model):
    """Parameters that differ from a start of zeros here and there."""
    params = quick_jit(model.init)(jax.random.key(0))
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: leaf + np.float32(0.3) * rng.standard_normal(leaf.shape).astype(np.float32),
        params,
    )


def make_requests():
    rng = np.random.default_rng(1)
    return [
        SampleRequest(
            rng.integers(0, VOCAB, length).astype(np.int32),
            max_tokens=5,
            stop_ids=(),
            key=(7, length),
            temperature=TEMPERATURE,
        )
        for length in (1, 3, 4, 6, 9, 11)
    ]


def sample(model, params, mesh=None):
    programs = compile_programs(CONFIG, model, mesh=mesh, compiler_options=QUICK)
    engine = Engine(CONFIG, model, mesh=mesh, programs=programs)
    engine.publish(quick_jit(partial(model.sampler_params, weights="float32"))(params), 0)
    for ticket, request in enumerate(make_requests()):
        engine.submit(ticket, request)
    answers = {}
    while engine.has_work:
        answers |= dict(engine.step())
    return [answers[ticket] for ticket in range(len(answers))]


def assert_of_learner(model, params, completions):
    """All texts in one row, as the learner has them."""
    texts = [
        np.concatenate([a.tokens, b.tokens])
        for a, b in zip(make_requests(), completions, strict=True)
    ]
    tokens = np.concatenate(texts)[None]
    segments = np.concatenate([np.full(len(text), 1 + n) for n, text in enumerate(texts)])
    positions = np.concatenate([np.arange(len(text)) for text in texts])
    rows = TrainBatch._make([None] * len(TrainBatch._fields))._replace(
        tokens=tokens,
        segment_ids=segments[None].astype(np.int32),
        positions=positions[None].astype(np.int32),
    )
    score = partial(row_logprobs, forward=model.forward, temperature=TEMPERATURE)
    found = np.asarray(quick_jit(score)(params, rows)[0][0])
    for number, completion in enumerate(completions):
        expected = found[segments == 1 + number][-len(completion.tokens) :]
        np.testing.assert_allclose(completion.logprobs, expected, atol=2e-5)


def test_law_8_an_nnx_module_with_and_without_its_cache():
    model, params = nnx_model(), draw_params(nnx_model())
    cached = sample(model, params)
    assert_of_learner(model, params, cached)
    assert len({completion.tokens.tobytes() for completion in cached}) > 3
    again = sample(replace(model, cached=None), params)
    for one, other in zip(cached, again, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=2e-5)


@pytest.mark.slow
def test_law_8_a_linen_module_without_a_cache_on_a_mesh():
    model = linen_model()
    params = draw_params(model)
    mesh = make_mesh(jax.devices()[:2], {"fsdp": 2, "tensor": 1})
    assert_of_learner(model, params, sample(model, params, mesh))


def test_copies_for_the_sampler_have_its_type_and_integers_stay():
    params = {"w": jnp.ones((2, 3)), "n": jnp.arange(2)}
    found = cast(params, "bfloat16")
    assert found["w"].dtype == jnp.bfloat16
    assert found["n"].dtype == jnp.int32
    assert found["n"].unsafe_buffer_pointer() != params["n"].unsafe_buffer_pointer()
    with pytest.raises(ConfigError, match=r"sampler\.weights.*float32 or bfloat16.*int8"):
        cast(params, "int8")


@pytest.mark.slow
def test_the_example_learns():
    run = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        cwd=EXAMPLE.parents[1],
        env={
            "PYTHONPATH": str(EXAMPLE.parents[1]),
            "JAX_PLATFORMS": "cpu",
            "HOME": "/nonexistent",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    right = [float(share) for share in re.findall(r"right (\d\.\d+)", run.stdout)]
    assert right[0] < 0.3
    assert right[-1] > 0.7
    assert run.stderr == ""
