"""Gymnasium's own environments, through the adapter, in own words and in ready-made ones."""

import math
from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from headrace.envs import (
    EnvironmentBroken,
    Message,
    StepResult,
    Task,
    check_env,
    in_processes,
    in_threads,
    load_env,
)

pytest.importorskip("gymnasium")

import gymnasium

from headrace.envs.adapters.gymnasium import GymnasiumEnv, spec
from headrace.envs.adapters.seeded import choice_words
from headrace.envs.adapters.toy_text import DRIVES, MOVES
from tests.fakes.frozen_lake import (
    ACTIONS,
    PATH,
    make_lake,
    make_slippery_lake,
)

TASKS = [Task(f"{seed}", {"seed": seed}) for seed in range(2)]
TAXI = max(name for name in gymnasium.registry if name.startswith("Taxi-"))
FAKES = "tests.fakes.text_gym:"


def ready(name: str, **settings) -> partial:
    return partial(GymnasiumEnv, partial(gymnasium.make, name, **settings))


def play(make, moves, *, seed: int = 0) -> list[StepResult]:
    with make() as env:
        env.reset(TASKS[seed], 7)
        results = []
        for move in moves:
            results.append(env.step(Message("assistant", move)))
            if results[-1].terminated or results[-1].truncated:
                break
        return results


def start(make, seed: int = 0) -> str:
    with make() as env:
        (message,) = env.reset(TASKS[seed], 7)
        return message.content


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


def test_a_lake_is_drawn_and_says_whether_it_is_slippery() -> None:
    make = ready("FrozenLake-v1", is_slippery=False)
    first = start(make)
    assert first.endswith(
        "Reply with one of left, down, right, up.\n\nAFFF\nFHFH\nFFFH\nHFFG\nYou stand on S."
    )
    assert "slippery" not in first
    assert "slippery" in start(ready("FrozenLake-v1"))
    results = play(make, ["I go down.", "nowhere", "left or up", *PATH[1:]])
    assert results[0].messages[0].content == "SFFF\nAHFH\nFFFH\nHFFG\nYou stand on F."
    for wrong in results[1:3]:
        hint = "That names no action, or several. Reply with one of left, down, right, up."
        assert wrong == StepResult((Message("user", hint),))
    assert (results[-1].reward, results[-1].terminated) == (1.0, True)


def test_a_lake_may_be_of_any_size_and_map() -> None:
    assert "AFFFFFFF\nFFFFFFFF\n" in start(ready("FrozenLake8x8-v1"))
    assert start(ready("FrozenLake-v1", desc=["SFG", "FFF"])).count("AFG\nFFF") == 1


def drive(state: int, taxi) -> list[str]:
    """Name the actions of a way through the middle row, which has no walls."""
    row, column, passenger, goal = taxi.decode(state)
    stops = [*([] if passenger == 4 else [taxi.locs[passenger]]), taxi.locs[goal]]
    says = [*([] if passenger == 4 else ["pickup"]), "dropoff"]
    moves: list[str] = []
    for (to_row, to_column), say in zip(stops, says, strict=True):
        moves += ["south" if row < 2 else "north"] * abs(2 - row)
        moves += ["east" if column < to_column else "west"] * abs(to_column - column)
        moves += ["south" if to_row > 2 else "north"] * abs(2 - to_row) + [say]
        row, column = to_row, to_column
    return moves


@pytest.mark.parametrize("seed", range(2))
def test_a_taxi_brings_its_passenger_where_the_words_say(seed: int) -> None:
    with ready(TAXI)() as env:
        (first,) = env.reset(TASKS[seed], 0)
        taxi = env._env.unwrapped
        way = drive(taxi.s, taxi)
        stands = "RGYB"
        _, _, passenger, goal = taxi.decode(taxi.s)
        told = f"The passenger waits at {stands[passenger]} and wants to go to {stands[goal]}."
        assert first.content.endswith(told)
        results = [env.step(Message("assistant", move)) for move in way]
    assert [result.reward for result in results] == [-1.0] * (len(way) - 1) + [20.0]
    assert (results[-1].terminated, results[-1].truncated) == (True, False)
    picked = results[way.index("pickup")].messages[0].content
    assert f"T is at {stands[passenger]}.\nThe passenger is in the taxi and wants to" in picked
    assert picked.splitlines()[0] == "+---------+"
    assert sum(line.count("T") for line in picked.splitlines()[:7]) == 1


