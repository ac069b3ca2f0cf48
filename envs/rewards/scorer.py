"""Computes the rewards of episodes and groups: each in its place, with its deadline.

Invariant: all rewards of an episode are numbers, or there is a `RewardFailed` with the reward's
name; no call outlives `score`.
"""

import inspect
import math
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence, Set
from functools import partial
from itertools import islice
from numbers import Real
from typing import Any

import trio

from ..base import RewardFailed, innermost
from ..cancellation import STRAY, without_cancellation
from ..places import Places, places_of_run
from ..process_calls import CallTooSlow, ProcessFunction
from ..worker_process import WorkerProcessError
from .record import EpisodeRecord
from .reward import ENV, LARGEST_REWARD, Reward

_LONGEST_TEXT = 1000
_GAVE_NONE = "it gave None"

Rewards = dict[str, float]
"""By name, without weights."""


class Scorer:
    """Computes a run's rewards.

    Attributes:
      weights: of every reward by name, the environment's own ("env") included.

    Example:
      >>> async def shortness(episode):
      ...     return 1.0 / (1 + episode.sampled_tokens)
      >>> scorer = Scorer([Reward("shortness", shortness, weight=0.5, in_loop=True)])
      >>> scorer.weights
      {'env': 1.0, 'shortness': 0.5}
    """

    def __init__(self, rewards: Sequence[Reward], weights: Mapping[str, float] | None = None):
        """Args:
        rewards: with different names.
        weights: instead of those that the rewards have, by name; "env" is the environment's own.

        Raises:
          ValueError: for names that are equal or unknown, weights that aren't finite, and a plain
            function that no other process can import.
        """
        own = {ENV: 1.0, **{reward.name: reward.weight for reward in rewards}}
        if len(own) != len(rewards) + 1:
            names = [reward.name for reward in rewards]
            raise ValueError(f"rewards must have different names, got {names}")
        for name, weight in (weights or {}).items():
            if name not in own or not math.isfinite(weight):
                raise ValueError(
                    f"the weight of a reward must be finite and its name one of {', '.join(own)}; "
                    f"got {name}={weight}"
                )
        self.weights: Mapping[str, float] = {**own, **(weights or {})}
        self._of_episode = [_Call(reward) for reward in rewards if reward.of == "episode"]
        self._of_group = [_Call(reward) for reward in rewards if reward.of == "group"]

    @property
    def compares(self) -> bool:
        """Whether there are rewards of whole groups."""
        return bool(self._of_group)

    def total(self, rewards: Rewards) -> float:
        """Return the weighted sum."""
        return sum(self.weights[name] * value for name, value in rewards.items())

    async def score(self, episode: EpisodeRecord) -> Rewards:
        """Return the rewards of an episode that don't need its group; "env" is its own.

        Raises:
          RewardFailed: for the first one that couldn't be computed, when all have ended.
          EnvironmentBroken: if a function's processes don't start.
        """
        values = await _all(self._of_episode, episode, _number)
        named = zip(self._of_episode, values, strict=True)
        found = {ENV: episode.env_reward}
        for call, value in named:
            if isinstance(value, RewardFailed):
                raise value
            found[call.name] = value
        return found

    async def compare(self, episodes: Sequence[EpisodeRecord]) -> list[Rewards | RewardFailed]:
        """Return for each member of a group its rewards that compare the members.

        Raises:
          EnvironmentBroken: if a function's processes don't start.
        """
        read = partial(_numbers, members=len(episodes))
        columns = await _all(self._of_group, list(episodes), read)
        return [self._of_member(columns, member) for member in range(len(episodes))]

    def _of_member(
        self, columns: Sequence[list[float | None] | RewardFailed], member: int
    ) -> Rewards | RewardFailed:
        found: Rewards = {}
        for call, column in zip(self._of_group, columns, strict=True):
            if isinstance(column, RewardFailed):
                return column
            value = column[member]
            if value is None:
                return call.failed(_GAVE_NONE)
            found[call.name] = value
        return found


