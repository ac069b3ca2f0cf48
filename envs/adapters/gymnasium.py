"""Gymnasium's environments as conversations: two functions of yours translate.

Invariant: `task.data["seed"]` decides the start and all chance, so the members of a group meet the
same world. The text of an action that can't be read changes nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

from ..base import StepResult, Task
from ..messages import Message


class GymEnv(Protocol):
    """What is used of a `gymnasium.Env`."""

    def reset(self, *, seed: int | None = None) -> tuple[Any, Mapping[str, Any]]:
        """Start; return an observation and more information."""
        ...

    def step(self, action: Any, /) -> tuple[Any, Any, bool, bool, Mapping[str, Any]]:
        """Act; return observation, reward, terminated, truncated and more information."""
        ...

    def close(self) -> None:
        """Let everything go."""
        ...


class GymnasiumEnv:
    """A `SyncEnv` of a Gymnasium environment; for `in_processes` or `in_threads`.

    Tasks are `Task(id, {"seed": number})`. Rewards, `terminated`, `truncated` and the numbers of
    `info` are Gymnasium's.
    """

    def __init__(
        self,
        make: Callable[[], GymEnv],
        *,
        describe: Callable[[Any], str],
        parse: Callable[[str], Any],
        hint: str = "That is no action.",
    ):
        """Args:
        make: makes the environment, for example `partial(gymnasium.make, "Taxi-v3")`.
        describe: an observation in words.
        parse: the action that a turn names; None if it names none.
        hint: the answer to that; the environment isn't stepped.
        """
        self._make = make
        self._describe = describe
        self._parse = parse
        self._hint = hint

    def __enter__(self) -> Self:
        self._env = self._make()
        return self

    def __exit__(self, *error: object) -> None:
        self._env.close()

    def reset(self, task: Task, seed: int) -> Sequence[Message]:
        """Start the world of the task's seed; the member's `seed` isn't used."""
        observation, _ = self._env.reset(seed=task.data["seed"])
        return [Message("user", self._describe(observation))]

    def step(self, message: Message) -> StepResult:
        """Take the action that the policy names."""
        action = self._parse(message.content)
        if action is None:
            return StepResult((Message("user", self._hint),))
        observation, reward, terminated, truncated, info = self._env.step(action)
        over = bool(terminated or truncated)
        return StepResult(
            messages=() if over else (Message("user", self._describe(observation)),),
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
            info={name: float(x) for name, x in info.items() if isinstance(x, int | float)},
        )
