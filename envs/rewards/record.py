"""What a reward function sees of an episode."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..base import Task
from ..messages import Message, ToolCall


@dataclass(frozen=True)
class EpisodeRecord:
    """One episode that has ended, its environment closed.

    Attributes:
      messages: the whole conversation, the first messages included.
      stop_reason: "terminated", "truncated" (by the environment), "max_turns",
        "max_turn_tokens" or "max_tokens".
      sampled_tokens: how many tokens the policy wrote.
      env_reward: the sum of what the environment gave.
      info: the environment's last measurements.

    Example:
      >>> said = (Message("user", "1+1"), Message("assistant", "2"))
      >>> EpisodeRecord(Task("a"), said).answer
      '2'
    """

    task: Task
    messages: tuple[Message, ...]
    stop_reason: str = "terminated"
    sampled_tokens: int = 0
    env_reward: float = 0.0
    info: Mapping[str, float] = field(default_factory=dict)

    @property
    def answer(self) -> str:
        """What the policy said last: to the tool `finish`, or the text of its last turn, or ""."""
        said = [message for message in self.messages if message.role == "assistant"]
        if not said:
            return ""
        finished = [call for call in said[-1].tool_calls if _finishes(call)]
        if not finished:
            return said[-1].content
        return str(finished[0].arguments.get("answer", finished[0].argument))


def _finishes(call: ToolCall) -> bool:
    given = call.arguments.get("answer", call.argument)
    return call.name == "finish" and call.status == "ok" and isinstance(given, str)
