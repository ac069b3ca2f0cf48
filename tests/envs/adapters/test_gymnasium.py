"""Gymnasium's own FrozenLake, through the adapter."""

import pytest
import trio

from headrace.envs import Message, StepResult, Task, check_env, in_processes

pytest.importorskip("gymnasium")

from tests.fakes.frozen_lake import (
    ACTIONS,
    PATH,
    make_lake,
    make_slippery_lake,
)

TASKS = [Task(f"{seed}", {"seed": seed}) for seed in range(2)]


def play(make, moves, *, seed: int = 0) -> list[StepResult]:
    with make() as env:
        env.reset(TASKS[seed], 7)
        results = []
        for move in moves:
            results.append(env.step(Message("assistant", move)))
            if results[-1].terminated or results[-1].truncated:
                break
        return results


def test_the_way_over_the_ice_is_rewarded_and_terminates() -> None:
    results = play(make_lake, PATH)
    assert [r.reward for r in results] == [0, 0, 0, 0, 0, 1]
    assert [r.terminated for r in results] == [False] * 5 + [True]
    assert "row 2, column 0" in results[1].messages[0].content
    assert results[-1].messages == ()


def test_a_hole_terminates_without_reward_and_too_many_steps_truncate() -> None:
    assert play(make_lake, ("down", "right"))[-1] == StepResult(terminated=True, info={"prob": 1})
    results = play(make_lake, ["up"] * 200)
    assert (results[-1].truncated, results[-1].terminated, len(results)) == (True, False, 100)


def test_what_is_no_action_is_answered_and_steps_nothing() -> None:
    first, second = play(make_lake, ("fly", "down"))
    assert first == StepResult((Message("user", "That is no action."),))
    assert "row 1, column 0" in second.messages[0].content


def test_the_tasks_seed_decides_all_chance() -> None:
    moves = list(ACTIONS) * 10
    assert play(make_slippery_lake, moves) == play(make_slippery_lake, moves)
    assert play(make_slippery_lake, moves) != play(make_slippery_lake, moves, seed=1)


def test_in_processes_it_keeps_the_protocol() -> None:
    trio.run(check_env, in_processes(make_lake, processes=1, name="FrozenLake"), TASKS)
