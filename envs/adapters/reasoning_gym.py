"""Questions of reasoning-gym's seeded datasets, one turn each, scored by their own scorers.

Invariant: a question is a function of the dataset's settings and of the task's seed. A score is
the scorer's; where that raises, there is none (`RewardFailed`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import reasoning_gym
from reasoning_gym.utils import extract_answer

from ..base import EnvironmentBroken, RewardFailed, StepResult, Task
from ..messages import Message
from ..spec import EnvSpec
from .seeded import seeded_spec

# Their scorers evaluate the answer, whatever Python it is.
RUN_ANSWERS = {
    "binary_matrix", "countdown", "intermediate_integration", "n_queens", "puzzle24",
    "polynomial_multiplication", "simple_integration", "spiral_matrix", "string_insertion",
}  # fmt: skip
_UNSAFE = "the scorer of {} runs answers as Python; if they may do all, set allow_unsafe=True"


class ReasoningGymEnv:
    """A `SyncEnv` of one dataset, for `in_processes`. Tasks are `Task(id, {"seed": number})`.

    The reward is the scorer's, 0 to 1; `success` is a reward of 1. Many scorers give part of the
    reward to an answer that contains the right one.
    """

    def __init__(
        self,
        dataset: str,
        *,
        read: Callable[[str], str | None] = extract_answer,
        hint: str = "Put your answer between <answer> and </answer>.",
        settings: dict[str, Any] | None = None,
        allow_unsafe: bool = False,
    ) -> None:
        """Args:
        dataset: its name, for example "chain_sum".
        read: finds the answer in the policy's turn; None where there is none.
        hint: said after the question.
        settings: of the dataset, for example `{"min_terms": 2}`.
        allow_unsafe: also the datasets whose scorers run the answer as Python, in this process.
        """
        self._make = partial(reasoning_gym.create_dataset, dataset, size=1, **(settings or {}))
        self._read, self._hint, self._allow_unsafe = read, hint, allow_unsafe

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to close."""

    def reset(self, task: Task, seed: int) -> Sequence[Message]:
        """Ask the question of the task's seed; the member's `seed` isn't used."""
        self._questions = self._make(seed=task.data["seed"])
        self._entry = self._questions[0]
        self._name = self._entry["metadata"]["source_dataset"]  # one of a mixture's
        if self._name in RUN_ANSWERS and not self._allow_unsafe:
            raise EnvironmentBroken(_UNSAFE.format(self._name))
        return [Message("user", f"{self._entry['question']}\n{self._hint}".strip())]

    def step(self, message: Message) -> StepResult:
        """Score the answer."""
        answer = self._read(message.content)
        try:
            reward = float(self._questions.score_answer(answer, self._entry))
        except Exception as error:  # a scorer may raise anything
            raise RewardFailed(
                f"the scorer of {self._name} raised {type(error).__name__}: {error}, for "
                f"{answer!r:.100}; let `read` return None for what hasn't the form of an answer"
            ) from error
        return StepResult((), reward, terminated=True, info={"success": float(reward == 1)})


def spec(dataset: str, **options: Any) -> EnvSpec:
    """Return the `EnvSpec` of a dataset; options as of `ReasoningGymEnv`.

    Raises:
      ValueError: for a dataset that there isn't, that needs other settings, or that runs answers
        and isn't allowed to.
    """
    if dataset in RUN_ANSWERS and not options.get("allow_unsafe"):
        raise ValueError(_UNSAFE.format(dataset))
    settings = options.get("settings") or {}
    try:
        reasoning_gym.create_dataset(dataset, size=1, **settings)
    except Exception as error:  # a dataset may raise anything
        raise ValueError(
            f"reasoning-gym can't make {dataset!r} with settings={settings}: {error}; change them"
        ) from error
    return seeded_spec(partial(ReasoningGymEnv, dataset, **options), dataset)
