"""A scripted environment that counts how often it was opened and closed."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import trio

from headrace.envs import Message, StepResult, Task

Hook = Callable[[str, Task | None, int], Awaitable[None]]


async def nothing(call: str, task: Task | None, step: int) -> None:
    await trio.lowlevel.checkpoint()


@dataclass
class Books:
    """What all environments of a test did together."""

    opened: int = 0
    closed: int = 0
    heard: list[Message] = field(default_factory=list)

    @property
    def balanced(self) -> bool:
        return self.opened == self.closed


@dataclass
class FakeEnv:
    """Replies with `replies` in turn, then terminates; `hook` may wait or raise in any call.

    The reward is `reward(task, seed)` at the end.
    """

    books: Books
    replies: Sequence[str] = ("1",)
    hook: Hook = nothing
    reward: Callable[[Task, int], float] = lambda task, seed: float(seed % 2)
    _step: int = 0
    _task: Task | None = None
    _seed: int = 0

    async def __aenter__(self) -> "FakeEnv":
        await self.hook("open", None, 0)
        self.books.opened += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.books.closed += 1
        await self.hook("close", self._task, 0)

    async def reset(self, task: Task, seed: int) -> Sequence[Message]:
        await self.hook("reset", task, 0)
        self._task, self._seed, self._step = task, seed, 0
        return (Message("user", task.data.get("text", "0")),)

    async def step(self, message: Message) -> StepResult:
        assert self._task is not None
        self.books.heard.append(message)
        await self.hook("step", self._task, self._step)
        if self._step == len(self.replies):
            reward = self.reward(self._task, self._seed)
            return StepResult(reward=reward, terminated=True, info={"success": reward})
        reply = self.replies[self._step]
        self._step += 1
        return StepResult((Message("tool", reply),))
