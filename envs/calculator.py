"""Three-digit sums that are hard to guess and easy with a tool.

The user writes a sum such as `123+456`. The policy answers with digits, or calls the tool with
the turn `calculator(123+456)`, reads the result and then answers.

The reward is 1 if the answer is right and 0 otherwise. A wrong tool call is answered by the
text `error` and costs one of two calls, nothing else; a third call ends the episode with 0.
The tool's errors are that one word so that a small alphabet can hold them (`CHARACTERS`,
`WORDS`). Info: `success`, and `tool_used` (1 once the tool has answered with a number).

Invariant: train and eval tasks share no sum; equal arguments give equal tasks.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from .arithmetic import ArithmeticTextError, evaluate
from .base import Split, StepResult, Task
from .messages import Message, ToolCall
from .spec import EnvSpec
from .tools import ToolError, answer_call, tool

CHARACTERS = "0123456789+()"
WORDS = ("calculator", "error")
MAX_CALLS = 2
DEMONSTRATED_CALLS = 0.3  # the share of demonstrations that call the tool

_LOWEST, _OPERANDS = 100, 900  # operands are 100 to 999
_SUMS = _OPERANDS**2
_TRAIN_SUMS = _SUMS * 9 // 10
_STRIDE = 500_609  # about the golden section of _SUMS and coprime to it: a fixed shuffle
_ERROR = "error"


def calculator(expression: str) -> int:
    """Evaluate an integer expression.

    Args:
      expression: integers, + - * //, and brackets.
    """
    try:
        return evaluate(expression)
    except ArithmeticTextError:
        raise ToolError(_ERROR) from None


TOOL = tool(calculator)


@dataclass(frozen=True)
class Wording:
    """How the game is put to a policy.

    Attributes:
      ask: gives the first messages of a task.
      is_answer: whether a text gives this number as its answer.
      one_word_errors: a wrong call is answered by `error`; else by what is wrong with it.
    """

    ask: Callable[[Task], tuple[Message, ...]]
    is_answer: Callable[[str, str], bool]
    one_word_errors: bool


class CalculatorEnv:
    """One sum to answer. `task.data` has the operands `left` and `right`."""

    def __init__(self, wording: Wording | None = None) -> None:
        """Args:
        wording: None asks with the bare sum and wants the bare number.
        """
        self._wording = PLAIN if wording is None else wording
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
        """Ask for the sum; the seed changes nothing."""
        self._answer = str(task.data["left"] + task.data["right"])
        self._calls = 0
        self._tool_used = False
        return self._wording.ask(task)

    async def step(self, message: Message) -> StepResult:
        """Answer the tool calls, or score the final answer."""
        if not message.tool_calls:
            success = self._wording.is_answer(message.content, self._answer)
            return self._end(success=success)
        self._calls += len(message.tool_calls)
        if self._calls > MAX_CALLS:
            return self._end(success=False)
        answers = [await self._call(call) for call in message.tool_calls]
        return StepResult(tuple(answers), info=self._info(success=False))

    async def _call(self, call: ToolCall) -> Message:
        result = await answer_call(call, (TOOL,))
        self._tool_used = self._tool_used or not result.is_error
        one_word = result.is_error and self._wording.one_word_errors
        content = _ERROR if one_word else result.content
        return Message("tool", content, name=call.name, tool_call_id=call.id)

    def _end(self, *, success: bool) -> StepResult:
        return StepResult(reward=float(success), terminated=True, info=self._info(success=success))

    def _info(self, *, success: bool) -> dict[str, float]:
        return {"success": float(success), "tool_used": float(self._tool_used)}


def tasks(split: Split, count: int, seed: int) -> list[Task]:
    """Draw different sums; nine tenths of all 810,000 are for training, the rest for evaluation.

    The split is a fixed shuffle of all sums, so it doesn't depend on the seed.

    Raises:
      ValueError: if the split has fewer sums than `count`.
    """
    sums = range(_TRAIN_SUMS) if split == "train" else range(_TRAIN_SUMS, _SUMS)
    if not 0 <= count <= len(sums):
        raise ValueError(f"count must be 0 to {len(sums)} for calculator {split!r}, got {count}")
    drawn = random.Random(f"calculator {split} {seed}").sample(sums, count)
    return [_task(index) for index in drawn]


def demonstrate(task: Task, rng: random.Random) -> tuple[Message, ...]:
    """Script a conversation: 30 % call the tool and answer right, 70 % guess.

    A guess is the sum of two other random operands. So the format is taught, and calling the
    tool is left to be learnt: the likeliest first token stays that of a guess.
    """
    question = _question(task)
    answer = task.data["left"] + task.data["right"]
    if rng.random() >= DEMONSTRATED_CALLS:
        guess = sum(_LOWEST + rng.randrange(_OPERANDS) for _ in range(2))
        return question, Message("assistant", str(guess))
    text = f"calculator({question.content})"
    call = ToolCall("calculator", raw=text, argument=question.content)
    return (
        question,
        Message("assistant", text, (call,)),
        Message("tool", str(answer), name=TOOL.name),
        Message("assistant", str(answer)),
    )


def _question(task: Task) -> Message:
    return Message("user", f"{task.data['left']}+{task.data['right']}")


def _ask(task: Task) -> tuple[Message, ...]:
    return (_question(task),)


PLAIN = Wording(_ask, is_answer=str.__eq__, one_word_errors=True)


def _task(index: int) -> Task:
    left, right = divmod(index * _STRIDE % _SUMS, _OPERANDS)
    left, right = left + _LOWEST, right + _LOWEST
    return Task(f"{left}+{right}", {"left": left, "right": right})


SPEC = EnvSpec(
    make=CalculatorEnv,
    tasks=tasks,
    demonstrate=demonstrate,
    best_reward=1.0,
    tools=(TOOL,),
)
