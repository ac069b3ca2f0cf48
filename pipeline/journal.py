"""What a run writes down: a record an update for the view and the files, and the summary.

Only observes: nothing here changes what the pipeline does.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .controller import Controller, Update
from .groups import ledger
from .observe.metrics import Rates
from .observe.sinks import Sink
from .observe.view import View
from .types import Trajectory, TrajectoryGroup


@dataclass(frozen=True)
class Totals:
    """Cumulative counts since the start of the run.

    Attributes:
      generated_tokens: sampled, for whatever purpose.
      sampler_busy_seconds: spent in dispatches of the sampler.
      learner_busy_seconds: spent in updates.
    """

    generated_tokens: int
    sampler_busy_seconds: float
    learner_busy_seconds: float


class Journal:
    """Keeps the account of the reinforcement-learning phase."""

    def __init__(
        self, view: View, metrics: Sink, trajectories: Sink, *, read_totals: Callable[[], Totals]
    ):
        self._view = view
        self._metrics = metrics
        self._trajectories = trajectories
        self._read_totals = read_totals
        self._began = time.monotonic()
        self._ended: float | None = None
        self._at_start = read_totals()
        self._rates = Rates()
        self._useful = 0
        self._finished = 0
        self._rewards: list[float] = []

    def start(self) -> None:
        """Start the clock: rates and totals count from here."""
        self._began = time.monotonic()
        self._at_start = self._read_totals()
        self._rates = Rates()
        self._rates.update(self._cumulative(), now_seconds=time.monotonic())

    def stop(self) -> None:
        """Stop the clock that `start` started."""
        self._ended = time.monotonic()

    def record(self, update: Update, controller: Controller) -> None:
        """Write down one update."""
        self._finished += update.statistics.trajectories
        self._useful += update.statistics.useful_trajectories
        self._rewards.append(update.statistics.reward_mean)
        record = {**self._numbers(update, controller), **update.metrics}
        self._metrics.write(record)
        self._view.step(record)
        for group in update.groups:
            self._write_trajectories(group, update.batch)

    def summary(self, controller: Controller | None) -> dict[str, Any]:
        """Return the numbers of the phase; zeros if it didn't begin."""
        seconds = (self._ended or time.monotonic()) - self._began
        hours = max(seconds, 1e-9) / 3600
        totals = self._read_totals()
        return {
            "reward_first": self._rewards[0] if self._rewards else None,
            "reward_last": self._rewards[-1] if self._rewards else None,
            "updates": len(self._rewards),
            "rl_seconds": seconds,
            "trajectories": self._finished,
            "trajectories_per_hour": self._finished / hours,
            "useful_trajectories_per_hour": self._useful / hours,
            "generated_tokens": totals.generated_tokens - self._at_start.generated_tokens,
            **(_account(controller) if controller else {}),
        }

    def _numbers(self, update: Update, controller: Controller) -> dict[str, float]:
        now = time.monotonic()
        rates = self._rates.update(self._cumulative(), now_seconds=now)
        statistics, counts = update.statistics, ledger.counts(controller.ledger)
        return {
            "step": update.batch + 1,
            "policy_version": controller.ledger.published,
            "reward": statistics.reward_mean,
            "success": math.nan if statistics.success_mean is None else statistics.success_mean,
            "lag_mean": statistics.lag_mean,
            "lag_max": statistics.lag_max,
            "lag_bound": controller.ledger.schedule.max_lag,
            "trajectories": statistics.trajectories,
            "useful_share": statistics.useful_trajectories / max(1, statistics.trajectories),
            "tokens_per_second": rates["tokens"],
            "trajectories_per_hour": rates["trajectories"] * 3600,
            "sampler_busy": rates["sampler_busy"],
            "learner_busy": rates["learner_busy"],
            "episodes_in_flight": controller.flight.episodes,
            "ready_groups": counts.ready,
            "failures": controller.flight.failures.total(),
            "dropped": sum(counts.dropped.values()),
            "padding_share": statistics.padding_share,
            "seconds": now - self._began,
        }

    def _cumulative(self) -> dict[str, float]:
        totals = self._read_totals()
        return {
            "tokens": totals.generated_tokens,
            "trajectories": self._finished,
            "sampler_busy": totals.sampler_busy_seconds,
            "learner_busy": totals.learner_busy_seconds,
        }

    def _write_trajectories(self, group: TrajectoryGroup, batch: int) -> None:
        for member, trajectory in enumerate(group.trajectories):
            line = {"step": batch + 1, "group": group.index, "member": member}
            self._trajectories.write({**line, **_readable(group, trajectory, batch)})


def _readable(group: TrajectoryGroup, trajectory: Trajectory, batch: int) -> Mapping[str, Any]:
    """Return a trajectory as people want to read it."""
    return {
        "task": group.task.id,
        "reward": trajectory.reward,
        "rewards": trajectory.rewards,
        "info": trajectory.info,
        "stop_reason": trajectory.stop_reason.value,
        "policy_versions": [trajectory.oldest_version, trajectory.newest_version],
        "lag": batch - trajectory.oldest_version,
        "tokens": len(trajectory.tokens),
        "sampled_tokens": int(trajectory.loss_mask.sum()),
        "seconds": round(trajectory.seconds, 4),
        "messages": [
            {"role": message.role, "content": message.content} for message in trajectory.messages
        ],
    }


def _account(controller: Controller) -> dict[str, Any]:
    counts = ledger.counts(controller.ledger)
    schedule = controller.ledger.schedule
    return {
        "lag": {
            "mean": counts.lag_mean,
            "max": counts.lag_max,
            "bound": schedule.max_lag,
            "mean_bound": schedule.max_mean_lag,
        },
        "policy_version": controller.ledger.published,
        "failures": dict(controller.flight.failures),
        "dropped": dict(counts.dropped),
    }
