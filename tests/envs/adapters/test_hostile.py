"""Every adapter, with its real library, against a policy and an environment that do harm."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from headrace.envs import (
    Message,
    StepResult,
    Task,
    ToolCall,
    WorkerProcessError,
    check_env,
    in_asyncio,
    in_processes,
)
from tests.fakes import harm
from tests.fakes.local_server import local_server

FAKES = Path(__file__).parents[2] / "fakes"
TASKS = [Task(f"{seed}", {"seed": seed}) for seed in range(2)]
PROBES = [
    Message("assistant", text)
    for text in ("", " \n", "x" * 100_000, "\x00\udcff\u202e", "{", "[[", "</answer>", "-1")
] + [
    Message("assistant", "", (ToolCall("add", {"left": "9" * 5000, "right": None}),)),
    Message("assistant", "", (ToolCall("pick", {"names": ["\udcff"]}),)),
    Message("assistant", "", tuple(ToolCall(f"{n}") for n in range(50))),
]
EPISODES = 20
FAULTS = "the engine is on fire|no disk|Connection closed|unhandled errors"


@dataclass(frozen=True)
class Library:
    """An environment through an adapter, with turns that make it raise and hang."""

    make: Callable[[], Any]
    crash: Message
    hang: Message
    make_mortal: Callable[[], Any] | None = None  # where what raises would end all episodes


def say(text: str) -> Message:
    return Message("assistant", text)


def gymnasium(exits: ExitStack) -> Library:
    pytest.importorskip("gymnasium")
    from gymnasium import make  # noqa: PLC0415

    from headrace.envs.adapters.gymnasium import GymnasiumEnv  # noqa: PLC0415

    own = partial(make, "tests.fakes.text_gym:Echo-v0")
    made = in_processes(partial(GymnasiumEnv, own), processes=2)
    return Library(made, say("crash"), say("hang"))


def reasoning_gym(exits: ExitStack) -> Library:
    pytest.importorskip("reasoning_gym")
    from headrace.envs.adapters.reasoning_gym import ReasoningGymEnv  # noqa: PLC0415

    ask = partial(ReasoningGymEnv, "chain_sum", read=harm.read)
    make = in_processes(ask, processes=2, start_deadline_seconds=90)
    return Library(make, say("crash"), say("hang"))


def textarena(exits: ExitStack) -> Library:
    pytest.importorskip("textarena")
    from headrace.envs.adapters.textarena import TextArenaEnv  # noqa: PLC0415

    play = partial(TextArenaEnv, "IteratedPrisonersDilemma-v0", players=2, opponent=harm.read)
    make = in_processes(play, processes=2, start_deadline_seconds=90)
    return Library(make, say("crash"), say("hang"))


def aviary(exits: ExitStack) -> Library:
    pytest.importorskip("aviary.core")
    from headrace.envs.adapters.aviary import AviaryEnv  # noqa: PLC0415
    from tests.fakes.aviary_envs import make_sums  # noqa: PLC0415

    make = in_asyncio(partial(AviaryEnv, make_sums), processes=2)
    crash, hang = (Message("assistant", "", (ToolCall(name),)) for name in ("fail", "hang"))
    return Library(make, crash, hang)


def openenv(exits: ExitStack, server: str = "openenv_server.py") -> Library:
    pytest.importorskip("openenv" if server == "openenv_server.py" else "trio_websocket")
    from headrace.envs.adapters.openenv import OpenEnvClient  # noqa: PLC0415

    port = exits.enter_context(local_server(FAKES / server))
    url = f"ws://127.0.0.1:{port}"
    make = partial(
        OpenEnvClient,
        url,
        describe=lambda observation: observation["heard"],
        act=lambda message: {"text": message.content},
    )
    return Library(make, say("crash"), say("hang"))


def mcp(exits: ExitStack) -> Library:
    pytest.importorskip("mcp.server.mcpserver")
    from mcp import StdioServerParameters  # noqa: PLC0415

    from tests.fakes.mcp_env import AddEnv  # noqa: PLC0415

    server = FAKES / "mcp_server.py"
    port = exits.enter_context(local_server(server))
    stdio = StdioServerParameters(command=sys.executable, args=[str(server)])
    calls = ToolCall("die"), ToolCall("sleep", {"seconds": 3.0})
    crash, hang = (Message("assistant", "", (call,)) for call in calls)
    url = f"http://127.0.0.1:{port}/mcp"
    return Library(partial(AddEnv, url), crash, hang, make_mortal=partial(AddEnv, stdio))


LIBRARIES = {
    "gymnasium": gymnasium,
    "reasoning_gym": reasoning_gym,
    "textarena": textarena,
    "aviary": aviary,
    "openenv": openenv,
    "openenv_protocol": partial(openenv, server="openenv_protocol.py"),
    "mcp": mcp,
}


@pytest.fixture(scope="module", params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    with ExitStack() as exits:
        yield LIBRARIES[request.param](exits)


async def episode(library: Library, task: Task, *turns: Message) -> list[Any]:
    async with library.make() as env:
        said: list[Any] = [await env.reset(task, 0)]
        for turn in turns:
            said.append(await env.step(turn))
            if said[-1].terminated or said[-1].truncated:
                break
    return said


async def is_well(library: Library) -> None:
    """The next episode isn't hurt by what the ones before have done."""
    with trio.fail_after(60.0):
        first, *_ = await episode(library, TASKS[0])
    assert first[0].role in ("user", "system")


