"""OpenEnv servers, spoken to over WebSocket: a real one where it is, and one that only talks."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from headrace.envs import Message, StepResult, Task, check_env
from tests.fakes.local_server import local_server

pytest.importorskip("trio_websocket")

from headrace.envs.adapters.openenv import OpenEnvClient, OpenEnvError

FAKES = Path(__file__).parents[2] / "fakes"
TASKS = [Task(f"{seed}", {"seed": seed}) for seed in range(2)]


@pytest.fixture(scope="module", params=["openenv_server.py", "openenv_protocol.py"])
def make(request: pytest.FixtureRequest) -> Iterator[partial]:
    if request.param == "openenv_server.py":
        pytest.importorskip("openenv")

    def act(message: Message) -> dict | None:
        if message.content == "wrong form":
            return {"words": 3}
        return {"text": message.content} if message.content else None

    def describe(observation) -> str:
        return observation["heard"]

    with local_server(FAKES / request.param) as port:
        yield partial(OpenEnvClient, f"ws://127.0.0.1:{port}", describe=describe, act=act)


def play(make, task: Task, *said: str) -> tuple[str, list[StepResult]]:
    async def episode() -> tuple[str, list[StepResult]]:
        async with make() as env:
            (first,) = await env.reset(task, 0)
            return first.content, [await env.step(Message("assistant", text)) for text in said]

    return trio.run(episode)


def test_rewards_messages_and_the_end_are_the_server_s(make) -> None:
    first, _ = play(make, TASKS[0])
    wanted = first.removeprefix("say ")
    _, (heard, won) = play(make, TASKS[0], "x", wanted)
    assert heard == StepResult((Message("user", "x"),))
    assert won == StepResult(reward=1.0, terminated=True)
    _, lost = play(make, TASKS[0], "x", "y", "z")
    assert lost[-1] == StepResult(terminated=True)


def test_what_reset_gets_is_the_task_s_data(make) -> None:
    plain, _ = play(make, Task("a", {"seed": 3}))
    added, _ = play(make, Task("a", {"seed": 3, "add": 1000}))
    assert int(added.removeprefix("say ")) == int(plain.removeprefix("say ")) + 1000


def test_what_is_no_action_is_told_and_steps_nothing(make) -> None:
    _, results = play(make, TASKS[0], "", "wrong form", "x", "y", "z")
    assert [message.content for message in results[0].messages] == ["That is no action."]
    assert results[1] == results[0]
    assert [result.terminated for result in results] == [False] * 4 + [True]


def test_an_error_of_the_server_fails_the_episode(make) -> None:
    with pytest.raises(OpenEnvError, match="the server answers: the engine is on fire"):
        play(make, TASKS[0], "crash")
    with pytest.raises(OpenEnvError, match="unsupported operand"):
        play(make, Task("a", {"seed": 1, "add": "one"}))


def test_episodes_at_once_have_sessions_of_their_own(make) -> None:
    async def main() -> list[str]:
        firsts = []
        async with make() as one, make() as two:
            for env, task in ((one, TASKS[0]), (two, TASKS[1])):
                firsts += [message.content for message in await env.reset(task, 0)]
            for env, first in ((one, firsts[0]), (two, firsts[1])):
                said = Message("assistant", first.removeprefix("say "))
                assert (await env.step(said)).reward == 1.0
        return firsts

    assert len(set(trio.run(main))) == 2


def test_it_keeps_the_protocol(make) -> None:
    trio.run(check_env, make, TASKS)


def test_a_server_that_is_not_there_fails_the_opening() -> None:
    with pytest.raises(OpenEnvError, match="is the server running"):
        play(partial(OpenEnvClient, "ws://127.0.0.1:9/", describe=str, act=str), TASKS[0])
