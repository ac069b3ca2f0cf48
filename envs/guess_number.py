"""Find a secret number from 0 to 14 in at most five guesses.

The user opens with `?`. A guess is one letter, `a` for 0 to `o` for 14. The reply is `<` if the
secret is smaller and `>` if it is larger; a right guess, which `=` would answer, ends the game.

The reward of a win is 1 - 0.2 * (guesses - 1) / 5. Five wrong guesses, or a message that isn't
exactly one guess letter, end the episode with 0. Info: `success` (a win), `guesses`.

The best play halves what is left: with 15 secrets one is found by the first guess, two by the
second, four by the third, eight by the fourth. No play finds more secrets within k guesses
than 2**k - 1, so no play is better. That is (1 + 2*2 + 3*4 + 4*8) / 15 = 49/15 = 3.27 guesses
in the mean, and a mean reward of 1 - 0.04 * (49/15 - 1) = 0.9093.

Invariant: the episode is a function of the secret and the messages.
"""

import random

from .base import Env, Split, StepResult, Task
from .messages import Message
from .spec import EnvSpec

SECRETS = 15
MAX_GUESSES = 5
LETTERS = "abcdefghijklmno"
CHARACTERS = LETTERS + "<>=?"
STEP_COST = 0.2  # what the guesses after the first would cost if there were five of them

_START = Message("user", "?")


class GuessNumberEnv(Env):
    """One secret to find. `task.data` has the `secret`."""

    def __init__(self) -> None:
        self._secret = 0
        self._guesses = 0

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        """Hide the secret; the seed changes nothing."""
        self._secret = task.data["secret"]
        self._guesses = 0
        return (_START,)

    async def step(self, message: Message) -> StepResult:
        """Compare one guess with the secret."""
        if len(message.content) != 1 or message.content not in LETTERS:
            return self._end(success=False)
        self._guesses += 1
        guess = LETTERS.index(message.content)
        if guess == self._secret:
            return self._end(success=True)
        if self._guesses == MAX_GUESSES:
            return self._end(success=False)
        return StepResult((_reply(self._secret, guess),), info=self._info(success=False))

    def _end(self, *, success: bool) -> StepResult:
        reward = win_reward(self._guesses) if success else 0.0
        return StepResult(reward=reward, terminated=True, info=self._info(success=success))

    def _info(self, *, success: bool) -> dict[str, float]:
        return {"success": float(success), "guesses": float(self._guesses)}


def win_reward(guesses: int) -> float:
    """Return the reward of a win with the `guesses`-th guess, counted from 1."""
    return 1 - STEP_COST * (guesses - 1) / MAX_GUESSES


def tasks(split: Split, count: int, seed: int) -> list[Task]:
    """Cycle through all 15 secrets in order, whatever the seed.

    There are no more than 15, so the train and eval splits share them: an evaluation
    measures how well the game is played, not generalisation. Ids are `secret.round`.
    """
    if count < 0:
        raise ValueError(f"count must be >= 0, got {count}")
    return [
        Task(f"{index % SECRETS}.{index // SECRETS}", {"secret": index % SECRETS})
        for index in range(count)
    ]


def demonstrate(task: Task, rng: random.Random) -> tuple[Message, ...]:
    """Script the best play: halve the interval that is left, at most four guesses."""
    secret, low, high = task.data["secret"], 0, SECRETS - 1
    messages = [_START]
    while True:
        guess = (low + high) // 2
        messages.append(Message("assistant", LETTERS[guess]))
        if guess == secret:
            return tuple(messages)
        messages.append(_reply(secret, guess))
        low, high = (low, guess - 1) if secret < guess else (guess + 1, high)


def _reply(secret: int, guess: int) -> Message:
    return Message("user", "<" if secret < guess else ">")


SPEC = EnvSpec(
    make=GuessNumberEnv,
    tasks=tasks,
    demonstrate=demonstrate,
    best_reward=sum(2 ** (used - 1) * win_reward(used) for used in (1, 2, 3, 4)) / SECRETS,
)
