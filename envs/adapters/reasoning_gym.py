"""Questions of reasoning-gym's seeded datasets, one turn each, scored by their own scorers.

Invariant: a question is a function of the dataset's settings and of the task's seed.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

import reasoning_gym

from ..base import StepResult, Task
from ..messages import Message

_STUMBLES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class ReasoningGymEnv:
    """A `SyncEnv` of one dataset, for `in_processes`. Tasks are `Task(id, {"seed": number})`.

    The reward is the scorer's, 0 to 1; `success` is a reward of 1. Many scorers give part of the
    reward to an answer that contains the right one. An answer on which a scorer stumbles, as some
    do on text where they expect a number, is worth 0, with `unscored` 1 in `info`.
    """

    def __init__(
        self,
        dataset: str,
        *,
        read: Callable[[str], str] = str.strip,
        hint: str = "",
        settings: dict[str, Any] | None = None,
    ) -> None:
        """Args:
        dataset: its name, for example "chain_sum".
        read: finds the answer in the policy's turn; `last_line` where it may think aloud.
        hint: said after the question, for example how to answer.
        settings: of the dataset, for example `{"min_terms": 2}`.
        """
        self._dataset = dataset
        self._read = read
        self._hint = hint
        self._settings = settings or {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to close."""

    def reset(self, task: Task, seed: int) -> Sequence[Message]:
        """Ask the question of the task's seed; the member's `seed` isn't used."""
        self._questions = reasoning_gym.create_dataset(
            self._dataset, size=1, seed=task.data["seed"], **self._settings
        )
        self._entry = self._questions[0]
        text = self._entry["question"]
        return [Message("user", f"{text}\n{self._hint}" if self._hint else text)]

    def step(self, message: Message) -> StepResult:
        """Score the answer."""
        answer = self._read(message.content)
        try:
            reward = float(self._questions.score_answer(answer, self._entry))
        except _STUMBLES:
            return StepResult(terminated=True, info={"success": 0.0, "unscored": 1.0})
        info = {"success": float(reward == 1), "unscored": 0.0}
        return StepResult(reward=reward, terminated=True, info=info)


def last_line(text: str) -> str:
    r"""Return the last line that isn't blank.

    Example:
      >>> last_line("2 and 3 are 5\n5\n")
      '5'
    """
    return (text.strip().splitlines() or [""])[-1].strip()
