"""A sampler of a policy with adapters: merged or apart, it samples what the learner computes."""

from functools import cache, partial
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import pytest

from headrace.pipeline.models.adapted import adapted_model, forward_adapted, merged_params
from headrace.pipeline.models.decoder import forward
from headrace.pipeline.models.frozen import freeze
from headrace.pipeline.models.lora import LoraConfig, Published, init_lora
from headrace.pipeline.models.model import Model, decoder_model
from headrace.pipeline.sampler.engine import Engine
from headrace.pipeline.sampler.programs import abstract_params, compile_programs
from headrace.pipeline.types import Completion, SampleRequest
from headrace.pipeline.weight_sync import Convert, compile_convert, compile_lora_convert
from tests.learner.toy import QUICK, quick_jit
from tests.sampler.helpers import (
    CONFIG,
    MODEL,
    VOCAB,
    learner_params,
    make_request,
    native_programs,
)

DECODER = decoder_model(MODEL, VOCAB)
TEMPERATURE = 0.8


def lora(publish: Published = "adapters") -> LoraConfig:
    return LoraConfig(rank=2, alpha=4.0, base="nf4", publish=publish)


@cache
def base() -> Any:
    return quick_jit(freeze, static_argnums=1)(learner_params(0), "nf4")


@cache
def adapters(version: int) -> Any:
    """Adapters of a version; versions differ strongly."""
    fresh = quick_jit(init_lora, static_argnums=2)(jax.random.key(version), base(), lora())
    rng = np.random.default_rng(version)

    def disturb(leaf: jax.Array) -> np.ndarray:
        return np.asarray(leaf) + 0.2 * rng.standard_normal(leaf.shape).astype(np.float32)

    return jax.tree.map(disturb, fresh)


@cache
def convert(publish: Published) -> Convert:
    return compile_lora_convert(
        adapters(0), base(), lora=lora(publish), model=DECODER, weights=CONFIG.weights
    )


def make_engine(publish: Published) -> Engine:
    model = adapted_model(DECODER, lora(publish))
    if publish == "merged":
        return Engine(CONFIG, model, programs=native_programs())
    programs = compile_programs(CONFIG, model, compiler_options=QUICK)
    return Engine(CONFIG, model, programs=programs)


def run(engine: Engine, request: SampleRequest) -> Completion:
    engine.submit(0, request)
    answers: dict[int, Any] = {}
    while engine.has_work:
        answers |= dict(engine.step())
    return answers[0]


@quick_jit
def _hidden(params: Any, rows: Any) -> Any:
    bound = partial(forward_adapted, forward=partial(forward, config=MODEL), config=lora())
    return bound(params, *rows)


def learner_logprobs(version: int, request: SampleRequest, completion: Completion) -> np.ndarray:
    sequence = np.concatenate([request.tokens, completion.tokens])
    tokens, segments = np.zeros((2, 1, CONFIG.context_tokens), np.int32)
    tokens[0, : len(sequence)] = sequence
    segments[0, : len(sequence)] = 1
    positions = np.arange(CONFIG.context_tokens, dtype=np.int32)[None]
    hidden, head = _hidden((adapters(version), base()), (tokens, positions, segments))
    logits = np.asarray(hidden[0], np.float64) @ np.asarray(head, np.float64).T / TEMPERATURE
    logprobs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    sampled = np.arange(len(request.tokens), len(sequence))
    return logprobs[sampled - 1, sequence[sampled]]


@pytest.mark.parametrize("publish", ["merged", "adapters"])
def test_conformance_7_law_8_sampler_and_learner_agree_at_every_version(
    publish: Published,
) -> None:
    engine = make_engine(publish)
    found = []
    for version in (0, 1, 2):
        engine.publish(convert(publish)(adapters(version)), version)
        request = make_request(5, temperature=TEMPERATURE, max_tokens=8)
        completion = run(engine, request)
        expected = learner_logprobs(version, request, completion)
        np.testing.assert_allclose(completion.logprobs, expected, atol=2e-5)
        found.append(completion.logprobs)
    for one, other in pairwise(found):
        assert len(one) != len(other) or np.abs(one - other).max() > 0.1


def test_versions_of_adapters_share_the_arrays_of_the_base() -> None:
    first, second = (convert("adapters")(adapters(version)) for version in (0, 1))
    ids = [{id(leaf): leaf for leaf in jax.tree.leaves(tree)} for tree in (first, second)]
    own = [leaf for key, leaf in ids[1].items() if key not in ids[0]]
    assert sum(leaf.size for leaf in own) == sum(
        leaf.size for leaf in jax.tree.leaves(adapters(1))
    )
    assert len(ids[1]) > len(own)


def test_what_is_merged_for_saving_is_compiled_ahead_and_is_what_is_published() -> None:
    to_plain = partial(merged_params, config=lora())
    saved = compile_convert(to_plain, adapters(0), base())(adapters(1))
    served = convert("merged")(adapters(1))
    for layer in range(MODEL.num_layers):
        found, expected = saved["layers"]["gate"][layer], served["layers"][layer]["gate"]
        np.testing.assert_allclose(found.T, expected, atol=1e-6)


@pytest.mark.parametrize("weights", ["float32", "int8"])
@pytest.mark.parametrize("publish", ["merged", "adapters"])
def test_every_array_of_an_adapted_model_has_the_names_of_its_axes(
    publish: Published, weights: Any
) -> None:
    model: Model = adapted_model(DECODER, lora(publish))
    assert model.sampler_axes is not None
    axes = model.sampler_axes(weights)

    def check(shape: jax.ShapeDtypeStruct, names: tuple[str | None, ...]) -> None:
        assert len(names) == len(shape.shape)
        known = {name: size for name, size in zip(names, shape.shape, strict=True) if name}
        sizes = {
            "width": 16,
            "heads": 4,
            "kv_heads": 2,
            "head_width": 4,
            "ffn": 24,
            "vocab": VOCAB,
        }
        assert known == {name: sizes[name] for name in known}

    jax.tree.map(check, abstract_params(model, weights), axes)


def test_init_gives_fresh_adapters_and_a_frozen_base() -> None:
    model = adapted_model(DECODER, lora())
    fresh, frozen = jax.eval_shape(model.init, jax.random.key(0))
    assert jax.tree.structure(fresh) == jax.tree.structure(adapters(0))
    assert jax.tree.structure(frozen) == jax.tree.structure(base())
