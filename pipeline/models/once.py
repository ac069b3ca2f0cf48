"""Arrays of tokens that shall be computed once, and not again wherever they are used."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

Made = TypeVar("Made")


def once(make: Callable[..., Made], *of_tokens: jax.Array) -> Made:
    """Compute arrays [R, T, ...] from arrays [R, T], token by token: on CPU in a loop over halves.

    XLA's CPU code computes what looks cheap again in every fusion that uses it, so the sines of
    positions for every head of every layer, and masks with the slice that their rows come from;
    an optimization barrier doesn't keep it from that. What a loop has made it takes as it lies.
    Rows of an odd number of tokens have no halves.
    """
    if of_tokens[0].shape[1] % 2:
        return make(*of_tokens)
    made: Made = lax.platform_dependent(*of_tokens, cpu=partial(_in_halves, make), default=make)
    return made


def _in_halves(make: Callable[..., Made], *of_tokens: jax.Array) -> Made:
    halves = [jnp.stack(jnp.split(array, 2, axis=1)) for array in of_tokens]
    both = lax.map(lambda half: make(*half), halves)
    whole: Made = jax.tree.map(lambda two: jnp.concatenate([*two], axis=1), both)
    return whole
