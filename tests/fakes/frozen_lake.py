"""Gymnasium's FrozenLake in words of one's own."""

from functools import partial

import gymnasium

from headrace.envs.adapters.gymnasium import GymnasiumEnv, Words

ACTIONS = {"left": 0, "down": 1, "right": 2, "up": 3}
PATH = ("down", "down", "right", "right", "down", "right")  # of the map of 4 by 4


def describe(square: int) -> str:
    return f"You are in row {square // 4}, column {square % 4}. left, down, right or up?"


def parse(text: str) -> int | None:
    return ACTIONS.get(text.strip().lower())


WORDS = Words(describe, parse)
lake = partial(gymnasium.make, "FrozenLake-v1", is_slippery=False)
make_lake = partial(GymnasiumEnv, lake, WORDS)
make_slippery_lake = partial(GymnasiumEnv, partial(gymnasium.make, "FrozenLake-v1"), WORDS)
