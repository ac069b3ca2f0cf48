"""What a run writes down: a record an update for the view and the files, and the summary.

Only observes: nothing here changes what the pipeline does.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..envs.messages import Message
from .algorithms.alarms import Watch
from .algorithms.config import AlgorithmConfig
from .controller import Controller, Update
from .evaluate import Evaluation, reward_means
from .groups import ledger
from .groups.batching import BatchStatistics
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


NOTHING_YET: dict[str, Any] = {
    "updates": 0,
    "reward_first": None,
    "reward_last": None,
    "rl_seconds": 0.0,
    "trajectories": 0,
    "trajectories_per_hour": 0.0,
    "trained_trajectories": 0,
    "useful_trajectories_per_hour": 0.0,
    "generated_tokens": 0,
    "lag": {"mean": 0.0, "max": 0, "bound": None, "mean_bound": None},
    "policy_version": 0,
    "failures": {},
    "dropped": {},
}


@dataclass
class _Phase:
    """A phase of training, running or over."""

    controller: Controller
    began: float
    totals_at_begin: Totals
    ended: float | None = None
    totals_at_end: Totals | None = None

    @property
    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self.began

    @property
    def generated_tokens(self) -> int:
        last = self.totals_at_end or self.totals_at_begin
        return last.generated_tokens - self.totals_at_begin.generated_tokens


class Journal:
    """Keeps the account of the reinforcement-learning phase."""

    def __init__(
        self,
        view: View,
        metrics: Sink,
        trajectories: Sink,
        *,
        algorithm: AlgorithmConfig,
        read_totals: Callable[[], Totals],
    ):
        self._view = view
        self._metrics = metrics
        self._trajectories = trajectories
        self._algorithm = algorithm
        self._read_totals = read_totals
        self._phase: _Phase | None = None
        self._rates = Rates()
        self._useful = 0
        self._trained = 0
        self._rewards: list[float] = []
        self._evaluations: dict[str, Evaluation] = {}
        self._during: list[dict[str, Any]] = []
        self._watch = Watch(view.note, compares_members=algorithm.compares_members)

    @contextmanager
    def phase(self, controller: Controller) -> Iterator[None]:
        """Keep the account of what happens inside."""
        self._phase = _Phase(controller, time.monotonic(), self._read_totals())
        self._rates.update(self._cumulative(controller), now_seconds=time.monotonic())
        try:
            yield
        finally:
            self._phase.ended = time.monotonic()
            self._phase.totals_at_end = self._read_totals()

    def record(self, update: Update, controller: Controller) -> None:
        """Write down one update."""
        self._trained += update.statistics.trajectories
        self._useful += self._useful_trajectories(update.statistics)
        self._rewards.append(update.statistics.reward_mean)
        record = {**self._numbers(update, controller), **update.metrics}
        record["alarms"] = self._watch.count(record)
        self._metrics.write(record)
        self._view.step(record)
        for group in update.groups:
            self._write_trajectories(group, update.batch)

    def evaluated(self, when: str, evaluation: Evaluation) -> None:
        """Write down an evaluation `before` or `after` training."""
        self._evaluations[when] = evaluation
        self._view.note(_describe(when, evaluation))

    def evaluated_meanwhile(self, version: int, evaluation: Evaluation) -> None:
        """Write down an evaluation of a version during training."""
        self._during.append({"policy_version": version, **_record(evaluation, evaluation.means)})
        self._view.note(_describe(f"of version {version} during", evaluation))

    def summary(self) -> dict[str, Any]:
        """Return the numbers of the evaluations and the phase; 0, null or empty before it."""
        phase = NOTHING_YET if self._phase is None else self._phase_summary(self._phase)
        evaluations = _evaluation_records(self._evaluations)
        return {**evaluations, "evaluations_during": self._during, **phase}

    def _phase_summary(self, phase: _Phase) -> dict[str, Any]:
        hours = max(phase.seconds, 1e-9) / 3600
        state, flight = phase.controller.ledger, phase.controller.flight
        counts = ledger.counts(state)
        return {
            "updates": len(self._rewards),
            "reward_first": self._rewards[0] if self._rewards else None,
            "reward_last": self._rewards[-1] if self._rewards else None,
            "rl_seconds": phase.seconds,
            "trajectories": flight.trajectories,
            "trajectories_per_hour": flight.trajectories / hours,
            "trained_trajectories": self._trained,
            "useful_trajectories_per_hour": self._useful / hours,
            "generated_tokens": phase.generated_tokens,
            "lag": {
                "mean": counts.lag_mean,
                "max": counts.lag_max,
                "bound": state.schedule.lag_bound,
                "mean_bound": state.schedule.max_mean_lag,
            },
            "policy_version": state.published,
            "failures": dict(flight.failures),
            "dropped": dict(counts.dropped),
        }

    def _numbers(self, update: Update, controller: Controller) -> dict[str, float]:
        now = time.monotonic()
        rates = self._rates.update(self._cumulative(controller), now_seconds=now)
        statistics, counts = update.statistics, ledger.counts(controller.ledger)
        return {
            "step": update.batch + 1,
            "policy_version": controller.ledger.published,
            "reward": statistics.reward_mean,
            "success": math.nan if statistics.success_mean is None else statistics.success_mean,
            "lag_mean": statistics.lag_mean,
            "lag_max": statistics.lag_max,
            "lag_bound": controller.ledger.schedule.lag_bound,
            "trajectories": statistics.trajectories,
            **self._shares(statistics),
            "members": max((len(group.trajectories) for group in update.groups), default=0),
            "tokens_per_second": rates["tokens"],
            "trajectories_per_hour": rates["trajectories"] * 3600,
            "sampler_busy": rates["sampler_busy"],
            "learner_busy": rates["learner_busy"],
            "episodes_in_flight": controller.flight.episodes,
            "ready_groups": counts.ready,
            "failures": controller.flight.failures.total(),
            "dropped": sum(counts.dropped.values()),
            "padding_share": statistics.padding_share,
            **reward_means([each for group in update.groups for each in group.trajectories]),
            "seconds": self._phase.seconds if self._phase else 0.0,
        }

    def _useful_trajectories(self, statistics: BatchStatistics) -> int:
        """All of them where the learner makes the advantages: the host knows of none that is 0."""
        learners = self._algorithm.credits_tokens
        return statistics.trajectories if learners else statistics.useful_trajectories

    def _shares(self, statistics: BatchStatistics) -> dict[str, float]:
        if self._algorithm.credits_tokens:
            return {}
        return {
            "useful_share": statistics.useful_trajectories / max(1, statistics.trajectories),
            "flat_share": statistics.flat_groups / max(1, statistics.groups),
        }

    def _cumulative(self, controller: Controller) -> dict[str, float]:
        totals = self._read_totals()
        return {
            "tokens": totals.generated_tokens,
            "trajectories": controller.flight.trajectories,
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
        "tokens": sum(len(sample.tokens) for sample in trajectory.samples),
        "sampled_tokens": sum(int(sample.loss_mask.sum()) for sample in trajectory.samples),
        "samples": len(trajectory.samples),
        "seconds": round(trajectory.seconds, 4),
        "turns": [turn for sample in trajectory.samples for turn in _turns(sample)],
        "messages": [_as_said(message) for message in trajectory.messages],
    }


def _as_said(message: Message) -> dict[str, Any]:
    """Return a message, with thoughts and calls where it has some."""
    said: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        said["reasoning"] = message.reasoning
    if message.tool_calls:
        said["tool_calls"] = [
            {"name": call.name, "status": call.status, "raw": call.raw}
            for call in message.tool_calls
        ]
    return said


def _turns(trajectory: Trajectory) -> list[list[float]]:
    """Return [sampled tokens, observed tokens, seconds of the environment] of every turn.

    The tokens before a sample's first turn are the rest. `simulate.trace` reads this.
    """
    turns = trajectory.turns
    next_starts = [*(turn.start for turn in turns[1:]), len(trajectory.tokens)]
    return [
        [turn.end - turn.start, next_start - turn.end, round(turn.env_seconds, 4)]
        for turn, next_start in zip(turns, next_starts, strict=True)
    ]


def _evaluation_records(evaluations: Mapping[str, Evaluation]) -> dict[str, Any]:
    """Return both evaluations with the same names; null what was not measured."""
    names = {name for evaluation in evaluations.values() for name in evaluation.means}
    records: dict[str, Any] = {"eval_before": None, "eval_after": None}
    for when, evaluation in evaluations.items():
        records[f"eval_{when}"] = _record(evaluation, names)
    return records


def _record(evaluation: Evaluation, names: Iterable[str]) -> dict[str, Any]:
    missing = 0.0 if evaluation.episodes else None
    return {
        **dict.fromkeys(sorted({"reward", "success", *names}), missing),
        **evaluation.means,
        "episodes": evaluation.episodes,
        "failures": dict(evaluation.failures),
    }


def _describe(when: str, evaluation: Evaluation) -> str:
    means = ", ".join(f"{name} {value:.3f}" for name, value in evaluation.means.items())
    failed = sum(evaluation.failures.values())
    tail = f", {failed} failed" if failed else ""
    return f"evaluation {when} training: {means} ({evaluation.episodes} episodes{tail})"
