"""The matrix products of a step and nothing else: what no sampler and no learner is faster than.

Of a decode step each product reads the result of one before it and adds to what comes after, so
that the compiler can neither leave it out nor move it out of the loop. Query, key and value are
one product, and so are gate and up; apart they cost the same. Both orders of operands are
measured, the weights on the right and on the left, and the quicker one counts. Of an optimizer
step each product is measured by itself, times how often it occurs; there the order makes no
difference.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from costs import Cost, measure_short, quickest
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.packed import query_blocks


class Order(NamedTuple):
    """An order of operands.

    Attributes:
      axis: of the features in the stream; the other is that of the rows.
      times: multiplies the stream by a matrix, which has its inputs on that side of it.
    """

    axis: int
    times: Callable[[jax.Array, jax.Array], jax.Array]


def _weights_right(x: jax.Array, weights: jax.Array) -> jax.Array:
    return x @ weights


def _weights_left(x: jax.Array, weights: jax.Array) -> jax.Array:
    return weights @ x


# The stream [M, D] with weights [inputs, outputs], or [D, M] with [outputs, inputs].
RIGHT, LEFT = Order(1, _weights_right), Order(0, _weights_left)


class Matrices(NamedTuple):
    """One layer's weights, as [inputs, outputs], or all the other way round."""

    query_key_value: jax.Array
    output: jax.Array
    gate_up: jax.Array
    down: jax.Array


def cost_of_products(
    model: ModelConfig, vocab_size: int, *, rows: int, steps: int, rounds: int
) -> Cost:
    """Measure `steps` decode steps' products over `rows` rows, float32: the best round and order.

    Args:
      steps: tokens of each row.
    """
    x = jnp.asarray(np.random.default_rng(1).normal(size=(rows, model.width)), jnp.float32)
    right = (x, *make_matrices(model, vocab_size))
    costs = []
    for order, operands in ((RIGHT, right), (LEFT, turned(right))):
        steps_of = partial(multiply, order=order, steps=steps)
        program = jax.jit(steps_of).lower(*operands).compile()
        run = partial(_finish, program, operands)
        run()
        costs += [measure_short(run) for _ in range(rounds)]
    return quickest(costs)


def turned(operands: Any) -> Any:
    """Turn the stream and the matrices from one order to the other: copies."""
    return jax.tree.map(lambda matrix: jnp.array(matrix.T), operands)


def _finish(program: Callable[..., jax.Array], operands: tuple[Any, ...]) -> None:
    program(*operands).block_until_ready()


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


def multiply(
    x: jax.Array, layers: list[Matrices], head: jax.Array, *, order: Order, steps: int
) -> jax.Array:
    """Run `steps` steps over the stream x."""
    axis, times = order

    def one_step(_: int, x: jax.Array) -> jax.Array:
        for weights in layers:
            x = _one_layer(x, weights, order)
        logits = times(x, head)
        # Feeds the logits back and keeps the numbers near 1: denormals and infinities are slow.
        x = x + logits.sum(axis=axis, keepdims=True)
        return x * lax.rsqrt(jnp.mean(jnp.square(x), axis=axis, keepdims=True) + 1.0)

    result: jax.Array = lax.fori_loop(0, steps, one_step, x)
    return result


def _one_layer(x: jax.Array, weights: Matrices, order: Order) -> jax.Array:
    axis, times = order
    heads, ffn = (matrix.shape[1 - axis] for matrix in (weights.output, weights.down))
    queries, rest = jnp.split(times(x, weights.query_key_value), [heads], axis)
    x = x + times(queries + rest.sum(axis=axis, keepdims=True), weights.output)
    gate, up = jnp.split(times(x, weights.gate_up), [ffn], axis)
    return x + times(gate + up, weights.down)


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
    run = partial(_finish, program, tuple(operands))
    run()
    return product.times * quickest([measure_short(run) for _ in range(rounds)]).cpu