class _Call:
    """Calls one reward's function, in its place."""

    def __init__(self, reward: Reward):
        self._reward = reward
        self.name = reward.name
        # For each trio run: calls that a run forgot never give their place back.
        self._places = Places(f"calls of {reward.name}")
        self._function: Callable[[Any], Awaitable[Any]]
        if reward.in_loop:
            self._function = self._run_here
        else:
            self._function = ProcessFunction(
                partial(called, reward.function),
                name=f"reward {reward.name}",
                processes=reward.places,
                deadline_seconds=reward.deadline_seconds,
                start_deadline_seconds=reward.start_deadline_seconds,
            )

    async def value(self, argument: Any, read: Callable[[Any], Any]) -> Any:
        """Return what the function gives as `read` takes it, or a `RewardFailed`."""
        try:
            given = await self._function(argument)
            if given is None:
                return self.failed(_GAVE_NONE)
            return read(given)
        except CallTooSlow as error:
            score = self._reward.timeout_score
            if score is None:
                return self.failed(str(error), timed_out=True)
            return read([score] * len(argument) if self._reward.of == "group" else score)
        except WorkerProcessError as error:
            return self.failed(str(error))
        except BaseException as error:  # foreign code may raise anything; it becomes the outcome
            cause = without_cancellation(error)
            if not (cause is None or isinstance(cause, Exception)):
                raise
            await trio.lowlevel.checkpoint_if_cancelled()  # an answer to the run's own end
            if cause is None:
                return self.failed(STRAY)
            # Not str(error), which may raise.
            return self.failed(traceback.format_exception_only(innermost(cause))[-1].strip())

    def failed(self, why: str, *, timed_out: bool = False) -> RewardFailed:
        """Return the failure of this reward."""
        return RewardFailed(
            f"the reward {self.name!r} couldn't be computed: {why:.{_LONGEST_TEXT}}",
            timed_out=timed_out,
        )

    async def _run_here(self, argument: Any) -> Any:
        reward = self._reward
        async with places_of_run(self._places, reward.places):
            with trio.move_on_after(reward.deadline_seconds):
                return await reward.function(argument)
            raise CallTooSlow(f"took more than {reward.deadline_seconds:g} s")


async def _all(calls: Sequence[_Call], argument: Any, read: Callable[[Any], Any]) -> list[Any]:
    """Make all calls at once; return their values in order."""
    values: list[Any] = [None] * len(calls)

    async def make(place: int, call: _Call) -> None:
        values[place] = await call.value(argument, read)

    async with trio.open_nursery() as nursery:
        for place, call in enumerate(calls):
            nursery.start_soon(make, place, call)
    return values


def called(function: Callable[[Any], Any], argument: Any) -> Any:
    """Call a reward function in a worker; return floats, which can be sent, and None."""
    value = function(argument)
    if inspect.iscoroutine(value):
        value = trio.run(_awaited, value)
    if value is None:
        return None
    if isinstance(argument, EpisodeRecord):
        return _number(value)
    return _numbers(_listed(value, len(argument) + 1), members=len(argument))


async def _awaited(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return await coroutine


def _listed(values: Any, most: int) -> Any:
    """Make a list of an array or iterator, which may have no end, up to `most` elements."""
    ordered = isinstance(values, Iterable) and not isinstance(values, str | Mapping | Set)
    return list(islice(values, most)) if ordered else values


def _number(value: Any) -> float:
    number = float(value) if isinstance(value, Real) else math.nan  # NumPy's are Reals, too
    if not abs(number) <= LARGEST_REWARD:  # not "greater", which NaN is not either
        raise ValueError(
            f"a reward must be a number from -{LARGEST_REWARD:g} to {LARGEST_REWARD:g} or None, "
            f"got {value!r:.100}"
        )
    return number


def _numbers(values: Any, *, members: int) -> list[float | None]:
    if not isinstance(values, list | tuple) or len(values) != members:
        raise ValueError(
            f"a reward of groups must return a list of {members} numbers, one for each member, "
            f"got {values!r:.100}"
        )
    return [None if value is None else _number(value) for value in values]
