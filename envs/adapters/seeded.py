"""What the adapters of seeded worlds share: tasks that are a seed, and words for observations."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..processes import in_processes
from ..seeds import seeded_tasks
from ..spec import EnvSpec
from ..threads import SyncEnv

_START_SECONDS = 90.0  # some libraries take long to import


@dataclass(frozen=True)
class Words:
    """Translates between a library's values and a policy's text.

    Attributes:
      describe: an observation in words.
      act: the action that a turn names; None where it names none, which steps nothing.
      hint: what the policy reads then.
      rules: what it reads before the first observation.
    """

    describe: Callable[[Any], str]
    act: Callable[[str], Any]
    hint: str = "That is no action."
    rules: str = ""


def choice_words(
    describe: Callable[[Any], str], actions: Mapping[str, Any], *, ask: str, rules: str = ""
) -> Words:
    r"""Return words for actions with names: a turn's last line names the one that is taken.

    Example:
      >>> words = choice_words(str, {"left": 0, "right": 1}, ask="left or right?")
      >>> words.act("Not left.\nRight!"), words.act("left or right")
      (1, None)
    """

    def act(text: str) -> Any:
        told = {*re.findall(r"-?\w+", last_line(text).lower())} & {*actions}
        return actions[told.pop()] if len(told) == 1 else None

    return Words(describe, act, f"That names no action, or several. {ask}", f"{rules}{ask}\n\n")


def seeded_spec(make: Callable[[], SyncEnv], name: str, *, best_reward: float = 1.0) -> EnvSpec:
    """Return the `EnvSpec` of an environment whose tasks are `Task(id, {"seed": number})`."""
    own = in_processes(make, start_deadline_seconds=_START_SECONDS, name=name)
    return EnvSpec(own, seeded_tasks, demonstrate=None, best_reward=best_reward)


def last_line(text: str) -> str:
    r"""Return the last line that isn't blank.

    Example:
      >>> last_line("2 and 3 are 5\n5\n")
      '5'
    """
    return (text.strip().splitlines() or [""])[-1].strip()
