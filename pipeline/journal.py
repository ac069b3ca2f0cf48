"""What a run writes down: a record an update for the view and the files, and the summary.

Only observes: nothing here changes what the pipeline does.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Self

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
from .rollout.group import Flight
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

    def generated_tokens(self, now: Totals) -> int:
        last = self.totals_at_end or now
        return last.generated_tokens - self.totals_at_begin.generated_tokens


@dataclass
class Account:
    """What is counted over all processes of a run.

    Attributes:
      trained: trajectories in the updates.
      useful: those of them that taught something.
      rl_seconds: of the phase in processes that have ended.
      generated_tokens: likewise.
      evaluations: before and after training.
      during: the records of those during it.
    """

    updates: int = 0
    reward_first: float | None = None
    reward_last: float | None = None
    trained: int = 0
    useful: int = 0
    rl_seconds: float = 0.0
    generated_tokens: int = 0
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    during: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Go on from `Journal.table`."""
        evaluations = {when: Evaluation(**found) for when, found in table["evaluations"].items()}
        return cls(**{**table, "evaluations": evaluations, "during": [*table["during"]]})


@dataclass(frozen=True)
class Before:
    """What was known of a run when it was saved."""

    account: Account
    ledger: ledger.Ledger
    flight: Flight


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
        before: Before | None = None,
    ):
        """Args:
        before: of a run that goes on.
        """
        self._view = view
        self._metrics = metrics
        self._trajectories = trajectories
        self._algorithm = algorithm
        self._read_totals = read_totals
        self._phase: _Phase | None = None
        self._rates = Rates()
        self._before = before
        self._account = Account() if before is None else before.account
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
        account, statistics = self._account, update.statistics
        account.trained += statistics.trajectories
        account.useful += self._useful_trajectories(statistics)
        account.reward_last = statistics.reward_mean
        account.reward_first = (
            account.reward_last if account.updates == 0 else account.reward_first
        )
        account.updates += 1
        record = {**self._numbers(update, controller), **update.metrics}
        record["alarms"] = self._watch.count(record)
        self._metrics.write(record)
        self._view.step(record)
        for group in update.groups:
            self._write_trajectories(group, update.batch)

    def evaluated(self, when: str, evaluation: Evaluation) -> None:
        """Write down an evaluation `before` or `after` training."""
        self._account.evaluations[when] = evaluation
        self._view.note(_describe(when, evaluation))

    def evaluated_meanwhile(self, version: int, evaluation: Evaluation) -> None:
        """Write down an evaluation of a version during training."""
        record = {"policy_version": version, **_record(evaluation, evaluation.means)}
        self._account.during.append(record)
        self._view.note(_describe(f"of version {version} during", evaluation))

    def has_evaluated(self, version: int) -> bool:
        """Tell whether a version was measured during training."""
        return version in [found["policy_version"] for found in self._account.during]

    def summary(self) -> dict[str, Any]:
        """Return the numbers of the evaluations and the phase; 0, null or empty before it."""
        phase = NOTHING_YET
        if self._phase is not None:
            controller = self._phase.controller
            phase = self._phase_summary(controller.ledger, controller.flight)
        elif self._before is not None:
            phase = self._phase_summary(self._before.ledger, self._before.flight)
        evaluations = _evaluation_records(self._account.evaluations)
        return {**evaluations, "evaluations_during": self._account.during, **phase}

    def table(self) -> dict[str, Any]:
        """Return the account as JSON, to go on from."""
        totals = {"rl_seconds": self._seconds, "generated_tokens": self._generated_tokens}
        return {**asdict(self._account), **totals}

    @property
    def _seconds(self) -> float:
        return self._account.rl_seconds + (self._phase.seconds if self._phase else 0.0)

    @property
    def _generated_tokens(self) -> int:
        phase = self._phase
        now = 0 if phase is None else phase.generated_tokens(self._read_totals())
        return self._account.generated_tokens + now

    def _phase_summary(self, state: ledger.Ledger, flight: Flight) -> dict[str, Any]:
        account, seconds = self._account, self._seconds
        hours = max(seconds, 1e-9) / 3600
        counts = ledger.counts(state)
        return {
            "updates": account.updates,
            "reward_first": account.reward_first,
            "reward_last": account.reward_last,
            "rl_seconds": seconds,
            "trajectories": flight.trajectories,
            "trajectories_per_hour": flight.trajectories / hours,
            "trained_trajectories": account.trained,
            "useful_trajectories_per_hour": account.useful / hours,
            "generated_tokens": self._generated_tokens,
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
            "seconds": self._seconds,
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
