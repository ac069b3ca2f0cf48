"""The code tasks: right functions win, everything else loses, and nothing is won by tricks."""

import random
from collections.abc import Sequence

import pytest
import trio

from headrace.envs import EnvironmentBroken, Message, StepResult, Task, check_env
from headrace.envs.code_tasks import _FAMILIES, SPEC, CodeEnv, demonstrate, tasks
from headrace.envs.sandbox import Limits, SandboxConfig, SandboxUnavailable, bwrap
from tests.envs.sandbox.harness import require

QUICK = SandboxConfig(limits=Limits(wall_seconds=1.0))
TASK = Task("linear-3-40", {"family": "linear", "k": 3, "m": 40})
RIGHT = "def f(x):\n    return 3 * x + 40\n"
TRICKS = [
    "import os; os._exit(0)",
    "raise SystemExit",
    "f = lambda x: True",
    "class Same(int):\n    __eq__ = lambda *a: True\nf = lambda x: Same(0)",
    "import json\njson.dumps = lambda value: '[\"value\", 0]'\nf = lambda x: 0",
    "import sys\nf = lambda x: sys._getframe(1).f_globals['job']['calls']",
    "def f(x):\n    print(3 * x + 40)",
    "def f(x):\n    return float(3 * x + 40)",
    "def f(x):\n    while True: pass",
    "def f(x):\n    import os; os.kill(os.getppid(), 9)",
    "def f(",
    "",
    "f = 3",
    "def f(x):\n    x = []; x.append(x); return x",
    "def f(x):\n    return 10 ** 100_000",
]


def play(episodes: Sequence[tuple[Task, Sequence[str]]]) -> list[list[StepResult]]:
    require("bwrap")

    async def main() -> list[list[StepResult]]:
        results = []
        for task, turns in episodes:
            async with CodeEnv(QUICK) as env:
                await env.reset(task, 0)
                results.append([await env.step(Message("assistant", turn)) for turn in turns])
        return results

    return trio.run(main)


def test_keeps_the_protocol() -> None:
    require("bwrap")
    probes = [Message("assistant", RIGHT), Message("assistant", "f(")]
    trio.run(lambda: check_env(CodeEnv, tasks("train", 2, 0), probes=probes))


def test_a_right_function_wins_bare_and_fenced() -> None:
    fenced = f"Here it is:\n```python\n{RIGHT}```\nIt multiplies."
    for (end,) in play([(TASK, [RIGHT]), (TASK, [fenced])]):
        info = {"success": 1.0, "passed": 1.0}
        assert end == StepResult(reward=1.0, terminated=True, info=info)


def test_a_mistake_is_told_and_may_be_mended_once() -> None:
    wrong = RIGHT.replace("40", "41")
    mended, given_up = play([(TASK, [wrong, RIGHT]), (TASK, [wrong, wrong])])
    assert mended[0].messages[0].content.startswith("Not right: f(")
    assert [end.reward for end in (mended[1], given_up[1])] == [1.0, 0.0]
    assert given_up[1].terminated


def test_no_trick_wins() -> None:
    results = play([(TASK, ["", trick]) for trick in TRICKS])
    assert [ends[-1].reward for ends in results] == [0.0] * len(TRICKS)
    assert all(ends[-1].info["passed"] < 1 for ends in results)


def test_experts_reach_the_best_reward_in_every_family() -> None:
    chosen = {task.data["family"]: task for task in tasks("train", 300, 1)}
    assert set(chosen) == set(_FAMILIES)
    rng = random.Random(0)
    scripts = [demonstrate(task, rng) for task in chosen.values()]
    turns = [[m.content for m in script if m.role == "assistant"] for script in scripts]
    played = play(list(zip(chosen.values(), turns, strict=True)))
    assert [ends[-1].reward for ends in played] == [SPEC.best_reward] * len(chosen)
    for script, ends in zip(scripts, played, strict=True):
        told = [m for m in script[1:] if m.role == "user"]
        assert [message for end in ends for message in end.messages] == told


def test_splits_share_no_task_and_tasks_are_a_function_of_the_seed() -> None:
    train = {task.id for task in tasks("train", 3888, 0)}
    held_out = {task.id for task in tasks("eval", 432, 0)}
    assert (len(train), len(held_out), train & held_out) == (3888, 432, set())
    assert tasks("train", 20, 3) == tasks("train", 20, 3)
    assert tasks("train", 20, 3) != tasks("train", 20, 4)
    with pytest.raises(ValueError, match="count must be 0 to 432"):
        tasks("eval", 433, 0)


def test_without_a_sandbox_the_run_ends_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing() -> str:
        raise SandboxUnavailable("there is no bubblewrap (bwrap) here; install it")

    async def main() -> None:
        async with CodeEnv(SandboxConfig(warm=0)):
            raise AssertionError("opened")

    monkeypatch.setattr(bwrap, "find_bwrap", missing)
    with pytest.raises(EnvironmentBroken, match=r"need a sandbox.*bubblewrap.*install"):
        trio.run(main)
