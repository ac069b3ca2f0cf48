"""What an environment answers, taken with care: wrong answers are exceptions, floods are cut.

One NaN or huge reward would spoil the advantages of a whole batch, and a text that no context can
hold would keep the tokenizer busy, which all other episodes wait for.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from ...envs.base import StepResult
from ...envs.messages import Message

LARGEST_NUMBER = 1e6  # of a reward or measurement, so that float32 keeps differences of 1
CHARACTERS_A_TOKEN = 256  # no vocabulary has longer tokens, but for runs of one sign
_KEPT_CHARACTERS = 1000


def checked_answer(result: StepResult) -> StepResult:
    """Refuse an answer that would do harm later; return it with plain numbers, if need be anew."""
    if not isinstance(result, StepResult):
        raise TypeError(f"step must return a StepResult, got {result!r:.100}")
    if not (result.messages or result.terminated or result.truncated):
        raise ValueError("step must return messages or end the episode, got neither")
    messages = checked_messages(result.messages)
    reward = _number("reward", result.reward)
    if messages is result.messages and reward is result.reward and not dict(result.info):
        return result
    info = {str(name): _number(str(name), value) for name, value in result.info.items()}
    return StepResult(messages, reward, result.terminated, result.truncated, info)


def checked_messages(messages: Any) -> tuple[Message, ...]:
    """Return what an environment says; an iterator is refused, as asking it may take for ever."""
    if not isinstance(messages, (tuple, list)):  # a union would be made anew each time
        raise TypeError(f"messages must be a tuple or a list, got {messages!r:.100}")
    for message in messages:
        if not (isinstance(message, Message) and isinstance(message.content, str)):
            raise TypeError(f"messages must be Messages with text, got {message!r:.100}")
    return tuple(messages)


def _number(name: str, value: Any) -> float:
    # The usual types first: `Real` is an abstract class, which takes twenty times as long.
    number = float(value) if isinstance(value, (float, int, Real)) else math.nan
    if not abs(number) <= LARGEST_NUMBER:  # not "greater", which NaN is not either
        raise ValueError(
            f"{name} must be a number from -{LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}, "
            f"got {value!r:.100}"
        )
    return number


def is_flood(messages: Sequence[Message], max_tokens: int) -> bool:
    """Whether messages have more characters than so many tokens can stand for.

    Example:
      >>> is_flood([Message("user", "1" * 300)], 1), is_flood([Message("user", "1" * 200)], 1)
      (True, False)
    """
    length = 0
    for message in messages:
        length += len(message.content)
    return length > CHARACTERS_A_TOKEN * max_tokens


def without_flood(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with the beginnings of their texts, for people."""
    return tuple([replace(message, content=_beginning(message.content)) for message in messages])


def _beginning(text: str) -> str:
    left_out = len(text) - _KEPT_CHARACTERS
    if left_out <= 0:
        return text
    return f"{text[:_KEPT_CHARACTERS]}… ({left_out} more characters)"
