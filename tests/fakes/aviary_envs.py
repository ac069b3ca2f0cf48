"""Environments of aviary, that worker processes can import."""

from aviary.core import DummyEnv, Environment, Message, Tool, ToolRequestMessage


def make_story(task) -> DummyEnv:
    """Aviary's own: wants a story, by a tool."""
    return DummyEnv(task=task.data["about"], end_immediately=task.data.get("at_once", True))


class Sums(Environment):
    """Wants a sum; its tools wait on asyncio, and one of them raises."""

    def __init__(self, left: int, right: int) -> None:
        self._left, self._right = left, right
        self._done, self._steps = False, 0
        self._closed = False
        self.tools = [
            Tool.from_function(function, allow_empty_param_descriptions=True)
            for function in (self.add, self.answer, self.fail, self.hang)
        ]

    async def add(self, left: int, right: int) -> str:
        """Add two numbers."""
        import asyncio  # noqa: PLC0415

        await asyncio.sleep(0.001)
        return str(left + right)

    def answer(self, number: int) -> str:
        """End with an answer."""
        self._done = True
        self._right_answer = number == self._left + self._right
        return "thanks"

    def fail(self) -> str:
        """Raise."""
        raise OSError("no disk")

    async def hang(self) -> str:
        """Take very long."""
        import asyncio  # noqa: PLC0415

        await asyncio.sleep(600.0)

    async def reset(self):
        return [
            Message(role="system", content="Use tools."),
            Message(content="2 + 3?"),
        ], self.tools

    async def step(self, action):
        self._steps += 1
        if not isinstance(action, ToolRequestMessage):
            return [Message(content="Call a tool.")], -0.5, False, self._steps == 3
        told = await self.exec_tool_calls(action)
        return told, float(self._done and self._right_answer), self._done, False

    async def close(self) -> None:
        if self._closed:
            raise RuntimeError("closed twice")
        self._closed = True


def make_sums(task) -> Sums:
    if task.data.get("reset") == "fails":
        raise RuntimeError("no start")
    return Sums(2, 3)
