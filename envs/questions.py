"""Questions that a policy answers with the help of tools; the game of several built-in tasks.

The first messages ask. A turn with tool calls, which run at once, reads their answers in order; a
turn without any is the final answer, with reward 1 if it is right and 0 otherwise. Each call,
right or wrong, costs one of `max_calls` and nothing else; one more ends the episode with 0. Info:
`success`, and `tool_used` (1 once a tool has answered a call that wasn't wrong).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from .base import StepResult, Task
from .messages import Message
from .tool_env import as_messages, call_all
from .tools import Tool, ToolResult


@dataclass(frozen=True)
class Questions:
    """What is asked, how it is put, and what helps.

    Attributes:
      ask: gives the first messages of a task.
      answer: the right answer of a task.
      is_answer: `is_answer(text, right)` says whether a final turn gives the right answer.
      max_calls: of an episode.
      error_word: what every wrong call reads, so that a small alphabet can hold it; "" tells
        what is wrong with the call.
    """

    ask: Callable[[Task], tuple[Message, ...]]
    answer: Callable[[Task], str]
    is_answer: Callable[[str, str], bool]
    tools: tuple[Tool, ...]
    max_calls: int
    error_word: str = ""


class QuestionEnv:
    """One question to answer."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._answer = ""
        self._calls = 0
        self._tool_used = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing to close."""

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        """Ask; the seed changes nothing."""
        self._answer = self._questions.answer(task)
        self._calls = 0
        self._tool_used = False
        return self._questions.ask(task)

    async def step(self, message: Message) -> StepResult:
        """Answer the tool calls, or score the final answer."""
        if not message.tool_calls:
            success = self._questions.is_answer(message.content, self._answer)
            return self._end(success=success)
        self._calls += len(message.tool_calls)
        if self._calls > self._questions.max_calls:
            return self._end(success=False)
        results = await call_all(message.tool_calls, self._questions.tools)
        self._tool_used = self._tool_used or not all(result.is_error for result in results)
        told = as_messages(message.tool_calls, [self._told(result) for result in results])
        return StepResult(tuple(told), info=self._info(success=False))

    def _told(self, result: ToolResult) -> ToolResult:
        word = self._questions.error_word if result.is_error else ""
        return replace(result, content=word or result.content)

    def _end(self, *, success: bool) -> StepResult:
        return StepResult(reward=float(success), terminated=True, info=self._info(success=success))

    def _info(self, *, success: bool) -> dict[str, float]:
        return {"success": float(success), "tool_used": float(self._tool_used)}
