"""What a recipe needs to know of an environment, in one record."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .base import Env, Split, Task
from .latency import LatencyConfig
from .messages import Message
from .rewards.reward import Reward
from .tools import Tool


@dataclass(frozen=True)
class EnvSpec:
    """All that a recipe needs to know of an environment.

    Attributes:
      make: opens one environment for one episode.
      tasks: `tasks(split, count, seed)` gives `count` tasks; the splits share none,
        unless the whole task space is smaller than that and the docstring says so.
      demonstrate: `demonstrate(task, rng)` is a scripted conversation for a warm start,
        starting with the messages of `reset`; None where there is no script.
      best_reward: the best expected reward of any policy; NaN where nobody knows it.
      tools: what the policy may call; a chat model is told of them by its template.
      rewards: functions that score episodes, beside what the environment gives itself.
      latency: how long its answers take, where a recipe's `env.latency` doesn't say otherwise.
      for_chat: the same tasks in the words for a chat model; None where they are the same.
    """

    make: Callable[[], Env]
    tasks: Callable[[Split, int, int], Sequence[Task]]
    demonstrate: Callable[[Task, random.Random], tuple[Message, ...]] | None
    best_reward: float
    tools: tuple[Tool, ...] = ()
    rewards: tuple[Reward, ...] = ()
    latency: LatencyConfig = field(default_factory=LatencyConfig)
    for_chat: "EnvSpec | None" = None
