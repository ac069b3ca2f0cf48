"""Environments of OpenEnv servers, over their WebSocket protocol and nothing else of OpenEnv.

Invariant: one connection, so one session of the server, for each episode. An action that the
server's schema refuses is an answer that the policy reads; every other error fails the episode.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Self

import trio_websocket

from ..base import StepResult, Task
from ..messages import Message
from .described import sendable

Json = Mapping[str, Any]

# A server that doesn't agree to the end of a connection is left after this time.
_LIMITS: Mapping[str, Any] = {"max_message_size": 1 << 24, "disconnect_timeout": 2.0}


class OpenEnvError(RuntimeError):
    """The server couldn't do what it was asked to."""


class _Refused(OpenEnvError):
    """What it was asked to hasn't the form that it takes."""


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
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> Self:
        opening = trio_websocket.open_websocket_url(self._url, **_LIMITS)
        try:
            self._connection = await self._exits.enter_async_context(opening)
        except (trio_websocket.HandshakeError, OSError) as error:
            raise OpenEnvError(f"can't connect to {self._url}; is the server running?") from error
        return self

    async def __aexit__(self, *error: object) -> None:
        with suppress(trio_websocket.DisconnectionTimeout):
            await self._exits.aclose()

    async def reset(self, task: Task, seed: int) -> Sequence[Message]:
        """Start the task's episode; the member's `seed` isn't used.

        Raises:
          OpenEnvError: where the server answers with an error.
        """
        told = await self._ask("reset", task.data)
        return [Message("user", self._describe(told["observation"]))]

    async def step(self, message: Message) -> StepResult:
        """Take the action that the policy names.

        Raises:
          OpenEnvError: where the server answers with an error that isn't about the action's form.
        """
        try:
            told = await self._ask("step", self._act(message))
        except _Refused:
            return StepResult((Message("user", self._hint),))
        over = bool(told["done"])
        shown = () if over else (Message("user", self._describe(told["observation"])),)
        return StepResult(shown, float(told["reward"] or 0.0), terminated=over)

    async def _ask(self, kind: str, data: Json | None) -> Json:
        if data is None:
            raise _Refused
        asked = sendable({"type": kind, "data": dict(data)})
        await self._connection.send_message(json.dumps(asked))
        answer = json.loads(await self._connection.get_message())
        told: Json = answer["data"]
        if answer["type"] == "observation":
            return told
        error = _Refused if told.get("code") == "VALIDATION_ERROR" else OpenEnvError
        raise error(f"the server answers: {told.get('message', told)}")
