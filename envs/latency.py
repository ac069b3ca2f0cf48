"""Make any environment as slow as a real one, reproducibly.

Invariant: a latency is a pure function of the config, the task, the member and the turn; the
order in which episodes run changes none. Wrapping changes when an answer comes, never what
it says.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

import trio

from .base import Env, StepResult, Task
from .messages import Message


@dataclass(frozen=True)
class LatencyConfig:
    """How long environments take to answer. The mean before the cap is `mean_seconds`."""

    kind: Literal["none", "constant", "lognormal", "pareto", "bimodal"] = "none"
    """The distribution: none, constant, lognormal, pareto (heavy-tailed) or bimodal. It replaces
    what a task has of itself, as search does, but for none."""
    mean_seconds: float = 0.05
    """The mean, before the cap."""
    sigma: float = 1.0
    """lognormal: the standard deviation of the logarithm."""
    alpha: float = 1.5
    """pareto: the tail index, above 1; the smaller, the heavier the tail."""
    tail_probability: float = 0.05
    """bimodal: how often an answer takes `tail_seconds`; the others share what is left."""
    tail_seconds: float = 0.5
    """bimodal: how long the slow answers take."""
    max_seconds: float = 30.0
    """No answer takes longer, which lowers the mean; keep it below the rollout's deadline."""
    seed: int = 0
    """Another seed gives other latencies from the same distribution."""

    def __post_init__(self) -> None:
        for name in ("mean_seconds", "tail_seconds", "max_seconds"):
            value = getattr(self, name)
            _check(value >= 0, name, value, ">= 0 and finite")
        _check(0 <= self.sigma <= 10, "sigma", self.sigma, "in 0..10")
        _check(self.alpha > 1, "alpha", self.alpha, "> 1, as the mean needs, and finite")
        share = self.tail_probability
        _check(0 <= share < 1, "tail_probability", share, ">= 0 and < 1")
        if self.kind == "bimodal":
            self._check_tail()

    def _check_tail(self) -> None:
        tail_mean = self.tail_probability * self.tail_seconds
        if tail_mean > self.mean_seconds:
            raise ValueError(
                "env.latency.tail_probability * tail_seconds must be <= mean_seconds "
                f"({self.mean_seconds}), got {tail_mean}; raise --env.latency.mean-seconds"
            )


def latency_seconds(config: LatencyConfig, task_id: str, member_seed: int, turn: int) -> float:
    """Return how long the environment takes for one answer.

    Equal arguments give equal latencies, in every process; others are independent.

    Args:
      config: the distribution and its seed.
      task_id: the id of the episode's task.
      member_seed: the `seed` of the episode's `reset`, which tells a group's members apart.
      turn: the number of the answer in its episode, from 0.

    Returns:
      Seconds, 0 to `max_seconds`.

    Example:
      >>> latency_seconds(LatencyConfig("constant", mean_seconds=0.2), "task", 0, 0)
      0.2
    """
    if config.kind == "none":
        return 0.0
    # Random(str) hashes the text with SHA-512, not with the salted hash of the process.
    rng = random.Random(repr((config.seed, task_id, member_seed, turn)))
    return min(_draw(config, rng), config.max_seconds)


def _check(allowed: bool, name: str, value: float, condition: str) -> None:
    if not (allowed and math.isfinite(value)):
        flag = name.replace("_", "-")
        raise ValueError(
            f"env.latency.{name} must be {condition}, got {value}; set --env.latency.{flag}"
        )


def _draw(config: LatencyConfig, rng: random.Random) -> float:
    mean = config.mean_seconds
    if config.kind == "lognormal":
        return mean * rng.lognormvariate(-(config.sigma**2) / 2, config.sigma)
    if config.kind == "pareto":
        return mean * (config.alpha - 1) / config.alpha * rng.paretovariate(config.alpha)
    if config.kind == "bimodal":
        if rng.random() < config.tail_probability:
            return config.tail_seconds
        tail_mean = config.tail_probability * config.tail_seconds
        return (mean - tail_mean) / (1 - config.tail_probability)
    return mean


def with_latency(make: Callable[[], Env], config: LatencyConfig) -> Callable[[], Env]:
    """Return a factory whose environments answer late.

    Only answers that come back to the policy are delayed: a step that ends the episode isn't.
    So in a tool environment the tools are slow, and the scoring of a final answer is not.
    """
    if config.kind == "none":
        return make

    def make_delayed() -> Env:
        return _DelayedEnv(make(), config)

    return make_delayed


class _DelayedEnv:
    def __init__(self, inner: Env, config: LatencyConfig) -> None:
        self._inner = inner  # as made; then what opening it gives
        self._manager = inner
        self._config = config
        self._task_id = ""
        self._seed = 0
        self._turn = 0

    async def __aenter__(self) -> Self:
        self._inner = await self._manager.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._manager.__aexit__(kind, error, trace)

    async def reset(self, task: Task, seed: int) -> Sequence[Message]:
        self._task_id, self._seed, self._turn = task.id, seed, 0
        return await self._inner.reset(task, seed)

    async def step(self, message: Message) -> StepResult:
        result = await self._inner.step(message)
        turn, self._turn = self._turn, self._turn + 1
        if not (result.terminated or result.truncated):
            await trio.sleep(latency_seconds(self._config, self._task_id, self._seed, turn))
        return result
