"""What the learner carries from one update to the next: a pytree, replaced and never changed."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

Params = Any  # a pytree of arrays; only the forward function knows its structure


@flax.struct.dataclass
class LearnerState:
    """Parameters, the optimizer's state, and how many optimizer steps were taken.

    Attributes:
      params: pytree of float arrays, all of them trained; what is frozen isn't part of the state.
      opt_state: of the optimizer that `init_state` was given.
      step: i32[]; an update that was skipped does not count.
    """

    params: Params
    opt_state: optax.OptState
    step: jax.Array


def init_state(params: Params, optimizer: optax.GradientTransformation) -> LearnerState:
    """Start training from `params`, whose buffers the state then owns.

    A train step that donates its state deletes them: keep a copy if they are needed later.
    """
    return LearnerState(params, optimizer.init(params), jnp.zeros((), jnp.int32))


def described(leaf: jax.Array) -> Any:
    """Say what an array is and where it lies, so that a saved one can be put in its place."""
    sharding = leaf.sharding
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)  # type: ignore[no-untyped-call]


def with_frozen(params: Params, frozen: Params | None) -> Params:
    """Give what a forward function takes: the pair of both, or the parameters alone."""
    return params if frozen is None else (params, frozen)
