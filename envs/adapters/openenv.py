"""Environments of OpenEnv servers, over their WebSocket protocol and nothing else of OpenEnv.

Invariant: one connection, so one session of the server, for each episode. An action that the
server's schema refuses is an answer that the policy reads; every other error fails the episode.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

from trio_websocket import HandshakeError, WebSocketConnection, open_websocket_url

from ..base import StepResult, Task
from ..messages import Message

Json = Mapping[str, Any]


class OpenEnvError(RuntimeError):
    """The server couldn't do what it was asked to."""


class OpenEnvClient:
    """An `Env`: one session of a server. `task.data` is what `reset` sends: a seed, options.

    OpenEnv's `done` ends an episode as `terminated`; it knows no truncation.
    """

    def __init__(
        self,
        url: str,
        *,
        describe: Callable[[Json], str],
        act: Callable[[Message], Json | None],
        hint: str = "That is no action.",
        max_message_bytes: int = 1 << 24,
    ) -> None:
        """Args:
        url: of the server, for example "ws://localhost:8000".
        describe: an observation in words.
        act: the action that a turn names, as the server's schema has it; None for none.
        hint: the answer to that; the environment isn't stepped.
        """
        self._url = f"{url.rstrip('/')}/ws"
        self._describe = describe
        self._act = act
        self._hint = hint
        self._max_message_bytes = max_message_bytes
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> Self:
        opening = open_websocket_url(self._url, max_message_size=self._max_message_bytes)
        try:
            self._connection: WebSocketConnection = await self._exits.enter_async_context(opening)
        except (HandshakeError, OSError) as error:
            raise OpenEnvError(f"can't connect to {self._url}; is the server running?") from error
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._exits.aclose()

    async def reset(self, task: Task, seed: int) -> Sequence[Message]:
        """Start the task's episode; the member's `seed` isn't used.

        Raises:
          OpenEnvError: where the server answers with an error.
        """
        kind, data = await self._ask("reset", task.data)
        _require(kind == "observation", data)
        return [Message("user", self._describe(data["observation"]))]

    async def step(self, message: Message) -> StepResult:
        """Take the action that the policy names.

        Raises:
          OpenEnvError: where the server answers with an error that isn't about the action's form.
        """
        action = self._act(message)
        if action is None:
            return StepResult((Message("user", self._hint),))
        kind, data = await self._ask("step", action)
        if kind == "error" and data["code"] == "VALIDATION_ERROR":
            return StepResult((Message("user", self._hint),))
        _require(kind == "observation", data)
        over = bool(data["done"])
        shown = () if over else (Message("user", self._describe(data["observation"])),)
        return StepResult(shown, float(data["reward"] or 0.0), terminated=over)

    async def _ask(self, kind: str, data: Json) -> tuple[str, Json]:
        await self._connection.send_message(json.dumps({"type": kind, "data": dict(data)}))
        answer = json.loads(await self._connection.get_message())
        return answer["type"], answer["data"]


def _require(condition: bool, data: Json) -> None:
    if not condition:
        raise OpenEnvError(f"the server answers: {data.get('message', data)}")
