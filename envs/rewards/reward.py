"""One named reward: a function, its weight, and what it may take."""

import inspect
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

ENV = "env"  # the name of the environment's own reward
LARGEST_REWARD = 1e6  # in size, as of environments' own
_MOST_PROCESSES = 4
_CALLS = 16  # of an async function at once


@dataclass(frozen=True)
class Reward:
    """A function that scores episodes: a number, or None where it can't.

    It runs in worker processes, each of which makes one call at a time and is killed at the
    deadline, whatever it does; an `async` function, such as a `Judge`, has a trio loop there for
    each call. It is sent to them by name, so it must be one of a module, or `functools.partial`
    of one, or an object of a module's class.

    Attributes:
      name: of the reward in results and settings; letters, digits and "_".
      function: of "episode": from an `EpisodeRecord` to a number or None. Of "group": from the
        list of its members' records to a list of as many.
      weight: the episode's reward is the weighted sum. 0 only measures.
      of: "group" sees all members of a group at once, when the last has ended.
      deadline_seconds: of one call, once it has a place; > 0.
      concurrency: so many calls at once, each in a process of its own; 0: 16 of an async
        function, which waits, else a process for each core, at most 4.
      start_deadline_seconds: a process that takes longer to start and import is killed.
      timeout_score: what a missed deadline scores, each member's of "group"; None: it is no score.
        Give one where the policy's text decides how long the function takes.
      in_loop: run an `async` function in the run's own loop. It needs no process and no module,
        but only cancellation ends it: one that blocks holds up everything.

    Raises:
      ValueError: for a name or number out of range.

    Example:
      >>> Reward("length", len, weight=-0.001).weight
      -0.001
    """

    name: str
    function: Callable[..., Any]
    weight: float = 1.0
    of: Literal["episode", "group"] = "episode"
    deadline_seconds: float = 10.0
    concurrency: int = 0
    start_deadline_seconds: float = 60.0
    in_loop: bool = False
    timeout_score: float | None = None

    def __post_init__(self) -> None:
        plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.name) is not None
        self._check(plain, "name", self.name, "letters, digits and '_'")
        self._check(
            self.name != ENV, "name", self.name, "another one, as that is the environment's"
        )
        self._check(math.isfinite(self.weight), "weight", self.weight, "finite")
        self._check(self.of in ("episode", "group"), "of", self.of, "'episode' or 'group'")
        for name in ("deadline_seconds", "start_deadline_seconds"):
            seconds = getattr(self, name)
            self._check(0 < seconds < math.inf, name, seconds, "> 0 and finite")
        self._check(self.concurrency >= 0, "concurrency", self.concurrency, ">= 0")
        score = self.timeout_score
        fits = score is None or abs(score) <= LARGEST_REWARD  # NaN doesn't
        self._check(fits, "timeout_score", score, f"in size at most {LARGEST_REWARD:g}, or None")
        fits = self.is_async or not self.in_loop
        self._check(fits, "in_loop", self.in_loop, "False, as its function isn't async")

    @property
    def is_async(self) -> bool:
        """Whether a call gives what is to be awaited, under trio."""
        call = type(self.function).__call__  # of an object that can be called, such as a Judge
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(call)

    @property
    def places(self) -> int:
        """How many calls may run at once."""
        default = _CALLS if self.is_async else min(_MOST_PROCESSES, os.cpu_count() or 1)
        return self.concurrency or default

    def _check(self, allowed: bool, field: str, value: object, condition: str) -> None:
        if not allowed:
            raise ValueError(
                f"{field} of the reward {self.name!r} must be {condition}, got {value!r}"
            )
