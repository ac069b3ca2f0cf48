"""bfloat16 inside, float32 outside: parameters, gradients, what is stored in fewer bits."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from headrace.pipeline.algorithms.losses import sft_loss
from headrace.pipeline.learner import init_state, train_step
from headrace.pipeline.learner.precision import computed_in
from headrace.pipeline.models.adapted import forward_adapted
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.decoder import forward
from headrace.pipeline.models.frozen import freeze
from headrace.pipeline.models.lora import LoraConfig, init_lora
from headrace.pipeline.models.nf4 import Nf4
from headrace.pipeline.models.parameters import init
from tests.learner.toy import VOCAB, quick_jit, toy_batch

CONFIG = ModelConfig(
    num_layers=2, width=16, num_heads=2, num_kv_heads=1, head_width=8, ffn_width=24
)
FORWARD = partial(forward, config=CONFIG)


def types_of(tree):
    return {str(leaf.dtype) for leaf in jax.tree.leaves(tree)}


def test_float32_changes_nothing():
    assert computed_in(FORWARD, "float32") is FORWARD


def test_the_model_computes_in_bfloat16_from_float32_parameters():
    seen = []

    def spy(params, *rows, experts=None):
        seen.append((types_of(params["layers"]), experts))
        return FORWARD(params, *rows)

    params = jax.eval_shape(partial(init, CONFIG, VOCAB), jax.random.key(0))
    rows = [jax.ShapeDtypeStruct((2, 4), jnp.int32)] * 3
    narrow = computed_in(spy, "bfloat16")
    hidden, head = jax.eval_shape(partial(narrow, experts=None), params, *rows)
    assert seen == [({"bfloat16"}, None)]
    assert hidden.dtype == head.dtype == jnp.bfloat16


def test_what_is_stored_in_fewer_bits_is_left_and_the_stream_is_narrow():
    lora = LoraConfig(rank=2, targets="query")
    seen = []

    def spy(params, *rows):
        seen.append(params)
        return forward_adapted(params, *rows, forward=FORWARD, config=lora)

    def run(key, *rows):
        base = freeze(init(CONFIG, VOCAB, key), "nf4")
        pair = (init_lora(key, base, lora), base)
        return computed_in(spy, "bfloat16")(pair, *rows), pair[1]["layers"]["down"]

    rows = [jax.ShapeDtypeStruct((2, 4), jnp.int32)] * 3
    (hidden, _), stored = jax.eval_shape(run, jax.random.key(0), *rows)
    assert hidden.dtype == jnp.bfloat16
    adapters, base = seen[0]
    assert types_of(adapters) == {"bfloat16"}
    assert isinstance(base["layers"]["down"], Nf4)
    chex.assert_trees_all_equal_dtypes(base["layers"]["down"], stored)


@pytest.mark.slow
def test_a_step_moves_float32_parameters_by_a_gradient_close_to_the_exact_one():
    batch, optimizer = toy_batch(), optax.sgd(1.0, momentum=0.9)
    steps = [
        quick_jit(
            partial(
                train_step,
                forward=computed_in(FORWARD, compute_type),
                loss=sft_loss,
                optimizer=optimizer,
            )
        )
        for compute_type in ("float32", "bfloat16")
    ]

    def moved(step, params):
        state, metrics = step(init_state(params, optimizer), batch)
        assert types_of(state.params) == types_of(state.opt_state) == {"float32"}
        assert metrics["moved_share"] > 0.9
        moves = jax.tree.map(lambda a, b: a - b, params, state.params)
        return np.concatenate([np.ravel(x) for x in jax.tree.leaves(moves)])

    errors = []
    for seed in range(10):
        params = init(CONFIG, VOCAB, jax.random.key(seed))
        exact, narrow = (moved(step, params) for step in steps)
        errors.append(np.linalg.norm(exact - narrow) / np.linalg.norm(exact))
    # One model's error is 0.011 to 0.033, the larger the smaller its gradient.
    assert 1e-5 < np.mean(errors) < 0.02