def test_it_keeps_the_protocol_whatever_a_policy_says(library: Library) -> None:
    trio.run(lambda: check_env(library.make, TASKS, probes=PROBES))


def test_what_raises_fails_its_own_episode(library: Library) -> None:
    async def main() -> None:
        mortal = replace(library, make=library.make_mortal or library.make)
        with pytest.raises(Exception, match=FAULTS):
            await episode(mortal, TASKS[0], library.crash)
        await is_well(library)

    trio.run(main)


def test_a_step_can_be_cancelled(library: Library) -> None:
    async def main() -> None:
        with trio.fail_after(60.0):
            async with library.make() as env:
                await env.reset(TASKS[0], 0)
                with trio.move_on_after(0.3) as scope:
                    await env.step(library.hang)
                assert scope.cancelled_caught
        await is_well(library)

    trio.run(main)


def test_many_episodes_at_once_are_those_that_run_alone(library: Library) -> None:
    turns = [say("x"), say("y")]
    seen: dict[int, list[Any]] = {}

    async def one(number: int) -> None:
        seen[number] = without_info(await episode(library, TASKS[number % 2], *turns))

    async def main() -> None:
        alone = [without_info(await episode(library, task, *turns)) for task in TASKS]
        async with trio.open_nursery() as nursery:
            for number in range(EPISODES):
                nursery.start_soon(one, number)
        assert seen == {number: alone[number % 2] for number in range(EPISODES)}

    trio.run(main)


def without_info(said: list[Any]) -> list[Any]:
    first, *results = said
    return [list(first), *((r.messages, r.reward, r.terminated, r.truncated) for r in results)]


def test_two_open_at_once_say_the_same_for_a_seed(library: Library) -> None:
    """In two processes or sessions."""

    async def main() -> None:
        async with library.make() as one, library.make() as two:
            for task in TASKS:
                first, second = await one.reset(task, 0), await two.reset(task, 1)
                assert list(first) == list(second)
                results = [await env.step(say("x")) for env in (one, two)]
                assert results[0] == results[1]
                assert isinstance(results[0], StepResult)

    trio.run(main)


@pytest.mark.parametrize("harm", ["no reset", "badly"])
def test_a_reset_or_close_that_raises_fails_its_own_episode(harm: str) -> None:
    pytest.importorskip("gymnasium")
    from gymnasium import make  # noqa: PLC0415

    from headrace.envs.adapters.gymnasium import GymnasiumEnv  # noqa: PLC0415

    own = partial(make, "tests.fakes.text_gym:Echo-v0")
    made = in_processes(partial(GymnasiumEnv, partial(own, closes=harm)), processes=1)
    with pytest.raises(WorkerProcessError, match=r"raised RuntimeError: no (start|end)"):
        trio.run(episode, Library(made, say(""), say("")), TASKS[0])


def test_an_environment_of_aviary_is_closed_once_whatever_raises() -> None:
    pytest.importorskip("aviary.core")
    from headrace.envs.adapters.aviary import AviaryEnv  # noqa: PLC0415
    from tests.fakes.aviary_envs import make_sums  # noqa: PLC0415

    async def main() -> None:
        env = AviaryEnv(make_sums)  # its own raises where it is closed twice
        async with env:
            await env.reset(TASKS[0], 0)
            await env.reset(TASKS[1], 0)
            with pytest.raises(RuntimeError, match="no start"):
                await env.reset(Task("bad", {"reset": "fails"}), 0)
        await env.__aexit__()

    asyncio.run(main())
