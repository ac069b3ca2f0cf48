"""A small OpenEnv server, of OpenEnv's own classes: echo what is said, three times at most."""

import random
import sys
import time

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class EchoAction(Action):
    """What to say, at most 20 characters."""

    text: str


class EchoObservation(Observation):
    """What was heard."""

    heard: str


class EchoEnvironment(Environment):
    """Wants to hear the number that it has named; "crash" makes it raise."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._steps, self._wanted = 0, ""

    def reset(self, seed=None, episode_id=None, **options) -> EchoObservation:
        self._steps = 0
        self._wanted = str(random.Random(seed).randrange(1000) + options.get("add", 0))
        return EchoObservation(heard=f"say {self._wanted}")

    def step(self, action, timeout_s=None, **options) -> EchoObservation:
        if action.text == "crash":
            raise RuntimeError("the engine is on fire")
        if action.text == "hang":
            time.sleep(30.0)
        self._steps += 1
        right = action.text == self._wanted
        over = right or self._steps == 3
        return EchoObservation(heard=action.text, reward=1.0 if right else None, done=over)

    @property
    def state(self) -> State:
        return State(step_count=self._steps)


if __name__ == "__main__":
    app = create_fastapi_app(EchoEnvironment, EchoAction, EchoObservation, max_concurrent_envs=24)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
