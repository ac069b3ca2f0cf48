"""Environments of asyncio, good ones and bad ones, that worker processes can import."""

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

from headrace.envs import EnvironmentBroken, Message, StepResult, Task


class Echo:
    """A client of a server that repeats lines; it holds a task group from opening to closing."""

    async def __aenter__(self) -> "Echo":
        self._exits = contextlib.AsyncExitStack()
        self._group = await self._exits.enter_async_context(asyncio.TaskGroup())
        self._ticking = self._group.create_task(self._tick())
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._ticking.cancel()
        await self._exits.aclose()

    async def _tick(self) -> None:
        await asyncio.sleep(3600)

    async def reset(self, task: Task, seed: int) -> list[Message]:
        self._port = task.data["port"]
        return [Message("user", await self._ask("hello"))]

    async def step(self, message: Message) -> StepResult:
        said = await self._ask(message.content)
        if said == "end":
            return StepResult(reward=1.0, terminated=True)
        return StepResult((Message("user", said),))

    async def _ask(self, text: str) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(text.encode() + b"\n")
            return (await reader.readline()).decode().strip()
        finally:
            writer.close()
            await writer.wait_closed()


class Plain:
    """Ends at the first turn; the others below change one thing."""

    async def __aenter__(self) -> "Plain":
        return self

    async def __aexit__(self, *error: Any) -> None: ...

    async def reset(self, task: Task, seed: int) -> list[Message]:
        return [Message("user", str(os.getpid()))]

    async def step(self, message: Message) -> StepResult:
        return StepResult(terminated=True)


class Writes(Plain):
    """Writes a file some time after `reset`, between two calls."""

    async def reset(self, task: Task, seed: int) -> list[Message]:
        path = Path(task.data["path"])
        asyncio.get_running_loop().call_later(0.01, path.write_text, "here")
        return [Message("user", "0")]


class Raises(Plain):
    async def step(self, message: Message) -> StepResult:
        raise ValueError("no such answer")


class Breaks(Plain):
    async def step(self, message: Message) -> StepResult:
        raise EnvironmentBroken("no server")


class RaisesOnOpen(Plain):
    async def __aenter__(self) -> "RaisesOnOpen":
        raise OSError("no server")


class RaisesOnClose(Plain):
    async def __aexit__(self, *error: Any) -> None:
        raise OSError("no goodbye")


class Hangs(Plain):
    """Hangs, and doesn't let itself be cancelled."""

    async def step(self, message: Message) -> StepResult:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)


class Exits(Plain):
    async def step(self, message: Message) -> StepResult:
        os._exit(3)


class FailsBehind(Plain):
    """A task of its group fails while a call waits."""

    async def __aenter__(self) -> "FailsBehind":
        self._exits = contextlib.AsyncExitStack()
        self._group = await self._exits.enter_async_context(asyncio.TaskGroup())
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._exits.__aexit__(*error)

    async def step(self, message: Message) -> StepResult:
        self._group.create_task(self._fail())
        await asyncio.sleep(3600)
        return StepResult(terminated=True)

    async def _fail(self) -> None:
        raise ConnectionError("the connection broke")


class FailsBetween(FailsBehind):
    """A task of its group fails between two calls."""

    async def reset(self, task: Task, seed: int) -> list[Message]:
        self._group.create_task(self._fail())
        return [Message("user", "0")]


class LeavesTasks(Plain):
    async def reset(self, task: Task, seed: int) -> list[Message]:
        self.left = asyncio.create_task(asyncio.sleep(3600))
        return [Message("user", str(os.getpid()))]