def test_a_taxi_says_what_is_no_action_and_is_truncated() -> None:
    first, *rest = play(ready(TAXI), ["fly", *["dropoff"] * 300])
    assert "Reply with one of south, north, east, west, pickup, dropoff." in (
        first.messages[0].content
    )
    assert rest[0].reward == -10.0
    assert (rest[-1].truncated, rest[-1].terminated, len(rest)) == (True, False, 200)


def test_any_environment_that_speaks_text_is_ready_made() -> None:
    make = ready(FAKES + "Echo-v0")
    word = start(make).removeprefix("Say ").removesuffix(".")
    assert start(make) == start(make) != start(make, seed=1)
    no, wrong, much, right = play(make, ["a", "UPPER!", "much", f" {word}\n"])
    assert no.messages == (Message("user", "No."),)
    assert no.info == {"length": 1.0, "success": 0.0}
    assert wrong.messages[0].content.startswith("That is no action of Text(1, 8, charset=")
    assert len(much.messages[0].content) == 100_000
    assert right == StepResult(reward=1.0, terminated=True, info={"length": 4.0, "success": 1.0})
    assert play(make, ["a"] * 9)[-1].truncated


def test_numbers_are_actions_of_a_discrete_space() -> None:
    make = ready(FAKES + "Guess-v0")
    assert start(make) == "Reply with a number from -1 to 2.\n\nGuess."
    results = play(make, ["3", "-2", "", "x", "-1", "0", "1", "2"])
    hint = "That names no action, or several. Reply with a number from -1 to 2."
    assert [result.messages[0].content for result in results[:4]] == [hint] * 4
    assert (results[-1].reward, results[-1].terminated) == (1.0, True)


def test_one_that_speaks_no_text_needs_words() -> None:
    with pytest.raises(EnvironmentBroken, match="observes int, not text: say in `Words`"):
        start(ready(FAKES + "Numbers-v0"))


@given(st.sampled_from([MOVES, DRIVES]), st.text(max_size=40))
def test_an_action_is_taken_exactly_if_the_last_line_names_one(actions, text: str) -> None:
    words = choice_words(str, actions, ask="?")
    for name, number in actions.items():
        assert words.act(f"{text}\n{name.upper()}!") == number
        other = next(each for each in actions if each != name)
        assert words.act(f"{name} or {other}") is None
    assert words.act(text) in (None, *actions.values())
    assert words.act("") is None


@pytest.mark.parametrize("name", ["FrozenLake-v1", TAXI, FAKES + "Guess-v0"])
def test_ready_made_ones_keep_the_protocol(name: str) -> None:
    probes = [Message("assistant", text) for text in ("", "right", "south", "dropoff", "1", "x")]
    trio.run(lambda: check_env(in_threads(ready(name)), TASKS, probes=probes))


def test_a_recipe_names_it() -> None:
    found = load_env(f"gymnasium/{FAKES}Echo-v0")
    assert math.isnan(found.best_reward)
    trio.run(check_env, found.make, found.tasks("eval", 2, 0))
    assert load_env("gymnasium/FrozenLake-v1").tasks("train", 2, 0)[0].data["seed"] % 2 == 0
    for wrong in ("FrozenLak-v1", "no.such.module:Lake-v0", ":", "Frozen Lake"):
        with pytest.raises(ValueError, match=r"env\.name 'gymnasium/.*: "):
            load_env(f"gymnasium/{wrong}")


def test_settings_are_gymnasium_s() -> None:
    found = spec("FrozenLake-v1", best_reward=1.0, is_slippery=False)
    assert found.best_reward == 1.0

    async def main() -> list[float]:
        async with found.make() as env:
            await env.reset(TASKS[0], 0)
            return [(await env.step(Message("assistant", move))).reward for move in PATH]

    assert trio.run(main) == [0, 0, 0, 0, 0, 1]


def test_in_processes_it_keeps_the_protocol() -> None:
    trio.run(check_env, in_processes(make_lake, processes=1, name="FrozenLake"), TASKS)
