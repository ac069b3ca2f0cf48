"""A scripted environment that counts how often it was opened and closed."""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import trio

from headrace.envs import Message, StepResult, Task

Hook = Callable[[str, Task | None, int], Awaitable[None]]


async def nothing(call: str, task: Task | None, step: int) -> None:
    await trio.lowlevel.checkpoint()


def is_cancelled() -> bool:
    """Return whether the caller is; a `Cancelled` may also have escaped from another scope."""
    return trio.current_effective_deadline() == -math.inf


@dataclass
class Books:
    """What all environments of a test did together.

    Attributes:
      cut_short: after how many seconds closing was cancelled, each time that it was. Left out is
        what was cancelled already when it had just opened.
    """

    opened: int = 0
    closed: int = 0
    cut_short: list[float] = field(default_factory=list)
    heard: list[Message] = field(default_factory=list)

    @property
    def balanced(self) -> bool:
        return self.opened == self.closed

    def had_time_to_close(self, seconds: float) -> bool:
        """Return whether no closing was cut short sooner, but for rounding."""
        return all(time >= 0.999 * seconds for time in self.cut_short)


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
    _opened_late: bool = False

    async def __aenter__(self) -> "FakeEnv":
        await self.hook("open", None, 0)
        self.books.opened += 1
        self._opened_late = is_cancelled()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.books.closed += 1
        began = trio.current_time()
        try:
            await self.hook("close", self._task, 0)
        except trio.Cancelled:
            if is_cancelled() and not self._opened_late:
                self.books.cut_short.append(trio.current_time() - began)
            raise

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
