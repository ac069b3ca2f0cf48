"""Ready-made words for FrozenLake, Taxi, and every environment whose observations are text.

Invariant: `act` gives an action that the environment's space contains, or None.
"""

from functools import partial
from typing import Any

from gymnasium import Env, spaces
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from gymnasium.envs.toy_text.taxi import TaxiEnv

from ..base import EnvironmentBroken
from .seeded import Words, choice_words
from .toy_text import lake_words, taxi_words


def ready_words(env: Env[Any, Any]) -> Words:
    """Return the words for an environment; one that isn't text says so when it is reset.

    Actions are text that its space contains, or numbers of a `Discrete` space.
    """
    world, space = env.unwrapped, env.action_space
    if isinstance(world, FrozenLakeEnv):
        return lake_words(world)
    if isinstance(world, TaxiEnv):
        return taxi_words(world)
    describe = partial(_as_it_is, env.spec.id if env.spec else type(world).__name__)
    if isinstance(space, spaces.Discrete):
        numbers = range(int(space.start), int(space.start + space.n))
        ask = f"Reply with a number from {numbers[0]} to {numbers[-1]}."
        return choice_words(describe, {str(number): number for number in numbers}, ask=ask)
    return Words(describe, partial(_contained, space), f"That is no action of {space}.")


def _contained(space: spaces.Space[Any], text: str) -> str | None:
    return next((each for each in (text, text.strip()) if space.contains(each)), None)


def _as_it_is(name: str, observation: Any) -> str:
    if isinstance(observation, str):
        return observation
    what = type(observation).__name__
    raise EnvironmentBroken(f"{name} observes {what}, not text: say in `Words` how to tell it")
