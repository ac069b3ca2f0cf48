"""The gated product of a feed-forward layer, between its matrices."""

from collections.abc import Callable
from functools import partial

import jax

from .traits import Activation

ACTIVATIONS: dict[Activation, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "gelu": partial(jax.nn.gelu, approximate=False),
}


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def gated(activation: Activation, gate: jax.Array, up: jax.Array) -> jax.Array:
    """Multiply `up` by the activated gate; the backward pass keeps these two, and no more."""
    return _product(activation, gate, up)


def _product(activation: Activation, gate: jax.Array, up: jax.Array) -> jax.Array:
    return ACTIVATIONS[activation](gate) * up


def _forward(
    activation: Activation, gate: jax.Array, up: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _product(activation, gate, up), (gate, up)


def _backward(
    activation: Activation, kept: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    gate, up = kept
    run = ACTIVATIONS[activation]
    # Each in a shape of its own: else XLA on CPU finds that the forward pass computes the same,
    # and lets that wait for this: of every layer two more arrays as large as the gate.
    activated = run(gate[:, None])[:, 0]
    _, pull_back = jax.vjp(run, gate[None])
    (of_gate,) = pull_back((gradient * up)[None])
    return of_gate[0], gradient * activated


gated.defvjp(_forward, _backward)
