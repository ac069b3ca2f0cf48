"""An environment of tools: the policy calls them until it finishes.

Invariant: each call of a turn has one answer, in order, whatever is wrong with it; the episode
ends at a turn without calls or at a right call of `finish`. It gives no reward of its own: that is
for `EnvSpec.rewards`, which read `EpisodeRecord.answer`.
"""

from collections.abc import Callable, Sequence

import trio

from .base import Env, StepResult, Task
from .messages import Message, ToolCall
from .tools import Tool, ToolResult, answer_call, tool


def finish(answer: str) -> str:
    """End the task with an answer.

    Args:
      answer: the whole answer, and nothing else.
    """
    return answer


FINISH = tool(finish)  # `EpisodeRecord.answer` knows it by its name


async def answer_calls(calls: Sequence[ToolCall], tools: Sequence[Tool]) -> list[Message]:
    """Answer the calls of a turn, all at once; return the answers in the order of the calls.

    Raises:
      Exception: what `Tool.__call__` raises, of the first call that fails; the others are
        cancelled.
    """
    return as_messages(calls, await call_all(calls, tools))


async def call_all(calls: Sequence[ToolCall], tools: Sequence[Tool]) -> list[ToolResult]:
    """Answer the calls of a turn like `answer_calls`; return what the tools gave."""
    results: dict[int, ToolResult] = {}
    failures: list[Exception] = []

    async def answer(place: int, call: ToolCall) -> None:
        try:
            results[place] = await answer_call(call, tools)
        except Exception as error:  # raised below, outside of the nursery's group
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for place, call in enumerate(calls):
            nursery.start_soon(answer, place, call)
    if failures:
        raise failures[0]
    return [results[place] for place in range(len(calls))]


def as_messages(calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> list[Message]:
    """Return the results as the policy reads them, each for its call."""
    return [
        Message("tool", result.content, name=call.name, tool_call_id=call.id)
        for call, result in zip(calls, results, strict=True)
    ]


async def _finishes(calls: Sequence[ToolCall]) -> bool:
    for call in calls:
        if call.name == FINISH.name and not (await FINISH(call)).is_error:
            return True
    return False


class ToolEnv(Env):
    """Tools and a question.

    Measurements: `tool_calls`, `tool_errors` (those that were wrong or refused), and `finished`:
    1 if the episode ended by `finish`.

    Example:
      >>> def ask(task):
      ...     return [Message("user", task.data["question"])]
      >>> async def talk():
      ...     async with ToolEnv([], ask) as env:
      ...         await env.reset(Task("a", {"question": "1+1?"}), 0)
      ...         call = ToolCall("finish", {"answer": "2"})
      ...         return await env.step(Message("assistant", "", (call,)))
      >>> trio.run(talk).info
      {'tool_calls': 1.0, 'tool_errors': 0.0, 'finished': 1.0}
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        ask: Callable[[Task], Sequence[Message]],
        *,
        max_calls: int = 64,
    ):
        """Args:
        tools: beside `finish`, which is added.
        ask: the first messages of a task.
        max_calls: an episode of more is truncated.
        """
        names = [each.name for each in tools]
        if len({FINISH.name, *names}) != len(names) + 1:
            raise ValueError(f"tools must have different names and none 'finish', got {names}")
        self.tools = (*tools, FINISH)
        self._ask = ask
        self._max_calls = max_calls
        self._calls = self._errors = 0

    async def reset(self, task: Task, seed: int) -> Sequence[Message]:
        """Ask; the seed changes nothing."""
        self._calls = self._errors = 0
        return self._ask(task)

    async def step(self, message: Message) -> StepResult:
        """Answer all calls of a turn.

        A right call of `finish` ends the episode, and the turn's other calls aren't run.
        """
        calls = message.tool_calls
        self._calls += len(calls)
        if await _finishes(calls):
            return StepResult(terminated=True, info=self._info(finished=True))
        if not calls:
            return StepResult(terminated=True, info=self._info(finished=False))
        if self._calls > self._max_calls:
            return StepResult(truncated=True, info=self._info(finished=False))
        results = await call_all(calls, self.tools)
        self._errors += sum(result.is_error for result in results)
        return StepResult(tuple(as_messages(calls, results)), info=self._info(finished=False))

    def _info(self, *, finished: bool) -> dict[str, float]:
        return {
            "tool_calls": float(self._calls),
            "tool_errors": float(self._errors),
            "finished": float(finished),
        }
