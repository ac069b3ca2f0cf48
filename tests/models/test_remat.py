"""What is computed again changes no gradient and takes less memory."""

from functools import partial
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.pipeline.learner.precision import computed_in
from headrace.pipeline.models import decoder
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.decoder import forward
from headrace.pipeline.models.parameters import init
from headrace.pipeline.models.remat import Remat

CONFIG = ModelConfig(
    num_layers=6, width=16, num_heads=2, num_kv_heads=1, head_width=8, ffn_width=48
)
ROWS, TOKENS, VOCAB = 2, 48, 7


def gradient_program(remat):
    def number(params, tokens):
        positions = jnp.broadcast_to(jnp.arange(TOKENS, dtype=jnp.int32), tokens.shape)
        segments = jnp.ones_like(tokens)
        hidden, _ = forward(params, tokens, positions, segments, config=CONFIG, remat=remat)
        return jnp.sum(jnp.sin(hidden))

    params = jax.eval_shape(partial(init, CONFIG, VOCAB), jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((ROWS, TOKENS), jnp.int32)
    return jax.jit(jax.grad(number)).lower(params, tokens).compile()


@pytest.mark.slow
def test_layers_in_a_loop_and_as_straight_code_have_the_same_gradients(monkeypatch):
    params = init(CONFIG, VOCAB, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (ROWS, TOKENS), 0, VOCAB, jnp.int32)
    assert CONFIG.num_layers <= decoder.UNROLLED_LAYERS
    straight = gradient_program("none")
    monkeypatch.setattr(decoder, "UNROLLED_LAYERS", 0)
    looped = gradient_program("none")
    loops = [program.as_text().count(" while(") for program in (straight, looped)]
    assert loops[0] < loops[1]
    for found, expected in zip(
        jax.tree.leaves(straight(params, tokens)),
        jax.tree.leaves(looped(params, tokens)),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_each_policy_keeps_less_than_the_one_before_and_changes_no_gradient():
    params = init(CONFIG, VOCAB, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (ROWS, TOKENS), 0, VOCAB, jnp.int32)
    memory, gradients = {}, {}
    for remat in get_args(Remat):
        program = gradient_program(remat)
        memory[remat] = program.memory_analysis().temp_size_in_bytes
        gradients[remat] = program(params, tokens)
    assert memory["none"] > memory["dots"] > memory["matrices"] > memory["layer"]
    for remat in get_args(Remat):
        for found, expected in zip(
            jax.tree.leaves(gradients[remat]), jax.tree.leaves(gradients["none"]), strict=True
        ):
            np.testing.assert_allclose(found, expected, atol=1e-5)


def bytes_kept(remat, compute_type):
    """Count what waits for the backward pass, of all layers together."""
    run = computed_in(partial(forward, config=CONFIG, remat=remat), compute_type)

    def backward(params, tokens):
        rows = tokens, tokens, jnp.ones_like(tokens)
        return jax.vjp(lambda params: run(params, *rows)[0], params)[1]

    params = jax.eval_shape(partial(init, CONFIG, VOCAB), jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((ROWS, 47), jnp.int32)  # divides no size of a parameter
    kept = jax.tree.leaves(jax.eval_shape(backward, params, tokens))
    of_tokens = [leaf for leaf in kept if leaf.size % (CONFIG.num_layers * tokens.size) == 0]
    return sum(leaf.size * leaf.dtype.itemsize for leaf in of_tokens)


@pytest.mark.parametrize("remat", ["matrices", "layer"])
def test_half_as_much_of_the_stream_is_kept_in_bfloat16(remat):
    assert 0 < 2 * bytes_kept(remat, "bfloat16") == bytes_kept(remat, "float32")
