"""Measures one version of the policy on fixed tasks, on the sampler that training uses.

Evaluation never fails a run: episodes that fail or miss the deadline are counted. During
training it is a few episodes among many, served first, so that its version needn't be held long.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import trio

from ..envs.base import Task
from .errors import check
from .rollout.episode import Episode, Rollout
from .rollout.group import Flight, identify
from .types import EpisodeFailure, FailureKind, Outcome, Trajectory

_EVALUATION_STREAM = 2**63  # group indexes of training stay below
_FIRST = -1  # the priority: before all groups of training


@dataclass(frozen=True)
class EvaluateConfig:
    """Settings of the evaluations before, during and after training.

    Raises:
      ConfigError: for impossible numbers.
    """

    tasks: int = 128
    """So many held-out tasks, one episode each; 0 turns evaluation off."""
    every: int = 0
    """Updates between two evaluations during training; 0: only before and after it."""
    temperature: float = 0.0
    """Sampling temperature; 0 takes the most likely token."""
    max_episodes: int = 32
    """During training at most so many of an evaluation's episodes run at once."""
    deadline_seconds: float = 300.0
    """Deadline of one evaluation; episodes that miss it count as failures."""

    def __post_init__(self) -> None:
        check(self.tasks >= 0, "evaluate.tasks", self.tasks, ">= 0")
        check(self.every >= 0, "evaluate.every", self.every, ">= 0")
        temperature = self.temperature
        check(temperature >= 0, "evaluate.temperature", temperature, ">= 0 and finite")
        check(self.max_episodes >= 1, "evaluate.max_episodes", self.max_episodes, ">= 1")
        deadline = self.deadline_seconds
        check(deadline > 0, "evaluate.deadline_seconds", deadline, "> 0 and finite")


@dataclass(frozen=True)
class Evaluation:
    """Means over the episodes that ended.

    Attributes:
      episodes: how many ended with a trajectory.
      failures: how many didn't, by kind.
      means: of the reward, of `success` and of every other measurement of the environment, by
        name; an episode without a measurement counts as 0 in it. Also of each reward, as in
        `reward_judge`, where there are several.
    """

    episodes: int
    failures: Mapping[str, int] = field(default_factory=dict)
    means: Mapping[str, float] = field(default_factory=dict)


async def evaluate(
    rollout: Rollout,
    tasks: Sequence[Task],
    *,
    seed: int,
    deadline_seconds: float,
    version: int | None = None,
    flight: Flight | None = None,
    name: str = "evaluation",
) -> Evaluation:
    """Run one episode of each task, at most `max_episodes` of the rollout at once.

    Args:
      rollout: with the evaluation's own limits and temperature; see `for_evaluation`.
      seed: the run's seed.
      deadline_seconds: episodes that haven't ended by then are counted as cancelled.
      version: the version to measure, which must be held; None follows the newest.
      flight: where the running episodes are listed.
      name: what the names of its episodes begin with; a number follows.
    """
    flight = flight or Flight()
    limit = trio.CapacityLimiter(rollout.config.max_episodes)
    outcomes: list[Outcome] = []

    async def run_one(index: int, task: Task) -> None:
        async with limit:
            identity = identify(seed, index=_EVALUATION_STREAM + index, member=0, version=version)
            identity = identity._replace(priority=_FIRST, name=f"{name} {index}")
            outcomes.append(await flight.run(Episode(rollout, task, identity)))

    with trio.move_on_after(deadline_seconds):
        async with trio.open_nursery() as nursery:
            for index, task in enumerate(tasks):
                nursery.start_soon(run_one, index, task)
    return _summarise(outcomes, missing=len(tasks) - len(outcomes))


def for_evaluation(rollout: Rollout, config: EvaluateConfig, *, training: bool) -> Rollout:
    """Return the rollout with an evaluation's own settings.

    Args:
      training: whether training goes on meanwhile.
    """
    most = config.max_episodes if training else rollout.config.max_episodes
    # No groups: one episode of each task.
    own = replace(
        rollout.config,
        temperature=config.temperature,
        group_size=1,
        min_group_size=1,
        max_episodes=most,
    )
    return replace(rollout, config=own)


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
    return Evaluation(len(ended), dict(failures), {**means, **reward_means(ended)})


def reward_means(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the mean of each named reward, without its weight, where there are several."""
    names = {name for trajectory in trajectories for name in trajectory.rewards}
    if len(names) <= 1:
        return {}
    return {
        f"reward_{name}": sum(each.rewards.get(name, 0.0) for each in trajectories)
        / len(trajectories)
        for name in sorted(names)
    }


def _measurement(trajectory: Trajectory, name: str) -> float:
    return trajectory.reward if name == "reward" else trajectory.info.get(name, 0.0)
