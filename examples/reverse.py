"""An environment of one's own: say a word backwards. One letter right is worth a third.

Run from the repository: headrace train examples/reverse.toml
"""

import random
from itertools import product

from headrace.envs import EnvSpec, Message, StepResult, Task

WORDS = ["".join(letters) for letters in product("abcd", repeat=3)]
SHUFFLED = random.Random(0).sample(WORDS, len(WORDS))  # so that held-out words are like others
HELD_OUT = SHUFFLED[::8]


class Reverse:
    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        pass

    async def reset(self, task, seed):
        self.answer = task.data["word"][::-1]
        return [Message("user", task.data["word"])]

    async def step(self, message):
        pairs = zip(message.content, self.answer, strict=False)
        reward = sum(said == right for said, right in pairs) / 3
        success = float(message.content == self.answer)
        return StepResult(reward=reward, terminated=True, info={"success": success})


def tasks(split, count, seed):
    words = [word for word in SHUFFLED if (word in HELD_OUT) == (split == "eval")]
    return [Task(f"{split}-{n}", {"word": words[n % len(words)]}) for n in range(count)]


SPEC = EnvSpec(make=Reverse, tasks=tasks, demonstrate=None, best_reward=1.0)
