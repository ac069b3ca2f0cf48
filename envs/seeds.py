"""Tasks that are nothing but a seed, for environments that make all else of it."""

import random

from .base import Split, Task

_SEEDS = range(2**30)  # fits into what simulators take as a seed


def seeded_tasks(split: Split, count: int, seed: int) -> list[Task]:
    """Draw tasks `Task(id, {"seed": number})`; train has the even numbers, eval the odd ones.

    Raises:
      ValueError: for a negative count, or more than there are.

    Example:
      >>> [task.data["seed"] % 2 for task in seeded_tasks("eval", 2, 0)]
      [1, 1]
    """
    own = _SEEDS[::2] if split == "train" else _SEEDS[1::2]
    if not 0 <= count <= len(own):
        raise ValueError(f"count must be 0 to {len(own)}, got {count}")
    drawn = random.Random(f"seeds {split} {seed}").sample(own, count)
    return [Task(f"{number}", {"seed": number}) for number in drawn]
