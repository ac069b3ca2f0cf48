"""Cross a frozen lake, drawn as text, without falling into a hole.

The user shows a map of four rows: `A` is where you are, `G` the goal, `O` a hole, `.` ice. A turn
of the letters `u`, `d`, `l` and `r` moves up, down, left and right, one step a letter; words such
as `right` do too. The reply is the new map. A step off the map stays where it is.

The goal is worth 1 and ends the episode; a hole ends it with 0. After eight steps it is truncated.
A turn that names no step is one that stays. Info: `success`, `steps`.

Maps are random, with start and goal anywhere, and always have a way; the shortest has at most six
steps, so the best play is always worth 1. Invariant: the episode is a function of the map and the
messages; train and eval tasks share no map.
"""

import random
import re
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from .base import Env, Split, StepResult, Task
from .messages import Message
from .spec import EnvSpec

SIZE = 4
STEPS = {"u": (-1, 0), "d": (1, 0), "l": (0, -1), "r": (0, 1)}
CHARACTERS = "AGO.\n" + "".join(STEPS)
MAX_STEPS = 8
MAX_TASKS = 20_000  # of a split; there are many more maps
DEMONSTRATED_SLIPS = 0.5  # the share of random steps in demonstrations
SYSTEM = (
    "You are A on a frozen lake. Reach G; never step on a hole O. "
    "Reply with steps: up, down, left or right, one or several."
)

_SHORTEST, _LONGEST = 2, 6  # steps of the shortest way
_HOLES = range(3, 7)
_SQUARES = [(row, column) for row in range(SIZE) for column in range(SIZE)]
_WORDS = re.compile(r"\b(up|down|left|right)\b", re.IGNORECASE)

Square = tuple[int, int]


class FrozenLakeEnv(Env):
    """One lake to cross. `task.data` has the `map`, its rows joined by line feeds, of any size."""

    def __init__(self, system: str = "") -> None:
        """Args:
        system: a first message that says the rules; "" for none.
        """
        self._system = system
        self._rows: list[str] = []
        self._at: Square = (0, 0)
        self._steps = 0

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        """Show the map; the seed changes nothing."""
        self._rows, self._at = _without_agent(task.data["map"])
        self._steps = 0
        return _first(task, self._system)

    async def step(self, message: Message) -> StepResult:
        """Take the steps of a turn, one after another, until the episode is over."""
        for letter in _letters(message.content) or ("",):
            self._steps += 1
            self._at = _moved(self._rows, self._at, letter)
            ground = self._rows[self._at[0]][self._at[1]]
            if ground != ".":
                return self._end(success=ground == "G")
            if self._steps == MAX_STEPS:
                return StepResult(truncated=True, info=self._info(success=False))
        shown = Message("user", _with_agent(self._rows, self._at))
        return StepResult((shown,), info=self._info(success=False))

    def _end(self, *, success: bool) -> StepResult:
        return StepResult(reward=float(success), terminated=True, info=self._info(success=success))

    def _info(self, *, success: bool) -> dict[str, float]:
        return {"success": float(success), "steps": float(self._steps)}


def shortest_way(lake: str) -> str | None:
    r"""Return the letters of a shortest way from A to G, the same one each time; None: no way.

    Example:
      >>> shortest_way("AO\n.G")
      'dr'
    """
    rows = lake.split("\n")
    ways = {_find(lake, "A"): ""}
    queue = deque(ways)
    while queue:
        at = queue.popleft()
        if rows[at[0]][at[1]] == "G":
            return ways[at]
        for letter in STEPS:
            to = _moved(rows, at, letter)
            if to not in ways and rows[to[0]][to[1]] != "O":
                ways[to] = ways[at] + letter
                queue.append(to)
    return None


def tasks(split: Split, count: int, seed: int) -> list[Task]:
    """Draw different random lakes; a lake's checksum puts it in one split, whatever the seed.

    Raises:
      ValueError: for more than 20,000.
    """
    if not 0 <= count <= MAX_TASKS:
        raise ValueError(f"count must be 0 to {MAX_TASKS} for frozen_lake, got {count}")
    lakes: dict[str, None] = {}
    drawn = _draw(random.Random(f"frozen_lake {split} {seed}"))
    while len(lakes) < count:
        lake = next(drawn)
        if (zlib.crc32(lake.encode()) % 10 == 0) == (split == "eval"):
            lakes[lake] = None
    return [Task(lake.replace("\n", "/"), {"map": lake}) for lake in lakes]


