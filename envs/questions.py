"""Questions that a policy answers with the help of tools; the game of several built-in tasks.

The first messages ask. A turn with tool calls reads their answers; a turn without any is the final
answer, with reward 1 if it is right and 0 otherwise. Each call, right or wrong, costs one of
`max_calls` and nothing else; one more ends the episode with 0. Info: `success`, and `tool_used`
(1 once a tool has answered a call that wasn't wrong).
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from .base import StepResult, Task
from .messages import Message, ToolCall
from .tools import Tool, answer_call


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
        answers = [await self._call(call) for call in message.tool_calls]
        return StepResult(tuple(answers), info=self._info(success=False))

    async def _call(self, call: ToolCall) -> Message:
        result = await answer_call(call, self._questions.tools)
        self._tool_used = self._tool_used or not result.is_error
        told = self._questions.error_word if result.is_error else ""
        return Message("tool", told or result.content, name=call.name, tool_call_id=call.id)

    def _end(self, *, success: bool) -> StepResult:
        return StepResult(reward=float(success), terminated=True, info=self._info(success=success))

    def _info(self, *, success: bool) -> dict[str, float]:
        return {"success": float(success), "tool_used": float(self._tool_used)}
