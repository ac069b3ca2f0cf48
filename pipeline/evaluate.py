"""Measures a policy on fixed tasks with greedy decoding, on the sampler that training uses.

Evaluation never fails a run: episodes that fail or miss the deadline are counted.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import trio

from ..envs.base import Task
from .errors import check
from .rollout.episode import Rollout, run_episode
from .rollout.group import identify
from .types import EpisodeFailure, FailureKind, Outcome, Trajectory

_EVALUATION_STREAM = 2**63  # group indexes of training stay below


@dataclass(frozen=True)
class EvaluateConfig:
    """Settings of the evaluations before and after training.

    Raises:
      ConfigError: for impossible numbers.
    """

    tasks: int = 128
    """So many held-out tasks, one greedy episode each; 0 turns evaluation off."""
    deadline_seconds: float = 300.0
    """Deadline of one evaluation; episodes that miss it count as failures."""

    def __post_init__(self) -> None:
        check(self.tasks >= 0, "evaluate.tasks", self.tasks, ">= 0")
        deadline = self.deadline_seconds
        check(deadline > 0, "evaluate.deadline_seconds", deadline, "> 0 and finite")


@dataclass(frozen=True)
class Evaluation:
    """Means over the episodes that ended.

    Attributes:
      episodes: how many ended with a trajectory.
      failures: how many didn't, by kind.
      means: of the reward, of `success` and of every other measurement of the environment, by
        name; an episode without a measurement counts as 0 in it.
    """

    episodes: int
    failures: Mapping[str, int] = field(default_factory=dict)
    means: Mapping[str, float] = field(default_factory=dict)


async def evaluate(
    rollout: Rollout, tasks: Sequence[Task], *, seed: int, deadline_seconds: float
) -> Evaluation:
    """Run one greedy episode of each task, at most `max_episodes` at once."""
    greedy = replace(rollout, config=replace(rollout.config, temperature=0.0))
    limit = trio.CapacityLimiter(rollout.config.max_episodes)
    outcomes: list[Outcome] = []

    async def run_one(index: int, task: Task) -> None:
        async with limit:
            identity = identify(seed, index=_EVALUATION_STREAM + index, member=0)
            outcomes.append(await run_episode(greedy, task, identity))

    with trio.move_on_after(deadline_seconds):
        async with trio.open_nursery() as nursery:
            for index, task in enumerate(tasks):
                nursery.start_soon(run_one, index, task)
    return _summarise(outcomes, missing=len(tasks) - len(outcomes))


def _summarise(outcomes: Sequence[Outcome], *, missing: int) -> Evaluation:
    ended = [outcome for outcome in outcomes if isinstance(outcome, Trajectory)]
    failures = Counter(
        str(outcome.kind) for outcome in outcomes if isinstance(outcome, EpisodeFailure)
    )
    if missing:
        failures[str(FailureKind.CANCELLED)] += missing
    names = {"reward", "success"}.union(*(trajectory.info for trajectory in ended))
    means = {
        name: sum(_measurement(trajectory, name) for trajectory in ended) / len(ended)
        for name in sorted(names)
        if ended
    }
    return Evaluation(len(ended), dict(failures), means)


def _measurement(trajectory: Trajectory, name: str) -> float:
    return trajectory.reward if name == "reward" else trajectory.info.get(name, 0.0)
