"""What openenv_server.py says, without OpenEnv: its WebSocket protocol, spoken by trio."""

import json
import random
import sys

import trio
from trio_websocket import ConnectionClosed, WebSocketRequest, serve_websocket


async def session(request: WebSocketRequest) -> None:
    assert request.path == "/ws"
    connection = await request.accept()
    echo = Echo()
    while True:
        try:
            asked = json.loads(await connection.get_message())
        except ConnectionClosed:
            return
        if asked["data"].get("text") == "hang":
            await trio.sleep(30.0)
        await connection.send_message(json.dumps(echo.answer(asked["type"], asked["data"])))


class Echo:
    """Wants to hear the number that it has named; three times at most."""

    def __init__(self) -> None:
        self._steps, self._wanted = 0, ""

    def answer(self, kind: str, data: dict) -> dict:
        if kind == "step" and set(data) != {"text"}:
            return _error("VALIDATION_ERROR", "Invalid message")
        if kind == "reset" and isinstance(data.get("add"), str):
            return _error("EXECUTION_ERROR", "unsupported operand type(s)")
        if data.get("text") == "crash":
            return _error("EXECUTION_ERROR", "the engine is on fire")
        if kind == "reset":
            self._steps = 0
            self._wanted = str(random.Random(data["seed"]).randrange(1000) + data.get("add", 0))
            return _observation(f"say {self._wanted}", None, done=False)
        self._steps += 1
        right = data["text"] == self._wanted
        return _observation(data["text"], 1.0 if right else None, done=right or self._steps == 3)


def _observation(heard: str, reward: float | None, *, done: bool) -> dict:
    data = {"observation": {"heard": heard}, "reward": reward, "done": done}
    return {"type": "observation", "data": data}


def _error(code: str, message: str) -> dict:
    return {"type": "error", "data": {"code": code, "message": message}}


if __name__ == "__main__":
    trio.run(serve_websocket, session, "127.0.0.1", int(sys.argv[1]), None)
