"""Three-digit sums that are hard to guess and easy with a tool.

The user writes a sum such as `123+456`. The policy answers with digits, or calls the tool with
the turn `calculator(123+456)`, reads the result and then answers.

The rules are those of `questions`, with two calls. A wrong call is answered by the text `error`:
that one word, so that a small alphabet can hold it (`CHARACTERS`, `WORDS`).

Invariant: train and eval tasks share no sum; equal arguments give equal tasks.
"""

import random
from functools import partial

from .arithmetic import ArithmeticTextError, evaluate
from .base import Split, Task
from .messages import Message, ToolCall
from .questions import QuestionEnv, Questions
from .spec import EnvSpec
from .tools import ToolError, tool

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


def _answer(task: Task) -> str:
    return str(task.data["left"] + task.data["right"])


def _task(index: int) -> Task:
    left, right = divmod(index * _STRIDE % _SUMS, _OPERANDS)
    left, right = left + _LOWEST, right + _LOWEST
    return Task(f"{left}+{right}", {"left": left, "right": right})


QUESTIONS = Questions(_ask, _answer, str.__eq__, (TOOL,), MAX_CALLS, error_word=_ERROR)

SPEC = EnvSpec(
    make=partial(QuestionEnv, QUESTIONS),
    tasks=tasks,
    demonstrate=demonstrate,
    best_reward=1.0,
    tools=(TOOL,),
)
