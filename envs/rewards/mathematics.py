"""Whether an answer equals a task's, as mathematics: Math-Verify in a process that can be killed.

An optional extra (`pip install 'headrace[math]'`). Its own time-outs are off: they work by alarms,
which a computation of huge numbers never sees, and which fail outside of a main thread. As a
plain function this runs in worker processes, where `Reward.deadline_seconds` is kept by force.
"""

import logging

from math_verify import parse, verify

from .record import EpisodeRecord
from .reward import Reward

# It warns at each call that there is no time-out.
for _name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_name).setLevel(logging.ERROR)


def math_answer(episode: EpisodeRecord, *, key: str = "answer") -> float | None:
    """Return 1 if the policy's last words hold the right answer, 0 if not.

    An answer that can't be read is wrong. A right one that can't be read can't be compared: None.

    Args:
      key: of the right answer in `task.data`: text as in "1/2" or in LaTeX, or a number.

    Raises:
      Exception: what SymPy raises in comparing the two.
    """
    right = str(episode.task.data[key])
    gold = _read(right) or _read(f"${right}$")
    if not gold:
        return None
    given = _read(episode.answer)
    return float(verify(gold, given, timeout_seconds=None, raise_on_error=True))


CORRECT = Reward("correct", math_answer, deadline_seconds=5.0, timeout_score=0.0)
"""1 for a right answer; one that takes too long to compare, as huge powers do, is wrong."""


def _read(text: str) -> list[object]:
    found: list[object] = parse(text, parsing_timeout=None)
    return found
