"""TextArena's own games, through the adapter."""

import re
from functools import partial

import pytest
import trio

from headrace.envs import Message, StepResult, Task, check_env, in_processes, load_env

pytest.importorskip("textarena")

from headrace.envs.adapters.textarena import TextArenaEnv
from tests.fakes.textarena_players import first_free_cell

TASKS = [Task(f"{seed}", {"seed": seed}) for seed in range(2)]
make_guess = partial(TextArenaEnv, "GuessTheNumber-v0")
make_cells = partial(TextArenaEnv, "TicTacToe-v0", players=2, opponent=first_free_cell)


def play(make, *said: str, seed: int = 0) -> list[StepResult]:
    with make() as env:
        env.reset(TASKS[seed], 7)
        results = []
        for text in said:
            results.append(env.step(Message("assistant", text)))
            if results[-1].terminated:
                break
        return results


def test_halving_finds_the_number_and_only_news_arrives() -> None:
    low, high, results = 1, 20, []
    with make_guess() as env:
        (first,) = env.reset(TASKS[1], 0)
        assert "Guess The Number" in first.content
        while not (results and results[-1].terminated):
            guess = (low + high) // 2
            results.append(env.step(Message("assistant", f"I say [{guess}]")))
            for message in results[-1].messages:
                assert re.fullmatch(r"The target number is (lower|higher)\.", message.content)
                low, high = (guess + 1, high) if "higher" in message.content else (low, guess - 1)
    assert 1 <= len(results) <= 5
    assert results[-1] == StepResult(reward=1.0, terminated=True, info={"success": 1.0})


def test_a_wrong_move_is_told_and_a_second_ends_the_game() -> None:
    told, end = play(make_guess, "no number", "again none")
    assert "Invalid move format" in told.messages[0].content
    assert end.terminated
    assert end.info == {"success": 0.0}


def test_the_tasks_seed_decides_the_number() -> None:
    hints = [play(make_guess, "[10]", "[11]", seed=0) for _ in range(2)]
    assert hints[0] == hints[1]
    numbers = set()
    for seed in range(6):
        with make_guess() as env:
            env.reset(Task("x", {"seed": seed}), 0)
            numbers.add(env._env.state.game_state["game_number"])
    assert len(numbers) > 1


def test_another_player_has_its_turns_and_the_policy_is_player_0() -> None:
    won = play(make_cells, "[4]", "[3]", "[5]")
    assert [r.terminated for r in won] == [False, False, True]
    assert won[-1].reward == 1.0
    assert "Player 1 placed their symbol (X) in cell 0." in won[0].messages[0].content
    lost = play(make_cells, "[8]", "[5]", "[3]")
    assert lost[-1].reward == -1.0
    assert lost[-1].info == {"success": 0.0}


def test_a_game_of_two_needs_an_opponent() -> None:
    with pytest.raises(ValueError, match="needs an opponent, got None"):
        TextArenaEnv("TicTacToe-v0", players=2)


def test_a_recipe_names_it() -> None:
    assert load_env("textarena/GuessTheNumber-v0").best_reward == 1.0
    with pytest.raises(ValueError, match="TextArena has no game 'GuessTheNumbers-v0'"):
        load_env("textarena/GuessTheNumbers-v0")


def test_in_processes_it_keeps_the_protocol() -> None:
    make = in_processes(make_guess, processes=1, start_deadline_seconds=90, name="Guess")
    trio.run(check_env, make, TASKS)
