"""The calculator's sums, put to a chat model: a system message, words, and a tool by its schema.

The answer is the last number of the final turn, so that a sentence is fine; thousands may
be separated by commas. Wrong tool calls are answered by what is wrong with them. Tasks, limits,
rewards and measurements are those of `calculator`.
"""

import random
import re
from dataclasses import replace
from functools import partial

from .base import Task
from .calculator import QUESTIONS, TOOL, tasks
from .messages import Message, ToolCall
from .questions import QuestionEnv
from .spec import EnvSpec

SYSTEM = "Add numbers with the calculator tool. Then reply with the result alone."
DEMONSTRATED_CALLS = 0.5  # the share of demonstrations that call the tool

_OPERANDS = range(100, 1000)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def ask(task: Task) -> tuple[Message, ...]:
    """Ask for the sum of a task's two operands."""
    question = f"What is {task.data['left']} + {task.data['right']}?"
    return Message("system", SYSTEM), Message("user", question)


def is_answer(text: str, number: str) -> bool:
    """Whether the last number in a text is this whole one.

    Example:
      >>> is_answer("123 + 4,000 = 4,123.", "4123"), is_answer("about 4123.5", "4123")
      (True, False)
    """
    numbers = _NUMBER.findall(text)
    return bool(numbers) and numbers[-1].replace(",", "") == number


def demonstrate(task: Task, rng: random.Random) -> tuple[Message, ...]:
    """Script a conversation: half of them call the tool and answer right, half guess.

    A guess is the sum of two other random operands: the format is taught, and whether to
    call the tool is left to be learnt.
    """
    left, right = task.data["left"], task.data["right"]
    if rng.random() >= DEMONSTRATED_CALLS:
        guess = rng.choice(_OPERANDS) + rng.choice(_OPERANDS)
        return *ask(task), Message("assistant", str(guess))
    call = ToolCall(TOOL.name, {"expression": f"{left} + {right}"})
    return (
        *ask(task),
        Message("assistant", "", (call,)),
        Message("tool", str(left + right), name=TOOL.name),
        Message("assistant", str(left + right)),
    )


SPEC = EnvSpec(
    make=partial(QuestionEnv, replace(QUESTIONS, ask=ask, is_answer=is_answer, error_word="")),
    tasks=tasks,
    demonstrate=demonstrate,
    best_reward=1.0,
    tools=(TOOL,),
)
