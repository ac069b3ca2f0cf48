"""What the controller puts together: the stages' interfaces, and its own settings.

Fakes and real parts fit alike; see `tests/controller/` and `simulate`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from ..envs.base import Task
from .controller_state import Saves
from .errors import check
from .groups.batching import BatchStatistics
from .rollout.config import RolloutConfig
from .rollout.episode import Rollout
from .rollout.group import Flight
from .types import SamplerLoad, TrainBatch, TrajectoryGroup


class Tasks(Protocol):
    """An endless stream of tasks."""

    def next(self) -> Task:
        """Return the next task."""
        ...


class Learner(Protocol):
    """The learner as the controller sees it."""

    async def update(self, batch: TrainBatch) -> Mapping[str, float]:
        """Apply one batch; return the update's metrics."""
        ...


@dataclass(frozen=True)
class Stages:
    """What the pipeline is made of.

    Attributes:
      pack: `pack(groups, batch number)` makes one batch of whole groups.
      publish: brings the learner's weights to the sampler as the given version; returns when
        they are in use.
      hold: keeps the weights of the version published last while the context lasts.
      load: says how busy the sampler is.
      evaluate: `evaluate(version, flight)` measures the version published last, which is held
        meanwhile; its episodes are those of the flight. None where nothing is measured.
      saves: None where nothing is saved.
    """

    tasks: Tasks
    rollout: Rollout
    pack: Callable[[Sequence[TrajectoryGroup], int], tuple[TrainBatch, BatchStatistics]]
    learner: Learner
    publish: Callable[[int], Awaitable[None]]
    hold: Callable[[int], AbstractContextManager[None]]
    load: Callable[[], SamplerLoad]
    evaluate: Callable[[int, Flight], Awaitable[None]] | None = None
    saves: Saves | None = None


@dataclass(frozen=True)
class Update:
    """What is known after one update, for observers.

    Attributes:
      batch: the batch's number, which is the version that it was applied to.
    """

    batch: int
    groups: Sequence[TrajectoryGroup]
    statistics: BatchStatistics
    metrics: Mapping[str, float]


_DEADLINES = (
    "prepare_deadline_seconds",
    "batch_deadline_seconds",
    "update_deadline_seconds",
    "publish_deadline_seconds",
    "save_deadline_seconds",
    "exit_deadline_seconds",
    "loop_blocked_seconds",
)


@dataclass(frozen=True)
class ControllerConfig:
    """How many episodes run at once, and how long each wait may take.

    The deadlines of an episode's own calls are settings of the rollout.

    Raises:
      ConfigError: for impossible numbers.
    """

    concurrency: Literal["auto", "fixed"] = "auto"
    """auto: as many episodes as keep the sampler busy; fixed: always rollout.max_episodes."""
    group_failures: int = 32
    """So many failed groups in a row end the run, and ten times as many of equal rewards."""
    unscored_share: float = 0.25
    """A run ends when more of its last 64 episodes couldn't be scored by a reward; 1 for never."""
    prepare_deadline_seconds: float = 7200.0
    """Deadline of compiling all programs, and of the warm start."""
    batch_deadline_seconds: float = 3600.0
    """The learner waits at most so long for a batch."""
    update_deadline_seconds: float = 1800.0
    """Deadline of one update of the learner."""
    publish_deadline_seconds: float = 300.0
    """Deadline of bringing new weights to the sampler."""
    save_deadline_seconds: float = 1800.0
    """Deadline of saving a checkpoint."""
    loop_blocked_seconds: float = 60.0
    """A call of an environment that blocks the whole event loop for so long is interrupted."""
    exit_deadline_seconds: float = 60.0
    """What doesn't end so long after the run was ended is ended by force; see the docs."""
    stall_seconds: float = 0.0
    """A run in which nothing moves for so long is ended. 0: a minute longer than the longest of
    the deadlines of updates, publishes, saving and the calls of episodes."""

    def __post_init__(self) -> None:
        known = self.concurrency in ("auto", "fixed")
        check(known, "controller.concurrency", self.concurrency, "'auto' or 'fixed'")
        failures = self.group_failures
        check(failures >= 1, "controller.group_failures", failures, ">= 1")
        share = self.unscored_share
        check(0 <= share <= 1, "controller.unscored_share", share, "in 0..1")
        for setting in _DEADLINES:
            value = getattr(self, setting)
            check(value > 0, f"controller.{setting}", value, "> 0 and finite")
        check(self.stall_seconds >= 0, "controller.stall_seconds", self.stall_seconds, ">= 0")

    def stall_after_seconds(self, rollout: RolloutConfig) -> float:
        """Return after how long without any progress the run is ended."""
        deadlines = (
            self.update_deadline_seconds,
            self.publish_deadline_seconds,
            self.save_deadline_seconds,
            rollout.env_deadline_seconds,
            rollout.close_deadline_seconds,
            rollout.sample_deadline_seconds,
        )
        return self.stall_seconds or max(deadlines) + 60.0