def expert(task: Task, *, chat: bool = False) -> tuple[Message, ...]:
    """Script the best play: a shortest way, a step a turn; for a chat model in one turn."""
    if not chat:
        return _walk(task, random.Random(0), slips=0.0)
    names = {"u": "up", "d": "down", "l": "left", "r": "right"}
    way = shortest_way(task.data["map"]) or ""
    told = Message("assistant", ", ".join(names[letter] for letter in way))
    return *_first(task, SYSTEM), told


def demonstrate(task: Task, rng: random.Random) -> tuple[Message, ...]:
    """Script a walk whose steps are the expert's or, half of them, random.

    So the form is taught and the way to the goal hinted at; to go it safely is left to be learnt.
    """
    return _walk(task, rng, slips=DEMONSTRATED_SLIPS)


def demonstrate_chat(task: Task, rng: random.Random) -> tuple[Message, ...]:
    """Script the best play, for a chat model."""
    return expert(task, chat=True)


def _walk(task: Task, rng: random.Random, *, slips: float) -> tuple[Message, ...]:
    """Script an episode, a step a turn; a share of the steps is random."""
    messages = list(_first(task, ""))
    rows, at = _without_agent(task.data["map"])
    for count in range(MAX_STEPS):
        shown = _with_agent(rows, at)
        if count:
            messages.append(Message("user", shown))
        way = shortest_way(shown) or ""
        letter = rng.choice(list(STEPS)) if rng.random() < slips else way[0]
        messages.append(Message("assistant", letter))
        at = _moved(rows, at, letter)
        if rows[at[0]][at[1]] != ".":
            break
    return tuple(messages)


def _draw(rng: random.Random) -> Iterator[str]:
    """Yield random lakes with a way of the right length."""
    while True:
        start, goal, *holes = rng.sample(_SQUARES, 2 + rng.choice(_HOLES))
        marks = {start: "A", goal: "G", **dict.fromkeys(holes, "O")}
        letters = [marks.get(square, ".") for square in _SQUARES]
        rows = ["".join(letters[at : at + SIZE]) for at in range(0, SIZE * SIZE, SIZE)]
        lake = "\n".join(rows)
        way = shortest_way(lake)
        if way is not None and _SHORTEST <= len(way) <= _LONGEST:
            yield lake


def _letters(text: str) -> list[str]:
    if text and set(text) <= set(STEPS):
        return list(text)
    return [word[0].lower() for word in _WORDS.findall(text)]


def _moved(rows: list[str], at: Square, letter: str) -> Square:
    down, right = STEPS.get(letter, (0, 0))
    row, column = at[0] + down, at[1] + right
    inside = 0 <= row < len(rows) and 0 <= column < len(rows[row])
    return (row, column) if inside else at


def _find(lake: str, mark: str) -> Square:
    above, _, _ = lake.partition(mark)
    return above.count("\n"), len(above) - (above.rfind("\n") + 1)


def _without_agent(lake: str) -> tuple[list[str], Square]:
    return lake.replace("A", ".").split("\n"), _find(lake, "A")


def _with_agent(rows: list[str], at: Square) -> str:
    shown = list(rows)
    shown[at[0]] = f"{rows[at[0]][: at[1]]}A{rows[at[0]][at[1] + 1 :]}"
    return "\n".join(shown)


def _first(task: Task, system: str) -> tuple[Message, ...]:
    shown = Message("user", task.data["map"])
    return (Message("system", system), shown) if system else (shown,)


CHAT = EnvSpec(
    make=partial(FrozenLakeEnv, SYSTEM),
    tasks=tasks,
    demonstrate=demonstrate_chat,
    best_reward=1.0,
)

SPEC = replace(CHAT, make=FrozenLakeEnv, demonstrate=demonstrate, for_chat=CHAT)
