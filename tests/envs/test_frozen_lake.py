"""The frozen lake: its maps, its rules, the shortest way."""

import itertools

import trio
from hypothesis import given
from hypothesis import strategies as st

from headrace.envs import Message, StepResult, Task
from headrace.envs.frozen_lake import MAX_STEPS, SPEC, STEPS, expert, shortest_way, tasks

LAKE = Task("x", {"map": "A.O.\n.O..\n...O\nO..G"})


def play(*turns: str, task: Task = LAKE) -> list[StepResult]:
    async def episode() -> list[StepResult]:
        results = []
        async with SPEC.make() as env:
            await env.reset(task, 0)
            for turn in turns:
                results.append(await env.step(Message("assistant", turn)))
                if results[-1].terminated or results[-1].truncated:
                    break
        return results

    return trio.run(episode)


def shown(result: StepResult) -> str:
    (message,) = result.messages
    return message.content


def test_the_agent_moves_on_the_map_and_stops_at_its_edge() -> None:
    down, left, two = play("d", "l", "ur")
    assert shown(down) == shown(left) == "..O.\nAO..\n...O\nO..G"
    assert shown(two) == ".AO.\n.O..\n...O\nO..G"
    assert two.info == {"success": 0.0, "steps": 4.0}


def test_a_lake_of_one_s_own_may_have_another_size() -> None:
    task = Task("own", {"map": "A....G"})
    assert shortest_way("A....G") == "rrrrr"
    (moved,) = play("dur", task=task)
    assert shown(moved) == ".A...G"
    assert [m.content for m in expert(task) if m.role == "assistant"] == ["r"] * 5


def test_words_are_steps_too_and_nothing_else_is_one() -> None:
    for text in ("Down.", "I go down!", "d"):
        assert shown(play(text)[0]).startswith("..O.\nA")
    for text in ("", "downwards", "x", "DU", "<end>"):
        (stayed,) = play(text)
        assert shown(stayed) == LAKE.data["map"]
        assert stayed.info["steps"] == 1.0


def test_goal_hole_and_too_many_steps_end_it() -> None:
    (won,) = play("ddrrdr")
    assert won == StepResult(reward=1.0, terminated=True, info={"success": 1.0, "steps": 6.0})
    (lost,) = play("rrlllll")
    assert lost == StepResult(terminated=True, info={"success": 0.0, "steps": 2.0})
    *_, cut = play(*["u"] * 20)
    assert cut == StepResult(truncated=True, info={"success": 0.0, "steps": MAX_STEPS})


@given(st.integers(0, 2**31))
def test_no_sequence_of_fewer_steps_reaches_the_goal(seed: int) -> None:
    (task,) = tasks("train", 1, seed)
    way = shortest_way(task.data["map"])
    assert way is not None
    assert 2 <= len(way) <= 6
    assert play(way, task=task)[-1].reward == 1.0
    fewer = min(len(way) - 1, 4)
    for steps in itertools.product(STEPS, repeat=fewer):
        assert play_fast(task.data["map"], steps) is False


def play_fast(lake: str, steps: tuple[str, ...]) -> bool:
    """The rules once more, on complex numbers."""
    marks = {
        complex(column, row): mark
        for row, line in enumerate(lake.split("\n"))
        for column, mark in enumerate(line)
    }
    at = next(place for place, mark in marks.items() if mark == "A")
    for step in steps:
        to = at + {"u": -1j, "d": 1j, "l": -1, "r": 1}[step]
        at = to if to in marks else at
        if marks[at] in "OG":
            return marks[at] == "G"
    return False


def test_a_lake_without_a_way_has_none() -> None:
    assert shortest_way("AO\nOG") is None


def test_lakes_differ_in_all_that_is_drawn() -> None:
    lakes = [task.data["map"] for task in tasks("train", 500, 0)]
    assert {lake.count("O") for lake in lakes} == {3, 4, 5, 6}
    assert (
        len({lake.index("A") for lake in lakes}) == len({lake.index("G") for lake in lakes}) == 16
    )
    assert len({len(shortest_way(lake) or "") for lake in lakes}) >= 5
