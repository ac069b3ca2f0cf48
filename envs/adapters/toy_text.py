"""Gymnasium's FrozenLake and Taxi in words: maps of letters, and actions by their names."""

from functools import partial
from typing import Any

from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from gymnasium.envs.toy_text.taxi import TaxiEnv

from .seeded import Words, choice_words

# As Gymnasium numbers them.
MOVES = {"left": 0, "down": 1, "right": 2, "up": 3}
DRIVES = {"south": 0, "north": 1, "east": 2, "west": 3, "pickup": 4, "dropoff": 5}

_STANDS = "RGYB"  # where passengers wait and go, in the order of Gymnasium's numbers


def lake_words(lake: FrozenLakeEnv) -> Words:
    """Return words for a lake of any map."""
    slips = " The ice is slippery: a step may go sideways." if len(lake.P[0][0]) > 1 else ""
    rules = (
        "You are A on a frozen lake. Go from S over the ice F to the goal G; a hole H ends it. "
        f"You win only on G.{slips} "
    )
    return choice_words(
        partial(_draw_lake, lake), MOVES, rules=rules, ask=f"Reply with one of {', '.join(MOVES)}."
    )


def taxi_words(taxi: TaxiEnv) -> Words:
    """Return words for a taxi."""
    rules = (
        "You drive the taxi T; | is a wall. Go to the passenger and say pickup, then go where the "
        "passenger wants to and say dropoff: that gives 20 points. Each action costs 1, a pickup "
        "or dropoff at a wrong place 10. "
    )
    ask = f"Reply with one of {', '.join(DRIVES)}."
    return choice_words(partial(_draw_city, taxi), DRIVES, rules=rules, ask=ask)


def _draw_lake(lake: FrozenLakeEnv, square: int) -> str:
    rows = _letters(lake.desc)
    row, column = divmod(int(square), lake.ncol)
    ground, rows[row][column] = rows[row][column], "A"
    return "\n".join("".join(row) for row in rows) + f"\nYou stand on {ground}."


def _draw_city(taxi: TaxiEnv, state: int) -> str:
    row, column, passenger, goal = (int(number) for number in taxi.decode(int(state)))
    rows = _letters(taxi.desc)
    ground, rows[row + 1][2 * column + 1] = rows[row + 1][2 * column + 1], "T"
    at = f"T is at {ground}.\n" if ground in _STANDS else ""
    where = f"waits at {_STANDS[passenger]}" if passenger < len(_STANDS) else "is in the taxi"
    city = "\n".join("".join(letters) for letters in rows)
    return f"{city}\n{at}The passenger {where} and wants to go to {_STANDS[goal]}."


def _letters(map_of_bytes: Any) -> list[list[str]]:
    return [[letter.decode() for letter in row] for row in map_of_bytes.tolist()]
