"""The matrix products of a decode step and nothing else: what no sampler can be faster than.

Each product reads the result of one before it and adds to what comes after, so that the
compiler can neither leave it out nor move it out of the loop. Query, key and value are one
product, and so are gate and up; apart they cost the same.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from costs import Cost, measure, quickest
from headrace.pipeline.models.config import ModelConfig


class Matrices(NamedTuple):
    """One layer's weights, as [inputs, outputs]."""

    query_key_value: jax.Array
    output: jax.Array
    gate_up: jax.Array
    down: jax.Array


def cost_of_products(
    model: ModelConfig, vocab_size: int, *, rows: int, steps: int, rounds: int
) -> Cost:
    """Measure `steps` decode steps' products over `rows` rows, float32; the best of the rounds.

    Args:
      steps: tokens of each row.
    """
    layers, head = make_matrices(model, vocab_size)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(rows, model.width)), jnp.float32)
    program = jax.jit(partial(multiply, steps=steps)).lower(x, layers, head).compile()

    def run() -> None:
        program(x, layers, head).block_until_ready()

    run()
    return quickest([measure(run) for _ in range(rounds)])


def make_matrices(model: ModelConfig, vocab_size: int) -> tuple[list[Matrices], jax.Array]:
    """Draw random weights of the model's shapes: the layers and the output head."""
    heads = model.num_heads * model.head_width
    both = heads + 2 * model.num_kv_heads * model.head_width
    shapes = [
        (model.width, both),
        (heads, model.width),
        (model.width, 2 * model.ffn_width),
        (model.ffn_width, model.width),
    ]
    rng = np.random.default_rng(0)

    def draw(shape: tuple[int, int]) -> jax.Array:
        return jnp.asarray(rng.normal(0.0, 0.1 * shape[0] ** -0.5, shape), jnp.float32)

    layers = [Matrices(*map(draw, shapes)) for _ in range(model.num_layers)]
    return layers, draw((model.width, vocab_size))


def multiply(x: jax.Array, layers: list[Matrices], head: jax.Array, *, steps: int) -> jax.Array:
    """Run `steps` steps over x, [M, D]."""

    def one_step(_: int, x: jax.Array) -> jax.Array:
        for weights in layers:
            x = _one_layer(x, weights)
        logits = x @ head
        # Feeds the logits back and keeps the numbers near 1: denormals and infinities are slow.
        x = x + logits.sum(axis=-1, keepdims=True)
        return x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1.0)

    result: jax.Array = lax.fori_loop(0, steps, one_step, x)
    return result


def _one_layer(x: jax.Array, weights: Matrices) -> jax.Array:
    heads, ffn = weights.output.shape[0], weights.down.shape[0]
    projected = x @ weights.query_key_value
    rest = projected[:, heads:].sum(axis=-1, keepdims=True)
    x = x + (projected[:, :heads] + rest) @ weights.output
    gate_up = x @ weights.gate_up
    return x + (gate_up[:, :ffn] + gate_up[:, ffn:]) @ weights.down
