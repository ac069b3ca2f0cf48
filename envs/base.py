"""The environment protocol: where an episode's observations and rewards come from.

An environment is an async context manager around `reset` and `step`. It may wait as long as
it likes: the rollout sets the deadlines. A fault of the infrastructure is an exception, which
becomes an `EpisodeFailure`; it is never a reward of 0, and nor is a `RewardFailed`. What no
episode can work with any more is `EnvironmentBroken`, which ends the run.
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from .messages import Message

Split = Literal["train", "eval"]

EPISODE: ContextVar[str] = ContextVar("episode", default="")
"""The name of the episode that a task works for, for logs; "" outside of a run."""


@dataclass(frozen=True)
class Task:
    """One data item: what an episode is about.

    Attributes:
      id: unique within its dataset.
      data: what the environment needs to reset itself; JSON-serialisable.
    """

    id: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StepResult:
    """An environment's answer to one message of the policy.

    Attributes:
      messages: what the policy reads next; empty when the episode is over.
      reward: the reward of this step; an episode's reward is their sum.
      terminated: the task itself is over (solved, lost, given up).
      truncated: the environment stopped early (for example out of moves).
      info: named measurements; those of the last step are kept in the trajectory
        (`success` in 0..1 is shown in the live view and averaged in evaluations).
    """

    messages: tuple[Message, ...] = ()
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, float] = field(default_factory=dict)


class EnvironmentBroken(BaseException):
    """No episode can use the environment any more: ends the run, with this text.

    Not an `Exception`: those are the fault of one episode, which is tried again.
    """


class RewardFailed(Exception):
    """An episode couldn't be scored, which is no score of 0; an environment may raise it, too.

    Attributes:
      timed_out: the reward missed its deadline.
    """

    def __init__(self, text: str, *, timed_out: bool = False):
        super().__init__(text)
        self.timed_out = timed_out


def innermost(error: BaseException) -> BaseException:
    """Unwrap groups of one exception, which nurseries make of each error."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


class Env(Protocol):
    """One running conversation partner; a new one is made for each episode.

    A class that derives from it and holds nothing open needs `reset` and `step` alone.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close what is open: here, nothing."""
        return

    async def reset(self, task: Task, seed: int) -> Sequence[Message]:
        """Start the task; return the first messages. Equal arguments, equal messages."""
        ...

    async def step(self, message: Message) -> StepResult:
        """Answer the policy's message."""
        ...
