"""Environments of Gymnasium that speak text; some of their words do harm."""

import string
import time

import gymnasium
from gymnasium import spaces

LETTERS = string.ascii_lowercase


class Echo(gymnasium.Env):
    """Wants to hear the word that it has drawn from its seed."""

    observation_space = spaces.Text(100_000, charset=string.printable)
    action_space = spaces.Text(8, charset=LETTERS)

    def __init__(self, closes: str = "well") -> None:
        self._closes = closes

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self._closes == "no reset":
            raise RuntimeError("no start")
        self._word = "".join(self.np_random.choice([*LETTERS], 4))
        return f"Say {self._word}.", {}

    def step(self, action):
        if action == "crash":
            raise RuntimeError("the engine is on fire")
        if action == "hang":
            time.sleep(600.0)
        right = action == self._word
        info = {"length": len(action), "odd": float("nan"), "success": right, "note": "none"}
        return "x" * 100_000 if action == "much" else "No.", float(right), right, False, info

    def close(self) -> None:
        if self._closes == "badly":
            raise RuntimeError("no end")


class Guess(Echo):
    """Wants the number that it has drawn; its spaces don't say that it speaks text."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(4, start=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._number = int(self.np_random.integers(-1, 3))
        return "Guess.", {}

    def step(self, action):
        right = action == self._number
        return "No.", float(right), right, False, {}


class Numbers(Echo):
    """Observes no text."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 7, {}


gymnasium.register("Echo-v0", f"{__name__}:Echo", max_episode_steps=5)
gymnasium.register("Guess-v0", f"{__name__}:Guess", disable_env_checker=True)
gymnasium.register("Numbers-v0", f"{__name__}:Numbers", disable_env_checker=True)
