"""Gymnasium's environments as conversations, in words of yours or in ready-made ones.

Invariant: `task.data["seed"]` decides the start and all chance, so the members of a group meet the
same world. The text of an action that can't be read changes nothing.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Real
from typing import Any, Self

import gymnasium

from ..base import StepResult, Task
from ..messages import Message
from ..spec import EnvSpec
from .gymnasium_words import ready_words
from .seeded import Words as Words
from .seeded import seeded_spec


class GymnasiumEnv:
    """A `SyncEnv`, for `in_processes` or `in_threads`. Tasks are `Task(id, {"seed": number})`.

    Rewards, `terminated`, `truncated` and the numbers of `info` are Gymnasium's.
    """

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]], words: Words | None = None):
        """`make` is such as `partial(gymnasium.make, "Taxi-v4")`; None: see `ready_words`."""
        self._make, self._given = make, words

    def __enter__(self) -> Self:
        self._env = self._make()
        self._words = self._given or ready_words(self._env)
        return self

    def __exit__(self, *error: object) -> None:
        self._env.close()

    def reset(self, task: Task, seed: int) -> Sequence[Message]:
        """Start the world of the task's seed; the member's `seed` isn't used."""
        observation, _ = self._env.reset(seed=task.data["seed"])
        return [Message("user", self._words.rules + self._words.describe(observation))]

    def step(self, message: Message) -> StepResult:
        """Take the action that the policy names."""
        action = self._words.act(message.content)
        if action is None:
            return StepResult((Message("user", self._words.hint),))
        observation, reward, terminated, truncated, more = self._env.step(action)
        over = bool(terminated or truncated)
        shown = () if over else (Message("user", self._words.describe(observation)),)
        info = {name: float(x) for name, x in more.items() if isinstance(x, Real)}
        info = {name: x for name, x in info.items() if math.isfinite(x)}
        return StepResult(shown, float(reward), bool(terminated), bool(truncated), info)


def spec(name: str, *, best_reward: float = math.nan, **settings: Any) -> EnvSpec:
    """Return the `EnvSpec` of an environment with ready-made words.

    Raises:
      Exception: what Gymnasium raises where it has no such name or settings.
    """
    make = partial(GymnasiumEnv, partial(gymnasium.make, name, **settings))
    with make():
        pass  # else each episode of a run would raise it
    return seeded_spec(make, name, best_reward=best_reward)
