"""What a layer's place in the stack decides: how far it looks, and how fast positions turn."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .attention import Sight
from .config import ModelConfig
from .rotary import Rotation, rotation

EVERYTHING = np.int32(2**31 - 1)  # a window that no text fills


class Place(NamedTuple):
    """One layer's place.

    Attributes:
      rotation: of the tokens at hand.
      sight: how its queries look.
    """

    rotation: Rotation
    sight: Sight


class Rotations(NamedTuple):
    """The rotation of layers that see everything, and of those with a window; or one for both."""

    unbounded: Rotation
    windowed: Rotation


def windowed_layers(config: ModelConfig) -> tuple[bool, ...]:
    """Tell of every layer whether it has a window.

    Example:
      >>> windowed_layers(ModelConfig(num_layers=3))
      (False, False, False)
    """
    layers = config.traits.attention.windowed_layers
    return tuple(index in layers for index in range(config.num_layers))


def rotations(positions: jax.Array, config: ModelConfig) -> Rotations:
    """Compute the rotations of some positions, i32[R, T]."""
    rope = config.traits.rope
    turn = partial(rotation, positions, head_width=config.head_width)
    unbounded = turn(theta=config.rope_theta, scaling=rope)
    if rope.windowed_theta is None:
        return Rotations(unbounded, unbounded)
    return Rotations(unbounded, turn(theta=rope.windowed_theta))


def place_of(config: ModelConfig, both: Rotations, windowed: bool | jax.Array) -> Place:
    """Give the place of a layer.

    Args:
      windowed: whether it has a window; an array, bool[], where one compiled layer serves both.
    """
    traits = config.traits.attention
    sight = Sight(traits.score_width, traits.score_cap)
    if isinstance(windowed, bool):
        window = traits.window if windowed else None
        return Place(both.windowed if windowed else both.unbounded, sight._replace(window=window))
    either = jnp.where(windowed, np.int32(traits.window or 0), EVERYTHING)
    turned = both.unbounded
    if both.windowed is not both.unbounded:
        turned = jax.tree.map(partial(jnp.where, windowed), both.windowed, both.unbounded)
    return Place(turned, sight._replace(window=either))
