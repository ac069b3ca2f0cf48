"""The matrix products of a step and nothing else: what no sampler and no learner is faster than.

Of a decode step each product reads the result of one before it and adds to what comes after, so
that the compiler can neither leave it out nor move it out of the loop. Query, key and value are
one product, and so are gate and up; apart they cost the same. Of an optimizer step each is
measured by itself, times how often it occurs.
"""

from collections import Counter
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from costs import Cost, measure, quickest
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.packed import query_blocks


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


class Product(NamedTuple):
    """`batch` products [m, k] times [k, n], and how often a microbatch has them."""

    batch: int
    m: int
    k: int
    n: int
    times: int

    @property
    def flops(self) -> int:
        return 2 * self.times * self.batch * self.m * self.k * self.n


def products_of_step(
    model: ModelConfig, vocab_size: int, *, rows: int, row_tokens: int
) -> list[Product]:
    """List a microbatch's products, forward and backward; scores are causal, in blocks."""
    tokens = rows * row_tokens
    heads, kv_heads = (n * model.head_width for n in (model.num_heads, model.num_kv_heads))
    of_layer = Counter(
        [(model.width, heads), (model.width, kv_heads), (model.width, kv_heads)]
        + [(heads, model.width), (model.ffn_width, model.width)]
        + 2 * [(model.width, model.ffn_width)]
    )
    found = []
    for (inputs, outputs), each in of_layer.items():
        found += _of_matrix(tokens, inputs, outputs, times=each * model.num_layers)
    found += _of_matrix(tokens, model.width, vocab_size, times=1)
    found.append(Product(1, tokens, model.width, vocab_size, 1))  # logits are made twice
    for start, end in query_blocks(row_tokens):
        queries = (end - start) * model.num_heads // model.num_kv_heads
        pairs = rows * model.num_kv_heads
        for sizes in _all_three(queries, model.head_width, end):
            found.append(Product(pairs, *sizes, 2 * model.num_layers))
    return found


def _of_matrix(tokens: int, inputs: int, outputs: int, *, times: int) -> list[Product]:
    return [Product(1, *sizes, times) for sizes in _all_three(tokens, inputs, outputs)]


def _all_three(m: int, k: int, n: int) -> list[tuple[int, int, int]]:
    """The product, and those of its two gradients."""
    return [(m, k, n), (m, n, k), (k, m, n)]


def cost_of_product(product: Product, *, rounds: int) -> float:
    """Measure it, times how often it occurs: CPU-seconds, of the quickest round."""
    rng = np.random.default_rng(0)
    shapes = [(product.batch, product.m, product.k), (product.batch, product.k, product.n)]
    if product.batch == 1:
        shapes = [shape[1:] for shape in shapes]
    operands = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    program = jax.jit(jnp.matmul).lower(*operands).compile()

    def run() -> None:
        program(*operands).block_until_ready()

    run()
    return product.times * quickest([measure(run) for _ in range(rounds)]).cpu


def _one_layer(x: jax.Array, weights: Matrices) -> jax.Array:
    heads, ffn = weights.output.shape[0], weights.down.shape[0]
    projected = x @ weights.query_key_value
    rest = projected[:, heads:].sum(axis=-1, keepdims=True)
    x = x + (projected[:, :heads] + rest) @ weights.output
    gate_up = x @ weights.gate_up
    return x + (gate_up[:, :ffn] + gate_up[:, ffn:]) @ weights.down
